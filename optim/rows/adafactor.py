"""Adafactor for embeddings, AdaGrad for the linear weights beside them.

A table has one or more copies of an embedding with a linear weight behind it; each copy's embeddings are a matrix of
their own. A row is touched where the gradient of its embedding is not zero.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from ctr.optim.adafactor.core import RowMoments, row_update
from ctr.optim.adafactor.options import RowAdafactorOptions
from ctr.optim.protocol import RowGradient
from ctr.optim.rows.adagrad import row_direction
from ctr.optim.rows.rule import RowRule, RowSetup, State


class RowAdafactor(RowRule):
    """Adafactor for rows of ``copies`` embeddings with a linear weight each; embeddings' rates are rho."""

    row_state: tuple[str, ...] = ("rows_moment", "rows_touched", "rows_linear_accumulator")
    table_state: tuple[str, ...] = ("columns_moment", "table_steps")

    operations = 14

    def __init__(self, setup: RowSetup, options: RowAdafactorOptions) -> None:
        super().__init__(setup)
        self.options = options

    def first_state(self, table: int) -> Sequence[np.ndarray]:
        zeros = np.zeros(self.copies, np.float32)
        return zeros, zeros, self.initial_accumulators[table].reshape(self.copies, -1)[:, -1]

    def build(self, weights: Mapping[str, tf.Variable]) -> None:
        super().build(weights)
        for name, table in weights.items():
            shape = [self.copies, table.shape[1] // self.copies - 1]
            for kind, size in zip(self.table_state, (shape, shape[:1]), strict=True):
                self.shared[f"{kind}/{name}"] = tf.Variable(tf.zeros(size), trainable=False)

    def step(self, table: int, given: RowGradient, rates: tf.Tensor) -> tuple[tf.Tensor, State]:
        shared = [self.shared[f"{kind}/{list(self.tables)[table]}"] for kind in self.table_state]
        moved, kept, of_table = [], [], []
        split = [
            tf.split(part, self.copies, axis=-1)
            for part in (given.gradient, given.values, rates, *given.state)
        ]
        for copy, (gradient, values, own_rates, moments, touched, linear) in enumerate(
            zip(*split, strict=True)
        ):
            before = RowMoments(moments, touched, shared[0][copy], shared[1][copy])
            update, after = row_update(
                self.options, before, gradient[:, :-1], values[:, :-1], own_rates[:-1], self.owners[table]
            )
            direction, squared = row_direction(linear, gradient[:, -1:])
            moved += [update, own_rates[-1:] * direction]
            kept.append((after.rows, after.steps, linear + squared))
            of_table.append(after[2:])
        for variable, parts in zip(shared, zip(*of_table, strict=True), strict=True):
            variable.assign(tf.stack(parts))
        update = self.limited(table, given.values, tf.concat(moved, axis=1))
        return given.values - update, [tf.concat(parts, axis=1) for parts in zip(*kept, strict=True)]
