from typing import Any

import numpy as np
import pytest
from scipy import stats

from ctr.eval.calibration import Calibration
from ctr.eval.click_ratio import FEW_CLICKS, click_ratio_interval, describe, judge, poisson_limits
from ctr.eval.rows import scored_rows
from ctr.eval.states import BUCKETS, query_bucket
from jackknife import margin_of


def garwood(count: Any) -> tuple[Any, Any]:
    """The limits as they are usually written."""
    return stats.chi2.ppf(0.025, 2 * count) / 2, stats.chi2.ppf(0.975, 2 * count + 2) / 2


def queries_in_distinct_buckets() -> np.ndarray:
    ids = np.arange(20_000)
    _, first = np.unique(query_bucket(ids), return_index=True)
    assert len(first) == BUCKETS
    return ids[first]


def measured(clicks: np.ndarray, logit: float = -2.0, weight: np.ndarray | None = None) -> Calibration:
    """One row a query, each in a bucket of its own."""
    metric = Calibration()
    weights = np.ones(BUCKETS) if weight is None else weight
    metric.update(scored_rows(clicks, np.full(BUCKETS, logit), weights, queries_in_distinct_buckets()))
    return metric


def test_few_clicks_have_the_exact_interval():
    predicted, metrics = BUCKETS / (1 + np.exp(2.0)), []
    for count, weight in ((1, 3.0), (2, 1.0), (7, 1e-3), (FEW_CLICKS - 1, 1.0)):
        metrics.append(measured(np.arange(BUCKETS) < count, weight=np.full(BUCKETS, weight)))
        assert metrics[-1].prediction_ratio() == pytest.approx(predicted / count, rel=1e-12)
        lower, upper = garwood(count)
        expected = predicted / upper, predicted / lower
        assert metrics[-1].ratio_interval() == pytest.approx(expected, rel=1e-10)
    # Each of an array has its own, also without clicks, and with many.
    metrics += [measured(np.arange(BUCKETS) < count) for count in (0, 200)]
    together = Calibration()
    together.sums = np.stack([metric.sums for metric in metrics], axis=1)
    found = np.transpose(click_ratio_interval(together.ratio_estimate(), together.sums[..., 1]))
    np.testing.assert_allclose(found, [metric.ratio_interval() for metric in metrics], equal_nan=True)


def test_more_clicks_have_the_interval_of_the_jackknife():
    # With one value a bucket, the replicates have a closed form.
    clicks = np.arange(BUCKETS) < FEW_CLICKS
    metric = measured(clicks)
    predicted = 1 / (1 + np.exp(2.0))
    replicates = np.log((BUCKETS - 1) * predicted / (FEW_CLICKS - clicks))
    margin = margin_of(replicates)
    point = np.log(BUCKETS * predicted / FEW_CLICKS)
    assert np.log(metric.ratio_interval()) == pytest.approx((point - margin, point + margin), rel=1e-10)
    assert metric.ratio_interval() == tuple(map(float, metric.ratio_estimate().interval()))


def test_clicks_of_one_query_count_as_one():
    metric = Calibration()
    ids = queries_in_distinct_buckets()
    query = np.concatenate([np.full(100, ids[0]), ids[1:]])
    label = np.arange(len(query)) < 100
    metric.update(scored_rows(label, np.zeros(len(query)), np.ones(len(query)), query))
    lower, upper = poisson_limits(1)
    point = metric.prediction_ratio()
    assert metric.ratio_interval() == pytest.approx((point / upper, point / lower))


def test_a_ratio_is_judged_by_its_interval():
    for found, verdict, words in (
        ((1.01, 0.98, 1.04), "good", "calibrated: the interval contains 1"),
        ((1.05, 1.03, 1.07), "good", "over-predicts by 5.0%; the interval comes within 3% of 1"),
        ((0.95, 0.93, 0.97), "good", "under-predicts by 5.0%; the interval comes within 3% of 1"),
        ((1.5, 0.5, 3.0), "good", "too few clicks to judge: the interval contains 1"),
        ((1.2, 1.1, 1.3), "near", "over-predicts by 20.0%"),
        ((1.2, 1.11, 1.29), "wrong", "over-predicts by 20.0%: the interval excludes 0.9 to 1.1"),
        ((0.5, 0.4, 0.89), "wrong", "under-predicts by 50.0%: the interval excludes 0.9 to 1.1"),
        ((None, None, None), "", "undefined: no clicks"),
    ):
        assert (judge(*found), describe(*found)) == (verdict, words)
