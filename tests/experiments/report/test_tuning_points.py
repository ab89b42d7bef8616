import math

import numpy as np
import pytest

from ctr.eval.display import Number
from ctr.eval.intervals import Estimate
from ctr.eval.states import BUCKETS
from ctr.experiments.report.tuning_points import (
    CurvePoint,
    accuracy_at_neutral_cost,
    by_cost,
    cost_at_neutral_accuracy,
)
from jackknife import margin_of


def exact(value: float) -> Estimate:
    """Without spread."""
    return Estimate(np.array(value), np.full(BUCKETS, value), np.ones(BUCKETS, bool))


def noisy(value: float, seed: int, scale: float) -> Estimate:
    noise = np.random.default_rng(seed).normal(size=BUCKETS) * scale
    return Estimate(np.array(value), value + noise, np.ones(BUCKETS, bool))


def below(value: float) -> Number:
    return Number(pytest.approx(value), -math.inf, pytest.approx(value))


def above(value: float) -> Number:
    return Number(pytest.approx(value), pytest.approx(value), math.inf)


def curve(*points: tuple[float, float]) -> list[CurvePoint]:
    return [CurvePoint(cost, exact(accuracy)) for cost, accuracy in points]


def test_nothing_is_told_beyond_the_sweep_but_a_bound():
    points = curve((2, 0.72), (8, 0.76))
    assert accuracy_at_neutral_cost(points, CurvePoint(1, exact(0.8))) == below(-0.1)
    assert accuracy_at_neutral_cost(points, CurvePoint(9, exact(0.8))) == above(-0.05)
    assert cost_at_neutral_accuracy(points, CurvePoint(4, exact(0.7))) == below(-0.5)
    assert cost_at_neutral_accuracy(points, CurvePoint(4, exact(0.8))) == above(1.0)
    # The ends belong to the sweep.
    for cost, accuracy in ((2, 0.72), (8, 0.76)):
        at_cost = accuracy_at_neutral_cost(points, CurvePoint(cost, exact(0.7)))
        assert at_cost.value == pytest.approx(accuracy / 0.7 - 1)
        assert math.isfinite(at_cost.high - at_cost.low)
        at_accuracy = cost_at_neutral_accuracy(points, CurvePoint(4, exact(accuracy)))
        assert at_accuracy.value == pytest.approx(cost / 4 - 1)
    # One point is a curve of its own; a crossing at the edge has no interval.
    point = curve((2, 0.72))
    assert accuracy_at_neutral_cost(point, CurvePoint(2, exact(0.72))).value == 0
    assert accuracy_at_neutral_cost(point, CurvePoint(3, exact(0.72))).high == math.inf
    assert cost_at_neutral_accuracy(point, CurvePoint(2, exact(0.72))) == Number(0.0, 0.0, 0.0)
    points = [CurvePoint(1.0, noisy(0.70, 1, 1e-3)), CurvePoint(2.0, noisy(0.71, 2, 1e-3))]
    found = cost_at_neutral_accuracy(points, CurvePoint(1, exact(0.7000001)))
    assert (found.low, found.high) == (None, None)


def test_the_cheapest_crossing_of_a_curve_that_falls_and_rises():
    points = curve((1, 0.70), (2, 0.74), (4, 0.70), (8, 0.78))
    flat = curve((1, 0.7), (2, 0.74), (4, 0.74))
    # A flat stretch: where it begins. Of equal costs the most accurate counts.
    for own, accuracy, cost in ((points, 0.72, math.sqrt(2)), (points, 0.76, 4 * 2**0.75), (flat, 0.74, 2)):
        found = cost_at_neutral_accuracy(own, CurvePoint(1, exact(accuracy)))
        assert found.value == pytest.approx(cost - 1)
    points = by_cost(curve((2, 0.72), (1, 0.7), (2, 0.74), (2, 0.71)))
    assert [(point.cost, float(point.accuracy.point)) for point in points] == [(1, 0.7), (2, 0.74)]


def test_intervals_are_those_of_replicates_read_one_by_one():
    accuracies = {1.0: noisy(0.70, 1, 1e-5), 3.0: noisy(0.73, 2, 1e-5), 9.0: noisy(0.75, 3, 1e-5)}
    points = [CurvePoint(cost, accuracy) for cost, accuracy in accuracies.items()]
    reference = noisy(0.72, 4, 1e-5)
    at_cost, at_accuracy = [], []
    for bucket in range(BUCKETS):
        own = [float(accuracy.replicates[bucket]) for accuracy in accuracies.values()]
        target = float(reference.replicates[bucket])
        at_cost.append(np.interp(math.log(2), np.log([1, 3, 9]), own) / target - 1)
        at_accuracy.append(np.interp(target, own, np.log([1, 3, 9])))
    found = accuracy_at_neutral_cost(points, CurvePoint(2, reference))
    expected = np.interp(math.log(2), np.log([1, 3, 9]), [0.7, 0.73, 0.75]) / 0.72 - 1
    assert found.value == pytest.approx(expected)
    assert found.high - found.value == pytest.approx(margin_of(at_cost), rel=1e-9)
    found = cost_at_neutral_accuracy(points, CurvePoint(2, reference))
    assert math.log1p(found.value) == pytest.approx(math.log(3) * 2 / 3 - math.log(2))
    assert math.log1p(found.high) - math.log1p(found.value) == pytest.approx(margin_of(at_accuracy), rel=1e-9)
