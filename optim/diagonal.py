"""Diagonal Shampoo: dimensions too long for a matrix, preconditioned by the diagonal of their statistics (PT 4.2.3).

    L = diag(sum G G^T), R = diag(sum G^T G)        THESIS 4.1.3, algorithm 3
    P = L^(-1/4) G R^(-1/4)

The diagonal of an axis' statistics has the sums of squares over all other dimensions. Its roots are powers of single
numbers, so that nothing is left to the host. A matrix with one long side has a full factor on the other one (PT's
mixed case), with exponents as if both were full.
"""

from collections.abc import Mapping

import tensorflow as tf

from ctr.optim.missing import Present, keep
from ctr.optim.options import ShampooOptions


def squares(blocks: tf.Tensor, axis: int) -> tf.Tensor:
    """Computes the diagonal of ``statistics.gram``: [N, d_axis] of blocks [N, d_0, ..., d_k-1]."""
    others = [dimension + 1 for dimension in range(len(blocks.shape) - 1) if dimension != axis]
    return tf.reduce_sum(tf.square(blocks), axis=others)


def collect(
    sums: tf.Variable, found: tf.Tensor, beta2: float, weight: tf.Tensor | float, present: Present = None
) -> None:
    """Adds one collection to sums [N, d], in place; to those that are not decayed with a weight."""
    if beta2 == 1.0:
        added = tf.cast(weight, found.dtype) * found
        sums.assign_add(keep(added, tf.zeros_like(added), present))
    else:
        sums.assign(keep(beta2 * sums + (1.0 - beta2) * found, sums, present))


def precondition(
    options: ShampooOptions,
    blocks: tf.Tensor,
    sums: Mapping[int, tf.Tensor],
    exponents: Mapping[int, float],
    correction: tf.Tensor,
    identity: tf.Tensor | float = 0.0,
) -> tf.Tensor:
    """Multiplies blocks [N, d_0, ..., d_k-1] by D^(-e) along each dimension of ``sums``, [N, d_axis] each.

    A block whose statistics are all zero stays as it is. Sums are to be divided by ``correction``, scalar;
    ``identity``, scalar or [N, 1], is what their start has left in them.
    """
    for axis, values in sums.items():
        statistics = (values + tf.cast(identity, values.dtype)) / tf.cast(correction, values.dtype)
        largest = tf.reduce_max(statistics, axis=1, keepdims=True)
        damping = options.epsilon * (largest if options.damping == "relative" else tf.ones_like(largest))
        damped = tf.where(largest > 0, statistics + damping, tf.ones_like(statistics))
        powers = tf.cast(tf.pow(damped, tf.constant(-exponents[axis], values.dtype)), blocks.dtype)
        shape = [blocks.shape[0]] + [
            size if dimension == axis else 1 for dimension, size in enumerate(blocks.shape[1:])
        ]
        blocks *= tf.reshape(powers, shape)
    return blocks
