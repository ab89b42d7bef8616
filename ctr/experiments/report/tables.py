"""Tables of an experiment, read from its tidy table, for a terminal and for its page alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pandas as pd

from ctr.data.log import MAX_TIME_US
from ctr.eval import display
from ctr.eval.display import Number
from ctr.experiments.plan import Plan, ShownSlice
from ctr.experiments.report.predictions import LATE
from ctr.experiments.report.results import CURVE_COSTS, Experiment

PAPER = "paper"  # column of what a publication reports
_PAPER_NOTE = (
    "paper: what the technique's publication reports, on its own data, as the experiment's file quotes it."
)
_SIGNIFICANT = "[95%] over queries, paired. * it excludes 0 and the changes of all seeds have one sign."
_COSTS = {"flops": "FLOPs", "time": "time"}
_LEAST_DECIMALS, _MOST_DECIMALS = 2, 5

Cells = dict[str, str]


@dataclass(frozen=True)
class ArmTable:
    """Table with rows of arms, which its first column names; ``notes`` say how to read it."""

    title: str
    cells: pd.DataFrame
    notes: tuple[str, ...]


def experiment_tables(experiment: Experiment, *, every: bool = False) -> list[ArmTable]:
    """Returns the tables of which anything is known; ``every``: also those that are too long for a terminal."""
    plan = experiment.plan
    wanted = [
        _ACCURACY,
        _COST,
        _PREDICTIONS,
        _RETRAINS,
        _TUNING,
        _SLICES,
        _VARIANCES,
        *([_OTHER_SLICES] if every else []),
    ]
    tables = []
    for title, rows_of, notes in wanted:
        rows = [
            {"arm": arm.name, **{head: text or display.ABSENT for head, text in cells.items()}}
            for arm in plan.arms
            for cells in rows_of(experiment, arm.name)
        ]
        cells = pd.DataFrame(rows).fillna(display.ABSENT)
        # Columns that say nothing of any arm.
        said = [str(head) for head in cells if not (cells[head] == display.ABSENT).all()]
        cells = cells[said]
        if len(said) < 2:
            continue
        notes = notes.format(rounds=_rounds(experiment), scored=_scored(plan))
        lines = [line for line in notes.split("\n") if line]
        lines += [_PAPER_NOTE] if any(head.startswith(PAPER) for head in said) else []
        tables.append(ArmTable(title, cells, tuple(lines)))
    return tables


def significant(experiment: Experiment, metric: str, **keys: object) -> bool:
    """Returns whether a change is significant."""
    number = experiment.numbers(f"{metric}_significant", **keys)
    return number is not None and number.value == 1


def _accuracy_cells(experiment: Experiment, arm: str) -> list[Cells]:
    numbers = experiment.numbers
    value = numbers("per_query_auc", arm=arm)

    def change(metric: str, *, whole: bool = False) -> str:
        number = numbers(f"{metric}_change_percent", arm=arm)
        if number is None:
            return ""
        star = "*" if significant(experiment, metric, arm=arm) else " "
        decimals = _decimals_within(number)
        return f"{number.whole(decimals, signed=True) if whole else number.text(decimals, signed=True)}{star}"

    return [
        {
            "PerQueryAUC": "" if value is None else value.text(5),
            "change, % [95%]": change("per_query_auc", whole=True),
            "by seed ± sd": _by_seed(numbers.by("seed", "per_query_auc_change_percent", arm=arm)),
            PAPER: _paper(experiment, arm, "accuracy"),
            "AUC, %": change("auc"),
            "logloss, %": change("logloss"),
        }
    ]


def _by_seed(numbers: Mapping[str, Number]) -> str:
    values = [one.value for one in numbers.values() if one.value is not None]
    if len(values) < 2:
        return "one seed" if values else ""
    low, high = min(values), max(values)
    decimals = _decimals_within(Number(None, low, high))
    ends = f"{display.fixed(low, decimals, signed=True)}..{display.fixed(high, decimals, signed=True)}"
    return f"{ends} ± {display.fixed(float(np.std(values, ddof=1)), decimals)}"


def _cost_cells(experiment: Experiment, arm: str) -> list[Cells]:
    def change(kind: str) -> str:
        ratio = experiment.numbers(f"{kind}_ratio", arm=arm)
        return "" if ratio is None else ratio.map(lambda one: 100 * (one - 1)).whole(1, signed=True)

    share = experiment.numbers("learned_share", arm=arm)
    cells = {
        "training, %": change("train_time"),
        "FLOPs, %": change("train_flops"),
        PAPER: _paper(experiment, arm, "training_cost"),
        "inference, %": change("inference_time"),
        "inference FLOPs, %": change("inference_flops"),
        f"{PAPER} ": _paper(experiment, arm, "inference_cost"),
        "rows, %": "" if share is None else share.times(100).text(1),
    }
    for head, metric in (("step, ms", "step_ms"), ("dense parameters", "dense_parameters")):
        number = experiment.numbers(metric, arm=arm)
        cells[head] = "" if number is None else display.amount(number.value)
    return [cells] if arm in experiment.costs.arms else []


def _prediction_cells(experiment: Experiment, arm: str) -> list[Cells]:
    numbers = experiment.numbers
    late, whole = (numbers("prediction_difference", arm=arm, window=part) for part in (LATE, ""))
    reason = experiment.unavailable.get((arm, "prediction_difference"))
    # Points of a sweep rarely have two seeds.
    if late is None and (reason is None or experiment.plan.arm(arm).of is not None):
        return []
    ratio = numbers("prediction_difference_ratio", arm=arm, window=LATE)
    pairs, ratios = (
        numbers.by("seed", f"prediction_difference{end}", arm=arm, window=LATE) for end in ("", "_ratio")
    )
    return [
        {
            "last half, % [95%]": "" if late is None else late.times(100).whole(2),
            "pairs": _span(pairs, 100, 2),
            "of reference's [95%]": "" if ratio is None else ratio.whole(3),
            "its pairs": _span(ratios, 1, 3),
            "whole, %": "" if whole is None else whole.times(100).text(2),
            PAPER: _paper(experiment, arm, "pd"),
        }
    ]


def _span(numbers: Mapping[str, Number], factor: float, decimals: int) -> str:
    """Returns the smallest to the largest; of a single value only that it is one."""
    values = [factor * one.value for one in numbers.values() if one.value is not None]
    if len(values) < 2:
        return "one" if values else ""
    return "..".join(display.fixed(end, decimals) for end in (min(values), max(values)))


def _retrain_cells(experiment: Experiment, arm: str) -> list[Cells]:
    numbers = experiment.numbers
    cells: Cells = {}
    for kind, planned in numbers.by("slice", "retrain_pairs_planned", arm=arm).items():
        number = numbers("retrain_difference", arm=arm, slice=kind)
        if number is not None:
            percent, pairs = number.times(100), numbers.by("seed", "retrain_difference", arm=arm, slice=kind)
            decimals = 3 if (percent.value or 0) < 1 else 2
            # Of a single pair there is no interval.
            text = percent.text(decimals) if len(pairs) == 1 else percent.whole(decimals)
            lacking = (
                f" ({len(pairs)} of {planned.value:g} pairs)" if len(pairs) < (planned.value or 0) else ""
            )
            cells[f"{kind}, % [95%]"] = f"{text}{lacking}"
    return [{**cells, PAPER: _paper(experiment, arm, "pd")}] if cells else []


def _tuning_cells(experiment: Experiment, arm: str) -> list[Cells]:
    rows = []
    for kind in CURVE_COSTS:
        sweep = experiment.sweeps.get((arm, kind))
        if sweep is None:
            continue
        cells = {"cost by": _COSTS[kind]}
        for head, metric, decimals in (
            ("accuracy at neutral cost, %", f"accuracy_change_at_neutral_{kind}", 3),
            ("cost at neutral accuracy, %", f"{kind}_change_at_neutral_accuracy", 1),
        ):
            number, bound = experiment.numbers(metric, arm=arm), sweep["bounds"].get(metric)
            text = "" if number is None else number.times(100).whole(decimals, signed=True)
            cells[head] = f"{bound} {text}, beyond the sweep" if bound else text
        count, lacking = len(sweep["points"]), len(sweep["left_out"])
        cells["points"] = f"{count} of {count + lacking}" if lacking else str(count)
        rows.append(cells)
    return rows


def _slice_cells(experiment: Experiment, arm: str) -> list[Cells]:
    paper = {_key(one): one for one in experiment.plan.slices}
    return [
        _cells_of_slice(
            experiment, arm, key, f"{one.name}: {one.title or _holds(experiment, arm, key)}", one.name
        )
        for key, one in paper.items()
        if experiment.numbers("bias", arm=arm, slice=key) is not None
    ]


def _other_slice_cells(experiment: Experiment, arm: str) -> list[Cells]:
    shown = {_key(one) for one in experiment.plan.slices}
    return [
        _cells_of_slice(experiment, arm, key, _holds(experiment, arm, key), "")
        for key in experiment.numbers.by("slice", "bias", arm=arm)
        if key not in shown
    ]


def _key(shown: ShownSlice) -> str:
    return f"{shown.family}/{shown.index}"


def _holds(experiment: Experiment, arm: str, key: str) -> str:
    """Says what a slice holds."""
    name, _, index = key.rpartition("/")
    family = next(one for one in experiment.plan.arm(arm).families if one.name == name)
    log = "" if family.log is None else f" (log {family.log})"
    return f"{family.slices[int(index)]}{log}"


def _cells_of_slice(experiment: Experiment, arm: str, key: str, name: str, paper: str) -> Cells:
    numbers, keys = experiment.numbers, {"arm": arm, "slice": key}
    weight, reference, bias, size = (
        numbers(metric, **keys) or Number(None)
        for metric in ("slice_weight", "reference_bias", "bias", "bias_size_change_percent")
    )
    star = "*" if significant(experiment, "bias_size", **keys) else " "
    return {
        "slice": name,
        "weight": display.amount(np.round(weight.value or 0.0)),
        "reference's bias, %": reference.times(100).text(3, signed=True),
        "bias, %": bias.times(100).text(3, signed=True),
        "size, % [95%]": f"{size.whole(1, signed=True)}{star}",
        PAPER: _paper(experiment, arm, paper),
    }


def _variance_cells(experiment: Experiment, arm: str) -> list[Cells]:
    rows = []
    for family, change in experiment.numbers.by("slice", "slice_variance_change_percent", arm=arm).items():
        keys = {"arm": arm, "slice": family}
        own, reference, slices = (
            experiment.numbers(metric, **keys) or Number(None)
            for metric in ("slice_variance", "reference_slice_variance", "slices")
        )
        star = "*" if significant(experiment, "slice_variance", **keys) else " "
        deviations = [display.fixed(100 * float(np.sqrt(one.value or 0.0)), 2) for one in (reference, own)]
        rows.append(
            {
                "family": family,
                "slices": display.amount(slices.value),
                "reference's deviation, %": deviations[0],
                "deviation, %": deviations[1],
                "variance, % [95%]": f"{change.whole(1, signed=True)}{star}",
                PAPER: _paper(experiment, arm, f"variance_{family}"),
            }
        )
    return rows


def _paper(experiment: Experiment, arm: str, key: str) -> str:
    reported = experiment.plan.arm(arm).paper.get(key)
    return "" if reported is None else str(reported)


def _decimals_within(number: Number) -> int:
    """Returns the digits that the interval of a number justifies, within reason."""
    low, high = number.low or 0.0, number.high or 0.0
    known = 0 < high - low < np.inf
    return min(max(_LEAST_DECIMALS, number.decimals), _MOST_DECIMALS) if known else _LEAST_DECIMALS


def _rounds(experiment: Experiment) -> str:
    return f" over {experiment.costs.rounds} rounds" if experiment.costs.rounds else ""


def _scored(plan: Plan) -> str:
    """Says which query times count; a start of 0 and an end of `MAX_TIME_US` are open."""
    if plan.scored_us is None:
        return ""
    ends = [
        f"{word} {datetime(1970, 1, 1) + timedelta(microseconds=time)}"
        for word, time in zip(("from", "before"), plan.scored_us, strict=True)
        if 0 < time < MAX_TIME_US
    ]
    return f"Only predictions {' '.join(ends)} (UTC) count."


_Spec = tuple[str, Callable[[Experiment, str], Sequence[Cells]], str]
_ACCURACY: _Spec = (
    "Accuracy: changes in percent of the reference's",
    _accuracy_cells,
    "[95%] over queries, paired. * the interval excludes 0 and the changes of all seeds have one sign;\n"
    "with one seed the interval alone decides.\n{scored}",
)
_COST: _Spec = (
    "Costs: changes in percent of the reference's",
    _cost_cells,
    "training: time of a step per row, times the rows trained on (rows, % of the log); the same for FLOPs.\n"
    "inference: per row scored. [quartiles{rounds}, alternating with the baseline]; against another arm, the\n"
    "range that the quartiles of both span.",
)
_PREDICTIONS: _Spec = (
    "Prediction difference of an arm's runs, in percent: mean over pairs of seeds",
    _prediction_cells,
    "last half: of the time that is scored. [95%] over queries; pairs: smallest to largest over the pairs.",
)
_RETRAINS: _Spec = (
    "Prediction difference of retrains, by what they differ in, in percent of a probability",
    _retrain_cells,
    "A run and its retrain with the same seed that differs in this alone; seed: pairs of the arm's runs.\n"
    "Means over pairs; [95%] by a jackknife over seeds.",
)
_TUNING: _Spec = (
    "Tuning points, read from the sweep's curve of accuracy over cost",
    _tuning_cells,
    "What an arm gains at the reference's cost, and saves at the reference's accuracy. Linear between points\n"
    "in the logarithm of cost, at the sweep's seeds; < and > are bounds where the answer lies beyond the\n"
    "sweep, if accuracy does not fall as cost grows. [95%] over queries.",
)
_ABOUT_SLICES = (
    "bias: points of the click probability, mean over seeds. size: change of its absolute value.\n"
    + _SIGNIFICANT
)
_SLICES: _Spec = ("Bias of constrained slices: label minus prediction", _slice_cells, _ABOUT_SLICES)
_OTHER_SLICES: _Spec = (
    "Bias of the other constrained slices: label minus prediction",
    _other_slice_cells,
    _ABOUT_SLICES,
)
_VARIANCES: _Spec = (
    "How differently the slices of a family are biased: bias over mean prediction",
    _variance_cells,
    "deviation: standard deviation over slices, mean over seeds. variance: change of its square.\n"
    + _SIGNIFICANT,
)
