"""The convergence benchmark: its measure on curves whose answer is known, and its search."""

import convergence_curves as curves
import numpy as np
import pytest

pytestmark = pytest.mark.soak


def simulated_curves(ratios: list[float], seed: int) -> tuple[np.ndarray, ...]:
    """Curves that are 1 / ratio times as fast as the first, under a common difficulty of 10% and more."""
    rng = np.random.default_rng(seed)
    bins, buckets = curves.BINS, curves.BUCKETS
    time = (np.arange(bins) + 0.5) / bins
    counts = rng.poisson(40, (bins, buckets)).astype(np.float64)
    hours = 0.1 * np.sin(2 * np.pi * 42 * time) + 0.08 * np.sin(2 * np.pi * 6 * time)
    weeks = rng.normal(0, 0.2, 7)[np.arange(bins) % 7] + 0.1 * time
    difficulty = np.exp(hours + weeks)[:, None] * rng.gamma(30, 1 / 30, (bins, buckets))
    control = 0.1 * counts * np.exp(0.7 * (hours + weeks))[:, None]
    runs = []
    for ratio in ratios:
        level = 0.012 + 0.015 * (time / ratio + 0.02) ** -0.55
        bin_noise = np.exp(rng.normal(0, 0.01, bins))[:, None] * rng.gamma(60, 1 / 60, (bins, buckets))
        runs.append(counts * difficulty * level[:, None] * bin_noise)
    return np.stack(runs), counts, control


@pytest.mark.parametrize("ratio", [0.6, 0.85, 1.0, 1.2])
def test_the_ratio_of_steps_is_found_under_common_difficulty(ratio):
    ratios = []
    for seed in range(3):
        levels = curves.smooth_levels(*simulated_curves([1.0, ratio, 0.9], seed))
        # In the other order it is the inverse.
        forward, backward = (curves.steps_ratio(*levels[[a, b]]) for a, b in ((0, 1), (1, 0)))
        np.testing.assert_allclose(forward * backward, 1.0)
        estimate = curves.mean_ratio([curves.steps_ratio(levels[0], levels[1])])
        low, high = estimate.interval()
        assert low < estimate.point < high < low + 0.15
        ratios.append(float(estimate.point))
    assert np.mean(ratios) == pytest.approx(ratio, rel=0.025)
    good = np.array([-4.0, -0.3, 0.0, 0.0])
    assert np.isnan(curves.steps_ratio(good, np.full(4, np.nan)))
    # A candidate below the target from the first bin on cannot be reported to be any faster than that.
    assert curves.steps_ratio(good, good - [5, 0, 0, 0]) == curves.BEGIN


def test_the_excess_is_the_divergence_from_the_truth():
    truth, logit = np.array([0.0, 0.2, 0.2, 1.0]), np.array([0.0, np.log(0.25), 0.0, 100.0])
    expected = [np.log(2), 0.0, 0.2 * np.log(0.4) + 0.8 * np.log(1.6), 0.0]
    np.testing.assert_allclose(curves.expected_excess(truth, logit), expected, atol=1e-15)
