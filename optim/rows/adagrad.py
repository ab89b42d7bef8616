"""AdaGrad for the touched rows of embedding tables, as a ``ctr.optim.protocol.TableOptimizer``.

    a += g^2        w -= rate * g / sqrt(a)

The initial accumulator decides its implicit schedule (FF 4.2), and therefore has no default.
A weight whose gradient and accumulator are both zero stays where it is.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ctr.optim.protocol import Cost, RowGradient
from ctr.optim.rows.rule import RowRule, State
from ctr.workers.collectives import Workers

_OPERATIONS = 7  # for each element of a touched row


def row_direction(accumulated: tf.Tensor, gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes g / sqrt(a) of rows [U, C], and the growth of a, [U, C] or [U, 1]: the mean of a row's squares."""
    squared = tf.square(gradient)
    if accumulated.shape[1] == 1:
        squared = tf.reduce_mean(squared, axis=1, keepdims=True)
    return tf.math.divide_no_nan(gradient, tf.sqrt(accumulated + squared)), squared


class RowAdaGrad(RowRule):
    """Element-wise AdaGrad; sums of squares start at ``initial_accumulators``, for each table float32 [C]."""

    row_state: tuple[str, ...] = ("rows_accumulator",)

    def __init__(
        self,
        rates: Sequence[np.ndarray],
        initial_accumulators: Sequence[np.ndarray],
        limit: tuple[float, float] | None = None,
        owners: Sequence[Workers] | None = None,
    ) -> None:
        super().__init__(rates, limit, owners)
        self.initial_accumulators = initial_accumulators

    def first_state(self, table: int) -> Sequence[np.ndarray]:
        return (self.initial_accumulators[table],)

    def step(self, table: int, given: RowGradient, rates: tf.Tensor) -> tuple[tf.Tensor, State]:
        (sums,) = given.state
        direction, squared = row_direction(sums, given.gradient)
        return given.values - self.limited(table, given.values, rates * direction), (sums + squared,)

    def cost(self, shapes: Sequence[Sequence[float]]) -> Cost:
        return Cost(update=sum(_OPERATIONS * rows * columns for rows, columns in shapes))
