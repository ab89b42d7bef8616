"""FF section 3's two tuning points of a technique: its accuracy when cost is neutral, its cost when accuracy is.

A technique trained at several sizes of the model draws a curve of accuracy over cost. It is read between its points,
linearly in the logarithm of cost, and never beyond them: there only a bound is reported, which supposes that accuracy
does not fall as cost grows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ctr.eval.arrays import FloatArray
from ctr.eval.intervals import Estimate, difference, quotient


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
