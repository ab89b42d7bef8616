"""Tables of an experiment, read from its tidy table, for a terminal and for its page alike."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pandas as pd

from ctr.data.log import MAX_TIME_US
from ctr.eval import display
from ctr.eval.display import Number
from ctr.experiments.plan import Plan
from ctr.experiments.report.predictions import LATE
from ctr.experiments.report.results import CURVE_COSTS, Experiment

PAPER = "paper"  # column of published values
_PAPER_NOTE = (
    "paper: what the technique's publication reports, on its own data, as the experiment's file quotes it."
)
_SIGNIFICANT = "[95%] over queries, paired. * it excludes 0 and the changes of all seeds have one sign."
_SLICES_SHOWN = 20  # of an arm, where the experiment names none
_LEAST_DECIMALS, _MOST_DECIMALS = 2, 5

Cells = dict[str, str]


@dataclass(frozen=True)
class ArmTable:
    """Table with rows of arms, which its first column names; ``notes`` say how to read it."""

    title: str
    cells: pd.DataFrame
    notes: tuple[str, ...]


def experiment_tables(experiment: Experiment) -> list[ArmTable]:
    """Returns the tables of which anything is known."""
    plan, tables = experiment.plan, []
    rounds = f" over {experiment.costs.rounds} rounds" if experiment.costs.rounds else ""
    for title, rows_of, notes in _TABLES:
        rows = [
            {"arm": arm.name, **{head: text or display.ABSENT for head, text in cells.items()}}
            for arm in plan.arms
            for cells in rows_of(experiment, arm.name)
        ]
        cells = pd.DataFrame(rows).fillna(display.ABSENT)
        # Columns that say nothing of any arm.
        cells = cells[[head for head in cells if not (cells[head] == display.ABSENT).all()]]
        if len(cells.columns) > 1:
            lines = notes.format(rounds=rounds, scored=_scored(plan)).strip().split("\n")
            lines += [_PAPER_NOTE] if any(str(head).startswith(PAPER) for head in cells) else []
            tables.append(ArmTable(title, cells, tuple(lines)))
    return tables


def is_significant(experiment: Experiment, metric: str, **keys: object) -> bool:
    """Returns whether a change is significant."""
    number = experiment.numbers(f"{metric}_significant", **keys)
    return number is not None and number.value == 1


def _accuracy(experiment: Experiment, arm: str) -> Iterator[Cells]:
    numbers = experiment.numbers

    def change(metric: str, *, whole: bool = False) -> str:
        number = numbers(f"{metric}_change_percent", arm=arm)
        if number is None:
            return ""
        decimals = _decimals_within(number)
        text = number.whole(decimals, signed=True) if whole else number.text(decimals, signed=True)
        return text + _star(experiment, metric, arm=arm)

    value = numbers("per_query_auc", arm=arm)
    by_seed = [
        entry.value
        for entry in numbers.by("seed", "per_query_auc_change_percent", arm=arm).values()
        if entry.value is not None
    ]
    spread = "one seed" if by_seed else ""
    if len(by_seed) > 1:
        decimals = _decimals_within(Number(None, min(by_seed), max(by_seed)))
        low, high = (display.fixed(end, decimals, signed=True) for end in (min(by_seed), max(by_seed)))
        spread = f"{low}..{high} ± {display.fixed(float(np.std(by_seed, ddof=1)), decimals)}"
    yield {
        "PerQueryAUC": "" if value is None else value.text(5),
        "change, % [95%]": change("per_query_auc", whole=True),
        "by seed ± sd": spread,
        PAPER: _paper(experiment, arm, "accuracy"),
        "AUC, %": change("auc"),
        "logloss, %": change("logloss"),
    }


def _costs(experiment: Experiment, arm: str) -> Iterator[Cells]:
    if arm not in experiment.costs.arms:
        return

    def change(kind: str) -> str:
        ratio = experiment.numbers(f"{kind}_ratio", arm=arm)
        return "" if ratio is None else ratio.map(lambda value: 100 * (value - 1)).whole(1, signed=True)

    share, step, parameters = (
        experiment.numbers(metric, arm=arm) or Number(None)
        for metric in ("learned_share", "step_ms", "dense_parameters")
    )
    yield {
        "training, %": change("train_time"),
        "FLOPs, %": change("train_flops"),
        PAPER: _paper(experiment, arm, "training_cost"),
        "inference, %": change("inference_time"),
        "inference FLOPs, %": change("inference_flops"),
        f"{PAPER} ": _paper(experiment, arm, "inference_cost"),
        "rows, %": share.times(100).text(1),
        "step, ms": display.amount(step.value),
        "dense parameters": display.amount(parameters.value),
    }


def _predictions(experiment: Experiment, arm: str) -> Iterator[Cells]:
    numbers = experiment.numbers
    late, whole = (numbers("prediction_difference", arm=arm, window=part) for part in (LATE, ""))
    reason = experiment.unavailable.get((arm, "prediction_difference"))
    # Points of a sweep rarely have two seeds.
    if late is None and (reason is None or experiment.plan.arm(arm).of is not None):
        return
    ratio = numbers("prediction_difference_ratio", arm=arm, window=LATE)

    def span(metric: str, factor: float, decimals: int) -> str:
        """Returns the range over pairs, ``one`` for a single pair, or an empty string."""
        pairs = numbers.by("seed", metric, arm=arm, window=LATE).values()
        values = [factor * number.value for number in pairs if number.value is not None]
        if len(values) < 2:
            return "one" if values else ""
        return "..".join(display.fixed(end, decimals) for end in (min(values), max(values)))

    yield {
        "last half, % [95%]": "" if late is None else late.times(100).whole(2),
        "pairs": span("prediction_difference", 100, 2),
        "of reference's [95%]": "" if ratio is None else ratio.whole(3),
        "its pairs": span("prediction_difference_ratio", 1, 3),
        "whole, %": "" if whole is None else whole.times(100).text(2),
        PAPER: _paper(experiment, arm, "pd"),
    }


def _retrains(experiment: Experiment, arm: str) -> Iterator[Cells]:
    numbers, cells = experiment.numbers, Cells()
    for kind, planned in numbers.by("slice", "retrain_pairs_planned", arm=arm).items():
        number = numbers("retrain_difference", arm=arm, slice=kind)
        if number is not None:
            percent, pairs = number.times(100), numbers.by("seed", "retrain_difference", arm=arm, slice=kind)
            decimals = 3 if (percent.value or 0) < 1 else 2
            # Of a single pair there is no interval.
            text = percent.text(decimals) if len(pairs) == 1 else percent.whole(decimals)
            is_whole = len(pairs) >= (planned.value or 0)
            cells[f"{kind}, % [95%]"] = (
                text if is_whole else f"{text} ({len(pairs)} of {planned.value:g} pairs)"
            )
    if cells:
        yield {**cells, PAPER: _paper(experiment, arm, "pd")}


def _tuning(experiment: Experiment, arm: str) -> Iterator[Cells]:
    for kind in CURVE_COSTS:
        sweep = experiment.sweeps.get((arm, kind))
        if sweep is None:
            continue
        cells = {"cost by": {"flops": "FLOPs"}.get(kind, kind)}
        for head, metric, decimals in (
            ("accuracy at neutral cost, %", f"accuracy_change_at_neutral_{kind}", 3),
            ("cost at neutral accuracy, %", f"{kind}_change_at_neutral_accuracy", 1),
        ):
            number, bound = experiment.numbers(metric, arm=arm), sweep["bounds"].get(metric)
            text = "" if number is None else number.times(100).whole(decimals, signed=True)
            cells[head] = f"{bound} {text}, beyond the sweep" if bound else text
        count, lacking = len(sweep["points"]), len(sweep["left_out"])
        cells["points"] = f"{count} of {count + lacking}" if lacking else str(count)
        yield cells


def _slices(experiment: Experiment, arm: str) -> Iterator[Cells]:
    shown = {f"{entry.family}/{entry.index}": entry for entry in experiment.plan.slices}
    families = {family.name: family for family in experiment.plan.arm(arm).families}
    every = experiment.numbers.by("slice", "slice_weight", arm=arm)
    # The slices that the experiment names, in its order; else the heaviest ones.
    largest = sorted(every, key=lambda name: -(every[name].value or 0.0))[:_SLICES_SHOWN]
    for key in [name for name in shown or largest if name in every]:
        name, _, index = key.rpartition("/")
        log = families[name].log
        holds = f"{families[name].slices[int(index)]}{'' if log is None else f' (log {log})'}"
        keys = {"arm": arm, "slice": key}
        weight, reference, bias, size = (
            experiment.numbers(metric, **keys) or Number(None)
            for metric in ("slice_weight", "reference_bias", "bias", "bias_size_change_percent")
        )
        yield {
            "slice": f"{shown[key].name}: {shown[key].title or holds}" if key in shown else holds,
            "weight": display.amount(np.round(weight.value or 0.0)),
            "reference's bias, %": reference.times(100).text(3, signed=True),
            "bias, %": bias.times(100).text(3, signed=True),
            "size, % [95%]": f"{size.whole(1, signed=True)}{_star(experiment, 'bias_size', **keys)}",
            PAPER: _paper(experiment, arm, shown[key].name if key in shown else ""),
        }


def _variances(experiment: Experiment, arm: str) -> Iterator[Cells]:
    for family, change in experiment.numbers.by("slice", "slice_variance_change_percent", arm=arm).items():
        keys = {"arm": arm, "slice": family}
        variance, reference, slices = (
            experiment.numbers(metric, **keys) or Number(None)
            for metric in ("slice_variance", "reference_slice_variance", "slices")
        )
        deviations = [
            display.fixed(100 * float(np.sqrt(number.value or 0.0)), 2) for number in (reference, variance)
        ]
        yield {
            "family": family,
            "slices": display.amount(slices.value),
            "reference's deviation, %": deviations[0],
            "deviation, %": deviations[1],
            "variance, % [95%]": f"{change.whole(1, signed=True)}{_star(experiment, 'slice_variance', **keys)}",
            PAPER: _paper(experiment, arm, f"variance_{family}"),
        }


def _star(experiment: Experiment, metric: str, **keys: object) -> str:
    return "*" if is_significant(experiment, metric, **keys) else " "


def _paper(experiment: Experiment, arm: str, key: str) -> str:
    return str(experiment.plan.arm(arm).paper.get(key) or "")


def _decimals_within(number: Number) -> int:
    """Returns the digits that the interval of a number justifies, within reason."""
    is_wide = 0 < (number.high or 0.0) - (number.low or 0.0) < np.inf
    return min(max(_LEAST_DECIMALS, number.decimals), _MOST_DECIMALS) if is_wide else _LEAST_DECIMALS


def _scored(plan: Plan) -> str:
    """Describes the query times that count; a start of 0 and an end of `MAX_TIME_US` are open."""
    ends = [
        f"{word} {datetime(1970, 1, 1) + timedelta(microseconds=time)}"
        for word, time in zip(("from", "before"), plan.scored_us or (0, MAX_TIME_US), strict=True)
        if 0 < time < MAX_TIME_US
    ]
    return f"Only predictions {' '.join(ends)} (UTC) count." if ends else ""


_TABLES: tuple[tuple[str, Callable[[Experiment, str], Iterator[Cells]], str], ...] = (
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
