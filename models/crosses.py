"""The crosses of DCNv2, of low or full rank, multiplied by a ramp.

    e_i = alpha2 * (e_0 * (e_{i-1} U_i V_i + b_i)) + e_{i-1}          (FF 4.3; b_i as in DCNv2)

``alpha2`` ramps from 0 to 1, so that training starts as if there were no crosses (ReZero). ``crosses`` computes this
formula, ``fused_crosses`` the same for training with fewer passes over memory.
"""

import functools
from collections.abc import Callable, Sequence

import tensorflow as tf

from ctr.models.own_gradient import one_pass, own_gradient, sum_of_rows

Layer = tuple[Sequence[tf.Tensor], tf.Tensor]
"""The stacked weights of n layers of equal shape: matrices [n, ., .], W or U and V, and biases [n, 1, units]."""


def crosses(e0: tf.Tensor, alpha2: tf.Tensor, layers: Sequence[Layer]) -> tf.Tensor:
    """Computes the last e_i of n towers, with products in the dtype of e_0 and everything else in float32.

    Args:
        e0: [n, B, m], or [1, B, m] if all towers share it.
        alpha2: float32 scalar.
        layers: the weights of each cross, in the dtype of e_0.

    Returns:
        [n, B, m] in the dtype of e_0.
    """
    e = e0
    for matrices, bias in layers:
        inner = _float32(functools.reduce(tf.matmul, matrices, e)) + _float32(bias)
        e = tf.cast(alpha2 * _float32(e0) * inner + _float32(e), e0.dtype)
    return e


def _float32(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float32)


def fused_crosses(e0: tf.Tensor, alpha2: tf.Tensor, layers: Sequence[Layer]) -> tf.Tensor:
    """Computes the same as ``crosses``, up to rounding, with one compiled pass per cross in each direction.

    The custom gradient keeps only the products and recomputes everything else. alpha2 has no gradient; the gradient
    with respect to e_0 is float32, since it is summed over a batch next.
    """

    @own_gradient
    def with_gradient(
        e0: tf.Tensor, *weights: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], list[tf.Tensor]]]:
        layer_weights: Sequence[Layer] = tf.nest.pack_sequence_as(layers, weights)
        e, chains = _forward(e0, alpha2, layer_weights)

        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            with tf.name_scope("gradient_tape/crosses"):
                return _backward(upstream, e0, alpha2, layer_weights, chains)

        return e, gradient

    return with_gradient(e0, *tf.nest.flatten(layers))


def _forward(
    e0: tf.Tensor, alpha2: tf.Tensor, layers: Sequence[Layer]
) -> tuple[tf.Tensor, list[list[tf.Tensor]]]:
    """Returns the last e_i and, for each cross, the list of its input and its products."""
    e, chains = e0, []
    for matrices, bias in layers:
        chain = [e]
        for matrix in matrices:
            chain.append(tf.matmul(chain[-1], matrix))
        chains.append(chain)
        (e,) = one_pass(_cross)(e, chain[-1], bias, e0, alpha2)
        # XLA's function has no shapes.
        e = tf.ensure_shape(e, [bias.shape[0], None, e0.shape[2]])
    return e, chains


def _backward(
    upstream: tf.Tensor,
    e0: tf.Tensor,
    alpha2: tf.Tensor,
    layers: Sequence[Layer],
    chains: Sequence[Sequence[tf.Tensor]],
) -> list[tf.Tensor]:
    """Returns the gradients with respect to e_0 and to all weights, in order."""
    towers = layers[0][1].shape[0]
    shape = [towers, None, e0.shape[2]]
    of_weights: list[tf.Tensor] = []
    of_input = of_e0 = None
    for (matrices, bias), chain in zip(reversed(layers), reversed(chains), strict=True):
        arguments = upstream, chain[-1], bias, e0, alpha2
        if of_input is None:
            of_inner, of_e0 = one_pass(_cross_gradient)(*arguments)
        else:
            of_inner, of_e0, upstream = one_pass(_next_cross_gradient)(*arguments, of_input, of_e0)
        of_inner, of_e0 = tf.ensure_shape(of_inner, shape), tf.ensure_shape(of_e0, shape)
        of_cross = [sum_of_rows(of_inner)]
        of_input = of_inner
        for matrix, factor in zip(reversed(matrices), reversed(chain[:-1]), strict=True):
            of_cross.append(tf.matmul(factor, of_input, transpose_a=True))
            of_input = tf.matmul(of_input, matrix, transpose_b=True)
        of_weights = [*reversed(of_cross), *of_weights]
    (of_e0,) = one_pass(_add, rounded=False)(of_e0, upstream, of_input)
    if e0.shape[0] != towers:
        of_e0 = tf.reduce_sum(of_e0, axis=0, keepdims=True)
    return [tf.ensure_shape(of_e0, e0.shape), *of_weights]


# Element-wise parts of a cross and its gradient. ``inner`` is e_{i-1} U V, ``upstream`` the gradient w.r.t. e_i.


def _cross(
    e: tf.Tensor, inner: tf.Tensor, bias: tf.Tensor, e0: tf.Tensor, alpha2: tf.Tensor
) -> list[tf.Tensor]:
    return [alpha2 * e0 * (inner + bias) + e]


def _cross_gradient(
    upstream: tf.Tensor, inner: tf.Tensor, bias: tf.Tensor, e0: tf.Tensor, alpha2: tf.Tensor
) -> list[tf.Tensor]:
    """Returns the gradients with respect to ``inner`` and e_0 at the last cross."""
    scaled = alpha2 * upstream
    return [scaled * e0, scaled * (inner + bias)]


def _next_cross_gradient(
    upstream: tf.Tensor,
    inner: tf.Tensor,
    bias: tf.Tensor,
    e0: tf.Tensor,
    alpha2: tf.Tensor,
    of_input: tf.Tensor,
    of_e0: tf.Tensor,
) -> list[tf.Tensor]:
    """Returns the gradients with respect to ``inner``, e_0 and e_i at a cross before the last one.

    Args:
        of_input: the gradient with respect to e_i through the product of the next cross.
        of_e0: the gradient with respect to e_0 through the later crosses, to which this cross adds.
    """
    total = upstream + of_input
    scaled = alpha2 * total
    return [scaled * e0, scaled * (inner + bias) + of_e0, total]


def _add(*terms: tf.Tensor) -> list[tf.Tensor]:
    return [functools.reduce(tf.add, terms)]
