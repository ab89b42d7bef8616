from typing import Any

import numpy as np
import pandas as pd
import pytest

from ctr.eval.arrays import sigmoid
from ctr.eval.auc import StreamingAUC, roc_auc
from ctr.eval.calibration import Calibration, SliceCalibration, calibration_buckets
from ctr.eval.logloss import Logloss
from ctr.eval.rows import scored_rows


def stream(columns: Any) -> Calibration:
    metric = Calibration()
    metric.update(scored_rows(*columns))
    return metric


def plain(log: Any) -> pd.Series:
    weight, probability = log.weight.sum(), 1 / (1 + np.exp(-log.logit))
    label, mean = (np.average(values, weights=log.weight) for values in (log.label, probability))
    return pd.Series({"weight": weight, "mean_label": label, "mean_prediction": mean, "bias": label - mean})


def test_bias_is_label_minus_prediction():
    metric = stream(([1, 0], [np.log(0.25 / 0.75)] * 2, [3.0, 1.0], [1, 2]))
    assert metric.result() == pytest.approx(0.75 - 0.25)
    assert metric.prediction_ratio() == pytest.approx(0.25 / 0.75)
    empty = stream(([], [], [], []))
    assert np.isnan(empty.result()) and np.isnan(empty.prediction_ratio())
    no_click = stream(([0], [0.0], [1.0], [1]))
    assert no_click.result() == -0.5 and np.isnan(no_click.prediction_ratio())
    assert np.isnan(no_click.estimate().interval()).all()


def deciles(log: Any) -> StreamingAUC:
    histogram = StreamingAUC()
    histogram.update(scored_rows(*log.columns()))
    return histogram


def test_deciles_agree_with_plain_means_of_their_rows(make_log):
    log = make_log(4, queries=800)
    table = calibration_buckets(deciles(log))
    probability = sigmoid(log.logit)
    assert len(table) == 10
    for _, row in table.iterrows():
        rows = (probability >= row["low"]) & (probability < row["high"])
        pd.testing.assert_series_equal(row[plain(log).index], plain(log[rows]), check_names=False, rtol=1e-12)
    assert table["weight"].sum() == pytest.approx(log.weight.sum())
    # A bin of the rounded logits holds up to 3% of the weight, so a decile holds 10% give or take 3%.
    assert (table["weight"] / log.weight.sum()).between(0.07, 0.13).all()
    assert (table["low"].to_numpy()[1:] >= table["high"].to_numpy()[:-1]).all()
    row = table.iloc[6]
    rows = (probability >= row["low"]) & (probability < row["high"])
    low, high = stream(log[rows].columns()).estimate().interval()
    assert (row["ci95_low"], row["ci95_high"]) == pytest.approx((float(low), float(high)), rel=1e-9)


def test_deciles_of_few_predictions_leave_others_empty():
    histogram = StreamingAUC()
    assert calibration_buckets(histogram)["weight"].tolist() == [0.0] * 10
    histogram.update(scored_rows([0, 1, 1, 0], [-20, -20, 1, 1e4], [1, 1, 1, 1], [1, 2, 3, 4]))
    table = calibration_buckets(histogram)
    assert table["weight"].tolist() == [0, 0, 2, 0, 0, 0, 1, 0, 1, 0]
    assert table.loc[2, "low"] == 0.0 and table.loc[8, "high"] == 1.0
    assert table.loc[2, "bias"] == pytest.approx(0.5, abs=1e-8)
    assert table.loc[[0, 1, 3], ["low", "high", "bias", "ci95_low"]].isna().all(axis=None)


def make_slices(log: Any, cardinality: int) -> Any:
    return np.random.default_rng(9).zipf(1.3, len(log.label)) % cardinality - 3


