"""Activations of the deep layers, alone and fused with the addition of a bias."""

import functools
from collections.abc import Callable

import tensorflow as tf

from ctr.models.own_gradient import one_pass, own_gradient, sum_of_rows

Activation = Callable[[tf.Tensor], tf.Tensor]

BiasedActivation = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""Computes ``activation(z + bias)`` for z [n, B, m] and bias [n, 1, m]."""


def smelu(z: tf.Tensor, beta: float) -> tf.Tensor:
    """Computes the smooth ReLU (FF eq. 1): 0 below -beta, (z + beta)^2 / (4 beta) between, z above beta.

    The derivative rises linearly from 0 to 1 between -beta and beta.

    Args:
        z: tensor of any floating dtype and shape.
        beta: half the width of the smooth part, above 0.

    Example:
        >>> smelu(tf.constant([-1.0, 0.0, 0.5, 2.0]), beta=0.5).numpy().tolist()
        [0.0, 0.125, 0.5, 2.0]
    """
    smooth = tf.square(tf.nn.relu(z + beta)) / (4 * beta)
    # NaN fails the comparison, and stays NaN in the square.
    return tf.where(z >= beta, z, smooth)


def relu(z: tf.Tensor) -> tf.Tensor:
    """Computes max(z, 0) and keeps NaN, unlike ``tf.nn.relu``, which may drop it when compiled."""
    return tf.where(z <= 0, tf.zeros_like(z), z)


def mish(z: tf.Tensor) -> tf.Tensor:
    """Computes z tanh(softplus(z)) (Misra, arXiv 1908.08681)."""
    return z * tf.tanh(tf.nn.softplus(z))


ACTIVATIONS: dict[str, Activation] = {
    "gelu": tf.nn.gelu,
    "swish": tf.nn.silu,
    "mish": mish,
    "softplus": tf.nn.softplus,
    "tanh": tf.nn.tanh,
    "elu": tf.nn.elu,
    "relu": relu,
}


@functools.cache
def make_activation(name: str, smelu_beta: float) -> Activation:
    """Returns the activation function with this name; the same object for the same arguments.

    Args:
        name: ``smelu`` or a key of ``ACTIVATIONS``.
        smelu_beta: the beta of SmeLU.
    """
    return functools.partial(smelu, beta=smelu_beta) if name == "smelu" else ACTIVATIONS[name]


@functools.cache
def biased_activation(activation: Activation, compiled: bool) -> BiasedActivation:
    """Returns a function that adds a bias and applies an activation, in float32, rounded to the input's dtype.

    Args:
        activation: takes and returns float32.
        compiled: whether XLA compiles it to one pass in each direction (``ctr.models.own_gradient``).
    """

    def value(z: tf.Tensor, bias: tf.Tensor) -> list[tf.Tensor]:
        return [activation(z + bias)]

    def slope(z: tf.Tensor, bias: tf.Tensor, upstream: tf.Tensor) -> list[tf.Tensor]:
        total = z + bias
        with tf.GradientTape() as tape:
            tape.watch(total)
            result = activation(total)
        return [tape.gradient(result, total, output_gradients=upstream)]

    forward, backward = one_pass(value, compiled), one_pass(slope, compiled)
    if not compiled:
        return lambda z, bias: forward(z, bias)[0]

    @own_gradient
    def biased(z: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], list[tf.Tensor]]]:
        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            with tf.name_scope("gradient_tape/deep"):
                (slopes,) = backward(z, bias, upstream)
                slopes = tf.ensure_shape(slopes, z.shape)
                return [slopes, sum_of_rows(slopes)]

        (result,) = forward(z, bias)
        return tf.ensure_shape(result, z.shape), gradient

    return biased
