from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from ctr.eval.per_query_auc import PerQueryAUC, query_auc
from ctr.eval.rows import scored_rows

SMALL_SIZES = {2: "2", 4: "3-4", 8: "5-8", 16: "9-16"}


def aucs_and_sizes(log: Any) -> tuple[dict[int, float], dict[int, int]]:
    """AUC of each query with both classes, and rows of weight of every query that has any."""
    aucs, sizes = {}, {}
    weighted = log[log.weight > 0]
    for query in set(weighted.query_id.tolist()):
        rows = weighted[weighted.query_id == query]
        sizes[query] = len(rows.label)
        if len(set(rows.label.tolist())) == 2:
            aucs[query] = roc_auc_score(rows.label, rows.logit, sample_weight=rows.weight)
    return aucs, sizes


def stream(columns: Any) -> PerQueryAUC:
    metric = PerQueryAUC()
    metric.update(scored_rows(*columns))
    return metric


def test_agrees_with_the_auc_of_each_query_at_every_prefix(make_log):
    metric = PerQueryAUC()
    aucs: dict[int, float] = {}
    sizes: dict[int, int] = {}
    for batch in make_log(0, queries=120).batches(queries=5):
        metric.update(scored_rows(*batch.columns()))
        more_aucs, more_sizes = aucs_and_sizes(batch)
        aucs |= more_aucs
        sizes |= more_sizes
        assert metric.result() == pytest.approx(float(np.mean(list(aucs.values()))), abs=1e-12)
        assert metric.scored.sum() == len(aucs)
        assert metric.one_class.sum() == len(sizes) - len(aucs)
    assert len(aucs) > 60 and len(sizes) - len(aucs) > 10

    by_bin: dict[str, list[float]] = {}
    for query, auc in aucs.items():
        name = next(name for largest, name in SMALL_SIZES.items() if sizes[query] <= largest)
        by_bin.setdefault(name, []).append(auc)
    table = metric.by_size().set_index("size")
    assert set(table.index) == set(by_bin) and len(by_bin) == 4
    for name, values in by_bin.items():
        assert table.loc[name, "queries"] == len(values)
        assert table.loc[name, "auc"] == pytest.approx(float(np.mean(values)), abs=1e-12)


def test_size_bins():
    sizes = {2: "2", 3: "3-4", 4: "3-4", 5: "5-8", 8: "5-8", 9: "9-16", 1024: "513-1024", 1025: "1025-2048"}
    for size, name in {**sizes, 2048: "1025-2048", 2049: "2049+"}.items():
        table = stream((np.arange(size) == 0, np.zeros(size), np.ones(size), np.zeros(size, int))).by_size()
        assert table[["size", "queries"]].values.tolist() == [[name, 1]]
        assert table["auc"].tolist() == pytest.approx([0.5], abs=1e-13)


def test_more_queries_than_sixteen_bits_number():
    queries = 70_000
    ids = np.repeat(np.arange(queries), 2)
    label = np.tile([0, 1], queries)
    logit = np.where((ids % 4 == 0) == (label == 1), 1.0, -1.0)
    order = np.random.default_rng(0).permutation(2 * queries)
    metric = stream(tuple(column[order] for column in (label, logit, np.ones(2 * queries), ids)))
    assert metric.result() == 0.25
    assert metric.scored.sum() == queries


def test_queries_of_equal_scores_or_huge_weights_do_not_touch_each_other():
    label = np.array([True, False, False, True, False])
    auc = query_auc(label, np.array([1.0, 0.0, 1.0, 1.0, 1.0]), np.ones(5), np.array([0, 0, 1, 1, 2]), 3)
    np.testing.assert_array_equal(auc, [1.0, 0.5, np.nan])
    label, logit = np.array([0, 1, 0, 1, 0]), np.array([0.0, 1.0, 2.0, 1.0, 0.0])
    weight, query = np.array([1e200, 1e250, 1.0, 1.0, 1e-200]), np.array([0, 0, 1, 1, 1])
    np.testing.assert_allclose(query_auc(label == 1, logit, weight, query, 2), [1.0, 1e-200], atol=1e-15)
