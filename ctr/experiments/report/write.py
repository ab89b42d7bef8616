"""Report of an experiment: tables as text, numbers as JSON and CSV, and a page as one HTML file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ctr.eval import display
from ctr.eval.display import Number
from ctr.eval.report import figures
from ctr.eval.report.figures import Figure, Point
from ctr.eval.report.page import PageContext, Section, render_page, write_page
from ctr.eval.report.runs import flat_environment
from ctr.eval.tidy import as_csv
from ctr.experiments.report.predictions import LATE
from ctr.experiments.report.results import ACCURACY, FROM_BASELINE, Experiment, read_experiment
from ctr.experiments.report.tables import PAPER, ArmTable, experiment_tables, significant

TABLE_WIDTH = 120  # of a terminal, in characters

_FIRST_WIDTH, _FIRST_LEAST = 30, 12
_WIDTHS = {PAPER: 14, f"{PAPER} ": 14, "slice": 36}  # of columns of words
_ON_PAGE = ("step, ms", "dense parameters")
"""Columns that a terminal has no room for."""
_DRAWN = 6  # arms in a figure by decile


def write_experiment(folder: Path) -> str:
    """Writes result.json, table.csv, table.txt and report.html of an experiment; returns table.txt.

    Each appears whole or not at all. Runs that failed or are missing are reported as such; the same runs
    give the same bytes. Raises InputError: the plan or the costs cannot be read, a run read another log than
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
        write_page(folder / name, content)
    return text


def as_text(experiment: Experiment) -> str:
    """Formats the tables for a terminal of `TABLE_WIDTH`, which only reasons may exceed."""
    plan = experiment.plan
    others = [
        f"{arm.name} against {reference.name}"
        for arm in plan.arms
        if (reference := plan.reference(arm)) is not None and reference.name != plan.baseline
    ]
    log = f"log {plan.log_sha256[:12]}, " if plan.log_sha256 else ""
    lines = [
        " ".join(plan.title.split()),
        f"{log}ctr {plan.ctr_version}; arms against {plan.baseline}{', but' if others else ''}",
        *others,
    ]
    for table in experiment_tables(experiment):
        lines += ["", table.title, *_fitted(table), *table.notes]
    if experiment.missing:
        lines += ["", "Not in the tables", *(f"- {line}" for line in experiment.missing)]
    return "\n".join(lines) + "\n"


def _fitted(table: ArmTable) -> list[str]:
    """Returns the lines of a table, its first column and words of others cut short where they do not fit."""
    cells = table.cells.drop(columns=list(_ON_PAGE), errors="ignore")
    columns = list(map(str, cells))
    heads = [head.strip().removeprefix("inference ") if "FLOPs" in head else head.strip() for head in columns]
    rows = [list(row) for row in cells.itertuples(index=False, name=None)]
    limits = {0: _FIRST_WIDTH} | {
        place: _WIDTHS[head] for place, head in enumerate(columns) if head in _WIDTHS
    }
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


def experiment_context(experiment: Experiment) -> PageContext:
    """Returns what the page of an experiment says."""
    plan = experiment.plan
    marks = [arm.name for arm in plan.arms if arm.of is None]
    lead = [
        f"{len(marks)} arms over one log, each compared with {plan.baseline} unless another is named. Every example "
        "was scored before the model was trained on it.",
        *([plan.note] if plan.note else []),
    ]
    tables = experiment_tables(experiment, every=True)
    drawn = [_frontier(experiment, marks, kind) for kind in ("train_time", "train_flops")]
    changes = _by_arm(experiment, "per_query_auc_change_percent", 1.0)
    if len(changes) > 1:
        drawn.append(
            figures.by_name("Change in PerQueryAUC, %", [changes], list(changes), note="with 95% intervals")
        )
    differences = _by_arm(experiment, "prediction_difference", 100.0, window=LATE)
    if differences:
        title = "Prediction difference of two runs, last half, %"
        drawn.append(
            figures.by_name(title, [differences], list(differences), note="mean over pairs of seeds")
        )
    shown = [figure for figure in drawn if figure is not None]
    first, rest = (tables[:1], tables[1:])
    results = Section(
        "Results",
        words=[" ".join(table.notes) for table in first],
        figures=shown,
        tables=[(table.title, table.cells) for table in first],
    )
    sections = [results] + [
        Section(table.title, [" ".join(table.notes)], tables=[("", table.cells)]) for table in rest
    ]
    if biased := _calibration(experiment, marks):
        sections.append(biased)
    sections.append(_configuration(experiment))
    return PageContext(plan.title, lead, _verdicts(experiment), experiment.missing, sections, marks)


