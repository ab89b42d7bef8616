"""Crosses by their formula and fused, with its gradient, against each other and tensorflow-recommenders."""

import itertools
import json

import numpy as np
import pytest
import tensorflow as tf

from ctr.models.crosses import crosses, fused_crosses
from ctr.models.passes import sum_of_rows

ROWS, WIDTH = 7, 3


def cross_inputs(towers, own_inputs, ranks, layers=3, dtype="float32"):
    """e_0 and the weights of crosses: an empty ``ranks`` stands for full matrices."""
    rng = np.random.default_rng(towers)
    sizes = [WIDTH, *ranks, WIDTH]
    e0 = tf.cast(rng.normal(size=(towers if own_inputs else 1, ROWS, WIDTH)), dtype)
    weights = []
    for _ in range(layers):
        kernels = [tf.cast(rng.normal(size=(towers, m, n)), dtype) for m, n in itertools.pairwise(sizes)]
        weights.append((kernels, tf.cast(rng.normal(size=(towers, 1, WIDTH)), dtype)))
    return e0, weights


def value_and_gradients(function, e0, weights, alpha2):
    upstream = tf.cast(np.random.default_rng(9).normal(size=(weights[0][1].shape[0], ROWS, WIDTH)), e0.dtype)
    with tf.GradientTape() as tape:
        tape.watch((e0, weights))
        value = function(e0, tf.constant(alpha2), weights)
    return value, tf.nest.flatten(tape.gradient(value, (e0, weights), output_gradients=upstream))


def close(found, expected, tolerance):
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize(
    ("towers", "own_inputs", "ranks", "alpha2"),
    [(1, True, (2,), 0.3), (3, False, (), 1.0), (3, True, (2,), 1.0), (1, True, (), 0.0)],
)
def test_crosses_have_the_gradient_of_their_formula(ranks, towers, own_inputs, alpha2):
    e0, weights = cross_inputs(towers, own_inputs, ranks)
    value, gradients = value_and_gradients(fused_crosses, e0, weights, alpha2)
    plain, expected = value_and_gradients(crosses, e0, weights, alpha2)
    close(value, plain, 1e-5)
    assert len(gradients) == 1 + 3 * (len(ranks) + 2)
    for found, exact in zip(gradients, expected, strict=True):
        assert found.shape == exact.shape
        close(found.numpy(), exact.numpy(), 1e-5)


def test_in_bfloat16_crosses_are_right_within_its_precision():
    e0, weights = cross_inputs(1, True, (2,))
    value, gradients = value_and_gradients(crosses, e0, weights, 0.5)
    rounded = tf.nest.map_structure(lambda one: tf.cast(one, tf.bfloat16), (e0, weights))
    low, low_gradients = value_and_gradients(fused_crosses, *rounded, 0.5)
    # That of e_0 goes on to be summed over the batch.
    assert [one.dtype for one in low_gradients] == [tf.float32, *[tf.bfloat16] * 9]
    for found, exact in zip([low, *low_gradients], [value, *gradients], strict=True):
        error = np.abs(tf.cast(found, tf.float32).numpy() - exact.numpy())
        assert 0 < error.max() < 0.1 * np.abs(exact).max()


@pytest.mark.parametrize("function", [crosses, fused_crosses])
def test_a_value_that_is_not_finite_stays_so(function):
    e0, weights = cross_inputs(1, True, (2,))
    e0 = tf.tensor_scatter_nd_update(e0, [[0, 2, 1]], [np.nan])
    value, _ = value_and_gradients(function, e0, weights, 1.0)
    assert np.isnan(value.numpy()[0, 2]).all()
    assert np.isfinite(np.delete(value.numpy()[0], 2, axis=0)).all()


def test_sums_of_many_rows_are_not_rounded_on_the_way():
    # 4096 ones in bfloat16 end at 256 when each sum is rounded.
    assert sum_of_rows(tf.ones([2, 4096, 3], tf.bfloat16)).numpy().tolist() == [[[4096] * 3]] * 2


# In a process of its own: tensorflow-recommenders requires Keras 2.
ORACLE = """
import json, os, sys
os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np, tensorflow as tf, tensorflow_recommenders as tfrs
from ctr.models.crosses import crosses
rng = np.random.default_rng(0)
found, expected = [], []
for rank in (2, 0):
    layers, weights = [], []
    e0 = expected_e = tf.constant(rng.normal(size=(7, 3)), tf.float32)
    for _ in range(3):
        layer = tfrs.layers.dcn.Cross(projection_dim=rank or None, kernel_initializer="glorot_uniform")
        layer(e0, e0)
        *kernels, bias = layer.trainable_variables
        bias.assign(rng.normal(size=3))
        weights.append(([kernel[tf.newaxis] for kernel in kernels], bias[tf.newaxis, tf.newaxis]))
        expected_e = layer(0.3 * e0, expected_e)
    expected.append(expected_e.numpy().tolist())
    found.append(crosses(e0[tf.newaxis], tf.constant(0.3), weights)[0].numpy().tolist())
print(json.dumps([found, expected, e0.numpy().tolist()]))
"""


@pytest.mark.slow
def test_crosses_are_those_of_tensorflow_recommenders(fresh_python, root):
    done = fresh_python("-c", ORACLE, cwd=root)
    found, expected, e0 = map(np.array, json.loads(done.stdout.splitlines()[-1]))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(expected - e0).max() > 0.01
