"""Tables of an experiment, read from its tidy table, for a terminal and for its page alike."""

import math
import re
import textwrap
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ctr.data.log import MAX_TIME_US
from ctr.eval import display
from ctr.eval.display import Number
from ctr.experiments.plan import PlannedArm
from ctr.experiments.report.costs import COST_KINDS
from ctr.experiments.report.predictions import LATE, WHOLE
from ctr.experiments.report.results import Experiment
from ctr.experiments.report.tuning_points import CURVE_COSTS

PAPER = "paper"  # column of published values
_PAPER_NOTE = (
    "paper: what the technique's publication reports, on its own data, as the experiment's file quotes it."
)
_SIGNIFICANT = "[95%] over queries, paired. * it excludes 0 and the changes of all seeds have one sign."
_SLICES_SHOWN = 20  # of an arm, where the experiment names none
TABLE_WIDTH = 120  # of a terminal, in characters, which only reasons exceed

Cells = dict[str, Any]  # texts of an arm by head


class ArmTable(NamedTuple):
    """Table with rows of arms, which its first column names; ``notes`` say how to read it."""

    title: str
    cells: pd.DataFrame
    notes: list[str]


def experiment_tables(experiment: Experiment) -> list[ArmTable]:
    """Returns the tables of which anything is known."""
    tables = []
    scored = " ".join(
        f"{word} {datetime(1970, 1, 1) + timedelta(microseconds=time)}"
        for word, time in zip(("from", "before"), experiment.plan.scored_us or (0, MAX_TIME_US), strict=True)
        if 0 < time < MAX_TIME_US
    )
    words = {
        "rounds": f" over {experiment.costs.rounds} rounds" if experiment.costs.rounds else "",
        "scored": f"Only predictions {scored} (UTC) count." if scored else "",
    }
    for title, rows_of, notes in _TABLES:
        rows = [{"arm": arm.name, **row} for arm in experiment.plan.arms for row in rows_of(experiment, arm)]
        cells = pd.DataFrame(rows).replace({"": None, display.ABSENT: None})
        # Without the columns that say nothing of any arm.
        cells = cells.dropna(axis="columns", how="all").fillna(display.ABSENT).astype(str)
        if len(cells.columns) > 1:
            lines = notes.format(**words).strip().split("\n")
            lines += [_PAPER_NOTE] if any(head.startswith(PAPER) for head in cells) else []
            tables.append(ArmTable(title, cells, lines))
    return tables


def table_lines(experiment: Experiment) -> list[str]:
    """Returns the lines of all tables for a terminal of `TABLE_WIDTH`, and the missing results."""
    lines = []
    for title, cells, notes in experiment_tables(experiment):
        # The others are on the page alone.
        cells = cells.drop(columns=["step, ms", "dense parameters"], errors="ignore")
        cells.columns = [
            "",
            *(head.strip().replace("inference FLOPs", "FLOPs") for head in cells.columns[1:]),
        ]
        for column, head in enumerate(cells.columns):
            width = {"": 24, PAPER: 14}.get(head, 36)
            cells.isetitem(
                column, [textwrap.shorten(text, width, placeholder="…") for text in cells.iloc[:, column]]
            )
        lines += ["", title, *display.aligned([[*cells.columns], *cells.to_numpy().tolist()]), *notes]
    if experiment.missing:
        lines += ["", "Not in the tables", *(f"- {line}" for line in experiment.missing)]
    return lines


def is_significant(experiment: Experiment, metric: str, **keys: object) -> bool:
    """Returns whether a change is significant."""
    number = experiment.numbers(f"{metric}_significant", **keys)
    return number is not None and number.value == 1


def _number(experiment: Experiment, metric: str, **keys: object) -> Number:
    return experiment.numbers(metric, **keys) or Number(None)


def _change(experiment: Experiment, metric: str, decimals: int | None = None, **keys: object) -> str:
    """Formats a change in percent, with a star where it is significant."""
    star = "*" if is_significant(experiment, metric, **keys) else ""
    return _number(experiment, f"{metric}_change_percent", **keys).whole(decimals, signed=True) + star