def test_each_slice_has_the_calibration_the_logloss_and_the_auc_of_its_rows(make_log):
    log = make_log(6, queries=400)
    ids = make_slices(log, 12)
    state = SliceCalibration()
    for batch in range(8):
        part = log.query_id % 8 == batch
        state.update(scored_rows(*log[part].columns()), ids[part])
    table = state.result()
    assert table["id"].tolist() == sorted(set(ids[log.weight > 0].tolist()))
    for _, row in table.iterrows():
        rows = log[ids == row["id"]]
        metric, logloss = stream(rows.columns()), Logloss()
        logloss.update(scored_rows(*rows.columns()))
        expected = {"weight": rows.weight.sum(), "bias": metric.result(), "logloss": logloss.result()}
        for name, interval in (
            ("ci95", metric.estimate().interval()),
            ("calibration_ratio", metric.ratio_interval()),
            ("logloss", logloss.estimate().interval()),
        ):
            expected |= {f"{name}_low": interval[0], f"{name}_high": interval[1]}
        expected["calibration_ratio"] = metric.prediction_ratio()
        found = row[list(expected)].to_numpy(float)
        np.testing.assert_allclose(found, [float(one) for one in expected.values()], rtol=1e-9, atol=1e-12)
        # From bins of 1/16 logit.
        wanted = roc_auc(rows.label, rows.logit, rows.weight)
        assert row["auc"] == pytest.approx(wanted, abs=0.01, nan_ok=True)
    # The same by id from 0 on, with replicates; an id without rows is undefined.
    weight, estimate, relative = state.estimate(12)
    found = np.array([weight, estimate.point, *estimate.interval(), relative.point]).T
    expected = table.set_index("id").reindex(range(12))
    expected["relative"] = expected["bias"] / expected["mean_prediction"]
    columns = ["weight", "bias", "ci95_low", "ci95_high", "relative"]
    np.testing.assert_allclose(found, expected[columns].fillna({"weight": 0}), rtol=1e-12, atol=1e-12)


def test_the_bins_of_a_slice_reach_from_minus_8_to_8():
    # A pair in neighboring bins, then with one outside; what lies outside is in the outermost.
    pairs = [(-7.95, -7.9), (7.9, 7.95), (-20, -7.9), (7.9, 20), (-20, -7.95), (7.95, 20)]
    state = SliceCalibration()
    rows = scored_rows([0, 1] * 6, np.ravel(pairs), np.ones(12), np.arange(12))
    state.update(rows, np.repeat(np.arange(6), 2))
    assert state.result()["auc"].tolist() == [1, 1, 1, 1, 0.5, 0.5]
    with pytest.raises(ValueError, match="slice ids must be int64, got float64"):
        state.update(rows, np.arange(12.0))


def test_more_slices_than_are_evaluated_at_once(make_log):
    log = make_log(7, queries=800)
    ids = np.arange(len(log.label)) // 2
    state = SliceCalibration()
    for batch in range(20):
        part = log.query_id % 20 == batch
        state.update(scored_rows(*log[part].columns()), ids[part])
    table = state.result().set_index("id")
    assert len(table) > 2000
    weight = pd.Series(log.weight).groupby(ids).sum()
    np.testing.assert_allclose(table["weight"], weight[weight > 0])
    pair = 1300 if 1300 in table.index else 1301
    assert table.loc[pair, "bias"] == pytest.approx(plain(log[ids == pair])["bias"], abs=1e-12)


def test_slices_by_any_64_bits_are_those_by_small_ids(make_log):
    log = make_log(9, queries=300)
    small = make_slices(log, 5)
    small -= small.min()
    # Ascending, so that both tables have the same order; neighbors, which 55 bits would not tell apart.
    prints = np.array([-(2**63), -(2**63) + 1, -1, 0, 2**55, 2**55 + 1, 2**63 - 2, 2**63 - 1])
    by_small, by_print = SliceCalibration(), SliceCalibration()
    other = SliceCalibration()
    half = len(log.label) // 2
    for begin, end, state in ((0, half, by_print), (half, len(log.label), other)):
        rows = scored_rows(*log[slice(begin, end)].columns())
        by_small.update(rows, small[begin:end])
        state.update(rows, prints[small[begin:end]])
    by_print.merge(other)
    found, wanted = by_print.result(), by_small.result()
    assert found["id"].tolist() == prints[wanted["id"]].tolist()
    pd.testing.assert_frame_equal(found.drop(columns="id"), wanted.drop(columns="id"), rtol=1e-12)
    again = SliceCalibration.from_arrays(by_print.to_arrays())
    pd.testing.assert_frame_equal(again.result(), found)
