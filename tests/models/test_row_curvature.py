"""The curvature of a batch by the rows of a table, against loops."""

import numpy as np
import tensorflow as tf

from ctr.models.row_curvature import row_curvature
from ctr.models.rows import FeatureRows, lay_out_tables
from ctr.training.tables.plan import pad_plan, plan_table


def test_curvature_and_features_are_those_of_loops():
    rng = np.random.default_rng(1)
    (layout,) = lay_out_tables(
        [
            FeatureRows("a", 7, 2, "quality", 0),
            FeatureRows("m", 5, 2, "quality", None),
            FeatureRows("b", 4, 2, "quality", 1),
            FeatureRows("n", 3, 2, "quality", None),
        ]
    )
    rows, padded = 9, 16
    ids = np.stack([np.repeat([3, 0, 6], 3), rng.integers(0, 4, rows)], axis=1).astype(np.int32)
    ids[4, 0] = 5  # Of weight 0.
    lists = {
        name: [rng.integers(0, buckets, size).astype(np.int32) for size in rng.integers(0, 4, rows)]
        for name, buckets in (("m", 5), ("n", 3))
    }
    multivalent = {
        name: (np.concatenate(values), np.array([len(one) for one in values], np.int32))
        for name, values in lists.items()
    }
    plan = pad_plan(layout, plan_table(layout, ids, multivalent), padded)
    curvature = np.zeros(padded, np.float32)
    curvature[:rows] = rng.uniform(0.1, 1, rows)
    curvature[4] = 0
    names = ("distinct", "single", "values", "segments")
    query, left = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2] + [15] * 7, np.int32), rng.uniform(0.2, 1, 16)
    ids_of = {0: ids[:3], 1: ids[[3, 5]], 2: ids[6:]}
    found = row_curvature(
        layout,
        {name: tf.constant(getattr(plan, name)) for name in names},
        tf.constant(curvature),
        tf.constant(query),
        tf.constant(left, tf.float32),
    )
    expected, groups = np.zeros(layout.rows), np.full(layout.rows, -1)
    offsets, order = layout.offsets(), [feature.name for feature in layout.features]
    for row in np.flatnonzero(curvature):
        shares = [left[row] if len(set(ids_of[query[row]][:, column])) == 1 else 1.0 for column in (0, 1)]
        assert shares[0] < 1  # Feature a is the query's.
        parts = [("a", ids[row, 0], shares[0]), ("b", ids[row, 1], shares[1])]
        for name, values in lists.items():
            parts += [(name, value, 1 / len(values[row]) ** 2) for value in values[row]]
        for name, value, share in parts:
            expected[offsets[name] + value] += curvature[row] * share
            groups[offsets[name] + value] = order.index(name)
    np.testing.assert_allclose(found.curvature, expected[plan.distinct], rtol=1e-5)
    np.testing.assert_array_equal(found.groups, groups[plan.distinct])
