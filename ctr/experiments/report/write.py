"""Report of an experiment: tables as text, numbers as JSON and CSV, and a page as one HTML file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ctr.eval import display
from ctr.eval.display import Number
from ctr.eval.report import figures
from ctr.eval.report.figures import Figure, Point
from ctr.eval.report.page import PageContext, Section, render_page
from ctr.eval.run_files import config_text
from ctr.eval.tidy import as_csv
from ctr.experiments.report.predictions import LATE
from ctr.experiments.report.results import Experiment, read_experiment
from ctr.experiments.report.runs import cost_ratios
from ctr.experiments.report.tables import PAPER, experiment_tables, is_significant, table_lines
from ctr.experiments.report.tuning_points import ACCURACY
from ctr.io.files import write_atomic_bytes

_DRAWN = 6  # arms in a figure by decile


def write_experiment(folder: Path) -> str:
    """Writes result.json, table.csv, table.txt and report.html of an experiment; returns table.txt.

    Each appears whole or not at all. Runs that failed or are missing are reported as such; the same runs
    give the same bytes. Raises InputError if the plan or the costs cannot be read, a run read another log than
    the rest, or a file cannot be written.
    """
    experiment = read_experiment(folder)
    text = as_text(experiment)
    for name, content in (
        ("result.json", experiment.as_json()),
        ("table.csv", as_csv(experiment.table)),
        ("table.txt", text),
        ("report.html", render_page(experiment_context(experiment))),
    ):
        write_atomic_bytes(folder / name, content.encode())
    return text


def as_text(experiment: Experiment) -> str:
    """Formats the tables for a terminal."""
    plan = experiment.plan
    others = [
        f"{arm.name} against {reference.name}"
        for arm in plan.arms
        if (reference := plan.reference(arm)) is not None and reference.name != plan.baseline
    ]
    log = f"log {plan.log_sha256[:12]}, " if plan.log_sha256 else ""
    against = f"{log}ctr {plan.ctr_version}; arms against {plan.baseline}{', but' if others else ''}"
    lines = [" ".join(plan.title.split()), against, *others, *table_lines(experiment)]
    return "\n".join(lines) + "\n"


def experiment_context(experiment: Experiment) -> PageContext:
    """Returns the content of an experiment's HTML page."""
    plan = experiment.plan
    marks = [arm.name for arm in plan.arms if arm.of is None]
    lead = [
        f"{len(marks)} arms over one log, each compared with {plan.baseline} unless another is named. Every example "
        "was scored before the model was trained on it.",
        *([plan.note] if plan.note else []),
    ]
    sections = [*result_sections(experiment), _configuration(experiment)]
    return PageContext(plan.title, lead, verdicts(experiment), experiment.missing, sections, marks)


def result_sections(experiment: Experiment) -> list[Section]:
    """Returns the sections with the tables and figures, at most five, of an experiment."""
    marks = [arm.name for arm in experiment.plan.arms if arm.of is None]
    drawn = [_frontier(experiment, kind) for kind in ("train_time", "train_flops")]
    for title, metric, factor, keys, note in (
        ("Change in PerQueryAUC, %", f"{ACCURACY}_change_percent", 1.0, {}, "with 95% intervals"),
        (
            "Prediction difference of two runs, last half, %",
            "prediction_difference",
            100.0,
            {"window": LATE},
            "mean over pairs of seeds",
        ),
    ):
        numbers = {name: experiment.numbers(metric, arm=name, **keys) for name in marks}
        by_arm = {name: number.times(factor) for name, number in _with_values(numbers).items()}
        if len(by_arm) > 1:
            drawn.append(figures.by_name(title, [by_arm], list(by_arm), note=note))
    drawn.append(_calibration(experiment, marks))
    sections = [
        Section(table.title, [" ".join(table.notes)], tables=[("", table.cells)])
        for table in experiment_tables(experiment)
    ]
    present = [figure for figure in drawn if figure is not None]
    return [Section("Results", figures=present), *sections] if present else sections


def verdicts(experiment: Experiment) -> list[str]:
    """Returns a sentence for each arm: whether it is better than its reference, by how much, and at what cost."""
    texts = []
    for arm in experiment.plan.arms:
        reference = experiment.plan.reference(arm)
        change = experiment.numbers(f"{ACCURACY}_difference", arm=arm.name)
        if reference is None or change is None or arm.of is not None:
            continue
        says = f"is neither better nor worse than {reference.name} for certain"
        if is_significant(experiment, ACCURACY, arm=arm.name):
            says = f"is {display.verdict(ACCURACY, change.value or 0.0, True)} than {reference.name}"
        time = experiment.numbers("train_time_ratio", arm=arm.name)
        cost = f"; {display.times(time.value)} the training time" if time is not None else ""
        texts.append(f"{arm.name} {says}: PerQueryAUC {change.whole(signed=True)}{cost}.")
    return texts or ["No arm could be compared with another one."]


