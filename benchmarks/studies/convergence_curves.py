"""Estimates how many steps a run needs to reach the level at which another one ends.

A run's curve is its expected excess logloss, KL(truth || prediction), summed by position in the log (``BINS``
equal stretches) and by query bucket: float64 [BINS, K]. It is free of the labels' noise, but depends on the difficulty
of the log's stretches: some hours and users are harder to predict. That factor is common to all runs and moves a
curve by several percent from bin to bin, while a curve falls so slowly at its end that 1% of level is 2-4% of
position. So the first crossing of raw curves is unreliable. Here, on a logarithmic scale

    log e_r(t) = g_r(t) + d(t) + noise,         t in (0, 1] the position as a share of the log,

with g_r the wanted curve and d the common difficulty:

1. The mean over all runs of the group (same log, same batch) of log e_r(t) is fitted, over t >= ``BEGIN``, by
   least squares with a cubic in log t plus a multiple of the log of the stretch's mean p (1 - p), which the
   truth alone determines. All but the cubic is d(t): the regressor's part and the residual.
2. g_r is the cubic in log t fitted to log e_r(t) - d(t).
3. The target is the baseline's final level g_b(1). The ratio is the position after which the candidate's
   g_c stays at or below it. A candidate that ends above it is measured in reverse, as 1 / (position
   at which the baseline reaches the candidate's final level), so that the ratio goes through 1 smoothly.

The ratio is of positions in the log, that is of steps, as both runs have the same batches. It cannot fall
below ``BEGIN`` (nor rise above its inverse). A stretch's difficulty acts on both curves and cancels exactly in
g_c - g_b; it can only disturb the slope of the baseline's trend.

Intervals delete one query bucket at a time from all curves of the group and repeat all three steps.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ctr.eval.intervals import Estimate
from ctr.eval.states import BUCKETS

BINS = 200
BEGIN = 0.15
DEGREE = 3
_GRID = np.linspace(BEGIN, 1.0, 3401)

FloatArray = npt.NDArray[np.float64]


def expected_excess(truth: FloatArray, logit: FloatArray) -> FloatArray:
    """Computes KL(Bernoulli(truth) || Bernoulli(sigmoid(logit))) in nats, elementwise."""
    with np.errstate(divide="ignore", invalid="ignore"):
        negative_entropy = np.where(truth > 0, truth * np.log(truth), 0.0)
        negative_entropy += np.where(truth < 1, (1 - truth) * np.log1p(-truth), 0.0)
    return negative_entropy + truth * np.logaddexp(0, -logit) + (1 - truth) * np.logaddexp(0, logit)


def sum_by_cell(cell: npt.NDArray[np.int64], values: FloatArray) -> FloatArray:
    """Sums values [N] by their cells ``bin * K + bucket``: [BINS, K]."""
    sums: FloatArray = np.bincount(cell, values, BINS * BUCKETS).astype(np.float64)
    return sums.reshape(BINS, BUCKETS)


def smooth_levels(curves: FloatArray, counts: FloatArray, control: FloatArray) -> FloatArray:
    """Fits the curves g of a group, without the common difficulty.

    Args:
        curves: [R, BINS, K], sums of all runs of the group.
        counts: [BINS, K], numbers of examples.
        control: [BINS, K], sums of p (1 - p).

    Returns:
        [R, 1 + K, 4], coefficients of the cubics in log t, constant first: with all buckets, and without each one.
    """
    used = (np.arange(BINS) + 0.5) / BINS >= BEGIN
    time = np.log((np.arange(BINS)[used] + 0.5) / BINS)
    cubic = np.stack([time**power for power in range(DEGREE + 1)], axis=1)
    examples = _with_deletions(counts)[..., used]
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(_with_deletions(curves)[..., used] / examples)
        entropy = np.log(_with_deletions(control)[..., used] / examples)
    mean = logs.mean(axis=0)
    difficulty = np.empty_like(mean)
    for replicate in range(1 + BUCKETS):
        regressor = entropy[replicate] - entropy[replicate].mean()
        design = np.concatenate([cubic, regressor[:, None]], axis=1)
        coefficients = np.linalg.lstsq(design, mean[replicate], rcond=None)[0]
        difficulty[replicate] = mean[replicate] - cubic @ coefficients[: DEGREE + 1]
    return (logs - difficulty) @ np.linalg.pinv(cubic).T


def steps_ratio(baseline: FloatArray, candidate: FloatArray) -> FloatArray:
    """Returns the positions at which candidates reach the final level of baselines.

    Args:
        baseline: [..., 4], coefficients from ``smooth_levels``.
        candidate: [..., 4], likewise.

    Returns:
        [...], between ``BEGIN`` and 1 / ``BEGIN``; NaN where a curve is not finite.
    """
    forward = _reached(candidate, baseline[..., 0])
    backward = _reached(baseline, candidate[..., 0])
    # The constant is the level at t = 1.
    ratio = np.where(candidate[..., 0] <= baseline[..., 0], forward, 1 / backward)
    finite = np.isfinite(baseline).all(axis=-1) & np.isfinite(candidate).all(axis=-1)
    return np.where(finite, ratio, np.nan)


def mean_ratio(ratios: Sequence[FloatArray]) -> Estimate:
    """Computes the geometric mean over seeds of ratios [1 + K], with its delete-one-bucket replicates."""
    mean = np.exp(np.mean(np.log(np.stack(ratios)), axis=0))
    return Estimate(mean[0], mean[1:], np.ones(BUCKETS, bool))


def relative_excess(baseline: Sequence[FloatArray], candidate: Sequence[FloatArray]) -> Estimate:
    """Computes the mean over seeds of excess(candidate) / excess(baseline), from sums [BINS', K] of each seed."""
    ratios = [
        _with_deletions(ours).sum(axis=-1) / _with_deletions(theirs).sum(axis=-1)
        for theirs, ours in zip(baseline, candidate, strict=True)
    ]
    mean = np.mean(ratios, axis=0)
    return Estimate(mean[0], mean[1:], np.ones(BUCKETS, bool))


def _with_deletions(sums: FloatArray) -> FloatArray:
    """Sums [..., BINS, K] over all buckets, and over all but each one: [..., 1 + K, BINS]."""
    total = sums.sum(axis=-1, keepdims=True)
    return np.moveaxis(np.concatenate([total, total - sums], axis=-1), -1, -2)


def _reached(coefficients: FloatArray, target: FloatArray) -> FloatArray:
    """Returns the position after which a curve stays at or below ``target``; 1 where it ends above."""
    powers = np.stack([np.log(_GRID) ** power for power in range(DEGREE + 1)])
    above = coefficients @ powers - target[..., None]
    last = above.shape[-1] - 1 - np.argmax(above[..., ::-1] > 0, axis=-1)
    never_above = ~(above > 0).any(axis=-1)
    after = np.minimum(last + 1, above.shape[-1] - 1)
    high = np.take_along_axis(above, last[..., None], -1)[..., 0]
    low = np.take_along_axis(above, after[..., None], -1)[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(after > last, high / (high - low), 0.0)
    return np.where(never_above, BEGIN, _GRID[last] + part * (_GRID[after] - _GRID[last]))
