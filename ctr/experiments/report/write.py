"""Report of an experiment: tables as text, numbers as JSON and CSV, and one self-contained HTML file.

All text of plans and runs is escaped in the HTML.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from ctr.eval import display
from ctr.eval.report.page import render_page, write_page
from ctr.eval.report.plot_style import COLORS
from ctr.eval.report.shown_run import SIGNS, flat_environment
from ctr.experiments.report.figures import arm_places, bias_figures, frontier_figure, prediction_figure
from ctr.experiments.report.numbers import as_csv, as_json
from ctr.experiments.report.results import ArmResult, Experiment, read_experiment
from ctr.experiments.report.tables import PAPER, ArmTable, experiment_tables, page_tables

TABLE_WIDTH = 120  # of a terminal, in characters

_FIRST_WIDTH, _FIRST_LEAST = 30, 12
_WIDTHS = {PAPER: 14, "slice": 36}  # of columns of words

_TEMPLATE = Path(__file__).with_name("experiment.html.j2")


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
        ("report.html", _as_html(experiment)),
    ):
        write_page(folder / name, content)
    return text


def _missing_lines(experiment: Experiment) -> list[str]:
    """Runs and loops that are not finished and arms that are not compared, each with its reason."""
    lines = [f"{name} failed: {reason}" for name, reason in experiment.failures.items()]
    lines += [
        f"{result.arm.plan.name} seed {outcome.seed} {outcome.state}: {outcome.reason}"
        for result in experiment.arms
        for outcome in result.arm.outcomes
        if outcome.state != "finished"
    ]
    lines += [
        f"{result.arm.plan.name} seed {outcome.seed} loop {outcome.state}: {outcome.reason}"
        for result in experiment.arms
        if result.loops is not None
        for outcome in result.loops.loops.outcomes
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
    limits = {place: _WIDTHS[column] for place, column in enumerate(table.columns) if column in _WIDTHS}
    rows = [["", *table.columns]]
    for name, cells in table.rows:
        texts = [cell.text for cell in cells]
        for place, width in limits.items():
            texts[place] = _cut(texts[place], width)
        rows.append([_cut(name, _FIRST_WIDTH), *texts])
    lines = display.aligned(rows)
    excess = max(map(len, lines)) - TABLE_WIDTH
    if excess > 0:
        width = max(max(len(row[0]) for row in rows) - excess, _FIRST_LEAST)
        lines = display.aligned([[_cut(row[0], width), *row[1:]] for row in rows])
    return lines


def _cut(text: str, width: int) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= width else f"{plain[: width - 1]}…"


@dataclass(frozen=True)
class _ShownArm:
    """An arm as the page shows it."""

    name: str
    color: str
    sign: str
    result: ArmResult
    settings: list[tuple[str, str]]


def _as_html(experiment: Experiment) -> str:
    places = arm_places(experiment)
    arms = {
        result.arm.plan.name: _ShownArm(
            name=result.arm.plan.name,
            color=f"var(--run-{places[result.arm.plan.name] % len(COLORS)})",
            sign=SIGNS[places[result.arm.plan.name] % len(SIGNS)],
            result=result,
            settings=[(key, _text(value)) for key, value in result.arm.plan.changes.items()],
        )
        for result in experiment.arms
    }
    environments = _environments(experiment)
    return render_page(
        _TEMPLATE,
        plan=experiment.plan,
        arms=arms,
        legend=[arm for arm in arms.values() if arm.result.arm.plan.of is None],
        tables=page_tables(experiment),
        missing=_missing_lines(experiment),
        frontier=frontier_figure(experiment),
        predictions=prediction_figure(experiment),
        biases=[(arms[result.arm.plan.name], figure) for result, _, figure in bias_figures(experiment)],
        samplings={one.name: _text(one.config) for one in experiment.plan.samplings},
        environments=environments,
        environment_keys=list(dict.fromkeys(key for entries in environments for key in entries)),
        environment_of={
            outcome.folder: environments.index(flat_environment(outcome.environment)) + 1
            for result in experiment.arms
            for outcome in result.arm.outcomes
            if outcome.environment
        },
        teacher_flops=None
        if experiment.costs.teacher_flops is None
        else {name: display.amount(flops) for name, flops in experiment.costs.teacher_flops.items()},
    )


def _environments(experiment: Experiment) -> list[dict[str, str]]:
    """Environments that runs were made in, each once, in the order of the runs."""
    found: list[dict[str, str]] = []
    for result in experiment.arms:
        for outcome in result.arm.outcomes:
            texts = flat_environment(outcome.environment)
            if texts and texts not in found:
                found.append(texts)
    return found


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