def _frontier(experiment: Experiment, kind: str) -> Figure | None:
    """Draws accuracy over a training cost, both relative to the baseline's, of all arms and sweeps, as FF figure 1."""
    plan, numbers = experiment.plan, experiment.numbers
    base, base_costs = numbers(ACCURACY, arm=plan.baseline), experiment.costs.arms.get(plan.baseline)
    lines = []
    for arm in [arm for arm in plan.arms if arm.of is None]:
        points = []
        for entry in (arm, *plan.points(arm)):
            accuracy, reference = numbers(ACCURACY, arm=entry.name), plan.reference(entry)
            cost = cost_ratios(experiment.costs.arms.get(entry.name), base_costs, base_costs).get(kind)
            if not (base and base.value and accuracy and accuracy.value is not None and cost):
                continue
            change = Number(100 * (accuracy.value / base.value - 1))
            if reference is not None and reference.name == plan.baseline:
                # With its interval; over the seeds of both.
                change = numbers(f"{ACCURACY}_change_percent", arm=entry.name) or change
            percent = cost.map(lambda value: 100 * (value - 1))
            points.append(Point(entry.point or "", percent, change))
        lines.append(sorted(points, key=lambda point: point.x.value or 0.0))
    if sum(map(len, lines)) < 2:
        return None
    what = "time" if kind == "train_time" else "FLOPs"
    labels = f"change in training {what}, %", "change in PerQueryAUC, %"
    note = "of the baseline's; lines join sweeps" if max(map(len, lines)) > 1 else "of the baseline's"
    return figures.plane(f"PerQueryAUC over training {what}", lines, labels, note=note)


def _calibration(experiment: Experiment, marks: Sequence[str]) -> Figure | None:
    """Draws predicted over actual clicks by decile, of all seeds of an arm together."""
    names, arms = [f"decile {index}" for index in range(1, 11)], []
    for arm in marks[:_DRAWN]:
        numbers = {name: experiment.numbers("calibration_ratio", arm=arm, slice=name) for name in names}
        arms.append(_with_values(numbers))
    if not any(arms):
        return None
    note = (
        f"by decile of prediction, of the first {_DRAWN} arms"
        if len(marks) > _DRAWN
        else "by decile of prediction"
    )
    return figures.by_name("Predicted / actual clicks", arms, names, level=1.0, note=note)


def _with_values(numbers: Mapping[str, Number | None]) -> dict[str, Number]:
    return {
        name: number for name, number in numbers.items() if number is not None and number.value is not None
    }


def _configuration(experiment: Experiment) -> Section:
    plan = experiment.plan
    flops = experiment.costs.teacher_flops or {}
    about = {
        "command": plan.command,
        "log": plan.log,
        "log, SHA-256": plan.log_sha256 or display.ABSENT,
        "ctr": plan.ctr_version,
        "date": plan.created,
        **{f"teacher {name}": run for name, run in plan.teachers.items()},
        **{f"sampling {name}": _text(config) for name, config in plan.samplings.items()},
        **{f"FLOPs of teacher {name}": display.amount(amount) for name, amount in flops.items()},
    }
    arms, runs = [], []
    for name, arm in experiment.arms.items():
        reference = plan.reference(arm.plan)
        settings = {**arm.plan.changes, "teacher": arm.plan.teacher, "sampling": arm.plan.sampling}
        changes = [f"{key}: {_text(value)}" for key, value in settings.items() if value is not None]
        papers = [f"{key.replace('_', ' ')} {text}" for key, text in arm.plan.paper.items()]
        title = arm.plan.label if arm.plan.label.lower() != name.lower() else ""
        against = display.ABSENT if reference is None else reference.name
        arms.append(
            [name, title, against, "; ".join(changes) or "none", "; ".join(papers), arm.plan.note or ""]
        )
        runs += [
            [name, str(ending.seed), ending.state, ending.folder, ending.config_sha256 or display.ABSENT]
            for ending in arm.endings
        ]
    heads = ["arm", "seed", "state", "folder", "configuration, SHA-256"]
    folded: list[tuple[str, str | pd.DataFrame]] = [("Runs", pd.DataFrame(runs, columns=heads))]
    for run in [*experiment.arms[plan.baseline].runs.values()][:1]:
        folded.append((f"Configuration of {plan.baseline}", config_text(run.folder)))
    repeat = (
        "To repeat one run alone: ctr train LOG --config config.yaml --out NEW_RUN, with the config.yaml of its "
        "folder, gives the same bits from the same log in the environment of its environment.json. table.csv has "
        "all numbers."
    )
    heads = ["arm", "title", "against", "changes", PAPER, "note"]
    tables = [
        ("What differs", pd.DataFrame(arms, columns=heads)),
        ("How to repeat it", pd.DataFrame([*about.items()], columns=["", " "])),
    ]
    return Section("Configuration", [repeat], tables=tables, folded=folded)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
