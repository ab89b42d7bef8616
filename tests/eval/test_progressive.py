import json
import re
from typing import Any

import numpy as np
import pytest

from ctr.eval.arrays import sigmoid
from ctr.eval.auc import roc_auc
from ctr.eval.progressive import ProgressiveMetrics

COUNTS = ["examples", "queries", "queries_scored", "queries_one_class", "weight_sum"]
RATIOS = ["normalized_entropy", "calibration_bias", "calibration_ratio"]
HEADLINE = [*COUNTS, "auc", "auc_error_bound", "logits_clipped", "per_query_auc", "logloss", *RATIOS]
WITH_INTERVAL = ["auc", "per_query_auc", "logloss", "normalized_entropy", "calibration_bias"]
EVERYTHING = ["auc", "auc_error_bound", "per_query_auc", "logloss", *RATIOS]


def stream(*logs: Any) -> ProgressiveMetrics:
    metrics = ProgressiveMetrics()
    for log in logs:
        metrics.update(*log.columns())
    return metrics


def strict_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


def assert_close(first: Any, second: Any) -> None:
    """Two summaries agree to rounding."""
    if isinstance(first, dict):
        first, second = [*first, *first.values()], [*second, *second.values()]
    if isinstance(first, list):
        for one, other in zip(first, second, strict=True):
            assert_close(one, other)
    else:
        assert first == (pytest.approx(second, rel=1e-9, abs=1e-11) if isinstance(first, float) else second)


def test_summary_of_a_log(make_log):
    log = make_log(0, queries=300)
    metrics = stream(*log.batches(queries=50))
    summary = strict_json(metrics.summary())
    assert list(summary)[: len(HEADLINE)] == HEADLINE
    tables = {"calibration_buckets", "per_query_auc_by_size", "calibration_slices"}
    assert strict_json(metrics.line()) == {name: summary[name] for name in summary if name not in tables}
    assert summary["examples"] == len(log.label)
    assert summary["queries"] == 300
    weighted = log[log.weight > 0]
    assert summary["queries_scored"] + summary["queries_one_class"] == len(np.unique(weighted.query_id))
    assert summary["weight_sum"] == pytest.approx(log.weight.sum())
    exact = roc_auc(log.label, log.logit, log.weight)
    assert abs(summary["auc"] - exact) <= summary["auc_error_bound"]
    rate, prediction = (np.average(one, weights=log.weight) for one in (log.label, sigmoid(log.logit)))
    assert summary["calibration_bias"] == pytest.approx(rate - prediction)
    assert summary["calibration_ratio"] == pytest.approx(prediction / rate)
    for name in WITH_INTERVAL:
        low, high = summary[f"{name}_ci95"]
        assert low < summary[name] < high
    assert len(summary["calibration_buckets"]) == 10
    by_size = summary["per_query_auc_by_size"]
    assert [row["size"] for row in by_size] == ["2", "3-4", "5-8", "9-16"]
    assert sum(row["queries"] for row in by_size) == summary["queries_scored"]
    assert summary["calibration_slices"] == {}


@pytest.mark.parametrize(
    ("columns", "defined"),
    [
        (([], [], [], []), []),
        (([0, 1], [0.0, 1.0], [0.0, 0.0], [1, 2]), []),
        (([1], [0.5], [1.0], [1]), ["logloss", "calibration_bias", "calibration_ratio"]),
        (([0, 0, 0], [0.5, 0.0, 1.0], [1, 1, 1], [1, 1, 2]), ["logloss", "calibration_bias"]),
        (([0, 1], [0.0, 1.0], [1.0, 0.0], [1, 1]), ["logloss", "calibration_bias"]),
        (([0, 1], [0.0, 1.0], [1.0, 2.0], [1, 2]), ["auc", "auc_error_bound", "logloss", *RATIOS]),
        # Logits that are clipped in ranking, and in nothing else.
        (([1, 0, 1, 0], [1e4, -1e4, -1e4, 1e4], [1] * 4, [1, 1, 2, 2]), EVERYTHING),
    ],
)
def test_undefined_numbers_are_none(columns, defined):
    metrics = ProgressiveMetrics()
    metrics.update(*columns)
    summary = strict_json(metrics.summary())
    assert [name for name in EVERYTHING if summary[name] is not None] == defined
    if defined is EVERYTHING:
        assert summary["logloss"] == 5000.0 and summary["calibration_bias"] == 0.0
        assert (summary["auc"], summary["per_query_auc"], summary["logits_clipped"]) == (0.5, 0.5, 4)
    assert summary["examples"] == len(columns[0])
    assert summary["calibration_slices"] == {}
    if len(columns[0]) < 2:
        assert all(summary[f"{name}_ci95"] == [None, None] for name in WITH_INTERVAL)


