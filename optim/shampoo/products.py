"""Products of stacked blocks [N, d_0, ..., d_k-1] along one dimension: with themselves, and with matrices [N, d, d]."""

from collections.abc import Sequence

import tensorflow as tf


def gram(blocks: tf.Tensor, axis: int) -> tf.Tensor:
    """Sums products along one axis over all other dimensions: [N, d_axis, d_axis]."""
    if len(blocks.shape) == 3:
        return tf.matmul(blocks, blocks, transpose_a=axis == 1, transpose_b=axis == 0)
    dimensions = list(range(1, len(blocks.shape)))
    moved = dimensions.pop(axis)
    unfolded = tf.transpose(blocks, [0, moved, *dimensions])
    count, size = unfolded.shape[0], unfolded.shape[1]
    unfolded = tf.reshape(unfolded, [count, size, -1])
    return tf.matmul(unfolded, unfolded, transpose_b=True)


def multiply(blocks: tf.Tensor, axis: int, matrices: tf.Tensor, transposed: bool = False) -> tf.Tensor:
    """Multiplies one dimension by M [N, d, d], sum_j M_ij G_j, or by its transpose."""
    order, count, size = len(blocks.shape) - 1, blocks.shape[0], blocks.shape[axis + 1]
    if axis == order - 1:
        flat = blocks if order == 2 else tf.reshape(blocks, [count, -1, size])
        return tf.reshape(tf.matmul(flat, matrices, transpose_b=not transposed), blocks.shape)
    if axis == 0:
        flat = blocks if order == 2 else tf.reshape(blocks, [count, size, -1])
        return tf.reshape(tf.matmul(matrices, flat, transpose_a=transposed), blocks.shape)
    swap = list(range(order + 1))
    swap[axis + 1], swap[1] = swap[1], swap[axis + 1]
    return tf.transpose(multiply(tf.transpose(blocks, swap), 0, matrices, transposed), swap)


def precondition(blocks: tf.Tensor, axes: Sequence[int], roots: Sequence[tf.Tensor]) -> tf.Tensor:
    """Computes L^(-e) G R^(-e), and its like, by roots of ``axes``, which are symmetric."""
    for axis, root in zip(axes, roots, strict=True):
        # Of a symmetric matrix the form that needs no transposition.
        blocks = multiply(blocks, axis, root, transposed=axis == len(blocks.shape) - 2)
    return blocks
