"""Tables of an experiment, for a terminal and for its report alike."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from ctr.data.log import MAX_TIME_US
from ctr.eval import display
from ctr.eval.display import Number
from ctr.eval.intervals import Estimate
from ctr.eval.report import page
from ctr.experiments.report.arms import MetricChange, prediction_difference_of
from ctr.experiments.report.files import ArmCosts
from ctr.experiments.report.numbers import spread
from ctr.experiments.report.results import ACCURACY, ArmResult, Experiment
from ctr.experiments.report.retrains import PairDifference
from ctr.experiments.report.slices import SliceChange
from ctr.experiments.report.tuning_points import TuningPoint

PAPER = "paper"  # column of what a publication reports
_PAPER_NOTE = (
    "paper: what the technique's publication reports, on its own data, as the experiment's file quotes it."
)
_COSTS = {"flops": "FLOPs", "time": "time"}
_LEAST_DECIMALS, _MOST_DECIMALS = 2, 5
_NOTHING = page.Cell(display.ABSENT)
_SIGNIFICANT = "[95%] over queries, paired. * it excludes 0 and the changes of all seeds have one sign."


@dataclass(frozen=True)
class ArmTable:
    """Table with a row for each of some arms, which its first cell names."""

    name: str  # in links
    title: str
    table: page.Table
    notes: tuple[str, ...]  # how to read it


def arm_marks(experiment: Experiment) -> dict[str, page.Mark]:
    """Look of each arm, by its place among the arms; a point of a sweep has that of its arm."""
    plans = [result.arm.plan for result in experiment.arms]
    places = {plan.name: place for place, plan in enumerate(plan for plan in plans if plan.of is None)}
    return {plan.name: page.Mark(plan.name, places.get(plan.of or plan.name, 0)) for plan in plans}


def experiment_tables(experiment: Experiment, *, every: bool = False) -> list[ArmTable]:
    """Tables of accuracy, and of costs, PD, tuning points and slices where anything is known.

    ``every``: also those that would be too long for a terminal.
    """
    arms = experiment.arms
    tables = [_accuracy_table(arms, experiment.plan.scored_us)]
    if any(result.costs is not None for result in arms):
        tables.append(_cost_table(arms, experiment.costs.rounds))
    if any(prediction_difference_of(result.arm, "whole") is not None for result in arms):
        tables.append(_prediction_table(arms))
    tables += [
        _retrain_table(arms),
        _tuning_table(arms),
        _slice_table(arms),
        _variance_table(arms),
        *([_slice_table(arms, every=True)] if every else []),
    ]
    marks = arm_marks(experiment)
    firsts = {
        result.arm.plan.name: page.Cell(
            marks[result.arm.plan.name], _beside_name(result, experiment.plan.baseline)
        )
        for result in arms
    }
    return [_finished(table, firsts) for table in tables if table.table.rows]


def _beside_name(result: ArmResult, baseline: str) -> tuple[str, ...]:
    plan = result.arm.plan
    title = (plan.shown,) if plan.shown.lower() != plan.name.lower() else ()
    return (*title, *((f"against {result.reference}",) if result.reference not in (None, baseline) else ()))


def _finished(table: ArmTable, firsts: Mapping[str, page.Cell]) -> ArmTable:
    """Drops columns that say nothing of any arm; adds a note on `PAPER` where that one stays; names the arms."""
    heads, rows = table.table.columns, table.table.cells
    kept = [0] + [
        place
        for place in range(1, len(heads))
        if any(str(row[place]) not in ("", display.ABSENT) or row[place].small for row in rows)
    ]
    return replace(
        table,
        table=page.Table(
            [heads[place] for place in kept],
            [[firsts[str(row[0])], *(row[place] for place in kept[1:])] for row in rows],
        ),
        notes=(*table.notes, _PAPER_NOTE) if any(heads[place] == PAPER for place in kept) else table.notes,
    )


def _table(
    name: str,
    title: str,
    heads: Sequence[str],
    rows: Sequence[tuple[ArmResult, list[page.Cell]]],
    notes: Sequence[str],
) -> ArmTable:
    table = page.Table(("arm", *heads), [[result.arm.plan.name, *cells] for result, cells in rows])
    return ArmTable(name, title, table, tuple(notes))


def _accuracy_table(arms: Sequence[ArmResult], scored_us: tuple[int, int] | None) -> ArmTable:
    rows = []
    scored = () if scored_us is None else (f"Only predictions {_between(*scored_us)} (UTC) count.",)
    for result in arms:
        value, changes = result.arm.metric(ACCURACY), result.changes
        cells = [
            _NOTHING if value is None else _number_cell(value.number(), 5),
            *[_NOTHING] * 5,
        ]
        cells[3] = _paper_cell(result, "accuracy")
        if changes:
            cells[1] = _change_cell(ACCURACY, changes[ACCURACY], with_interval=True)
            cells[2] = _seeds_cell(changes[ACCURACY])
            cells[4:] = [_change_cell(name, changes[name]) for name in ("auc", "logloss")]
        rows.append((result, cells))
    return _table(
        "accuracy",
        "Accuracy: changes in percent of the reference's",
        ("PerQueryAUC", "change, % [95%]", "by seed ± sd", PAPER, "AUC, %", "logloss, %"),
        rows,
        (
            "[95%] over queries, paired. * the interval excludes 0 and the changes of all seeds have one sign;",
            "with one seed the interval alone decides.",
            *scored,
        ),
    )


def _between(start_us: int, end_us: int) -> str:
    """Range of query times in words; a start of 0 and an end of `MAX_TIME_US` are open."""
    start, end = (
        f"{word} {datetime(1970, 1, 1) + timedelta(microseconds=time)}" if 0 < time < MAX_TIME_US else ""
        for word, time in (("from", start_us), ("before", end_us))
    )
    return " ".join(filter(None, (start, end)))


def _cost_table(arms: Sequence[ArmResult], rounds: int | None) -> ArmTable:
    rows = []
    for result in arms:
        change, costs = result.cost_change, result.costs or ArmCosts()
        share = costs.learned_share
        cells = [
            _multiple_cell(change.train_time, costs.step_ms, "ms per batch"),
            _multiple_cell(change.train_flops, costs.train_flops, "per example"),
            _paper_cell(result, "training_cost"),
            _multiple_cell(change.inference_time, costs.inference_ms, "ms per batch"),
            _multiple_cell(change.inference_flops, costs.inference_flops, "per example"),
            _paper_cell(result, "inference_cost"),
            _NOTHING if share is None else page.Cell(display.fixed(100 * share, 1)),
        ]
        rows.append((result, cells))
    timed = f" over {rounds} rounds" if rounds else ""
    return _table(
        "costs",
        "Costs: changes in percent of the reference's",
        ("training, %", "FLOPs, %", PAPER, "inference, %", "FLOPs, %", PAPER, "rows, %"),
        rows,
        (
            "training: time of a step per row, times the rows trained on (rows, % of the log); the same for FLOPs.",
            f"inference: per row scored. [quartiles{timed}, alternating with the baseline]; against another arm, the",
            "range that the quartiles of both span.",
        ),
    )


def _prediction_table(arms: Sequence[ArmResult]) -> ArmTable:
    rows = []
    for result in arms:
        pairs, change = result.arm.prediction_pairs, result.prediction_changes["late"]
        if result.arm.plan.of is not None and not pairs.pairs["whole"]:
            # Points of a sweep rarely have two seeds.
            continue
        late, whole = (prediction_difference_of(result.arm, part) for part in ("late", "whole"))
        cells = [
            _cell(display.ABSENT, pairs.unavailable) if late is None else page.Cell(_percent(late).whole(2)),
            page.Cell(_span([100 * float(pair.point) for pair in pairs.pairs["late"].values()], 2)),
            _NOTHING if change is None else page.Cell(change.ratio.number().whole(3)),
            _NOTHING if change is None else page.Cell(_span([*change.by_pair.values()], 3)),
            _NOTHING if whole is None else _number_cell(_percent(whole), 2),
            _paper_cell(result, "pd"),
        ]
        rows.append((result, cells))
    return _table(
        "prediction-difference",
        "Prediction difference of an arm's runs, in percent: mean over pairs of seeds",
        ("last half, % [95%]", "pairs", "of reference's [95%]", "pairs", "whole, %", PAPER),
        rows,
        (
            "last half: of the time that is scored. [95%] over queries; pairs: smallest to largest over the pairs.",
        ),
    )


def _retrain_table(arms: Sequence[ArmResult]) -> ArmTable:
    kinds = list(dict.fromkeys(kind for result in arms for kind in result.retrains))
    return _table(
        "retrains",
        "Prediction difference of retrains, by what they differ in, in percent of a probability",
        (*(f"{kind}, % [95%]" for kind in kinds), PAPER),
        [
            (
                result,
                [*(_retrain_cell(result.retrains.get(kind)) for kind in kinds), _paper_cell(result, "pd")],
            )
            for result in arms
            if result.retrains
        ],
        (
            "A run and its retrain with the same seed that differs in this alone; seed: pairs of the arm's runs.",
            "Means over pairs; [95%] by a jackknife over seeds. Below, in the report: of the reference's.",
        ),
    )


def _retrain_cell(found: PairDifference | None) -> page.Cell:
    if found is None:
        return _NOTHING
    if found.mean is None:
        return _cell(display.ABSENT, found.unavailable)
    mean, ratio = _percent(found.mean), found.of_reference
    lacking = f", {len(found.pairs)} of {found.planned} pairs" if len(found.pairs) < found.planned else ""
    detail = "" if ratio is None else f"{ratio.number().whole(3)} of the reference's"
    decimals = 3 if (mean.value or 0) < 1 else 2
    # Of a single pair there is no interval.
    text = mean.text(decimals) if len(found.pairs) == 1 else mean.whole(decimals)
    return _cell(text, f"{detail}{lacking}".removeprefix(", "))


def _tuning_table(arms: Sequence[ArmResult]) -> ArmTable:
    rows = []
    for result in arms:
        for kind, tuning in result.tuning.items():
            kept, left_out = len(tuning.points), tuning.left_out
            detail = f"{', '.join(tuning.points)}; seeds {', '.join(map(str, tuning.seeds))}"
            cells = [
                page.Cell(_COSTS[kind]),
                _cell(_tuned(tuning.accuracy_at_neutral_cost, 3), tuning.unavailable),
                _cell(_tuned(tuning.cost_at_neutral_accuracy, 1), tuning.unavailable),
                _cell(f"{kept} of {kept + len(left_out)}", f"{detail}; without {', '.join(left_out)}")
                if left_out
                else _cell(str(kept), detail),
            ]
            rows.append((result, cells))
    return _table(
        "tuning",
        "Tuning points, read from the sweep's curve of accuracy over cost",
        ("cost by", "accuracy at neutral cost, %", "cost at neutral accuracy, %", "points"),
        rows,
        (
            "What an arm gains at the reference's cost, and saves at the reference's accuracy. Linear between points",
            "in the logarithm of cost, at the sweep's seeds; < and > are bounds where the answer lies beyond the",
            "sweep, if accuracy does not fall as cost grows. [95%] over queries.",
        ),
    )


def _slice_table(arms: Sequence[ArmResult], *, every: bool = False) -> ArmTable:
    last = "constraint log" if every else PAPER
    return _table(
        "other-slices" if every else "slices",
        f"Bias of {'the other constrained' if every else 'constrained'} slices: label minus prediction",
        ("slice", "weight", "reference's bias, %", "bias, %", "size, % [95%]", last),
        [
            (result, _slice_cells(result, change, every))
            for result in arms
            for change in result.slices
            if (change.shown is None) == every
        ],
        (
            "bias: points of the click probability, mean over seeds. size: change of its absolute value.",
            _SIGNIFICANT,
        ),
    )


def _variance_table(arms: Sequence[ArmResult]) -> ArmTable:
    rows = []
    for result in arms:
        for change in result.variances:
            variances = (change.reference_variance, change.variance)
            cells = [
                page.Cell(change.family),
                page.Cell(str(change.slices)),
                *(page.Cell(display.fixed(100 * float(np.sqrt(own.point)), 2)) for own in variances),
                _less_cell(change.change_percent, change.change_percent_by_seed, change.significant),
                _paper_cell(result, f"variance_{change.family}"),
            ]
            rows.append((result, cells))
    return _table(
        "slice-variance",
        "How differently the slices of a family are biased: bias over mean prediction",
        ("family", "slices", "reference's deviation, %", "deviation, %", "variance, % [95%]", PAPER),
        rows,
        (
            "deviation: standard deviation over slices, mean over seeds. variance: change of its square.",
            _SIGNIFICANT,
        ),
    )


def _cell(text: str, detail: str = "", verdict: str = "") -> page.Cell:
    """A cell with more of it below, in a report alone; ``verdict``: better or worse, if it is significant."""
    return page.Cell(text, (detail,) if detail else (), verdict)


def _paper_cell(result: ArmResult, key: str) -> page.Cell:
    reported = result.arm.plan.paper.get(key)
    return _NOTHING if reported is None else page.Cell(str(reported))


def _number_cell(number: Number, decimals: int, *, signed: bool = False) -> page.Cell:
    return page.Cell(number.text(decimals, signed=signed), (number.bounds(decimals),))


def _percent(estimate: Estimate) -> Number:
    return estimate.number().times(100)


def _span(values: Sequence[float], decimals: int) -> str:
    """Smallest to largest; of a single value only that it is one."""
    if len(values) < 2:
        return "one" if values else display.ABSENT
    return "..".join(display.fixed(end, decimals) for end in (min(values), max(values)))


def _decimals_within(number: Number) -> int:
    """Digits that the interval of a number justifies, within reason."""
    low, high = number.low or 0.0, number.high or 0.0
    known = 0 < high - low < math.inf
    return min(max(_LEAST_DECIMALS, number.decimals), _MOST_DECIMALS) if known else _LEAST_DECIMALS


def _by_seed(values: Mapping[int, float], decimals: int) -> str:
    each = (f"{seed}: {display.fixed(value, decimals, signed=True)}" for seed, value in values.items())
    return f"by seed {', '.join(each)}"


def _change_cell(metric: str, change: MetricChange, *, with_interval: bool = False) -> page.Cell:
    number, absolute = change.percent.number(), change.difference.number().text(5, signed=True)
    decimals = _decimals_within(number)
    ends = number.bounds(decimals, signed=True)
    if with_interval:
        text, detail = number.whole(decimals, signed=True), f"{absolute} absolute"
    else:
        why = f"no interval ({change.percent.no_interval()})"
        text = number.text(decimals, signed=True)
        detail = f"{why if ends == display.ABSENT else ends}, {absolute} absolute"
    if not change.significant:
        return _cell(f"{text} ", detail)
    return _cell(f"{text}*", detail, display.verdict(metric, float(change.percent.point), change.significant))


def _seeds_cell(change: MetricChange) -> page.Cell:
    low, high, deviation = spread(change.percent_by_seed.values())
    if deviation is None:
        return page.Cell("one seed")
    decimals = _decimals_within(Number(None, low, high))
    ends = f"{display.fixed(low, decimals, signed=True)}..{display.fixed(high, decimals, signed=True)}"
    return _cell(f"{ends} ± {display.fixed(deviation, decimals)}", _by_seed(change.percent_by_seed, decimals))


def _multiple_cell(multiple: Number | None, amount: float | None, unit: str) -> page.Cell:
    change = None if multiple is None else multiple.map(lambda one: 100 * (one - 1))
    text = display.ABSENT if change is None else change.whole(1, signed=True)
    return _cell(text, "" if amount is None else f"{display.amount(amount)} {unit}")


def _tuned(point: TuningPoint | None, decimals: int) -> str:
    if point is None:
        return display.ABSENT
    text = Number(point.value, point.low, point.high).times(100).whole(decimals, signed=True)
    return f"{point.bound} {text}, beyond the sweep" if point.bound else text


def _less_verdict(change: Number) -> str:
    """Verdict on a change that is better below 0, empty where the interval does not exclude 0."""
    low, high = change.low or 0.0, change.high or 0.0
    return "better" if high < 0 else "worse" if low > 0 else ""


def _less_cell(change: Estimate, by_seed: Mapping[int, float], significant: bool) -> page.Cell:
    """Change in percent that is better below 0, with its interval and that of each seed."""
    number = change.number()
    text = f"{number.whole(1, signed=True)}{'*' if significant else ' '}"
    return _cell(text, _by_seed(by_seed, 1), _less_verdict(number) if significant else "")


def _slice_cells(result: ArmResult, change: SliceChange, every: bool) -> list[page.Cell]:
    name, holds = _cell(change.holds, change.family), change.holds
    if (shown := change.shown) is not None:
        detail = holds if change.log is None else f"{holds}; constraint log {change.log}"
        name = _cell(f"{shown.name}: {shown.title or holds}", detail)
    weight, reference = (display.amount(np.round(one)) for one in (change.weight, change.reference_weight))
    return [
        name,
        _cell(weight, f"{reference} of the reference"),
        *(_number_cell(_percent(one), 3, signed=True) for one in (change.reference_bias, change.bias)),
        _less_cell(change.size_change_percent, change.size_change_percent_by_seed, change.significant),
        page.Cell(change.log or "") if every else _paper_cell(result, "" if shown is None else shown.name),
    ]
