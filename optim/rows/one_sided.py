"""One-sided Shampoo for embeddings, AdaGrad for the linear weights beside them.

The right side alone (PSO lemma 1 with p = infinity; App. D), with R += G^T G, [d, d], and P = G R^(-1/2), leaves rows
without a gradient unchanged. P takes the norm of AdaGrad's step on the same rows, embedding by embedding. Roots come
from the host, as for dense weights.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr.optim.gradients import in_xla
from ctr.optim.protocol import Cost, RowGradient, Spectrum
from ctr.optim.rows.adagrad import RowAdaGrad, graft_rows, row_direction
from ctr.optim.rows.rule import RowSetup, State
from ctr.optim.shampoo.blocks import gram
from ctr.optim.shampoo.division import Blocks
from ctr.optim.shampoo.exchange import RootExchange
from ctr.optim.shampoo.layout import lay_out
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.schedule import shampoo_share
from ctr.optim.shampoo.statistics import Statistics
from ctr.optim.variables import Variables, create_variable


class RowOneSided(RowAdaGrad):
    """One-sided Shampoo for rows of ``copies`` embeddings, each with a linear weight; ``options.rows`` is one_sided."""

    _shares: tf.Tensor

    def __init__(self, setup: RowSetup, options: ShampooOptions) -> None:
        super().__init__(setup)
        self.options = options

    def build(self, weights: Mapping[str, tf.Variable]) -> None:
        super().build(weights)
        self._names = [name for name in weights for _ in range(self.copies)]
        # To the exchange of roots, each copy is a table of a single row.
        shapes = [
            (1, table.shape[1] // self.copies - 1) for table in weights.values() for _ in range(self.copies)
        ]
        self._layout = lay_out(self.options, shapes, range(len(shapes)))
        variables = Variables(create_variable, tf.float32)
        self._step = variables.make("step", [], tf.int64)
        self.statistics = Statistics(self.options, self._layout, variables)
        self.exchanged = RootExchange(self.options, Blocks(self._layout), variables)
        self.shared = {f"one_sided/{name}": variable for name, variable in variables.items()}

    def update(self, gradients: Sequence[RowGradient], rate: tf.Tensor) -> None:
        step = self._step.assign_add(1, read_value=True)
        self._collect(gradients, step)
        if not in_xla():
            self.exchange()
        self._shares = shampoo_share(self.options, step, tf.float32) * self.exchanged.certified
        super().update(gradients, rate)

    def step(self, table: int, rows: RowGradient, rates: tf.Tensor) -> tuple[tf.Tensor, State]:
        (sums,) = rows.state
        direction, squared = row_direction(sums, rows.gradient)
        parts = []
        split = zip(self._parts(rows.gradient), self._parts(direction), strict=True)
        for copy, (values, graft) in enumerate(split):
            index = table * self.copies + copy
            if index not in self._layout.table_factors:
                parts.append(graft)
                continue
            factor, at = self._layout.table_factors[index]
            shampoo = tf.matmul(values[:, :-1], self.exchanged.roots[factor][at])
            share = self._shares[self._layout.factors[factor].offset + at]
            moved = graft_rows(shampoo, graft[:, :-1], share, self.table_groups[table])
            parts.append(tf.concat([moved, graft[:, -1:]], axis=1))
        direction = tf.concat(parts, axis=1)
        return rows.values - self.limited(table, rows.values, rates * direction), (sums + squared,)

    def _parts(self, columns: tf.Tensor) -> list[tf.Tensor]:
        return tf.split(columns, self.copies, axis=1)

    def _collect(self, gradients: Sequence[RowGradient], step: tf.Tensor) -> None:
        products: dict[int, tf.Tensor] = {}
        for number, (rows, group) in enumerate(zip(gradients, self.table_groups, strict=True)):
            for copy, part in enumerate(self._parts(rows.gradient)):
                index = number * self.copies + copy
                if index in self._layout.table_factors:
                    (products[index],) = group.all_reduce([gram(part[tf.newaxis, :, :-1], 1)])
        self.statistics.update([], products.__getitem__, step, self.exchanged.exchanged_at.read_value())

    def exchange(self) -> None:
        self.exchanged.update(self.statistics, self._step.read_value())

    def report(self) -> dict[str, float | int]:
        report = self.exchanged.report(int(self._step.numpy()))
        return {f"tables_{name}": value for name, value in report.items() if name != "nonfinite_steps"}

    def spectra(self) -> dict[str, Spectrum]:
        return self.exchanged.spectra(self._names)

    def cost(self, shapes: Sequence[Sequence[float]]) -> Cost:
        adagrad = super().cost(shapes)
        products = sum(2 * rows * columns * columns / self.copies for rows, columns in shapes)
        roots = sum(14 * self.copies * (columns / self.copies) ** 3 for _, columns in shapes)
        return dataclasses.replace(
            adagrad,
            statistics=products / self.options.statistics.frequency,
            preconditioning=products,
            roots=roots / self.options.precondition_frequency,
        )
