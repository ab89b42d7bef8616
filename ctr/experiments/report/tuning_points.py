"""FF section 3's two tuning points of a technique: its accuracy at equal cost, and its cost at equal accuracy.

A technique trained at several sizes of the model draws a curve of accuracy over cost. It is read between its points,
linearly in the logarithm of cost, and never beyond them: there only a bound is reported, a number with an infinite
end, which supposes that accuracy does not fall as cost grows.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ctr.eval.arrays import FloatArray
from ctr.eval.display import Number
from ctr.eval.intervals import Estimate, combined, difference, mean, quotient
from ctr.eval.tidy import Row, row
from ctr.experiments.report.runs import Costs, MeasuredArm, pass_flops, pass_time

ACCURACY = "per_query_auc"  # metric that the tuning points and the plots call accuracy
CURVE_COSTS = ("flops", "time")  # costs of a curve of accuracy over cost: FLOPs of a pass, or its time


class CurvePoint(NamedTuple):
    """Point of the curve, for one size of the model: its cost, above 0, and its accuracy, a scalar estimate."""

    cost: float
    accuracy: Estimate


def tuning_rows(
    kind: str,
    arm: MeasuredArm,
    swept: Sequence[MeasuredArm],
    reference: MeasuredArm,
    costs: Costs,
    baseline: str,
) -> tuple[list[Row], str]:
    """Interpolates both tuning points on the curve through an arm and the points of its sweep, at the sweep's seeds.

    Points that lack a run or a cost are left out. Also returns why there is no result, or an empty string.
    """
    planned = dict.fromkeys(seed for point in swept for seed in point.plan.seeds)
    seeds = [seed for seed in planned if seed in reference.runs]
    if not seeds:
        return [], f"{reference.plan.name} has not finished a seed of the sweep"
    base, points = costs.arms.get(baseline), list[CurvePoint | None]()
    for entry in (reference, arm, *swept):
        arm_costs, cost = costs.arms.get(entry.plan.name), None
        if arm_costs is not None and kind == "flops":
            cost = pass_flops(arm_costs)
        elif arm_costs is not None and base is not None and (time := pass_time(arm_costs, base)) is not None:
            cost = time.value
        runs = [entry.runs[seed] for seed in seeds if seed in entry.runs]
        is_whole = len(runs) == len(seeds) and all(
            run.scored.same_as(reference.runs[seed].scored) for run, seed in zip(runs, seeds, strict=True)
        )
        accuracy = mean([run.estimates[ACCURACY] for run in runs]) if is_whole else None
        points.append(None if not cost or accuracy is None else CurvePoint(cost, accuracy))
    target, curve = points[0], [point for point in points[1:] if point is not None]
    if target is None:
        return [], f"the cost of {reference.plan.name} is not known"
    if not curve:
        return [], "no point of the sweep has all its runs and its cost"
    if not all(math.isfinite(point.accuracy.point) for point in (target, *curve)):
        return [], "its accuracy is undefined"
    readings = {
        f"accuracy_change_at_neutral_{kind}": accuracy_at_neutral_cost(curve, target),
        f"{kind}_change_at_neutral_accuracy": cost_at_neutral_accuracy(curve, target),
    }
    return [row(metric, reading, arm=arm.plan.name) for metric, reading in readings.items()], ""


def by_cost(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Sorts the points by ascending cost; of points with equal cost, keeps only the most accurate one."""
    ascending = sorted(points, key=lambda point: (point.cost, float(point.accuracy.point)))
    return [*{point.cost: point for point in ascending}.values()]


def accuracy_at_neutral_cost(points: Sequence[CurvePoint], target: CurvePoint) -> Number:
    """Interpolates the curve's relative gain in accuracy over the reference, at the reference's cost; 0.001 is 0.1%.

    `points` has at least one point; `target` is over the same queries.
    """
    curve = by_cost(points)
    costs = [point.cost for point in curve]
    if costs[0] < target.cost < costs[-1]:
        index = int(np.searchsorted(costs, target.cost))
        below, above = curve[index - 1], curve[index]
        share = math.log(target.cost / below.cost) / math.log(above.cost / below.cost)
        read = combined(
            lambda first, second: (1 - share) * first + share * second, below.accuracy, above.accuracy
        )
    else:
        read = curve[0 if target.cost <= costs[0] else -1].accuracy
    change = quotient(difference(target.accuracy, read), target.accuracy)
    if costs[0] <= target.cost <= costs[-1]:
        return Number(float(change.point), *_finite_interval(change))
    return _bound(float(change.point), is_below=target.cost < costs[0])


def cost_at_neutral_accuracy(points: Sequence[CurvePoint], target: CurvePoint) -> Number:
    """Interpolates the relative change of cost where the curve reaches the reference's accuracy; -0.1 is 10% less."""
    curve = by_cost(points)
    logs = np.log([point.cost for point in curve])
    crossing = combined(
        lambda *accuracies: np.apply_along_axis(_crossing, 0, np.stack(accuracies), logs),
        *(point.accuracy for point in (target, *curve)),
    )
    log_cost = float(crossing.point)
    if math.isinf(log_cost):
        end = float(logs[0] if log_cost < 0 else logs[-1])
        return _bound(_relative(end, target.cost), is_below=log_cost < 0)
    # A replicate whose crossing lies beyond the sweep leaves the spread undefined.
    replicates = np.where(np.isfinite(crossing.replicates), crossing.replicates, math.nan)
    ends = _finite_interval(replace(crossing, replicates=replicates))
    return Number(*(None if end is None else _relative(end, target.cost) for end in (log_cost, *ends)))


def _bound(value: float, *, is_below: bool) -> Number:
    """Returns the value at the end of a sweep as a bound on the result, which lies beyond it."""
    return Number(value, -math.inf, value) if is_below else Number(value, value, math.inf)


def _crossing(accuracies: FloatArray, logs: FloatArray) -> float:
    """Returns the log of the least cost, of `logs` [P], at which the curve reaches a target.

    `accuracies` are the target's and the curve's [1 + P]. Returns minus infinity if the first point already lies above
    the target, and infinity if none reaches it.
    """
    target, accuracy = accuracies[0], accuracies[1:]
    reached = np.flatnonzero(accuracy >= target)
    if not len(reached):
        return math.inf
    index = int(reached[0])
    if index == 0:
        return float(logs[0]) if accuracy[0] == target else -math.inf
    share = (target - accuracy[index - 1]) / (accuracy[index] - accuracy[index - 1])
    return float(logs[index - 1] + share * (logs[index] - logs[index - 1]))


def _relative(log_cost: float, cost: float) -> float:
    return math.expm1(log_cost - math.log(cost))


def _finite_interval(estimate: Estimate) -> tuple[float | None, float | None]:
    low, high = (float(end) for end in estimate.interval())
    return (low, high) if math.isfinite(low) and math.isfinite(high) else (None, None)
