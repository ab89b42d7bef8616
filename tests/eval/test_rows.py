from typing import Any

import numpy as np

from ctr.eval.rows import scored_rows
from ctr.eval.states import query_bucket

GOOD: dict[str, Any] = {
    "label": np.array([0, 1, 0]),
    "logit": np.array([0.5, -0.5, 2.0], np.float32),
    "weight": np.array([1.0, 0.0, 2.0]),
    "query_id": np.array([7, 3, 7]),
}


def test_rows_of_weight_zero_are_read_and_dropped():
    rows = scored_rows(**GOOD)
    assert (rows.examples, rows.queries) == (3, 2)
    np.testing.assert_array_equal(rows.has_weight, [True, False, True])
    np.testing.assert_array_equal(rows.logit, [0.5, 2.0])
    np.testing.assert_array_equal(rows.query, [1, 1])
    np.testing.assert_array_equal(rows.query_buckets, query_bucket(np.array([3, 7])))
    np.testing.assert_array_equal(rows.bucket, query_bucket(np.array([7, 7])))
    # Queries are numbered wherever their rows stand.
    ids = np.array([5, 5, -2, 5, 9, -2, 9, 9, 5])
    rows = scored_rows(np.zeros(9), np.zeros(9), np.ones(9), ids)
    np.testing.assert_array_equal(rows.query, [1, 1, 0, 1, 2, 0, 2, 2, 1])
    assert rows.queries == 3
    ascending = scored_rows(np.zeros(9), np.zeros(9), np.ones(9), np.sort(ids))
    np.testing.assert_array_equal(ascending.query, [0, 0, 1, 1, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(ascending.query_buckets, query_bucket(np.array([-2, 5, 9])))


def test_logits_of_any_size_give_exact_probability_and_loss():
    rows = scored_rows([0, 1, 0, 1, 1], [1e4, 1e4, -1e4, -1e4, -40.0], np.ones(5), np.arange(5))
    np.testing.assert_array_equal(rows.probability[:4], [1.0, 1.0, 0.0, 0.0])
    np.testing.assert_allclose(rows.probability[4], np.exp(-40.0), rtol=1e-15)
    np.testing.assert_allclose(rows.loss, [1e4, 0.0, 0.0, 1e4, 40.0], rtol=1e-15)


def test_labels_of_any_dtype_and_a_batch_without_rows():
    for dtype in (bool, np.int8, np.uint8, np.float32, object):
        rows = scored_rows(**(GOOD | {"label": np.array([0, 1, 1]).astype(dtype)}))
        np.testing.assert_array_equal(rows.label, [False, True])
    empty = scored_rows([], [], [], [])
    assert (empty.examples, empty.queries, len(empty.logit), len(empty.query)) == (0, 0, 0, 0)
