from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq

from ctr.eval.arrays import sigmoid
from ctr.eval.compare import compare, same_examples
from ctr.eval.intervals import difference
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.states import query_bucket


def stream(log: Any, noise: float = 0.0, shift: float = 0.0) -> ProgressiveMetrics:
    rng = np.random.default_rng(0)
    metrics = ProgressiveMetrics()
    logit = log.logit + rng.normal(0, 1, len(log.label)) * noise + shift
    metrics.update(log.label, logit, log.weight, log.query_id)
    return metrics


def test_columns_say_how_b_differs_from_a(make_log):
    log = make_log(0, queries=3000)
    a, b = stream(log), stream(log, noise=0.8)
    table = compare(a, b)
    ranking = ["auc", "per_query_auc", "logloss", "normalized_entropy"]
    assert table.index.tolist() == [*ranking, "calibration_bias", "calibration_ratio"]
    for metric, row in table.iterrows():
        for side, run in (("a", a), ("b", b)):
            assert row[side] == pytest.approx(run.headline()[str(metric)], rel=1e-14)
        assert row["difference"] == pytest.approx(row["b"] - row["a"], abs=1e-15)
        if metric != "calibration_bias":
            assert row["relative_percent"] == pytest.approx(100 * (row["b"] - row["a"]) / abs(row["a"]))
        if metric != "calibration_ratio":
            ends = difference(a.estimates()[str(metric)], b.estimates()[str(metric)]).interval()
            assert (row["ci95_low"], row["ci95_high"]) == pytest.approx(tuple(map(float, ends)), rel=1e-12)
        assert row["ci95_low"] < row["difference"] < row["ci95_high"]
    # Noise on the logits spoils ranking and loss, beyond chance on a log of this size.
    assert table.loc[["auc", "per_query_auc"], "ci95_high"].max() < 0
    assert table.loc[["logloss", "normalized_entropy"], "ci95_low"].min() > 0
    assert table.loc[ranking, "significant"].all() and set(table.loc[ranking, "verdict"]) == {"worse"}


def test_the_run_with_the_ratio_of_clicks_closer_to_1_is_better(make_log):
    log = make_log(1, queries=3000)
    clicks = np.average(log.label, weights=log.weight)

    def with_ratio(ratio):
        def beyond(shift):
            return float(np.average(sigmoid(log.logit + shift), weights=log.weight) - ratio * clicks)

        return stream(log, shift=float(brentq(beyond, -9, 9)))

    for first, second, says in (
        (1.0, 1.4, "worse"),
        (1.4, 1.0, "better"),
        (1.4, 1.2, "better"),
        (0.7, 1.0, "better"),
        (0.8, 0.7, "worse"),
        (1.2, 1.2, "not significant"),
        # As far above 1 as below, they differ without a better one.
        (0.8, 1 / 0.8, "differs"),
    ):
        row = compare(with_ratio(first), with_ratio(second)).loc["calibration_ratio"]
        assert (row["verdict"], row["significant"]) == (says, says != "not significant")
        assert (row["a"], row["b"]) == pytest.approx((first, second), rel=1e-9)


def test_without_an_interval_the_reason_is_given(make_log):
    log = make_log(6, queries=40)
    one_bucket = query_bucket(log.query_id) == query_bucket(log.query_id)[0]
    log = log[one_bucket]
    table = compare(stream(log), stream(log, shift=0.5))
    assert table[["ci95_low", "ci95_high"]].isna().all(axis=None)
    assert table["difference"].notna().any() and not table["significant"].any()
    defined = table["difference"].notna()
    assert table.loc[defined, "no_interval"].str.contains("1 of the 256 groups .*at least 2 are").all()
    assert not compare(stream(make_log(7)), stream(make_log(7), 0.5))["no_interval"].any()
    table = compare(ProgressiveMetrics(), ProgressiveMetrics())
    assert table.drop(columns=["significant", "no_interval", "verdict"]).isna().all(axis=None)
    assert not table["significant"].any() and table["no_interval"].str.contains("undefined").all()


def test_no_relative_change_of_a_bias_that_may_be_zero(make_log):
    log = make_log(1, queries=500)
    # Shifted until the mean prediction is the click rate.
    low = brentq(lambda shift: stream(log, shift=shift).headline()["calibration_bias"], -5, 5)
    calibrated, other = stream(log, shift=low), stream(log, shift=low + 1)
    table = compare(calibrated, other)
    assert np.isnan(table.loc["calibration_bias", "relative_percent"])
    assert table.loc["calibration_bias", "significant"]
    assert table.loc["calibration_bias", "verdict"] == "differs"
    backwards = compare(other, calibrated)
    assert backwards.loc["calibration_bias", "relative_percent"] == pytest.approx(100, abs=0.1)


def test_same_examples_notices_other_rows_weights_and_labels(make_log):
    log = make_log(4)
    metrics = stream(log)
    assert same_examples(metrics, stream(log, noise=1.0))
    assert not same_examples(metrics, stream(log[1:]))
    # Rows of weight 0 change no weight; they were read all the same.
    assert not same_examples(metrics, stream(log[log.weight > 0]))
    assert not same_examples(metrics, stream(make_log(5)))
    for column, values in (("label", 1 - log.label), ("weight", log.weight * 1.001)):
        changed = {"label": log.label, "weight": log.weight} | {column: values}
        other = ProgressiveMetrics()
        other.update(changed["label"], log.logit, changed["weight"], log.query_id)
        assert not same_examples(metrics, other)
