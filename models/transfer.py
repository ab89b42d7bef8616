"""The transfer function tau of a factorized model, p = tau(Q . U), in logits (FF section 6).

Both kinds rise with Q . U as they start, and start at tau(0) = prior.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf


class Pieces(NamedTuple):
    """A transfer function as a continuous piecewise-linear one of p pieces, for those who evaluate it elsewhere.

    Attributes:
        joints: float32 [p - 1], rising.
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
        """Logits, float32 [B], of products s, float32 [B]."""
        return self.scale * s + self.bias

    def weights(self) -> Iterator[tuple[str, tf.Variable]]:
        """All weights with their names."""
        yield "transfer_scale", self.scale
        yield "transfer_bias", self.bias

    def pieces(self) -> Pieces:
        """One piece."""
        return Pieces(np.zeros(0, np.float32), self.scale.numpy()[np.newaxis], float(self.bias.numpy()))


class PiecewiseLinearTransfer(tf.Module):
    """A learned continuous function of ``pieces`` straight pieces, each of which rises.

    The inner joints lie evenly in [-reach, reach], a single one at 0; the first and the last piece go on for ever. All
    slopes start at 1.
    A slope is softplus of its weight, so above 0 whatever is learned.
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
        """Logits, float32 [B], of products s, float32 [B]."""
        # How far the way from 0 to s lies in each piece.
        way = self._within(s[:, tf.newaxis]) - self._within(tf.constant(0.0))
        return tf.linalg.matvec(way, tf.nn.softplus(self.slopes)) + self.bias

    def _within(self, s: tf.Tensor) -> tf.Tensor:
        # At a joint the slope is that of the piece above: minimum and maximum alone would give both pieces'.
        outside = tf.stop_gradient(tf.minimum(tf.maximum(s, self._lower), self._upper))
        return tf.where((s >= self._lower) & (s < self._upper), s, outside)

    def weights(self) -> Iterator[tuple[str, tf.Variable]]:
        """All weights with their names."""
        yield "transfer_slopes", self.slopes
        yield "transfer_bias", self.bias

    def pieces(self) -> Pieces:
        """The pieces as they are now."""
        slopes = tf.nn.softplus(self.slopes).numpy()
        return Pieces(self._upper.numpy()[:-1], slopes, float(self.bias.numpy()))


Transfer = SigmoidTransfer | PiecewiseLinearTransfer
