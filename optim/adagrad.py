"""AdaGrad for the touched rows of embedding tables, as a ``ctr.optim.protocol.TableOptimizer``.

    a += g^2        w -= rate * g / sqrt(a)

FF 4.2: what decides its implicit schedule is the initial accumulator, which therefore has no default.
A weight whose gradient and accumulator are both zero stays where it is.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from ctr.optim.protocol import Cost, RowGradient, WithoutHost
from ctr.optim.row_variables import Rows, gather_rows, grow_rows, replace_rows, rows_like, set_rows
from ctr.optim.update_limit import limit_update
from ctr.workers.collectives import ALONE, Workers

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


def update_rows(
    table: Rows,
    accumulator: Rows,
    rows: tf.Tensor,
    values: tf.Tensor,
    accumulated: tf.Tensor,
    gradient: tf.Tensor,
    rate: tf.Tensor | float,
    limit: tuple[float, float] | None = None,
    owners: Workers = ALONE,
) -> None:
    """One AdaGrad step on some rows of a table, in place.

    Args:
        table: [R, C].
        accumulator: [R, C], or [R, 1] for one sum a row: then of the mean of a row's squares.
        rows: int [U], the touched rows, each once.
        values: [U, C], what these rows are.
        accumulated: [U, C] or [U, 1], what these rows of the accumulator are.
        gradient: [U, C], summed over the batch.
        rate: scalar, or [C], a rate for each column.
        limit: ``relative`` and ``absolute`` of ``limit_update``, one factor for all touched rows; None: none.
        owners: the workers that hold a part of the table each.
    """
    direction, squared = row_direction(accumulated, gradient)
    update = rate * direction
    if limit is not None:
        update = limit_update(values, update, *limit, owners)
    # Rows are replaced, as TensorFlow adds to them one by one, several times slower.
    replace_rows(accumulator, rows, accumulated, accumulated + squared)
    replace_rows(table, rows, values, values - update)


class RowAdaGrad(WithoutHost):
    """Element-wise AdaGrad for the rows of some tables.

    Args:
        rates: for each table float32 [C], the learning rates of its columns.
        initial_accumulators: for each table float32 [C], at which the sums of squares of its columns start.
        limit: ``relative`` and ``absolute`` of ``limit_update``, one factor for a table's touched rows; None: none.
        owners: for each table the workers that hold a part of its rows each; ``ALONE`` for all of a table that is here
            whole. By default all tables are.
    """

    name = "embeddings"
    row_state: tuple[str, ...] = ("rows_accumulator",)
    feature_state: tuple[str, ...] = ()
    needs_curvature = False

    def __init__(
        self,
        rates: Sequence[np.ndarray],
        initial_accumulators: Sequence[np.ndarray],
        limit: tuple[float, float] | None = None,
        owners: Sequence[Workers] | None = None,
    ) -> None:
        self.owners = [ALONE] * len(rates) if owners is None else list(owners)
        self.rates = rates
        self.initial_accumulators = initial_accumulators
        self.limit = limit
        self.tables: list[Rows] = []
        self.accumulators: dict[str, Rows] = {}

    def build(self, weights: Mapping[str, Rows]) -> None:
        """Takes the tables, float32 [R, C] each; their sums begin at ``initial_accumulators``."""
        self.tables = list(weights.values())
        for (name, table), initial in zip(weights.items(), self.initial_accumulators, strict=True):
            self.accumulators[name] = rows_like(table, initial)

    @property
    def variables(self) -> dict[str, Rows]:
        """The sums of squares, of the shapes of the tables."""
        return {f"rows_accumulator/{name}": variable for name, variable in self.accumulators.items()}

    def reset_rows(self, table: int, rows: np.ndarray, size: int) -> None:
        """Sets the sums of some rows of a table to ``initial_accumulators``; ``size`` is its number of rows by now."""
        accumulator = list(self.accumulators.values())[table]
        initial = self.initial_accumulators[table]
        grow_rows(accumulator, size)
        values = np.broadcast_to(initial, (len(rows), len(initial)))
        set_rows(accumulator, rows, values)

    def read(self, rows: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The sums of squares of these rows, [U, C] for each table."""
        return [
            gather_rows(variable, own) for variable, own in zip(self.accumulators.values(), rows, strict=True)
        ]

    def update(self, gradients: Sequence[RowGradient], rate: tf.Tensor, compiled: bool) -> None:
        """One step on the touched rows; ``rate`` is a factor of the columns' rates."""
        del compiled
        for table, accumulator, rates, one, owners in zip(
            self.tables, self.accumulators.values(), self.rates, gradients, self.owners, strict=True
        ):
            with tf.name_scope("row_update"):
                update_rows(
                    table,
                    accumulator,
                    one.rows,
                    one.values,
                    one.state,
                    one.gradient,
                    rate * rates,
                    self.limit,
                    owners,
                )

    def cost(self, shapes: Sequence[Sequence[float]]) -> Cost:
        """The operations of a step in which so many rows of each table are touched, [U, C]."""
        return Cost(update=sum(_OPERATIONS * rows * columns for rows, columns in shapes))
