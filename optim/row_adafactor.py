"""Adafactor for embeddings, AdaGrad for the linear weights beside them, as a ``ctr.optim.protocol.TableOptimizer``.

``ctr.optim.adafactor`` defines factoring where a batch touches only some rows. A table has one or more copies of an
embedding with a linear weight behind it; each copy's embeddings are a matrix of their own. A row is touched where the
gradient of its embedding is not zero.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ctr.optim import adafactor, adagrad
from ctr.optim.adafactor import RowMoments
from ctr.optim.adafactor_options import AdafactorOptions
from ctr.optim.protocol import Cost, RowGradient, WithoutHost
from ctr.optim.row_variables import Rows, gather_rows, grow_rows, replace_rows, rows_like, set_rows
from ctr.optim.update_limit import limit_update
from ctr.workers.collectives import ALONE, Workers

_OPERATIONS = 14
"""For each element of a touched row."""
_ROW_STATE = ("rows_moment", "rows_touched", "rows_linear_accumulator")


class _RowState(NamedTuple):
    """Of U rows: the mean squares' averages [U, K] of K copies, how often each was touched, and AdaGrad's sums."""

    moments: tf.Tensor
    touched: tf.Tensor
    linear: tf.Tensor


class RowAdafactor(WithoutHost):
    """Adafactor for the rows of some tables.

    Args:
        rates: for each table float32 [C], the learning rates of its columns; of embeddings the step size rho.
        initial_accumulators: for each table float32 [C]; those of linear weights are used.
        copies: K, of an embedding and its linear weight in each row.
        options: of Adafactor; there are no averages and no decay of tables.
        limit: ``relative`` and ``absolute`` of ``limit_update``, one factor for a table's touched rows; None: none.
        owners: for each table the workers that hold a part of its rows each. By default all tables are here whole.
    """

    name = "embeddings"
    row_state: tuple[str, ...] = _ROW_STATE
    feature_state: tuple[str, ...] = ()
    needs_curvature = False

    def __init__(
        self,
        rates: Sequence[np.ndarray],
        initial_accumulators: Sequence[np.ndarray],
        copies: int,
        options: AdafactorOptions,
        limit: tuple[float, float] | None = None,
        owners: Sequence[Workers] | None = None,
    ) -> None:
        self.owners = [ALONE] * len(rates) if owners is None else list(owners)
        self.rates, self.initial_accumulators = rates, initial_accumulators
        self.copies, self.options, self.limit = copies, options, limit
        self.tables: dict[str, Rows] = {}
        self._rows: dict[str, _RowState] = {}
        self._columns: dict[str, tf.Variable] = {}
        self._steps: dict[str, tf.Variable] = {}

    def build(self, weights: Mapping[str, Rows]) -> None:
        """Takes the tables, float32 [R, C] each."""
        self.tables = dict(weights)
        for (name, table), initial in zip(weights.items(), self.initial_accumulators, strict=True):
            width, zeros = table.shape[1] // self.copies - 1, np.zeros(self.copies, np.float32)
            begins = zeros, zeros, self._linear(initial)
            self._rows[name] = _RowState(*(rows_like(table, begin) for begin in begins))
            self._columns[name] = tf.Variable(tf.zeros([self.copies, width]), trainable=False)
            self._steps[name] = tf.Variable(tf.zeros([self.copies]), trainable=False)

    def _linear(self, columns: np.ndarray) -> np.ndarray:
        """Of what each column has, that of the linear weights, [K]."""
        return columns.reshape(self.copies, -1)[:, -1]

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """What rows have, by the names of ``row_state``, and what tables have."""
        found: dict[str, tf.Variable] = {}
        for name, state in self._rows.items():
            found |= {f"{kind}/{name}": variable for kind, variable in zip(_ROW_STATE, state, strict=True)}
            found |= {f"columns_moment/{name}": self._columns[name], f"table_steps/{name}": self._steps[name]}
        return found

    def reset_rows(self, table: int, rows: np.ndarray, size: int) -> None:
        """Lets rows begin anew, as ``build`` leaves them."""
        state = list(self._rows.values())[table]
        zeros = np.zeros(self.copies, np.float32)
        begin = (zeros, zeros, self._linear(self.initial_accumulators[table]))
        for variable, value in zip(state, begin, strict=True):
            grow_rows(variable, size)
            values = np.broadcast_to(value, (len(rows), self.copies))
            set_rows(variable, rows, values)

    def read(self, rows: Sequence[tf.Tensor]) -> list[_RowState]:
        """The state of these rows."""
        return [
            _RowState(*(gather_rows(variable, own) for variable in state))
            for state, own in zip(self._rows.values(), rows, strict=True)
        ]

    def update(self, gradients: Sequence[RowGradient], rate: tf.Tensor, compiled: bool) -> None:
        """One step on the touched rows; ``rate`` is a factor of the columns' rates."""
        del compiled
        for name, rates, one, owners in zip(self.tables, self.rates, gradients, self.owners, strict=True):
            with tf.name_scope("row_update"):
                self._update_table(name, rate * rates, one, owners)

    def _update_table(self, name: str, rates: tf.Tensor, one: RowGradient, owners: Workers) -> None:
        before: _RowState = one.state
        moved, kept = [], []
        columns, steps = [], []
        split = [tf.split(part, self.copies, axis=-1) for part in (one.gradient, one.values, rates)]
        for copy, (gradient, values, own_rates) in enumerate(zip(*split, strict=True)):
            state = _RowState(*(part[:, copy : copy + 1] for part in before))
            update, moments, touched, column, step = self._step_of_copy(
                name, copy, state, gradient[:, :-1], values[:, :-1], own_rates[:-1], owners
            )
            direction, squared = adagrad.row_direction(state.linear, gradient[:, -1:])
            moved.append(tf.concat([update, own_rates[-1:] * direction], axis=1))
            kept.append((moments, touched, state.linear + squared))
            columns.append(column)
            steps.append(step)
        update = tf.concat(moved, axis=1)
        if self.limit is not None:
            update = limit_update(one.values, update, *self.limit, owners)
        for variable, old, parts in zip(self._rows[name], before, zip(*kept, strict=True), strict=True):
            replace_rows(variable, one.rows, old, tf.concat(parts, axis=1))
        self._columns[name].assign(tf.stack(columns))
        self._steps[name].assign(tf.stack(steps))
        replace_rows(self.tables[name], one.rows, one.values, one.values - update)

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
        """The update of one copy's embeddings, and its state after it; sums are those of all owners' rows."""
        before = RowMoments(state.moments, state.touched, self._columns[name][copy], self._steps[name][copy])
        direction, after = adafactor.row_direction(self.options, before, gradient, owners)
        touched = adafactor.touched_rows(gradient)
        direction = adafactor.clip(self.options, direction, touched, owners)
        rates = adafactor.step_size(self.options, rates, values, after.table_steps, touched, owners)
        return rates * direction, after.rows, after.steps, after.columns, after.table_steps

    def cost(self, shapes: Sequence[Sequence[float]]) -> Cost:
        """The operations of a step in which so many rows of each table are touched, [U, C]."""
        return Cost(update=sum(_OPERATIONS * rows * columns for rows, columns in shapes))
