"""Tables that learn by the rows that a batch touches: AdaGrad, or one-sided Shampoo at its step sizes (PSO App. D)."""

from collections.abc import Sequence

import tensorflow as tf

from ctr.optim.first_order.options import AdaGrad
from ctr.optim.rows.adagrad import graft_rows, row_direction
from ctr.optim.shampoo.layout import ShampooLayout
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.variables import Variables


class Tables:
    """AdaGrad's sums of the tables of a layout, element by element or one for each row."""

    def __init__(
        self,
        options: ShampooOptions,
        layout: ShampooLayout,
        weights: Sequence[tf.Variable],
        variables: Variables,
    ) -> None:
        self.options, self.layout, self.weights = options, layout, weights
        grafting = options.grafting
        initial = grafting.initial_accumulator if isinstance(grafting, AdaGrad) else 1e-6
        self.accumulators = {}
        for index in layout.tables:
            rows, columns = layout.tensors[index].shape
            sums = [rows, 1 if options.rows == "adagrad_row" else columns]
            self.accumulators[index] = variables.make(f"tensor{index}/accumulator", sums, value=initial)

    def update(
        self,
        index: int,
        slices: tf.IndexedSlices,
        rate: tf.Tensor,
        roots: Sequence[tf.Variable],
        share: tf.Tensor | None,
    ) -> None:
        """Takes a step on distinct touched rows, in place; repetitions with zero gradient do no harm."""
        table, accumulator = self.weights[index], self.accumulators[index]
        rows, values = slices.indices, slices.values
        step, squared = row_direction(tf.gather(accumulator, rows), values)
        # Adding, unlike replacing, leaves a repetition of a row without a gradient harmless.
        accumulator.scatter_add(tf.IndexedSlices(squared, rows))
        if index in self.layout.table_factors and share is not None:
            factor, place = self.layout.table_factors[index]
            direction = tf.matmul(values, roots[factor][place])
            step = graft_rows(direction, step, share[index])
        table.scatter_sub(tf.IndexedSlices(tf.cast(rate * step, table.dtype), rows))
