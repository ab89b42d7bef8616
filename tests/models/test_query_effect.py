"""The effects of queries: against NumPy, and that they never go beyond what was clicked."""

import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ctr.models.query_effect import VARIANCE, query_effect, query_share


def constants(*arrays):
    return [tf.constant(array, tf.float32) for array in arrays]


@given(seed=st.integers(0, 1000), rows=st.integers(1, 40))
def test_each_query_is_as_if_it_were_alone(seed, rows):
    rng = np.random.default_rng(seed)
    query, p = rng.integers(0, min(rows, 5), rows), rng.uniform(0.01, 0.99, rows)
    weight, label = rng.uniform(0, 2, rows), rng.integers(0, 2, rows)
    effect, left = query_effect(tf.constant(query, tf.int32), *constants(p, label, weight))
    share = query_share(tf.constant(query, tf.int32), tf.constant(weight * p * (1 - p), tf.float32))
    for number in np.unique(query):
        own = query == number
        plain = (weight * p * (1 - p))[own].sum()
        middle = np.average((p + label)[own] / 2, weights=weight[own])
        curvature = max(plain, weight[own].sum() * middle * (1 - middle))
        expected = -VARIANCE * (weight * (p - label))[own].sum() / (1 + VARIANCE * curvature)
        np.testing.assert_allclose(effect.numpy()[own], expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(left.numpy()[own], 1 / (1 + VARIANCE * curvature), rtol=1e-4)
        np.testing.assert_allclose(share.numpy()[own], 1 / (1 + VARIANCE * plain), rtol=1e-4)


def test_rows_without_weight_have_no_say():
    effect, left = query_effect(tf.zeros(3, tf.int32), *constants([0.5, 0.2, 0.9], [1, 0, 0], [0, 0, 0]))
    np.testing.assert_array_equal(effect, np.zeros(3))
    np.testing.assert_array_equal(left, np.ones(3))
