"""The deep layers of a tower, each with or without a bottleneck.

h_i = activation(h_{i-1} W_i + b_i), or with a bottleneck activation(h_{i-1} U_i V_i + b_i)     (FF 3.1)
"""

import functools
import random
from collections.abc import Callable, Sequence
from itertools import zip_longest

import tensorflow as tf

from ctr.models.activations import Activation
from ctr.models.linear import Linear, Weights, he_normal, lecun_normal, multiply
from ctr.models.own_gradient import own_gradient
from ctr.models.passes import one_pass, sum_of_rows

BiasedActivation = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""``activation(z + bias)`` of z [n, B, m] and bias [n, 1, m]."""


def make_deep_layers(
    width: int, units: Sequence[int], ranks: Sequence[int], compute_dtype: str, seeds: random.Random
) -> list[Linear]:
    """Makes fresh layers.

    Args:
        width: of the first layer's inputs.
        units: of each layer.
        ranks: of each layer's bottleneck, 0 for none; empty: no bottlenecks.
        compute_dtype: ``float32`` or ``bfloat16``.
        seeds: of the initial weights.
    """
    layers = []
    for size, rank in zip_longest(units, ranks, fillvalue=0):
        # U keeps the variance of its inputs, as he_normal presumes for what follows.
        initializers = [lecun_normal, he_normal] if rank else [he_normal]
        sizes = [width, rank, size] if rank else [width, size]
        layers.append(Linear(sizes, initializers, seeds, compute_dtype=compute_dtype))
        width = size
    return layers


def deep_layers(h: tf.Tensor, layers: Sequence[Weights], activation: BiasedActivation) -> tf.Tensor:
    """Computes the last h_i of n towers, [n, B, units], from h_0, [n, B, m], or [1, B, m] for all towers."""
    for matrices, bias in layers:
        h = activation(multiply(h, matrices), bias)
    return h


@functools.cache
def biased_activation(activation: Activation, compiled: bool) -> BiasedActivation:
    """Makes an activation of a product and its bias, which computes in float32 and rounds to the product's dtype.

    Args:
        activation: takes and returns float32.
        compiled: whether it is one compiled pass in each direction (``ctr.models.passes``).
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
                (own,) = backward(z, bias, upstream)
                own = tf.ensure_shape(own, z.shape)
                return [own, sum_of_rows(own)]

        (result,) = forward(z, bias)
        return tf.ensure_shape(result, z.shape), gradient

    return biased