def _accuracy(experiment: Experiment, arm: PlannedArm) -> Iterator[Cells]:
    name, numbers = arm.name, experiment.numbers.by("seed", "per_query_auc_change_percent", arm=arm.name)
    by_seed = [number.value for number in numbers.values() if number.value is not None]
    spread = "one seed" if by_seed else ""
    if len(by_seed) > 1:
        low, high = (display.fixed(end, 2, signed=True) for end in (min(by_seed), max(by_seed)))
        spread = f"{low}..{high} ± {np.std(by_seed, ddof=1):.2f}"
    yield {
        "PerQueryAUC": _number(experiment, "per_query_auc", arm=name).text(5),
        "change, % [95%]": _change(experiment, "per_query_auc", arm=name),
        "by seed ± sd": spread,
        PAPER: arm.paper.get("accuracy"),
        **{
            f"{title}, %": re.sub(r" \[.*\]", "", _change(experiment, metric, arm=name))
            for metric, title in (("auc", "AUC"), ("logloss", "logloss"))
        },
    }


def _costs(experiment: Experiment, arm: PlannedArm) -> Iterator[Cells]:
    if arm.name not in experiment.costs.arms:
        return
    changes = {
        kind: _number(experiment, f"{kind}_ratio", arm=arm.name)
        .map(lambda value: 100 * (value - 1))
        .whole(1, signed=True)
        for kind in COST_KINDS
    }
    share, step, parameters = (
        _number(experiment, metric, arm=arm.name)
        for metric in ("learned_share", "step_ms", "dense_parameters")
    )
    yield {
        "training, %": changes["train_time"],
        "FLOPs, %": changes["train_flops"],
        PAPER: arm.paper.get("training_cost"),
        "inference, %": changes["inference_time"],
        "inference FLOPs, %": changes["inference_flops"],
        f"{PAPER} ": arm.paper.get("inference_cost"),
        "rows, %": share.times(100).text(1),
        "step, ms": display.amount(step.value),
        "dense parameters": display.amount(parameters.value),
    }


def _predictions(experiment: Experiment, arm: PlannedArm) -> Iterator[Cells]:
    late, whole = (
        _number(experiment, "prediction_difference", arm=arm.name, window=part) for part in (LATE, WHOLE)
    )
    ratio = _number(experiment, "prediction_difference_ratio", arm=arm.name, window=LATE)
    # Points of a sweep rarely have two seeds.
    if late.value is None and arm.of is not None:
        return

    def span(metric: str, factor: float, decimals: int) -> str:
        """Returns the range over pairs, ``one`` for a single pair, or an empty string."""
        pairs = experiment.numbers.by("seed", metric, arm=arm.name, window=LATE).values()
        values = [factor * number.value for number in pairs if number.value is not None]
        if len(values) < 2:
            return "one" if values else ""
        return "..".join(display.fixed(end, decimals) for end in (min(values), max(values)))

    yield {
        "last half, % [95%]": late.times(100).whole(2),
        "pairs": span("prediction_difference", 100, 2),
        "of reference's [95%]": ratio.whole(3),
        "its pairs": span("prediction_difference_ratio", 1, 3),
        "whole, %": whole.times(100).text(2),
        PAPER: arm.paper.get("pd"),
    }


def _retrains(experiment: Experiment, arm: PlannedArm) -> Iterator[Cells]:
    numbers, cells = experiment.numbers, Cells()
    for kind, planned in numbers.by("slice", "retrain_pairs_planned", arm=arm.name).items():
        percent = _number(experiment, "retrain_difference", arm=arm.name, slice=kind).times(100)
        count = len(numbers.by("seed", "retrain_difference", arm=arm.name, slice=kind))
        decimals = 3 if (percent.value or 0) < 1 else 2
        if count:
            # Of a single pair there is no interval.
            text = percent.text(decimals) if count == 1 else percent.whole(decimals)
            lacking = "" if count >= (planned.value or 0) else f" ({count} of {planned.value:g} pairs)"
            cells[f"{kind}, % [95%]"] = text + lacking
    if cells:
        yield {**cells, PAPER: arm.paper.get("pd")}


def _tuning(experiment: Experiment, arm: PlannedArm) -> Iterator[Cells]:
    for kind in CURVE_COSTS:
        cells = {}
        for head, metric, decimals in (
            ("accuracy at neutral cost, %", f"accuracy_change_at_neutral_{kind}", 3),
            ("cost at neutral accuracy, %", f"{kind}_change_at_neutral_accuracy", 1),
        ):
            number = _number(experiment, metric, arm=arm.name).times(100)
            bound = "<" if number.low == -math.inf else ">" if number.high == math.inf else ""
            text = number.text(decimals, signed=True)
            cells[head] = (
                f"{bound} {text}, beyond the sweep" if bound else number.whole(decimals, signed=True)
            )
        if {*cells.values()} != {display.ABSENT}:
            yield {"cost by": {"flops": "FLOPs"}.get(kind, kind), **cells}


