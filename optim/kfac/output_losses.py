"""Losses of single rows as functions of a model's outputs: gradients, sampled gradients and roots of their Hessian.

The generalized Gauss-Newton matrix needs a factor S with S S^T the Hessian of a row's loss in its outputs (BACKPACK
eq. 15). Its Monte Carlo estimate needs the gradient for a label drawn from the model's distribution: the second moment
of this gradient is the Hessian (BACKPACK eq. 20-21).
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import tensorflow as tf

_ROUNDING = 1e-2  # Of the sum of the probabilities of a row, which may be bfloat16
LossName = Literal["mse", "binary_crossentropy", "categorical_crossentropy"]


class OutputLoss(NamedTuple):
    """A loss: values [B], a root [B, C, K] of its Hessian, and gradients [B, C] for labels sampled with a seed [2]."""

    values: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    hessian_root: Callable[[tf.Tensor], tf.Tensor]
    draw: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def gradient_by_outputs(values: Callable[[tf.Tensor], tf.Tensor], outputs: tf.Tensor) -> tf.Tensor:
    """Computes the gradient [B, C] of the sum of losses ``values(outputs)`` [B] by the outputs."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(outputs)
        total = tf.reduce_sum(values(outputs))
    return tape.gradient(total, outputs)


def _like(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.cast(labels, outputs.dtype), tf.shape(outputs))


def _squares(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.square(outputs - _like(outputs, labels)), axis=1)


def _squares_root(outputs: tf.Tensor) -> tf.Tensor:
    size, dtype = outputs.shape[1], outputs.dtype
    return tf.sqrt(tf.constant(2.0 / size, dtype)) * tf.eye(size, size, tf.shape(outputs)[:1], dtype)


def _squares_draw(outputs: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    # Labels with the variance C / 2, for which this loss is the negative log-likelihood.
    noise = tf.random.stateless_normal(tf.shape(outputs), seed, dtype=outputs.dtype)
    return tf.sqrt(tf.constant(2.0 / outputs.shape[1], outputs.dtype)) * noise


def _logistic(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    losses = tf.nn.sigmoid_cross_entropy_with_logits(_like(outputs, labels), outputs)
    return tf.reduce_mean(losses, axis=1)


def _logistic_root(outputs: tf.Tensor) -> tf.Tensor:
    probability = tf.sigmoid(outputs)
    return tf.linalg.diag(tf.sqrt(probability * (1.0 - probability) / outputs.shape[1]))


def _logistic_draw(outputs: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    probability = tf.sigmoid(outputs)
    drawn = tf.random.stateless_uniform(tf.shape(outputs), seed, dtype=outputs.dtype) < probability
    return (probability - tf.cast(drawn, outputs.dtype)) / tf.sqrt(
        tf.constant(outputs.shape[1], outputs.dtype)
    )


def _softmax(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    if labels.dtype.is_integer:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(labels, [-1]), outputs)
    return tf.nn.softmax_cross_entropy_with_logits(tf.cast(labels, outputs.dtype), outputs)


def _softmax_root(outputs: tf.Tensor) -> tf.Tensor:
    probability = tf.nn.softmax(outputs)
    root = tf.sqrt(probability)
    return tf.linalg.diag(root) - probability[:, :, tf.newaxis] * root[:, tf.newaxis, :]


def _softmax_draw(outputs: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    noise = tf.random.stateless_uniform(tf.shape(outputs), seed, minval=1e-30, dtype=outputs.dtype)
    drawn = tf.argmax(outputs - tf.math.log(-tf.math.log(noise)), axis=1)
    return tf.nn.softmax(outputs) - tf.one_hot(drawn, outputs.shape[1], dtype=outputs.dtype)


def check_labels(loss: str, labels: tf.Tensor, outputs: tf.TensorShape) -> None:
    """Raises ValueError unless labels have the shape and, outside of graphs, the values that a loss allows."""
    rows, columns = outputs.as_list()
    categorical = loss == "categorical_crossentropy"
    classes = categorical and labels.dtype.is_integer
    shapes = [[rows], [rows, 1]] if classes else [[rows, columns]]
    if columns == 1 and not categorical:
        shapes.append([rows])
    if labels.dtype == tf.string or not any(labels.shape.is_compatible_with(shape) for shape in shapes):
        raise ValueError(
            f"labels are of shape {labels.shape} and {labels.dtype.name}; allowed for {loss}: numbers of shape "
            + " or ".join(str(shape) for shape in shapes)
        )
    if loss == "mse" or not tf.executing_eagerly():
        return
    least, most = labels.numpy().min(), labels.numpy().max()
    highest = columns - 1 if classes else 1
    # A label that is not finite passes: it makes the loss not finite.
    if least < 0 or most > highest:
        raise ValueError(f"labels are in {least:g}..{most:g}; allowed for {loss}: 0..{highest}")
    if categorical and not classes:
        sums = labels.numpy().sum(axis=1)
        wrong = np.flatnonzero(np.abs(sums - 1) > _ROUNDING)
        if len(wrong):
            raise ValueError(
                f"the labels of row {wrong[0]} add up to {sums[wrong[0]]:g}; allowed for {loss}: probabilities that "
                "add up to 1"
            )


LOSSES: dict[str, OutputLoss] = {
    "mse": OutputLoss(_squares, _squares_root, _squares_draw),
    "binary_crossentropy": OutputLoss(_logistic, _logistic_root, _logistic_draw),
    "categorical_crossentropy": OutputLoss(_softmax, _softmax_root, _softmax_draw),
}
"""Losses by name. Cross-entropies take logits. As in Keras, all but the categorical one average a row's outputs."""


def check_loss(name: str) -> None:
    """Raises ValueError for an unknown loss."""
    if name not in LOSSES:
        raise ValueError(f"loss is {name!r}; allowed: {', '.join(LOSSES)}")
