"""Shampoo's direction: every preconditioned dimension of a block multiplied by its root (PSO 2)."""

from collections.abc import Sequence

import tensorflow as tf


def precondition(blocks: tf.Tensor, axes: Sequence[int], roots: Sequence[tf.Tensor]) -> tf.Tensor:
    """Computes L^(-e) G R^(-e), and its like for blocks [N, d_0, ..., d_k-1], by roots [N, d, d] of ``axes``."""
    for axis, root in zip(axes, roots, strict=True):
        blocks = _multiply(blocks, axis, root)
    return blocks


def _multiply(blocks: tf.Tensor, axis: int, root: tf.Tensor) -> tf.Tensor:
    if len(blocks.shape) == 3:
        return tf.matmul(root, blocks) if axis == 0 else tf.matmul(blocks, root)
    order = len(blocks.shape) - 1
    if axis == order - 1:
        count, size = blocks.shape[0], blocks.shape[-1]
        return tf.reshape(tf.matmul(tf.reshape(blocks, [count, -1, size]), root), blocks.shape)
    if axis == 0:
        count, size = blocks.shape[0], blocks.shape[1]
        return tf.reshape(tf.matmul(root, tf.reshape(blocks, [count, size, -1])), blocks.shape)
    swap = list(range(order + 1))
    swap[axis + 1], swap[1] = swap[1], swap[axis + 1]
    return tf.transpose(_multiply(tf.transpose(blocks, swap), 0, root), swap)
