"""FF section 3's two tuning points of a technique: its accuracy when cost is neutral, its cost when accuracy is.

A technique trained at several sizes of the model draws a curve of accuracy over cost. It is read between its points,
linearly in the logarithm of cost, and never beyond them: there only a bound is reported, which supposes that accuracy
does not fall as cost grows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctr.eval.arrays import FloatArray
from ctr.eval.display import Number
from ctr.eval.intervals import Estimate, difference, mean, quotient
from ctr.eval.tidy import Row, row
from ctr.experiments.report.costs import pass_flops, pass_time
from ctr.experiments.report.runs import Costs, MeasuredArm

ACCURACY = "per_query_auc"  # metric that the tuning points and the plots call accuracy
CURVE_COSTS = ("flops", "time")  # costs of a curve of accuracy over cost: FLOPs of a pass, or its time


@dataclass(frozen=True)
class CurvePoint:
    """Size of the model: its cost, above 0, and its accuracy, a scalar estimate."""

    name: str
    cost: float
    accuracy: Estimate


@dataclass(frozen=True)
class TuningPoint:
    """Reading of a curve."""

    value: float  # the change; with a bound, the change at the end of the sweep
    bound: str = ""  # ``<`` or ``>`` when the answer lies beyond the sweep, below or above the value
    low: float | None = None  # of the 95% interval over queries
    high: float | None = None


def tuning_rows(
    kind: str,
    arm: MeasuredArm,
    swept: Sequence[MeasuredArm],
    reference: MeasuredArm,
    costs: Costs,
    baseline: str,
) -> tuple[dict[str, Any], list[Row]]:
    """Reads both tuning points off the curve of an arm: it goes through itself and its points, at the sweep's seeds.

    Returns which points there are, which lack a run or a cost, why there is no reading, and the bounds ``<`` and ``>``
    of readings that lie beyond the sweep.
    """
    planned = dict.fromkeys(seed for point in swept for seed in point.plan.seeds)
    seeds, base = [seed for seed in planned if seed in reference.runs], costs.arms.get(baseline)
    curve, left_out = [], []
    for entry in (reference, arm, *swept):
        entry_costs, cost = costs.arms.get(entry.plan.name), None
        if entry_costs is not None and kind == "flops":
            cost = pass_flops(entry_costs)
        elif (
            entry_costs is not None
            and base is not None
            and (time := pass_time(entry_costs, base)) is not None
        ):
            cost = time.value
        runs = [entry.runs.get(seed) for seed in seeds]
        same = [run for run, seed in zip(runs, seeds, strict=True)
                if run is not None and run.scored.same_as(reference.runs[seed].scored)]  # fmt: skip
        if cost and seeds and len(same) == len(seeds):
            curve.append(CurvePoint(entry.plan.name, cost, mean([run.estimates[ACCURACY] for run in same])))
        else:
            left_out.append(entry.plan.name)
    target = reference.plan.name
    reason = None
    if not seeds:
        reason = f"{target} has not finished a seed of the sweep"
    elif target in left_out:
        reason = f"the cost of {target} is not known"
    elif len(curve) == 1:
        reason = "no point of the sweep has all its runs and its cost"
    elif not all(math.isfinite(point.accuracy.point) for point in curve):
        reason = "its accuracy is undefined"
    rows: list[Row] = []
    bounds = {}
    if reason is None:
        names = f"accuracy_change_at_neutral_{kind}", f"{kind}_change_at_neutral_accuracy"
        for metric, read in zip(names, (accuracy_at_neutral_cost, cost_at_neutral_accuracy), strict=True):
            reading = read(curve[1:], curve[0].cost, curve[0].accuracy)
            rows.append(row(metric, Number(reading.value, reading.low, reading.high), arm=arm.plan.name))
            bounds |= {metric: reading.bound} if reading.bound else {}
    sweep = {
        "points": [point.name for point in curve if point.name != target],
        "left_out": [name for name in left_out if name != target],
        "seeds": seeds,
        "bounds": bounds,
        "unavailable": reason,
    }
    return sweep, rows


def by_cost(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Sorts the points by ascending cost, with only the most accurate of equal cost."""
    best: dict[float, CurvePoint] = {}
    for point in points:
        held = best.get(point.cost)
        if held is None or point.accuracy.point > held.accuracy.point:
            best[point.cost] = point
    return [best[cost] for cost in sorted(best)]


