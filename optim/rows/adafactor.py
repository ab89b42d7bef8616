"""Adafactor for embeddings, AdaGrad for the linear weights beside them, as a ``ctr.optim.protocol.TableOptimizer``.

A table has one or more copies of an embedding with a linear weight behind it; each copy's embeddings are a matrix of
their own. A row is touched where the gradient of its embedding is not zero.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from ctr.optim.adafactor.core import RowMoments, row_update
from ctr.optim.adafactor.options import AdafactorOptions, RowAdafactorOptions
from ctr.optim.protocol import Cost, RowGradient
from ctr.optim.rows.adagrad import row_direction
from ctr.optim.rows.rule import RowRule, State
from ctr.optim.rows.variables import Rows
from ctr.workers.collectives import Workers

_OPERATIONS = 14  # for each element of a touched row


class RowAdafactor(RowRule):
    """Adafactor for rows of ``copies`` embeddings with a linear weight each; embeddings' rates are rho."""

    row_state: tuple[str, ...] = ("rows_moment", "rows_touched", "rows_linear_accumulator")
    embedding_state = ("rows_moment", "rows_touched")
    table_state = ("columns_moment", "table_steps")

    def __init__(
        self,
        rates: Sequence[np.ndarray],
        initial_accumulators: Sequence[np.ndarray],
        copies: int,
        options: RowAdafactorOptions,
        limit: tuple[float, float] | None = None,
        owners: Sequence[Workers] | None = None,
    ) -> None:
        super().__init__(rates, limit, owners)
        given = {name: getattr(options, name) for name in RowAdafactorOptions.names()}
        self.initial_accumulators, self.copies = initial_accumulators, copies
        self.options = AdafactorOptions(**given)
        self._columns: dict[str, tf.Variable] = {}
        self._steps: dict[str, tf.Variable] = {}

    def first_state(self, table: int) -> Sequence[np.ndarray]:
        zeros = np.zeros(self.copies, np.float32)
        return zeros, zeros, self.initial_accumulators[table].reshape(self.copies, -1)[:, -1]

    def build(self, weights: Mapping[str, Rows]) -> None:
        super().build(weights)
        for name, table in weights.items():
            width = table.shape[1] // self.copies - 1
            self._columns[name] = tf.Variable(tf.zeros([self.copies, width]), trainable=False)
            self._steps[name] = tf.Variable(tf.zeros([self.copies]), trainable=False)

    @property
    def variables(self) -> dict[str, Rows]:
        of_tables = {"columns_moment": self._columns, "table_steps": self._steps}
        return super().variables | {
            f"{kind}/{name}": variable
            for kind, by_table in of_tables.items()
            for name, variable in by_table.items()
        }

    def step(self, table: int, given: RowGradient, rates: tf.Tensor) -> tuple[tf.Tensor, State]:
        name, owners = list(self.tables)[table], self.owners[table]
        moved, kept, of_table = [], [], []
        split = [
            tf.split(part, self.copies, axis=-1)
            for part in (given.gradient, given.values, rates, *given.state)
        ]
        for copy, (gradient, values, own_rates, moments, touched, linear) in enumerate(
            zip(*split, strict=True)
        ):
            before = RowMoments(moments, touched, self._columns[name][copy], self._steps[name][copy])
            update, after = row_update(
                self.options, before, gradient[:, :-1], values[:, :-1], own_rates[:-1], owners
            )
            direction, squared = row_direction(linear, gradient[:, -1:])
            moved += [update, own_rates[-1:] * direction]
            kept.append((after.rows, after.steps, linear + squared))
            of_table.append(after[2:])
        for variable, parts in zip((self._columns, self._steps), zip(*of_table, strict=True), strict=True):
            variable[name].assign(tf.stack(parts))
        update = self.limited(table, given.values, tf.concat(moved, axis=1))
        return given.values - update, [tf.concat(parts, axis=1) for parts in zip(*kept, strict=True)]

    def cost(self, shapes: Sequence[Sequence[float]]) -> Cost:
        return Cost(update=sum(_OPERATIONS * rows * columns for rows, columns in shapes))
