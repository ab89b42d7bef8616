"""Predicted over actual clicks: its interval, and the verdict on a model's calibration.

The interval is a jackknife over query buckets (`ctr.eval.intervals`), on the scale of logarithms.
With few clicks, or none in a replicate, the jackknife is unreliable. Below `FEW_CLICKS` clicks, the
predicted clicks P are taken as fixed and the actual ones as a Poisson count n, whose mean has the exact
limits of Garwood (Biometrika 28, 1936):

   interval = [P / upper(n), P / lower(n)]

There n is the effective number of clicks, (sum_k c_k)^2 / sum_k c_k^2 over the buckets' weights of clicks
c_k, rounded down: clicks of one query, and clicks of one large weight, count as fewer.
"""

import math
from functools import cache
from typing import Literal

import numpy as np

from ctr.eval import display
from ctr.eval.arrays import FloatArray, ratio
from ctr.eval.intervals import CONFIDENCE, Estimate

FEW_CLICKS = 15
"""Least number of effective clicks for which the jackknife gives the interval; at most a quarter of the buckets."""
CLOSE = 0.03  # a model is calibrated if the interval reaches to within this distance of 1
LIMITS = (0.9, 1.1)  # a model is miscalibrated if the whole interval lies outside

Verdict = Literal["good", "near", "wrong", ""]


def click_ratio_interval(estimate: Estimate, clicks: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Computes the 95% interval of predicted over actual clicks, both ends [...]; NaN without clicks.

    ``clicks`` are [K, ...], by bucket or group of buckets.
    """
    low, high = estimate.interval()
    shares = ratio(clicks, clicks.sum(axis=0))
    # Rounding must not take a click away from a whole number of them.
    count = np.asarray(np.floor((1 + 1e-12) / np.square(shares).sum(axis=0)))
    # Clicks that share a bucket count as one: in a few buckets many look like few.
    limit = min(FEW_CLICKS, len(clicks) // 4)
    for few in np.unique(count[count < limit]):
        lower, upper = poisson_limits(int(few))
        low = np.where(count == few, estimate.point * few / upper, low)
        high = np.where(count == few, estimate.point * few / lower, high)
    return np.asarray(low), np.asarray(high)


@cache
def poisson_limits(count: int) -> tuple[float, float]:
    """Computes exact 95% limits of a Poisson mean from an observed `count` of at least 1 (Garwood 1936)."""
    tail = (1 - CONFIDENCE) / 2
    return _mean_with(count - 1, 1 - tail), _mean_with(count, tail)


def _mean_with(count: int, probability: float) -> float:
    """Solves for the mean of a Poisson variable that is at most `count` with `probability`, by bisection."""
    low, high = 0.0, 10.0 + 3.0 * (count + 1)
    while True:
        mean = (low + high) / 2
        if mean in (low, high):
            return mean
        terms = (mean**number / math.factorial(number) for number in range(count + 1))
        if math.exp(-mean) * math.fsum(terms) > probability:
            low = mean
        else:
            high = mean


def judge(value: float | None, low: float | None, high: float | None) -> Verdict:
    """Returns a verdict: good, the interval comes within 3% of 1; wrong, it lies outside 0.9 to 1.1; near, neither.

    Returns an empty text if the ratio or its interval is undefined.
    """
    if value is None or low is None or high is None:
        return ""
    if low <= 1 + CLOSE and high >= 1 - CLOSE:
        return "good"
    return "wrong" if low > LIMITS[1] or high < LIMITS[0] else "near"


def describe(value: float | None, low: float | None, high: float | None) -> str:
    """Describes the verdict of `judge` in words."""
    if value is None:
        return "undefined: no clicks"
    side = f"{'over' if value > 1 else 'under'}-predicts by {display.percent(abs(value - 1))}"
    verdict = judge(value, low, high)
    if verdict == "good" and low is not None and high is not None:
        if low < LIMITS[0] and high > LIMITS[1]:
            return "too few clicks to judge: the interval contains 1"
        return (
            "calibrated: the interval contains 1"
            if low <= 1 <= high
            else f"{side}; the interval comes within 3% of 1"
        )
    return f"{side}: the interval excludes 0.9 to 1.1" if verdict == "wrong" else side


def distance(estimate: Estimate) -> Estimate:
    """Computes the distance of ratios from 1, by replicate: abs(log ratio), equal for twice and half the clicks."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return Estimate(
            np.abs(np.log(estimate.point)), np.abs(np.log(estimate.replicates)), estimate.occupied
        )
