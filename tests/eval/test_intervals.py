from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import special, stats
from threadpoolctl import threadpool_limits

from ctr.eval.intervals import Estimate, difference, student_t_quantile
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.states import BUCKETS
from jackknife import degrees_of


def test_student_t_quantile_agrees_with_scipy():
    degrees = np.array([*range(1, 256), 10_000])
    expected = stats.t.ppf(0.975, degrees)
    np.testing.assert_allclose([student_t_quantile(int(one)) for one in degrees], expected, rtol=1e-11)
    with pytest.raises(ValueError, match="degrees must be at least 1, got 0"):
        student_t_quantile(0)


def mean_estimate(values: Any, occupied: Any) -> Estimate:
    """The mean of one value per occupied bucket, with its replicates."""
    total, count = np.where(occupied, values, 0.0).sum(axis=0), occupied.sum(axis=0)
    without = (total - np.where(occupied, values, 0.0)) / np.maximum(count - occupied, 1)
    return Estimate(total / np.maximum(count, 1), without, occupied)


def test_interval_of_a_mean_is_that_of_student_with_the_degrees_of_its_variance():
    # The jackknife of a mean is exact: standard deviation / sqrt(n).
    rng = np.random.default_rng(0)
    values = rng.normal(5, 2, BUCKETS)
    for count in (2, 3, 17, BUCKETS):
        occupied = rng.permutation(np.arange(BUCKETS) < count)
        sample = values[occupied]
        expected = stats.t.interval(0.95, degrees_of(sample), sample.mean(), stats.sem(sample))
        np.testing.assert_allclose(mean_estimate(values, occupied).interval(), expected, rtol=1e-11)
    # A variance that few buckets carry has few degrees, twice their number.
    values = (np.arange(BUCKETS) < 3).astype(float)
    margin = stats.sem(values) * stats.t.ppf(0.975, 6)
    estimate = mean_estimate(values, np.ones(BUCKETS, np.bool_))
    assert np.ptp(estimate.interval()) / 2 == pytest.approx(margin, rel=1e-9)


@pytest.mark.parametrize(("scale", "to"), [("log", np.log), ("logit", special.logit)])
def test_an_interval_is_symmetric_on_its_scale_and_plain_where_that_has_none(scale, to):
    rng = np.random.default_rng(2)
    values, occupied = rng.random(BUCKETS) ** 8, np.ones(BUCKETS, np.bool_)
    estimate = replace(mean_estimate(values, occupied), scale=scale)
    low, high = estimate.interval()
    assert 0 < low < estimate.point < high < 1
    assert to(low) + to(high) == pytest.approx(2 * to(estimate.point), rel=1e-9)
    # The plain interval of the transformed replicates.
    plain = Estimate(to(estimate.point), to(estimate.replicates), occupied).interval()
    assert to(np.array([low, high])) == pytest.approx(np.array(plain), rel=1e-9)
    beyond = replace(estimate, point=estimate.point - 1, replicates=estimate.replicates - 1)
    assert beyond.interval() == replace(beyond, scale="plain").interval()


def test_undefined_with_one_bucket_or_an_undefined_replicate():
    first = np.arange(BUCKETS) == 7
    assert np.isnan(mean_estimate(np.ones(BUCKETS), first).interval()).all()
    replicates = np.where(np.arange(BUCKETS) == 3, np.nan, 0.5)
    everywhere = np.ones(BUCKETS, bool)
    assert np.isnan(Estimate(np.array(0.5), replicates, everywhere).interval()).all()
    # A replicate that is undefined because its bucket holds nothing does no harm.
    elsewhere = np.arange(BUCKETS) != 3
    assert np.array_equal(Estimate(np.array(0.5), replicates, elsewhere).interval(), (0.5, 0.5))