def _verdicts(experiment: Experiment) -> list[str]:
    """Says of each arm whether it is better than its reference, by how much, and at what cost."""
    texts = []
    for arm in experiment.plan.arms:
        reference = experiment.plan.reference(arm)
        change = experiment.numbers(f"{ACCURACY}_difference", arm=arm.name)
        if reference is None or change is None or arm.of is not None:
            continue
        says = f"is neither better nor worse than {reference.name} for certain"
        if significant(experiment, ACCURACY, arm=arm.name):
            says = f"is {display.verdict(ACCURACY, change.value or 0.0, True)} than {reference.name}"
        text = f"{arm.name} {says}: PerQueryAUC {change.whole(signed=True)}"
        time = experiment.numbers("train_time_ratio", arm=arm.name)
        texts.append(
            f"{text}; {display.times(time.value)} the training time." if time is not None else f"{text}."
        )
    return texts or ["No arm could be compared with another one."]


def _by_arm(experiment: Experiment, metric: str, factor: float, **keys: object) -> dict[str, Number]:
    """Returns a metric of each arm that has it, but for points of sweeps."""
    numbers = {
        arm.name: number.times(factor)
        for arm in experiment.plan.arms
        if arm.of is None and (number := experiment.numbers(metric, arm=arm.name, **keys)) is not None
    }
    return {name: number for name, number in numbers.items() if number.value is not None}


def _frontier(experiment: Experiment, marks: Sequence[str], kind: str) -> Figure | None:
    """Draws the change of accuracy over that of a training cost, of all arms and sweeps, as in FF figure 1."""
    plan, points = experiment.plan, {}
    for arm in plan.arms:
        reference = plan.reference(arm)
        suffix = FROM_BASELINE if reference is not None and reference.name != plan.baseline else ""
        change = experiment.numbers(f"{ACCURACY}{suffix}_change_percent", arm=arm.name)
        cost = experiment.numbers(f"{kind}_ratio{suffix}", arm=arm.name)
        if reference is None and experiment.arms[arm.name].estimates and arm.name in experiment.costs.arms:
            change, cost = Number(0.0), Number(1.0)
        if change is not None and cost is not None and change.value is not None:
            name = arm.name if arm.of is None else arm.point or arm.name
            percent = cost.map(lambda one: 100 * (one - 1))
            points[arm.name] = Point(name, percent, change, marks.index(arm.of or arm.name))
    if len(points) < 2:
        return None
    names = list(points)
    joined = []
    for arm in plan.arms:
        line = [name for name in (arm.name, *(point.name for point in plan.points(arm))) if name in points]
        if len(line) > 1:
            joined.append(
                sorted(map(names.index, line), key=lambda place: points[names[place]].x.value or 0.0)
            )
    title = f"PerQueryAUC over training {'time' if kind == 'train_time' else 'FLOPs'}"
    labels = (
        f"change in training {'time' if kind == 'train_time' else 'FLOPs'}, %",
        "change in PerQueryAUC, %",
    )
    note = "of the baseline's; lines join sweeps" if joined else "of the baseline's"
    return figures.plane(title, list(points.values()), labels, joined=joined, note=note)


