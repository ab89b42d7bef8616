"""Base class of the optimizers of table rows: it holds the rows' state and writes updated rows and state back."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ctr.optim.protocol import Cost, OptionalMembers, RowGradient
from ctr.optim.update_limit import limit_update
from ctr.workers.collectives import ALONE, Workers
from ctr.workers.row_variables import grow_rows, rows_like, set_rows

State = Sequence[tf.Tensor]


class RowSetup(NamedTuple):
    """Settings of a ``RowRule``; sequences have an entry for each table, in order.

    Attributes:
        rates: float32 [C], the learning rates of the columns.
        initial_accumulators: float32 [C], the initial values of AdaGrad's sums of squares.
        copies: number of embeddings in a row, each with a linear weight behind it.
        limit: arguments of ``limit_update``, which scales all touched rows of a table by one factor; None: no limit.
        groups: the workers that share a table's rows, ``ALONE`` if this one holds all; None: it holds all tables.
    """

    rates: Sequence[np.ndarray]
    initial_accumulators: Sequence[np.ndarray] = ()
    copies: int = 1
    limit: tuple[float, float] | None = None
    groups: Sequence[Workers] | None = None


class RowRule(OptionalMembers):
    """Trains the rows of tables that a batch touches; subclasses implement ``first_state`` and ``step``.

    After ``build``, ``tables`` has the tables by name, ``state`` the state of their rows in the order of ``row_state``,
    and ``shared`` all other variables by name. Methods without a docstring are documented in
    ``ctr.optim.protocol.DenseOptimizer``; here gradients are lists of ``RowGradient``.

    Attributes:
        row_state: names of the variables ``NAME/TABLE`` with a row for each row of a table; a warm start moves a row
            and its state together.
        feature_state: names of the variables with a row for each feature of a table.
        needs_curvature: whether ``update`` needs the curvature and the groups of ``RowGradient``.
        operations: number of operations of a step for each element of a touched row.
    """

    name = "embeddings"
    row_state: tuple[str, ...] = ()
    feature_state: tuple[str, ...] = ()
    needs_curvature = False
    operations = 7

    def __init__(self, setup: RowSetup) -> None:
        self.rates, self.initial_accumulators, self.copies, self.limit, groups = setup
        self.table_groups = [ALONE] * len(setup.rates) if groups is None else list(groups)
        self.tables: dict[str, tf.Variable] = {}
        self.state: dict[str, tuple[tf.Variable, ...]] = {}
        self.shared: dict[str, tf.Variable] = {}

    def first_state(self, table: int) -> Sequence[np.ndarray]:
        """Returns the initial state of a row, float32 [K] each, in the order of ``row_state``."""
        raise NotImplementedError

    def step(self, table: int, rows: RowGradient, rates: tf.Tensor) -> tuple[tf.Tensor, State]:
        """Returns a table's touched rows [U, C] and their state after a step; ``rates`` [C] has a rate per column."""
        raise NotImplementedError

    def steps(
        self, gradients: Sequence[RowGradient], rates: Sequence[tf.Tensor]
    ) -> list[tuple[tf.Tensor, State]]:
        """Returns the results of ``step`` for the first ``len(gradients)`` tables."""
        return [self.step(table, *each) for table, each in enumerate(zip(gradients, rates, strict=True))]

    def build(self, weights: Mapping[str, tf.Variable]) -> None:
        self.tables = dict(weights)
        for number, (name, table) in enumerate(weights.items()):
            self.state[name] = tuple(rows_like(table, row) for row in self.first_state(number))

    @property
    def variables(self) -> dict[str, tf.Variable]:
        rows = {
            f"{kind}/{name}": state[number]
            for number, kind in enumerate(self.row_state)
            for name, state in self.state.items()
        }
        return rows | self.shared

    def grow(self, table: int, size: int) -> None:
        """Extends the state of a table that grows to ``size`` rows; ``reset_rows`` initializes the new rows."""
        for variable in list(self.state.values())[table]:
            grow_rows(variable, size)

    def reset_rows(self, table: int, rows: tf.Tensor) -> None:
        """Resets the state of ``rows``, int32 [N], to its initial values; called between two steps."""
        state = list(self.state.values())[table]
        for variable, row in zip(state, self.first_state(table), strict=True):
            set_rows(variable, rows, tf.broadcast_to(row, [tf.size(rows), len(row)]))

    def read(self, rows: Sequence[tf.Tensor]) -> list[State]:
        """Reads the state of ``rows``, int32 [U] for each of the first tables, in parallel with the forward pass."""
        return [
            tuple(tf.gather(variable, touched) for variable in state)
            for state, touched in zip(self.state.values(), rows, strict=False)
        ]

    def update(self, gradients: Sequence[RowGradient], rate: tf.Tensor) -> None:
        """Updates the first ``len(gradients)`` tables by one step; ``rate`` multiplies the rates of the columns."""
        # Rows are replaced, as TensorFlow adds to them one by one, several times slower.
        with tf.name_scope("row_update"):
            stepped = self.steps(gradients, [rate * rates for rates in self.rates[: len(gradients)]])
            for name, gradient, (values, state) in zip(self.tables, gradients, stepped, strict=False):
                for variable, new in zip(self.state[name], state, strict=True):
                    set_rows(variable, gradient.rows, new)
                set_rows(self.tables[name], gradient.rows, values)

    def limited(self, table: int, values: tf.Tensor, update: tf.Tensor) -> tf.Tensor:
        """Scales down the update of a table's rows, whose weights are ``values``, if it exceeds the limit."""
        if self.limit is None:
            return update
        return limit_update(values, update, *self.limit, self.table_groups[table])

    def cost(self, shapes: Sequence[Sequence[float]]) -> Cost:
        """Estimates the operations of a step late in training from the average shapes [U, C] of touched rows."""
        return Cost(update=sum(self.operations * rows * columns for rows, columns in shapes))
