"""Tables of an experiment, read from its tidy table, for both a terminal and its HTML page."""

import math
from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np
import pandas as pd

from ctr.data.log import MAX_TIME_US
from ctr.eval import display
from ctr.eval.display import Number
from ctr.experiments.plan import PlannedArm
from ctr.experiments.report.predictions import LATE
from ctr.experiments.report.results import Experiment

PAPER = "paper"  # column of published values
_PAPER_NOTE = (
    "paper: what the technique's publication reports, on its own data, as the experiment's file quotes it."
)
_SIGNIFICANT = "[95%] over queries, paired. * it excludes 0 and the changes of all seeds have one sign."
_SLICES_SHOWN = 20  # of an arm, where the experiment names none


class Column(NamedTuple):
    """Column of numbers of a metric, with intervals and a star if a change is significant."""

    head: str
    metric: str
    decimals: int | None = None  # 0: an amount without an interval
    factor: float = 1.0
    is_ratio: bool = False  # printed as a change in percent
    window: str = ""
    by_seed: bool = False  # the range over seeds, or over pairs of seeds, and their standard deviation


class ArmTable(NamedTuple):
    """Table with rows of arms, whose names are in the first column; ``notes`` explain the table."""

    title: str
    cells: pd.DataFrame
    notes: list[str]


def experiment_tables(experiment: Experiment) -> list[ArmTable]:
    """Returns the tables that have any numbers."""
    tables = []
    scored = " ".join(
        f"{word} {datetime(1970, 1, 1) + timedelta(microseconds=time)}"
        for word, time in zip(("from", "before"), experiment.plan.scored_us or (0, MAX_TIME_US), strict=True)
        if 0 < time < MAX_TIME_US
    )
    placeholders = {
        "rounds": f" over {experiment.costs.rounds} rounds" if experiment.costs.rounds else "",
        "scored": f"Only predictions {scored} (UTC) count." if scored else "",
    }
    for title, by, paper, columns, notes in _TABLES:
        rows = []
        for arm in experiment.plan.arms:
            for key, name in _slices(experiment, arm, columns[0].metric).items() if by else [("", "")]:
                cells = {column.head: _cell(experiment, column, arm.name, key) for column in columns}
                quoted = arm.paper.get(paper.format(slice=name.partition(":")[0]))
                rows.append({"arm": arm.name, by: name, **cells, PAPER: quoted})
        heads = [column.head for column in columns]
        table = pd.DataFrame(rows, columns=["arm", by, *heads, PAPER]).replace(
            {"": None, display.ABSENT: None}
        )
        # Drops columns that no arm has, and arms that have none of them.
        table = table.dropna(subset=heads, how="all").dropna(axis="columns", how="all")
        table = table.fillna(display.ABSENT).astype(str)
        if len(table):
            lines = notes.format(**placeholders).strip().split("\n")
            lines += [_PAPER_NOTE] if PAPER in table else []
            tables.append(ArmTable(title, table, lines))
    return tables


def table_lines(experiment: Experiment) -> list[str]:
    """Returns the lines of all tables for a terminal, and the missing results."""
    lines = []
    for title, cells, notes in experiment_tables(experiment):
        # The others are on the page alone.
        cells = cells.drop(columns=["step, ms", "dense parameters"], errors="ignore")
        for head in cells:
            width = {"arm": 24, PAPER: 14}.get(str(head), 36)
            plain = [" ".join(text.split()) for text in cells[head]]
            cells[head] = [text if len(text) <= width else f"{text[: width - 1]}…" for text in plain]
        lines += ["", title, *display.aligned([["", *cells.columns[1:]], *cells.to_numpy().tolist()]), *notes]
    if experiment.missing:
        lines += ["", "Not in the tables", *(f"- {line}" for line in experiment.missing)]
    return lines


def is_significant(experiment: Experiment, metric: str, **keys: object) -> bool:
    """Returns whether a metric has a row ``METRIC_significant`` of 1 under these keys."""
    number = experiment.numbers(f"{metric}_significant", **keys)
    return number is not None and number.value == 1


def _cell(experiment: Experiment, column: Column, arm: str, key: str) -> str:
    keys = {"arm": arm, "slice": key, "window": column.window}
    shift, factor = (1.0, 100.0) if column.is_ratio else (0.0, column.factor)
    signed = column.is_ratio or "change" in column.metric or "bias" in column.metric
    if column.by_seed:
        numbers = experiment.numbers.by("seed", column.metric, **keys).values()
        values = [factor * (number.value - shift) for number in numbers if number.value is not None]
        if len(values) < 2:
            return "one" if values else ""
        ends = [display.fixed(end, column.decimals or 2, signed=signed) for end in (min(values), max(values))]
        return f"{'..'.join(ends)} ± {display.fixed(float(np.std(values, ddof=1)), column.decimals or 2)}"
    number = experiment.numbers(column.metric, **keys) or Number(None)
    if column.decimals == 0:
        return display.amount(number.value)
    number = number.map(lambda value: factor * (value - shift))
    if math.inf in (number.high, -(number.low or 0.0)):
        # A bound beyond the sweep.
        return f"{'>' if number.high == math.inf else '<'} {number.text(column.decimals, signed=signed)}"
    metric = column.metric.removesuffix("_change_percent")
    star = "*" if metric != column.metric and is_significant(experiment, metric, **keys) else ""
    return number.whole(column.decimals, signed=signed) + star


