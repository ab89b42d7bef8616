"""AdaGrad for the touched rows of embedding tables.

    a += g^2        w -= rate * g / sqrt(a)

The initial accumulator decides AdaGrad's implicit schedule (FF 4.2), and therefore has no default.
A weight whose gradient and accumulator are both zero stays unchanged.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ctr.optim.protocol import RowGradient
from ctr.optim.rows.rule import RowRule, State
from ctr.workers.collectives import ALONE, Workers


def row_direction(accumulated: tf.Tensor, gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes g / sqrt(a) of rows [U, C] and the increase of a: g^2 [U, C], or the mean over each row [U, 1]."""
    squared = tf.square(gradient)
    if accumulated.shape[1] == 1:
        squared = tf.reduce_mean(squared, axis=1, keepdims=True)
    return tf.math.divide_no_nan(gradient, tf.sqrt(accumulated + squared)), squared


def graft_rows(direction: tf.Tensor, step: tf.Tensor, share: tf.Tensor, group: Workers = ALONE) -> tf.Tensor:
    """Computes share s P + (1 - share) A of touched rows [U, C], where s P has the norm of AdaGrad's step A.

    The norm is over the rows of the whole ``group``, and s is a scalar. Where P is 0, or not finite, the step is A.
    """
    squares = [tf.reduce_sum(tf.square(rows)) for rows in (direction, step)]
    norm, wanted = (tf.sqrt(square) for square in group.all_reduce(squares))
    usable = (norm > 0) & tf.math.is_finite(norm)
    share = tf.where(usable, share, tf.zeros_like(share))
    scale = share * wanted / tf.where(usable, norm, tf.ones_like(norm))
    return tf.math.multiply_no_nan(direction, scale) + (1.0 - share) * step


class RowAdaGrad(RowRule):
    """Elementwise AdaGrad; sums of squares start at the initial accumulators."""

    row_state: tuple[str, ...] = ("rows_accumulator",)

    def first_state(self, table: int) -> Sequence[np.ndarray]:
        return (self.initial_accumulators[table],)

    def step(self, table: int, rows: RowGradient, rates: tf.Tensor) -> tuple[tf.Tensor, State]:
        (sums,) = rows.state
        direction, squared = row_direction(sums, rows.gradient)
        return rows.values - self.limited(table, rows.values, rates * direction), (sums + squared,)
