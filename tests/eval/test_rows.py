import re
from typing import Any

import numpy as np
import pytest

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


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("label", [0, 2, 0], "label must hold 0 or 1, got 2 at row 1"),
        ("label", [0.5, 1, 0], "label must hold 0 or 1, got 0.5 at row 0"),
        ("logit", [0, 1, np.nan], "logit must hold finite numbers, got nan at row 2"),
        ("logit", [[0, 1, 2]], "logit must be one-dimensional, got shape (1, 3)"),
        ("weight", [1, -1e-9, 1], "weight must hold finite numbers of at least 0, got -1e-09 at row 1"),
        ("weight", [np.inf, 1, 1], "weight must hold finite numbers of at least 0, got inf at row 0"),
        ("query_id", np.array([1, 2, 3], np.uint64), "query_id must be int64, got uint64"),
        ("query_id", [1, 2], "columns must have one length, got label 3, logit 3, weight 3, query_id 2"),
    ],
)
def test_bad_columns_are_refused_in_one_line(column, values, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        scored_rows(**(GOOD | {column: values}))