def test_difference_pairs_buckets_that_either_run_has():
    rng = np.random.default_rng(2)
    shared, own = rng.normal(size=(2, BUCKETS))
    everywhere = np.ones(BUCKETS, bool)
    first, second = mean_estimate(shared, everywhere), mean_estimate(shared + 0.1 * own + 1, everywhere)
    expected = mean_estimate(0.1 * own + 1, everywhere).interval()
    np.testing.assert_allclose(difference(first, second).interval(), expected, rtol=1e-10)
    # Runs without a common query are independent: the variances add.
    values, first_half = np.arange(BUCKETS) % 5.0, np.arange(BUCKETS) < BUCKETS / 2
    first, second = mean_estimate(values, first_half), mean_estimate(values, ~first_half)
    expected = np.hypot(*(np.ptp(estimate.interval()) for estimate in (first, second)))
    assert np.ptp(difference(first, second).interval()) == pytest.approx(expected, rel=0.02)


# Queries, level of clicks: rare clicks, few queries, an ordinary log.
LOGS = {"ordinary": (600, -1.8), "rare clicks": (1600, -6.6), "sixty queries": (60, -1.5)}


def logged(rng: np.random.Generator, queries: int, base: float) -> list[np.ndarray]:
    """Labels, logits of two models that know part of what makes clicks, and queries; each query has its own level.

    Both models share most of their error, and the second has less of it.
    """
    level, appeal = rng.normal(0, 0.5, (queries, 1)), rng.normal(0, 1, (queries, 5))
    label = rng.random((queries, 5)) < special.expit(base + level + appeal)
    error = rng.normal(0, 0.3, (queries, 5))
    first = base + 0.12 + 0.4 * level + 0.9 * appeal + error
    second = first + 0.05 * appeal - 0.1 * error + rng.normal(0, 0.05, (queries, 5))
    query = np.repeat(rng.integers(0, 2**62, queries), 5)
    return [label.ravel(), first.ravel(), second.ravel(), query]


def estimates(label: Any, logit: Any, query: Any) -> tuple[dict[str, Estimate], tuple[float, float]]:
    """Each metric's estimate, and the ends of the interval of predicted over actual clicks."""
    metrics = ProgressiveMetrics()
    metrics.update(label, logit, np.ones(len(label)), query)
    ratio = {"calibration_ratio": metrics.calibration.ratio_estimate()}
    return {**metrics.estimates(), **ratio}, metrics.calibration.ratio_interval()


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("kind", LOGS)
def test_intervals_cover_the_truth_and_pairing_narrows_them(kind):
    rng = np.random.default_rng(5)
    drawn = [logged(rng, *LOGS[kind]) for _ in range(400)]
    many = [np.concatenate(parts) for parts in zip(*drawn, strict=True)]
    truth, truth_second = (estimates(many[0], logit, many[3])[0] for logit in many[1:3])
    missed: dict[str, list[tuple[bool, bool]]] = {}
    widths: dict[str, list[tuple[float, float]]] = {}
    with threadpool_limits(1):
        for _ in range(400):
            label, first, second, query = logged(rng, *LOGS[kind])
            (found, clicks), (other, _) = estimates(label, first, query), estimates(label, second, query)
            for name, estimate in found.items():
                low, high = clicks if name == "calibration_ratio" else estimate.interval()
                paired = difference(estimate, other[name]).interval()
                change = truth_second[name].point - truth[name].point
                for key, ends, value in (
                    (name, (low, high), truth[name].point),
                    (f"difference of {name}", paired, change),
                ):
                    missed.setdefault(key, []).append((bool(value < ends[0]), bool(value > ends[1])))
                apart = np.hypot(high - low, np.subtract(*other[name].interval()))
                widths.setdefault(name, []).append((float(paired[1] - paired[0]), float(apart)))
    # Of rare clicks and of few queries the others have no intervals that promise so much.
    few = ("auc", "logloss", "normalized_entropy", "calibration_ratio")
    for name in missed if kind == "ordinary" else few:
        below, above = np.mean(missed[name], axis=0)
        assert 0.925 <= 1 - below - above <= 0.98, (name, below, above)
        assert max(below, above) <= 0.05, (name, below, above)
    if kind == "ordinary":
        for name, pairs in widths.items():
            paired, apart = np.mean(pairs, axis=0)
            assert paired < 0.3 * apart, (name, paired, apart)
