"""The activation of a product and its bias, compiled and not, against float64."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.models.activations import make_activation
from ctr.models.deep import biased_activation


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
    np.testing.assert_allclose(value, np.tanh(z + bias), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(of_z, exact, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_bias, exact.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-5)
