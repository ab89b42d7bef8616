"""The transfer function tau of a factorized model, p = tau(Q . U), in logits (FF section 6).

Both kinds start increasing in Q . U, with tau(0) = prior.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf


class Pieces(NamedTuple):
    """A transfer function as a continuous piecewise-linear one of p pieces, to be evaluated without TensorFlow.

    Attributes:
        joints: float32 [p - 1], increasing: where two pieces meet.
        slopes: float32 [p].
        bias: its value at 0.
    """

    joints: np.ndarray
    slopes: np.ndarray
    bias: float


class SigmoidTransfer(tf.Module):
    """logit = scale * s + bias."""

    def __init__(self, prior: float) -> None:
        super().__init__()
        self.scale = tf.Variable(1.0)
        self.bias = tf.Variable(math.log(prior / (1 - prior)))

    def __call__(self, s: tf.Tensor) -> tf.Tensor:
        """Computes logits, float32 [B], of products s, float32 [B]."""
        return self.scale * s + self.bias

    def weights(self) -> Iterator[tuple[str, tf.Variable]]:
        """Yields all weights with their names."""
        yield "transfer_scale", self.scale
        yield "transfer_bias", self.bias

    def pieces(self) -> Pieces:
        """Returns its one piece."""
        return Pieces(np.zeros(0, np.float32), self.scale.numpy()[np.newaxis], float(self.bias.numpy()))


class PiecewiseLinearTransfer(tf.Module):
    """A learned continuous function of ``pieces`` linear pieces, each of which increases.

    The joints are evenly spaced over [-reach, reach], a single one at 0; the first and the last piece are unbounded.
    All slopes start at 1. A slope is the softplus of its weight, so it is always above 0.
    """

    def __init__(self, prior: float, pieces: int, reach: float) -> None:
        super().__init__()
        joints = (
            np.linspace(-reach, reach, pieces - 1, dtype=np.float32)
            if pieces > 2
            else np.zeros(1, np.float32)
        )
        self._lower = tf.constant(np.concatenate([[-np.inf], joints]), tf.float32)
        self._upper = tf.constant(np.concatenate([joints, [np.inf]]), tf.float32)
        self.slopes = tf.Variable(np.full(pieces, math.log(math.e - 1), np.float32))
        self.bias = tf.Variable(math.log(prior / (1 - prior)))

    def __call__(self, s: tf.Tensor) -> tf.Tensor:
        """Computes logits, float32 [B], of products s, float32 [B]."""
        # The length of the way from 0 to s in each piece.
        lengths = self._clip(s[:, tf.newaxis]) - self._clip(tf.constant(0.0))
        return tf.linalg.matvec(lengths, tf.nn.softplus(self.slopes)) + self.bias

    def _clip(self, s: tf.Tensor) -> tf.Tensor:
        """Clips s to each piece."""
        # At a joint the slope is that of the piece above: minimum and maximum alone would give both pieces'.
        outside = tf.stop_gradient(tf.minimum(tf.maximum(s, self._lower), self._upper))
        return tf.where((s >= self._lower) & (s < self._upper), s, outside)

    def weights(self) -> Iterator[tuple[str, tf.Variable]]:
        """Yields all weights with their names."""
        yield "transfer_slopes", self.slopes
        yield "transfer_bias", self.bias

    def pieces(self) -> Pieces:
        """Returns the pieces with their present slopes."""
        slopes = tf.nn.softplus(self.slopes).numpy()
        return Pieces(self._upper.numpy()[:-1], slopes, float(self.bias.numpy()))


Transfer = SigmoidTransfer | PiecewiseLinearTransfer
