"""Crosses and biased activations with their own gradients, against TensorFlow's of the plain formula and float64."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from ctr.models.activations import make_activation
from ctr.models.passes import biased_activation, make_crosses, sum_of_rows

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


def value_and_gradients(compiled, e0, weights, alpha2):
    upstream = tf.cast(np.random.default_rng(9).normal(size=(weights[0][1].shape[0], ROWS, WIDTH)), e0.dtype)
    with tf.GradientTape() as tape:
        tape.watch((e0, weights))
        value = make_crosses(compiled)(e0, tf.constant(alpha2), weights)
    return value, tf.nest.flatten(tape.gradient(value, (e0, weights), output_gradients=upstream))


def close(found, expected, tolerance):
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("alpha2", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("towers", "own_inputs"), [(1, True), (3, False), (3, True)])
@pytest.mark.parametrize("ranks", [(2,), ()])
def test_crosses_have_the_gradient_of_their_formula(ranks, towers, own_inputs, alpha2):
    e0, weights = cross_inputs(towers, own_inputs, ranks)
    value, gradients = value_and_gradients(True, e0, weights, alpha2)
    plain, expected = value_and_gradients(False, e0, weights, alpha2)
    close(value, plain, 1e-5)
    assert len(gradients) == 1 + 3 * (len(ranks) + 2)
    for found, exact in zip(gradients, expected, strict=True):
        assert found.shape == exact.shape
        close(found.numpy(), exact.numpy(), 1e-5)


def test_in_bfloat16_crosses_are_right_within_its_precision():
    e0, weights = cross_inputs(1, True, (2,))
    value, gradients = value_and_gradients(False, e0, weights, 0.5)
    rounded = tf.nest.map_structure(lambda one: tf.cast(one, tf.bfloat16), (e0, weights))
    low, low_gradients = value_and_gradients(True, *rounded, 0.5)
    # That of e_0 goes on to be summed over the batch.
    assert [one.dtype for one in low_gradients] == [tf.float32, *[tf.bfloat16] * 9]
    for found, exact in zip([low, *low_gradients], [value, *gradients], strict=True):
        error = np.abs(tf.cast(found, tf.float32).numpy() - exact.numpy())
        assert 0 < error.max() < 0.1 * np.abs(exact).max()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("towers", [1, 3])
def test_the_bias_of_an_activation(towers, compiled):
    rng = np.random.default_rng(3)
    z, bias = rng.normal(size=(towers, 5, 4)), rng.normal(size=(towers, 1, 4))
    upstream = rng.normal(size=z.shape)
    inputs = tf.constant(z, tf.float32), tf.constant(bias, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = biased_activation(make_activation("tanh", 1.0), compiled)(*inputs)
    of_z, of_bias = tape.gradient(value, inputs, output_gradients=tf.constant(upstream, tf.float32))
    exact = upstream / np.cosh(z + bias) ** 2
    close(value.numpy(), np.tanh(z + bias), 1e-6)
    close(of_z.numpy(), exact, 1e-5)
    close(of_bias.numpy(), exact.sum(axis=1, keepdims=True), 1e-5)


def test_sums_of_many_rows_are_not_rounded_on_the_way():
    # 4096 ones in bfloat16 end at 256 when each sum is rounded.
    assert sum_of_rows(tf.ones([2, 4096, 3], tf.bfloat16)).numpy().tolist() == [[[4096] * 3]] * 2


@pytest.mark.parametrize("compiled", [False, True])
def test_a_value_that_is_not_finite_stays_so(compiled):
    e0, weights = cross_inputs(1, True, (2,))
    e0 = tf.tensor_scatter_nd_update(e0, [[0, 2, 1]], [np.nan])
    value, _ = value_and_gradients(compiled, e0, weights, 1.0)
    assert np.isnan(value.numpy()[0, 2]).all()
    assert np.isfinite(np.delete(value.numpy()[0], 2, axis=0)).all()