def test_scale_of_weights_is_immaterial(make_log):
    def without_weights(summary):
        for part in (summary, *summary["calibration_buckets"]):
            part.pop("weight_sum", None), part.pop("weight", None)
        return summary

    log = make_log(1, queries=60)
    expected = without_weights(stream(log).summary())
    for scale in (1e-100, 1e15, 1e290):
        metrics = ProgressiveMetrics()
        metrics.update(log.label, log.logit, log.weight * scale, log.query_id)
        assert_close(without_weights(strict_json(metrics.summary())), expected)


def test_summary_of_merged_windows(make_log):
    log, run = make_log(3, queries=200), ProgressiveMetrics()
    for batch in log.batches(queries=30):
        run.merge(stream(batch))
    assert_close(run.summary(), stream(log).summary())


def test_the_heaviest_slices_are_listed_and_all_are_counted(make_log):
    log = make_log(4, queries=300)
    empty = ProgressiveMetrics(["position"]).summary()["calibration_slices"]
    assert empty == {"position": {"slices": 0, "heaviest": []}}
    metrics = ProgressiveMetrics(["position", "ad/id"])
    metrics.update(*log.columns(), {"position": np.arange(len(log.label)) % 3, "ad/id": log.query_id % 50})
    summary = strict_json(metrics.summary())["calibration_slices"]
    assert {name: entry["slices"] for name, entry in summary.items()} == {"position": 3, "ad/id": 50}
    heaviest = summary["ad/id"]["heaviest"]
    weights = np.bincount(log.query_id % 50, log.weight)
    assert [row["weight"] for row in heaviest] == pytest.approx(np.sort(weights)[::-1][:20].tolist())
    means = {"id", "weight", "mean_label", "mean_prediction", "bias", "calibration_ratio", "logloss", "auc"}
    assert set(heaviest[0]) == means | {"bias_ci95", "calibration_ratio_ci95", "logloss_ci95"}
    biases = [row["bias"] * row["weight"] for row in summary["position"]["heaviest"]]
    assert sum(biases) / log.weight.sum() == pytest.approx(metrics.calibration.result())


GOOD: dict[str, Any] = {
    "label": np.array([0, 1, 0]),
    "logit": np.array([0.5, -0.5, 2.0], np.float32),
    "weight": np.array([1.0, 0.0, 2.0]),
    "query_id": np.array([7, 3, 7]),
}


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("label", [0.5, 1, 0], "label must hold 0 or 1, got 0.5 at row 0"),
        ("logit", [0, 1, np.nan], "logit must hold finite numbers, got nan at row 2"),
        ("logit", [[0, 1, 2]], "logit must be one-dimensional, got shape (1, 3)"),
        ("weight", [1, -1e-9, 1], "weight must hold finite numbers of at least 0, got -1e-09 at row 1"),
        ("query_id", np.array([1, 2, 3], np.uint64), "query_id must be int64, got uint64"),
        ("query_id", [1, 2], "columns must have one length, got label 3, logit 3, weight 3, query_id 2"),
    ],
)
def test_bad_columns_are_refused_in_one_line(column, values, message):
    metrics = ProgressiveMetrics()
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        metrics.update(**(GOOD | {column: values}))
    assert metrics.headline() == ProgressiveMetrics().headline()


def test_labels_are_of_any_type():
    found = []
    for dtype in (bool, np.int8, np.uint8, np.float32, object):
        metrics = ProgressiveMetrics()
        metrics.update(**(GOOD | {"label": np.array([0, 1, 1]).astype(dtype)}))
        found.append(metrics.headline())
    assert found[0]["examples"] == 3 and found[0]["queries"] == 2 and found == found[:1] * 5


def test_misuse_is_refused_in_one_line(make_log):
    log = make_log(7)
    metrics = ProgressiveMetrics(["position"])
    for slices in (None, {}, {"ad": log.label}, {"position": log.label, "ad": log.label}):
        with pytest.raises(ValueError, match=r"^slices must be \['position'\], got \[.*\]$"):
            metrics.update(*log.columns(), slices)
    with pytest.raises(ValueError, match="columns must have one length, got slice_ids 1, rows"):
        metrics.update(*log.columns(), {"position": [1]})
    assert metrics.headline() == ProgressiveMetrics().headline()
    with pytest.raises(ValueError, match=r"slices must be \['position'\], got \[\]"):
        metrics.merge(ProgressiveMetrics())
    arrays = metrics.to_arrays()
    with pytest.raises(ValueError, match="ProgressiveMetrics has states"):
        ProgressiveMetrics.from_arrays({name: array for name, array in arrays.items() if "auc/" not in name})
