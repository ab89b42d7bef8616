"""AdaGrad for the touched rows of embedding tables, as a ``ctr.optim.protocol.TableOptimizer``.

    a += g^2        w -= rate * g / sqrt(a)

FF 4.2: what decides its implicit schedule is the initial accumulator, which therefore has no default.
A weight whose gradient and accumulator are both zero stays where it is.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ctr.optim.protocol import Cost, RowGradient
from ctr.optim.row_rule import RowRule, State
from ctr.workers.collectives import Workers

_OPERATIONS = 7
"""For each element of a touched row."""


def row_direction(accumulated: tf.Tensor, gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The direction g / sqrt(a) of some rows, and what their accumulators grow by.

    Args:
        accumulated: [U, C], or [U, 1] for one sum a row, before this gradient.
        gradient: [U, C], summed over the batch.

    Returns:
        The direction, [U, C], and the squares, of the shape of ``accumulated``: of one sum a row the means of its
        squares.
    """
    squared = tf.square(gradient)
    if accumulated.shape[1] == 1:
        squared = tf.reduce_mean(squared, axis=1, keepdims=True)
    return tf.math.divide_no_nan(gradient, tf.sqrt(accumulated + squared)), squared


class RowAdaGrad(RowRule):
    """Element-wise AdaGrad for the rows of some tables.

    Args:
        rates, limit, owners: see ``RowRule``.
        initial_accumulators: for each table float32 [C], at which the sums of squares of its columns start.
    """

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
        """Where the sums of squares start."""
        return (self.initial_accumulators[table],)

    def step(self, table: int, given: RowGradient, rates: tf.Tensor) -> tuple[tf.Tensor, State]:
        """AdaGrad's step."""
        (sums,) = given.state
        direction, squared = row_direction(sums, given.gradient)
        return given.values - self.limited(table, given.values, rates * direction), (sums + squared,)

    def cost(self, shapes: Sequence[Sequence[float]]) -> Cost:
        """The operations of a step in which so many rows of each table are touched, [U, C]."""
        return Cost(update=sum(_OPERATIONS * rows * columns for rows, columns in shapes))
