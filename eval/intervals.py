"""95% intervals by the jackknife over query buckets.

Rows of one query are not independent, so queries, never rows, are resampled: they fall by hash into K = 256
buckets, and a replicate is the metric of all buckets but one. With n non-empty buckets and
replicates r_1 .. r_n,

   variance = (n - 1) / n * sum_k (r_k - mean r)^2        (Tukey's jackknife over groups)
   interval = point -+ t * sqrt(variance)                 (t: Student's quantile)

Metrics above 0 (logloss, ratios) or between 0 and 1 (AUC) are skewed where clicks are few:
their variance and interval are computed on the logarithm, or the logit, and its ends transformed back
(`Scale`). A few buckets may carry most of the variance (those with a click, where clicks are rare). By
Satterthwaite's rule, with d_k = r_k - mean r,

   degrees of freedom = 2 (sum d_k^2)^2 / (sum d_k^4 - (sum d_k^2)^2 / n),   rounded down, from 1 to n - 1

which is n - 1 for normal d_k; if few buckets carry the variance, it is twice their number. Two runs over the
same log share their buckets, so the difference of their replicates is a replicate of their difference. Where
a few queries carry most of the weight, or few buckets are non-empty, the interval covers less
than 95%.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np

from ctr.eval.arrays import BoolArray, FloatArray, IntArray, ratio, sigmoid
from ctr.eval.display import Number
from ctr.eval.states import BUCKETS

CONFIDENCE = 0.95

Scale = Literal["plain", "log", "logit"]
"""Scale on which an interval is symmetric; plain also where a replicate is at an end of the scale or beyond.
"""

_GROUPS = 16
_EDGE = 1e-12


@dataclass(frozen=True)
class Estimate:
    """A metric, scalar or an array of shape [...], with its delete-one-bucket replicates."""

    point: FloatArray
    replicates: FloatArray  # [K, ...], the metric without bucket k
    occupied: BoolArray  # [K, ...], whether bucket k holds anything the metric depends on
    scale: Scale = "plain"

    def interval(self) -> tuple[FloatArray, FloatArray]:
        """Returns the low and the high end of the 95% interval, each [...].

        NaN with fewer than two occupied buckets, and where a replicate is undefined (all clicks in one
        bucket, say).
        """
        margin = _margin(self.replicates, self.occupied)
        low, high = self.point - margin, self.point + margin
        if self.scale == "plain":
            return low, high
        replicates, point = _to_scale(self.replicates, self.scale), _to_scale(self.point, self.scale)
        fits = np.isfinite(point) & (np.isfinite(replicates) | ~self.occupied).all(axis=0)
        margin = np.where(fits, _margin(np.where(fits, replicates, 0.0), self.occupied), math.nan)
        return (
            np.where(fits, _from_scale(point - margin, self.scale), low),
            np.where(fits, _from_scale(point + margin, self.scale), high),
        )

    def number(self) -> Number:
        """Returns the value and the interval of a scalar."""
        low, high = self.interval()
        return Number(float(self.point), float(low), float(high))

    def no_interval(self) -> str:
        """Returns why a scalar metric has no interval, in words for a user; empty if it has one."""
        if np.isfinite(self.interval()).all():
            return ""
        if not np.isfinite(self.point):
            return "the metric is undefined for these rows: too few of them, or without both a click and a non-click"
        buckets = int(self.occupied.sum())
        if buckets < 2:
            return f"its queries are in {buckets} of the {BUCKETS} groups that are resampled; at least 2 are required"
        return (
            f"without one of the {BUCKETS} groups of queries that are resampled the metric is undefined: "
            "all clicks, or all non-clicks, are in that group"
        )


def combined(function: Callable[..., FloatArray], *estimates: Estimate) -> Estimate:
    """Applies a function to the points of estimates over the same queries, and to each of their replicates."""
    return Estimate(
        point=function(*(estimate.point for estimate in estimates)),
        replicates=function(*(estimate.replicates for estimate in estimates)),
        occupied=np.any([estimate.occupied for estimate in estimates], axis=0),
    )


def difference(first: Estimate, second: Estimate) -> Estimate:
    """Computes `second` minus `first`, paired bucket by bucket: two runs over the same queries."""
    return combined(np.subtract, second, first)


def mean(estimates: Sequence[Estimate]) -> Estimate:
    """Computes the mean of at least one estimate over the same queries, replicate by replicate."""
    average = combined(lambda *values: np.mean(values, axis=0), *estimates)
    return replace(average, scale=estimates[0].scale)


def quotient(part: Estimate, whole: Estimate) -> Estimate:
    """Computes `part` / `whole` over the same queries, replicate by replicate; NaN where `whole` is 0."""
    return combined(ratio, part, whole)


def deletions() -> FloatArray:
    """Returns the multiplicity of each bucket in each delete-one replicate, float64 [K, K]: diagonal 0, else 1."""
    return _one_left_out(BUCKETS)


@cache
def _one_left_out(count: int) -> FloatArray:
    multiplicity = np.ones((count, count)) - np.eye(count)
    multiplicity.flags.writeable = False
    return multiplicity


def all_but_one(sums: FloatArray) -> FloatArray:
    """Computes for each bucket the sum over the others, float64 [K, ...], from the sums [K, ...] per bucket.

    This equals `deletions` times `sums`, with a fifteenth of the multiplications. Nothing is subtracted, so that a
    bucket much larger than all others cancels no digits of their sum.
    """
    groups = sums.reshape(_GROUPS, BUCKETS // _GROUPS, -1)
    other_groups = _one_left_out(_GROUPS) @ groups.sum(axis=1)
    others = _one_left_out(BUCKETS // _GROUPS) @ groups
    others += other_groups[:, np.newaxis]
    return others.reshape(sums.shape)


@cache
def student_t_quantile(degrees: int) -> float:
    """Computes the half-width t for which a Student variable lies within -t..t with probability 0.95.

    For whole degrees of freedom the distribution is a finite sum in theta = arctan(t / sqrt(degrees)) (Abramowitz and
    Stegun, 26.7.3 and 26.7.4) that grows with theta, so bisection finds t. Raises ValueError for `degrees` below 1.
    """
    if degrees < 1:
        raise ValueError(f"degrees must be at least 1, got {degrees}")
    low, high = 0.0, math.pi / 2
    while True:
        theta = (low + high) / 2
        if theta in (low, high):
            return math.sqrt(degrees) * math.tan(theta)
        if _central_probability(theta, degrees) < CONFIDENCE:
            low = theta
        else:
            high = theta


def _central_probability(theta: float, degrees: int) -> float:
    """Computes P(abs(T) <= sqrt(degrees) * tan(theta)) for a Student variable T."""
    sine, cosine = math.sin(theta), math.cos(theta)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = 0.0 if degrees == 1 else term
    for power in range(2 + odd, degrees - 1, 2):
        term *= cosine * cosine * (power - 1) / power
        total += term
    return 2.0 / math.pi * (theta + sine * total) if odd else sine * total


def _margin(replicates: FloatArray, occupied: BoolArray) -> FloatArray:
    """Computes the half-width of a symmetric interval [...], from the replicates [K, ...]."""
    buckets = occupied.sum(axis=0)
    masked = np.where(occupied, replicates, 0.0)
    mean = masked.sum(axis=0) / np.maximum(buckets, 1)
    deviations = np.where(occupied, replicates - mean, 0.0)
    squares = np.square(deviations)
    total = squares.sum(axis=0)
    spread = total * (buckets - 1) / np.maximum(buckets, 1)
    degrees = _degrees(ratio(squares, total), buckets)
    return _quantiles(degrees) * np.sqrt(np.maximum(spread, 0.0))


def _degrees(shares: FloatArray, buckets: IntArray) -> IntArray:
    """Computes the degrees of freedom [...] of a variance from each bucket's share of it [K, ...]."""
    most = np.maximum(buckets - 1, 0)
    excess = np.square(shares).sum(axis=0) - 1 / np.maximum(buckets, 1)
    # Equal buckets have no excess, except for rounding; it is undefined if no bucket varies.
    degrees = ratio(np.full(excess.shape, 2.0), np.maximum(excess, 1e-12))
    degrees = np.where(np.isfinite(degrees), degrees, most)
    # Simple shares give whole numbers, which rounding must not push below themselves.
    whole = np.floor(degrees * (1 + 1e-9))
    return np.asarray(np.clip(whole, np.minimum(most, 1), most).astype(np.int64))


def _to_scale(values: FloatArray, scale: Scale) -> FloatArray:
    # So near to an end of the scale, rounding would decide the interval.
    outside = (values < _EDGE) | ((values > 1.0 - _EDGE) & (scale == "logit"))
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.log(values) if scale == "log" else np.log(values) - np.log1p(-values)
    return np.where(outside, math.nan, scaled)


def _from_scale(values: FloatArray, scale: Scale) -> FloatArray:
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(values) if scale == "log" else sigmoid(values))


def _quantiles(degrees: IntArray) -> FloatArray:
    """Computes `student_t_quantile` of each [...]; NaN for 0, where one bucket has no spread."""
    quantiles = np.full(degrees.shape, math.nan)
    # Computed on demand and cached: a table for all degrees takes longer than the metrics of a window.
    for degree in np.unique(degrees[degrees > 0]):
        quantiles[degrees == degree] = student_t_quantile(int(degree))
    return quantiles
