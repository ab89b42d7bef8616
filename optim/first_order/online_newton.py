"""Online Newton steps for a few weights under the logistic loss, such as offsets and gates.

    A = max(0, 1 - k n / N) A + sum h x x'      w = w - (A + P)^-1 sum g x

g and h are the loss's first and second derivative in the logit, x the inputs that the weights multiply, n the weight of
the batch and N the weight of all batches up to it. P limits early steps. With k = 0 the sums are over the whole past,
as if the loss were quadratic around each weight; with k > 0 about the last 1 / (1 + k) of the past counts,
whatever its length, so that the weights follow a drift and still become steady.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

MAX_STEP = 1.0  # no step moves a weight further: the first batches may have no clicks at all, or only clicks


class CalibrationStep(NamedTuple):
    """A step of K weights: the change of each, float32 [K], and the rest of the state after the step."""

    move: tf.Tensor
    after: tuple[tf.Tensor, ...]


class BatchSums(NamedTuple):
    """Sums over a batch's rows and workers: g x [K], h x x' [K, K], n; for a bias all are scalars. Float32."""

    gradient: tf.Tensor
    curvature: tf.Tensor
    weight: tf.Tensor


def newton_solve(matrix: tf.Tensor, vector: tf.Tensor) -> tf.Tensor:
    """Solves a positive definite system of a few unknowns by elimination: float32 [K, K] and [K] give [K]."""
    rows = [tf.concat([matrix[index], vector[index : index + 1]], axis=0) for index in range(vector.shape[0])]
    for index in range(len(rows)):
        scaled = rows[index] / rows[index][index]
        rows = [scaled if at == index else row - row[index] * scaled for at, row in enumerate(rows)]
    return tf.stack([row[-1] for row in rows])


class OnlineNewton:
    """Online Newton steps for K scalars within ``ranges``; ``prior`` is the diagonal of P, ``forgetting`` is k."""

    def __init__(
        self,
        name: str,
        weights: tf.Variable,
        prior: Sequence[float],
        forgetting: float,
        ranges: Sequence[tuple[float, float]] | None = None,
    ) -> None:
        """Creates the initial state for ``weights``, float32 [K]."""
        self.name, self.weights = name, weights
        self._prior = np.diag(np.array(prior, np.float32))
        self._forgetting = forgetting
        self._ranges = None if ranges is None else np.array(ranges, np.float32).T
        size = weights.shape[0]
        self.information = tf.Variable(tf.zeros([size, size]), trainable=False)
        self.seen = tf.Variable(0.0, trainable=False)

    @property
    def variables(self) -> dict[str, tf.Variable]:
        return {f"newton/{self.name}/information": self.information, f"newton/{self.name}/seen": self.seen}

    def sums(
        self, inputs: Sequence[tf.Tensor], gradient: tf.Tensor, curvature: tf.Tensor, weight: tf.Tensor
    ) -> BatchSums:
        """Sums over a batch of B rows; each of ``inputs`` is the x of a weight, float32 [B], as are g and h."""
        columns = tf.stack(list(inputs), axis=1)
        products = columns[:, :, tf.newaxis] * columns[:, tf.newaxis, :]
        return BatchSums(
            tf.reduce_sum(gradient[:, tf.newaxis] * columns, axis=0),
            tf.reduce_sum(curvature[:, tf.newaxis, tf.newaxis] * products, axis=0),
            weight,
        )

    def step(self, sums: BatchSums) -> CalibrationStep:
        gradient, curvature, weight = sums
        seen = self.seen + weight
        decay = tf.maximum(0.0, 1.0 - self._forgetting * tf.math.divide_no_nan(weight, seen))
        information = decay * self.information + curvature
        move = -newton_solve(information + self._prior, gradient)
        move = tf.clip_by_value(move, -MAX_STEP, MAX_STEP)
        if self._ranges is not None:
            before = self.weights.read_value()
            move = tf.clip_by_value(before + move, *self._ranges) - before
        return CalibrationStep(move, (information, seen))

    def apply(self, step: CalibrationStep) -> None:
        self.weights.assign_add(step.move)
        for variable, value in zip((self.information, self.seen), step.after, strict=True):
            variable.assign(value)