def _slices(experiment: Experiment, arm: PlannedArm, metric: str) -> dict[str, str]:
    """Returns the label in a table of each slice of an arm that has the metric, by the slice's key."""
    every = experiment.numbers.by("slice", metric, arm=arm.name)
    if metric != "slice_weight":
        return {key: key for key in every}
    named = {
        f"{entry.family}/{entry.index}": (name, entry.title) for name, entry in experiment.plan.slices.items()
    }
    families = {family.name: family for family in arm.families}
    # The slices that the experiment names, in its order; else the heaviest ones.
    largest = sorted(every, key=lambda key: -(every[key].value or 0.0))[:_SLICES_SHOWN]
    names = {}
    for key in [key for key in named or largest if key in every]:
        family, _, index = key.rpartition("/")
        log = families[family].log
        holds = f"{families[family].slices[int(index)]}{'' if log is None else f' (log {log})'}"
        names[key] = f"{named[key][0]}: {named[key][1] or holds}" if key in named else holds
    return names


_TABLES: tuple[tuple[str, str, str, tuple[Column, ...], str], ...] = (
    (
        "Accuracy: changes in percent of the reference's",
        "",
        "accuracy",
        (
            Column("PerQueryAUC", "per_query_auc"),
            Column("change, % [95%]", "per_query_auc_change_percent"),
            Column("by seed ± sd", "per_query_auc_change_percent", by_seed=True),
            Column("AUC, %", "auc_change_percent"),
            Column("logloss, %", "logloss_change_percent"),
        ),
        "[95%] over queries, paired. * the interval excludes 0 and the changes of all seeds have one sign;\n"
        "with one seed the interval alone decides.\n{scored}",
    ),
    (
        "Costs: changes in percent of the reference's",
        "",
        "training_cost",
        (
            Column("training, %", "train_time_ratio", 1, is_ratio=True),
            Column("FLOPs, %", "train_flops_ratio", 1, is_ratio=True),
            Column("inference, %", "inference_time_ratio", 1, is_ratio=True),
            Column("inference FLOPs, %", "inference_flops_ratio", 1, is_ratio=True),
            Column("rows, %", "learned_share", 1, 100),
            Column("step, ms", "step_ms", 0),
            Column("dense parameters", "dense_parameters", 0),
        ),
        "training: time of a step per row, times the rows trained on (rows, % of the log); the same for FLOPs.\n"
        "inference: per row scored. [quartiles{rounds}, alternating with the baseline]; against another arm, the\n"
        "range that the quartiles of both span.",
    ),
    (
        "Prediction difference of an arm's runs, in percent: mean over pairs of seeds",
        "",
        "pd",
        (
            Column("last half, % [95%]", "prediction_difference", 2, 100, window=LATE),
            Column("pairs", "prediction_difference", 2, 100, window=LATE, by_seed=True),
            Column("of reference's [95%]", "prediction_difference_ratio", 3, window=LATE),
            Column("whole, %", "prediction_difference", 2, 100),
        ),
        "last half: of the time that is scored. [95%] over queries; pairs: smallest to largest ± their deviation.",
    ),
    (
        "Prediction difference of retrains, by what they differ in, in percent of a probability",
        "differs in",
        "pd",
        (
            Column("planned pairs", "retrain_pairs_planned", 0),
            Column("difference, % [95%]", "retrain_difference", 3, 100),
            Column("pairs", "retrain_difference", 3, 100, by_seed=True),
            Column("of reference's [95%]", "retrain_difference_ratio", 3),
        ),
        "A run and its retrain with the same seed that differs in this alone; seed: pairs of the arm's runs.\n"
        "Means over pairs; [95%] by a jackknife over seeds.",
    ),
    (
        "Tuning points, in percent, read from the sweep's curve of accuracy over cost",
        "",
        "",
        (
            Column("accuracy at neutral FLOPs", "accuracy_change_at_neutral_flops", 3, 100),
            Column("FLOPs at neutral accuracy", "flops_change_at_neutral_accuracy", 1, 100),
            Column("accuracy at neutral time", "accuracy_change_at_neutral_time", 3, 100),
            Column("time at neutral accuracy", "time_change_at_neutral_accuracy", 1, 100),
        ),
        "What an arm gains at the reference's cost, and saves at the reference's accuracy. Linear between points\n"
        "in the logarithm of cost, at the sweep's seeds; < and > are bounds where the answer lies beyond the\n"
        "sweep, if accuracy does not fall as cost grows. [95%] over queries.",
    ),
    (
        "Bias of constrained slices: label minus prediction",
        "slice",
        "{slice}",
        (
            Column("weight", "slice_weight", 0),
            Column("reference's bias, %", "reference_bias", 3, 100),
            Column("bias, %", "bias", 3, 100),
            Column("size, % [95%]", "bias_size_change_percent", 1),
        ),
        "bias: points of the click probability, mean over seeds. size: change of its absolute value.\n"
        + _SIGNIFICANT,
    ),
    (
        "How differently the slices of a family are biased: variance of bias over mean prediction",
        "family",
        "variance_{slice}",
        (
            Column("slices", "slices", 0),
            Column("reference's variance, %²", "reference_slice_variance", 2, 10_000),
            Column("variance, %²", "slice_variance", 2, 10_000),
            Column("change, % [95%]", "slice_variance_change_percent", 1),
        ),
        "variance: over slices, mean over seeds.\n" + _SIGNIFICANT,
    ),
)