def accuracy_at_neutral_cost(points: Sequence[CurvePoint], cost: float, accuracy: Estimate) -> TuningPoint:
    """Reads the curve's relative gain over `accuracy` at `cost`: 0.001 is a thousandth more.

    `points` is at least one; `cost` and `accuracy` are of the reference, over the same queries.
    """
    curve = by_cost(points)
    costs = [point.cost for point in curve]
    bound = "<" if cost < costs[0] else ">" if cost > costs[-1] else ""
    index = min(max(int(np.searchsorted(costs, cost)), 1), len(curve) - 1)
    if bound or len(curve) == 1:
        read = curve[-1 if bound == ">" else 0].accuracy
    else:
        below, above = curve[index - 1], curve[index]
        share = math.log(cost / below.cost) / math.log(above.cost / below.cost)
        read = _between(below.accuracy, above.accuracy, share)
    change = quotient(difference(accuracy, read), accuracy)
    low, high = (None, None) if bound else _finite_interval(change)
    return TuningPoint(float(change.point), bound, low, high)


def cost_at_neutral_accuracy(points: Sequence[CurvePoint], cost: float, accuracy: Estimate) -> TuningPoint:
    """Reads the least cost at which the curve reaches `accuracy`, relative to `cost`: -0.1 is a tenth less."""
    curve = by_cost(points)
    logs = np.log([point.cost for point in curve])
    crossing = _crossing(logs, np.array([point.accuracy.point for point in curve]), float(accuracy.point))
    if math.isinf(crossing):
        bound, end = ("<", logs[0]) if crossing < 0 else (">", logs[-1])
        return TuningPoint(_relative(float(end), cost), bound)
    replicates = [
        _crossing(logs, np.array([point.accuracy.replicates[bucket] for point in curve]), float(target))
        for bucket, target in enumerate(accuracy.replicates)
    ]
    occupied = np.any([point.accuracy.occupied for point in curve], axis=0) | accuracy.occupied
    # Where a replicate's crossing lies beyond the sweep, nothing is known of the spread.
    finite = np.array([value if math.isfinite(value) else math.nan for value in replicates])
    low, high = _finite_interval(Estimate(np.array(crossing), finite, occupied))
    return TuningPoint(
        value=_relative(crossing, cost),
        low=None if low is None else _relative(low, cost),
        high=None if high is None else _relative(high, cost),
    )


def _crossing(logs: FloatArray, accuracy: FloatArray, target: float) -> float:
    """Returns the log of the least cost at which the curve [P] reaches `target`.

    Minus infinity where the first point already lies above it, infinity where none reaches it.
    """
    reached = np.flatnonzero(accuracy >= target)
    if not len(reached):
        return math.inf
    index = int(reached[0])
    if index == 0:
        return float(logs[0]) if accuracy[0] == target else -math.inf
    share = (target - accuracy[index - 1]) / (accuracy[index] - accuracy[index - 1])
    return float(logs[index - 1] + share * (logs[index] - logs[index - 1]))


def _between(first: Estimate, second: Estimate, share: float) -> Estimate:
    return Estimate(
        point=(1 - share) * first.point + share * second.point,
        replicates=(1 - share) * first.replicates + share * second.replicates,
        occupied=first.occupied | second.occupied,
    )


def _relative(log_cost: float, cost: float) -> float:
    return math.expm1(log_cost - math.log(cost))


def _finite_interval(estimate: Estimate) -> tuple[float | None, float | None]:
    low, high = (float(end) for end in estimate.interval())
    return (low, high) if math.isfinite(low) and math.isfinite(high) else (None, None)