def _slices(experiment: Experiment, arm: PlannedArm) -> Iterator[Cells]:
    shown = {f"{entry.family}/{entry.index}": entry for entry in experiment.plan.slices}
    families = {family.name: family for family in arm.families}
    every = experiment.numbers.by("slice", "slice_weight", arm=arm.name)
    # The slices that the experiment names, in its order; else the heaviest ones.
    largest = sorted(every, key=lambda key: -(every[key].value or 0.0))[:_SLICES_SHOWN]
    for key in [key for key in shown or largest if key in every]:
        name, _, index = key.rpartition("/")
        log, keys = families[name].log, {"arm": arm.name, "slice": key}
        holds = f"{families[name].slices[int(index)]}{'' if log is None else f' (log {log})'}"
        short = shown[key].name if key in shown else ""
        biases = (
            _number(experiment, metric, **keys).times(100).text(3, signed=True)
            for metric in ("reference_bias", "bias")
        )
        yield {
            "slice": f"{short}: {shown[key].title or holds}" if short else holds,
            "weight": display.amount(np.round(every[key].value or 0.0)),
            "reference's bias, %": next(biases),
            "bias, %": next(biases),
            "size, % [95%]": _change(experiment, "bias_size", 1, **keys),
            PAPER: arm.paper.get(short),
        }


def _variances(experiment: Experiment, arm: PlannedArm) -> Iterator[Cells]:
    for family, slices in experiment.numbers.by("slice", "slices", arm=arm.name).items():
        keys = {"arm": arm.name, "slice": family}
        deviations = (
            display.fixed(100 * math.sqrt(_number(experiment, metric, **keys).value or 0.0), 2)
            for metric in ("reference_slice_variance", "slice_variance")
        )
        yield {
            "family": family,
            "slices": display.amount(slices.value),
            "reference's deviation, %": next(deviations),
            "deviation, %": next(deviations),
            "variance, % [95%]": _change(experiment, "slice_variance", 1, **keys),
            PAPER: arm.paper.get(f"variance_{family}"),
        }


_TABLES: tuple[tuple[str, Callable[[Experiment, PlannedArm], Iterator[Cells]], str], ...] = (
    (
        "Accuracy: changes in percent of the reference's",
        _accuracy,
        "[95%] over queries, paired. * the interval excludes 0 and the changes of all seeds have one sign;\n"
        "with one seed the interval alone decides.\n{scored}",
    ),
    (
        "Costs: changes in percent of the reference's",
        _costs,
        "training: time of a step per row, times the rows trained on (rows, % of the log); the same for FLOPs.\n"
        "inference: per row scored. [quartiles{rounds}, alternating with the baseline]; against another arm, the\n"
        "range that the quartiles of both span.",
    ),
    (
        "Prediction difference of an arm's runs, in percent: mean over pairs of seeds",
        _predictions,
        "last half: of the time that is scored. [95%] over queries; pairs: smallest to largest over the pairs.",
    ),
    (
        "Prediction difference of retrains, by what they differ in, in percent of a probability",
        _retrains,
        "A run and its retrain with the same seed that differs in this alone; seed: pairs of the arm's runs.\n"
        "Means over pairs; [95%] by a jackknife over seeds.",
    ),
    (
        "Tuning points, read from the sweep's curve of accuracy over cost",
        _tuning,
        "What an arm gains at the reference's cost, and saves at the reference's accuracy. Linear between points\n"
        "in the logarithm of cost, at the sweep's seeds; < and > are bounds where the answer lies beyond the\n"
        "sweep, if accuracy does not fall as cost grows. [95%] over queries.",
    ),
    (
        "Bias of constrained slices: label minus prediction",
        _slices,
        "bias: points of the click probability, mean over seeds. size: change of its absolute value.\n"
        + _SIGNIFICANT,
    ),
    (
        "How differently the slices of a family are biased: bias over mean prediction",
        _variances,
        "deviation: standard deviation over slices, mean over seeds. variance: change of its square.\n"
        + _SIGNIFICANT,
    ),
)
