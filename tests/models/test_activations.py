"""SmeLU at its joints; every activation and its gradient, compiled and not, against float64."""

import math

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import erf

from ctr.models.activations import ACTIVATIONS, biased_activation, make_activation

NAMES = ["smelu", *sorted(ACTIVATIONS)]
BETA = 0.75
Z = np.array([-30.0, -4.0, -0.76, -0.75, -0.74, -0.3, 0.0, 0.2, 0.74, 0.75, 0.76, 3.0, 50.0])


def exact(name: str, z: np.ndarray) -> np.ndarray:
    softplus = np.logaddexp(0, z)
    return {
        "smelu": np.where(z <= -BETA, 0, np.where(z >= BETA, z, (z + BETA) ** 2 / (4 * BETA))),
        "relu": np.maximum(z, 0),
        "gelu": z * (1 + erf(z / math.sqrt(2))) / 2,
        "swish": z / (1 + np.exp(-z)),
        "mish": z * np.tanh(softplus),
        "softplus": softplus,
        "tanh": np.tanh(z),
        "elu": np.where(z > 0, z, np.expm1(np.minimum(z, 0))),
    }[name]


def activation(name, beta, compiled):
    """As layers use it, with a bias of zero, of a tensor of any shape."""
    biased = biased_activation(make_activation(name, beta), compiled)

    def function(z):
        return tf.reshape(biased(tf.reshape(z, [1, -1, 1]), tf.zeros([1, 1, 1], z.dtype)), tf.shape(z))

    return function


def value_and_slope(function, z, dtype="float32"):
    z = tf.cast(tf.constant(z), dtype)
    with tf.GradientTape() as tape:
        tape.watch(z)
        value = function(z)
    return value, tape.gradient(value, z)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_values_and_slopes(name, compiled):
    value, slope = value_and_slope(activation(name, BETA, compiled), Z)
    np.testing.assert_allclose(value, exact(name, Z), rtol=2e-6, atol=1e-6)
    # Away from the joints, where a difference tells the slope.
    smooth = np.abs(np.abs(Z) - (BETA if name == "smelu" else 0)) > 1e-3
    central = (exact(name, Z + 1e-6) - exact(name, Z - 1e-6)) / 2e-6
    np.testing.assert_allclose(slope.numpy()[smooth], central[smooth], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["smelu", "gelu"])
def test_in_bfloat16_only_the_result_is_rounded(name):
    z = tf.cast(tf.constant(Z), tf.bfloat16)
    value, slope = value_and_slope(activation(name, BETA, compiled=True), z, tf.bfloat16)
    assert (value.dtype, slope.dtype) == (tf.bfloat16, tf.bfloat16)
    # Half a unit in the last of its 8 bits, relative to the value.
    expected = exact(name, tf.cast(z, tf.float64).numpy())
    np.testing.assert_allclose(tf.cast(value, tf.float64), expected, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize(("name", "compiled"), [("smelu", True), ("relu", True), ("mish", False)])
def test_nothing_turns_a_value_that_is_not_finite_into_one_that_is(name, compiled):
    function = activation(name, BETA, compiled)
    assert np.isnan(value_and_slope(function, np.array([np.nan]))[0].numpy()).all()
    if name != "mish":
        assert function(tf.constant([np.inf])).numpy().tolist() == [np.inf]
        assert function(tf.constant([-np.inf])).numpy().tolist() == [0]


def test_an_activation_for_serving_holds_nothing_that_needs_xla():
    def compiled_functions(compiled):
        function = tf.function(activation("smelu", 1.0, compiled))
        graph = function.get_concrete_function(tf.TensorSpec([None, 4])).graph.as_graph_def()
        return ["_XlaMustCompile" in item.attr for item in graph.library.function].count(True)

    assert compiled_functions(False) == 0
    assert compiled_functions(True) > 0


@pytest.mark.parametrize(("towers", "compiled"), [(1, False), (3, True)])
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