def _calibration(experiment: Experiment, marks: Sequence[str]) -> Section | None:
    groups = [str(decile) for decile in range(1, 11)]
    tables, names = [], []
    for name in marks[:_DRAWN]:
        deciles = [
            experiment.numbers("calibration_ratio", arm=name, slice=f"decile {group}") for group in groups
        ]
        known = [one or Number(None) for one in deciles]
        ends = [
            np.array([getattr(one, end) for one in known], np.float64) for end in ("value", "low", "high")
        ]
        tables.append((ends[0], ends[1], ends[2]))
        names += [name] if np.isfinite(ends[0]).any() else []
    if not names:
        return None
    about = "All seeds of an arm together, with 95% intervals over queries. 1 is best; above it an arm over-predicts."
    if len(marks) > _DRAWN:
        about += f" The first {_DRAWN} arms are drawn; table.csv has all."
    figure = figures.by_group("Predicted / actual clicks", tables, groups, "decile of prediction", level=1.0)
    return Section("Calibration", [about], [figure])


def _configuration(experiment: Experiment) -> Section:
    plan = experiment.plan
    about = [
        ["command", plan.command],
        ["log", plan.log],
        ["log, SHA-256", plan.log_sha256 or display.ABSENT],
    ]
    about += [["ctr", plan.ctr_version], ["date", plan.created]]
    for teacher in plan.teachers:
        sidecar = f", beside the log as {teacher.sidecar}" if teacher.sidecar else ""
        about.append([f"teacher {teacher.name}", f"{teacher.folder}{sidecar}"])
    about += [[f"sampling {one.name}", _text(one.config)] for one in plan.samplings]
    flops = (experiment.costs.teacher_flops or {}).items()
    about += [[f"FLOPs of teacher {name}", display.amount(amount)] for name, amount in flops]
    environments = _environments(experiment)
    arms, runs = [], []
    for name, arm in experiment.arms.items():
        reference = plan.reference(arm.plan)
        more = {"teacher": arm.plan.teacher, "sampling": arm.plan.sampling}
        changes = [
            f"{key}: {_text(value)}"
            for key, value in {**arm.plan.changes, **more}.items()
            if value is not None
        ]
        papers = [f"{key.replace('_', ' ')} {text}" for key, text in arm.plan.paper.items()]
        title = arm.plan.shown if arm.plan.shown.lower() != name.lower() else ""
        against = display.ABSENT if reference is None else reference.name
        arms.append(
            [name, title, against, "; ".join(changes) or "none", "; ".join(papers), arm.plan.note or ""]
        )
        for one in arm.endings:
            environment = flat_environment(arm.environments.get(one.seed, {}))
            number = str(environments.index(environment) + 1) if environment else display.ABSENT
            runs.append(
                [name, str(one.seed), one.state, one.folder, arm.hashes.get(one.seed, display.ABSENT), number]
            )
    heads = ["arm", "seed", "state", "folder", "configuration, SHA-256", "environment"]
    folded: list[tuple[str, str | pd.DataFrame]] = [("Runs", pd.DataFrame(runs, columns=heads))]
    if environments:
        warning = ": times of different ones are not comparable" if len(environments) > 1 else ""
        keys = dict.fromkeys(key for entries in environments for key in entries)
        rows = [[key, *(entries.get(key, display.ABSENT) for entries in environments)] for key in keys]
        columns = ["", *(str(number) for number in range(1, len(environments) + 1))]
        folded.append((f"Environments{warning}", pd.DataFrame(rows, columns=columns)))
    if config := experiment.arms[plan.baseline].config:
        folded.append((f"Configuration of {plan.baseline}", config))
    repeat = (
        "To repeat one run alone: ctr train LOG --config config.yaml --out NEW_RUN, with the config.yaml of its "
        "folder, in the same environment gives the same bits from the same log. table.csv has all numbers."
    )
    changes_table = pd.DataFrame(arms, columns=["arm", "title", "against", "changes", PAPER, "note"])
    tables = [("What differs", changes_table), ("How to repeat it", pd.DataFrame(about, columns=["", " "]))]
    return Section("Configuration", [repeat], tables=tables, folded=folded)


def _environments(experiment: Experiment) -> list[dict[str, str]]:
    """Returns the environments that runs were made in, each once, in the order of the runs."""
    environments: list[dict[str, str]] = []
    for arm in experiment.arms.values():
        for entries in arm.environments.values():
            texts = flat_environment(entries)
            if texts and texts not in environments:
                environments.append(texts)
    return environments


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
