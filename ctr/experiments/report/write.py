"""Report of an experiment: tables as text, numbers as JSON and CSV, and a page as one HTML file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ctr.eval import display
from ctr.eval.report import page
from ctr.eval.report.html import render_page, write_page
from ctr.eval.report.shown_run import flat_environment
from ctr.experiments.report.arms import RunOutcome
from ctr.experiments.report.figures import bias_figures, frontier_figure, prediction_figure
from ctr.experiments.report.numbers import as_csv, as_json
from ctr.experiments.report.results import ArmResult, Experiment, read_experiment
from ctr.experiments.report.tables import PAPER, ArmTable, arm_marks, experiment_tables

TABLE_WIDTH = 120  # of a terminal, in characters

_FIRST_WIDTH, _FIRST_LEAST = 30, 12
_WIDTHS = {PAPER: 14, "slice": 36}  # of columns of words


def write_experiment(folder: Path) -> str:
    """Writes result.json, table.csv, table.txt and report.html of an experiment; returns table.txt.

    Each appears whole or not at all. Runs that failed or are missing are reported as such; the same runs
    give the same bytes. Raises InputError: the plan or the costs cannot be read, a run read another log than
    the rest, or a file cannot be written.
    """
    experiment = read_experiment(folder)
    text = _as_text(experiment)
    for name, content in (
        ("result.json", as_json(experiment)),
        ("table.csv", as_csv(experiment)),
        ("table.txt", text),
        ("report.html", render_page(experiment_page(experiment))),
    ):
        write_page(folder / name, content)
    return text


def _missing_lines(experiment: Experiment) -> list[str]:
    """Runs that are not finished and arms that are not compared, each with its reason."""
    lines = [f"{name} failed: {reason}" for name, reason in experiment.failures.items()]
    lines += [
        f"{result.arm.plan.name}~{kind} seed {ending.seed} {ending.state}: {ending.reason}"
        for result in experiment.arms
        for kind, retrains in result.retrains.items()
        for ending in retrains.unfinished
    ]
    lines += [
        f"{result.arm.plan.name} seed {outcome.seed} {outcome.state}: {outcome.reason}"
        for result in experiment.arms
        for outcome in result.arm.outcomes
        if outcome.state != "finished"
    ]
    return lines + [
        f"{result.arm.plan.name} not compared: {result.refusal}"
        for result in experiment.arms
        # An arm without any run is among the lines above.
        if result.refusal and result.arm.estimates
    ]


def _as_text(experiment: Experiment) -> str:
    """Tables for a terminal of `TABLE_WIDTH`, which only reasons may exceed."""
    plan = experiment.plan
    others = [
        f"{result.arm.plan.name} against {result.reference}"
        for result in experiment.arms
        if result.reference not in (None, plan.baseline)
    ]
    log = f"log {plan.log_sha256[:12]}, " if plan.log_sha256 else ""
    lines = [
        " ".join(plan.title.split()),
        f"{log}ctr {plan.ctr_version}; arms against {plan.baseline}{', but' if others else ''}",
        *others,
    ]
    for table in experiment_tables(experiment):
        lines += ["", table.title, *_fitted(table), *table.notes]
    missing = _missing_lines(experiment)
    if missing:
        lines += ["", "Not in the tables", *(f"- {line}" for line in missing)]
    return "\n".join(lines) + "\n"


def _fitted(table: ArmTable) -> list[str]:
    """Lines of a table, its first column and words of others cut short where they do not fit."""
    heads, *rows = table.table.texts()
    limits = {0: _FIRST_WIDTH} | {place: _WIDTHS[head] for place, head in enumerate(heads) if head in _WIDTHS}
    for row in rows:
        for place, width in limits.items():
            row[place] = _cut(row[place], width)
    rows = [["", *heads[1:]], *rows]
    lines = display.aligned(rows)
    excess = max(map(len, lines)) - TABLE_WIDTH
    if excess > 0:
        width = max(max(len(row[0]) for row in rows) - excess, _FIRST_LEAST)
        lines = display.aligned([[_cut(row[0], width), *row[1:]] for row in rows])
    return lines


def _cut(text: str, width: int) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= width else f"{plain[: width - 1]}…"


def experiment_page(experiment: Experiment) -> page.Page:
    """The report of an experiment."""
    plan, marks = experiment.plan, arm_marks(experiment)
    legend = [marks[result.arm.plan.name] for result in experiment.arms if result.arm.plan.of is None]
    sections = [
        _table_section(experiment, marks, table) for table in experiment_tables(experiment, every=True)
    ]
    if missing := _missing_lines(experiment):
        notes = [page.Words(line, "note") for line in missing]
        sections.append(page.Section("missing", "Missing", "Not in the tables", notes))
    if biases := bias_figures(experiment, marks):
        about = (
            "Observed minus predicted click-through rate across deciles of the prediction, all seeds of an arm "
            "together, with 95% intervals over queries. 0 is best."
        )
        calibration: list[page.Block] = [page.Words(about, "quiet"), page.Figures(biases)]
        sections.append(page.Section("calibration", "Calibration", "Calibration", calibration))
    lead = (
        f"{len(legend)} arms over one log, each compared with {plan.baseline} unless another is named. Every example "
        "was scored before the model was trained on it."
    )
    return page.Page(
        title=f"{plan.title} – experiment",
        heading=plan.title,
        lead=[page.Words(lead, "quiet"), *([page.Words(plan.note)] if plan.note else [])],
        sections=[*sections, _repeat_section(experiment, marks)],
        legend=legend,
    )


def _table_section(experiment: Experiment, marks: Mapping[str, page.Mark], table: ArmTable) -> page.Section:
    blocks: list[page.Block] = []
    if table.name == "accuracy" and (frontier := frontier_figure(experiment, marks)):
        blocks.append(page.Figures([frontier], wide="wide"))
    if table.name == "prediction-difference" and (predictions := prediction_figure(experiment, marks)):
        blocks.append(page.Figures([predictions], wide="wide single"))
    blocks += [table.table, page.Words(" ".join(table.notes), "quiet")]
    if table.name == "costs" and (teachers := experiment.costs.teacher_flops):
        flops = "; ".join(f"{name} {display.amount(amount)}" for name, amount in teachers.items())
        blocks.append(page.Words(f"Teachers, FLOPs: {flops}.", "quiet"))
    return page.Section(table.name, table.name.replace("-", " ").capitalize(), table.title, blocks)


def _repeat_section(experiment: Experiment, marks: Mapping[str, page.Mark]) -> page.Section:
    plan = experiment.plan
    environments = _environments(experiment)
    about: list[tuple[page.Text, Sequence[page.Text]]] = [
        ("command", (page.code(plan.command),)),
        ("log", (plan.log, *((("SHA-256 ", page.code(plan.log_sha256)),) if plan.log_sha256 else ()))),
        ("ctr", (plan.ctr_version,)),
        ("date", (plan.created,)),
    ]
    for teacher in plan.teachers:
        sidecar = f", beside the log as {teacher.sidecar}" if teacher.sidecar else ""
        about.append((f"teacher {teacher.name}", (f"{teacher.folder}{sidecar}",)))
    about += [(f"sampling {one.name}", (page.code(_text(one.config)),)) for one in plan.samplings]
    blocks: list[page.Block] = [page.Definitions(about)]
    for result in experiment.arms:
        blocks += _arm_blocks(result, marks[result.arm.plan.name], environments)
    if environments:
        warning = ": times of different ones are not comparable" if len(environments) > 1 else ""
        keys = dict.fromkeys(key for entries in environments for key in entries)
        heads = [page.Column(str(number), words=True) for number in range(1, len(environments) + 1)]
        rows = [[key, *(entries.get(key, display.ABSENT) for entries in environments)] for key in keys]
        blocks.append(page.Table(("", *heads), rows, f"Environments{warning}"))
    alone: page.Text = (
        *("To repeat one run alone, save its configuration, with its seed, as ", page.code("config.yaml")),
        *(
            ", which is also in its directory; ",
            page.code("ctr train LOG --config config.yaml --out NEW_RUN"),
        ),
        " in the same environment gives the same bits from the same log.",
    )
    return page.Section("repeat", "Repeat", "How to repeat it", [*blocks, page.Words(alone)])


def _arm_blocks(
    result: ArmResult, mark: page.Mark, environments: Sequence[dict[str, str]]
) -> list[page.Block]:
    plan = result.arm.plan
    changes = tuple(page.code(f"{key}: {_text(value)}") for key, value in plan.changes.items())
    entries: list[tuple[str, Sequence[page.Text]]] = [
        ("compared with", (result.reference or "",)),
        ("point of a sweep", (f"{plan.point} of {plan.of}" if plan.of else "",)),
        ("teacher", (plan.teacher or "",)),
        ("sampling", (plan.sampling or "",)),
        *((f"paper, {key.replace('_', ' ')}", (str(text),)) for key, text in plan.paper.items()),
        ("changes", changes or ("none",)),
    ]
    outcomes = result.arm.outcomes
    words = [page.Column(head, words=True) for head in ("state", "folder", "configuration, SHA-256")]
    rows: list[page.Row] = [
        [
            str(outcome.seed),
            outcome.state,
            outcome.folder,
            page.code(outcome.config_sha256 or display.ABSENT),
            _number_of(outcome, environments),
        ]
        for outcome in outcomes
    ]
    title: page.Text = (mark, f" {plan.shown}") if plan.shown.lower() != plan.name.lower() else mark
    configured = [outcome for outcome in outcomes if outcome.config][:1]
    return [
        page.heading(title),
        *([page.Words(plan.note)] if plan.note else []),
        page.Definitions([(term, lines) for term, lines in entries if any(lines)]),
        page.Table(("seed", *words, "environment"), rows),
        *(
            page.Details(f"Configuration of seed {one.seed}", [page.Words(one.config, "file")])
            for one in configured
        ),
    ]


def _environments(experiment: Experiment) -> list[dict[str, str]]:
    """Environments that runs were made in, each once, in the order of the runs."""
    found: list[dict[str, str]] = []
    for result in experiment.arms:
        for outcome in result.arm.outcomes:
            texts = flat_environment(outcome.environment)
            if texts and texts not in found:
                found.append(texts)
    return found


def _number_of(outcome: RunOutcome, environments: Sequence[dict[str, str]]) -> str:
    if not outcome.environment:
        return display.ABSENT
    return str(environments.index(flat_environment(outcome.environment)) + 1)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
