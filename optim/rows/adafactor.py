"""Adafactor for embeddings, AdaGrad for the linear weights beside them, as a ``ctr.optim.protocol.TableOptimizer``.

A table has one or more copies of an embedding with a linear weight behind it; each copy's embeddings are a matrix of
their own. A row is touched where the gradient of its embedding is not zero.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ctr.optim.adafactor import core as adafactor
from ctr.optim.adafactor.core import RowMoments
from ctr.optim.adafactor.options import AdafactorOptions, RowAdafactorOptions
from ctr.optim.protocol import Cost, RowGradient
from ctr.optim.rows import adagrad
from ctr.optim.rows.rule import RowRule, State
from ctr.optim.rows.variables import Rows
from ctr.workers.collectives import Workers

_OPERATIONS = 14  # for each element of a touched row


class _RowState(NamedTuple):
    moments: tf.Tensor
    touched: tf.Tensor
    linear: tf.Tensor


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
        name, before = list(self.tables)[table], _RowState(*given.state)
        moved, kept = [], []
        columns, steps = [], []
        split = [tf.split(part, self.copies, axis=-1) for part in (given.gradient, given.values, rates)]
        for copy, (gradient, values, own_rates) in enumerate(zip(*split, strict=True)):
            state = _RowState(*(part[:, copy : copy + 1] for part in before))
            update, moments, touched, column, step = self._step_of_copy(
                name, copy, state, gradient[:, :-1], values[:, :-1], own_rates[:-1], self.owners[table]
            )
            direction, squared = adagrad.row_direction(state.linear, gradient[:, -1:])
            moved.append(tf.concat([update, own_rates[-1:] * direction], axis=1))
            kept.append((moments, touched, state.linear + squared))
            columns.append(column)
            steps.append(step)
        self._columns[name].assign(tf.stack(columns))
        self._steps[name].assign(tf.stack(steps))
        update = self.limited(table, given.values, tf.concat(moved, axis=1))
        return given.values - update, [tf.concat(parts, axis=1) for parts in zip(*kept, strict=True)]

    def _step_of_copy(
        self,
        name: str,
        copy: int,
        state: _RowState,
        gradient: tf.Tensor,
        values: tf.Tensor,
        rates: tf.Tensor,
        owners: Workers,
    ) -> tuple[tf.Tensor, ...]:
        before = RowMoments(state.moments, state.touched, self._columns[name][copy], self._steps[name][copy])
        direction, after = adafactor.row_direction(self.options, before, gradient, owners)
        touched = adafactor.touched_rows(gradient)
        direction = adafactor.clip(self.options, direction, touched, owners)
        rates = adafactor.step_size(self.options, rates, values, after.table_steps, touched, owners)
        return rates * direction, after.rows, after.steps, after.columns, after.table_steps

    def cost(self, shapes: Sequence[Sequence[float]]) -> Cost:
        return Cost(update=sum(_OPERATIONS * rows * columns for rows, columns in shapes))
