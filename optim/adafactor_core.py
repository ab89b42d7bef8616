"""Adafactor over a list of variables, for both Keras optimizers and the trainer (``adafactor.py``)."""

import math
from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr.optim.adafactor import (
    RowMoments,
    clip,
    factored_direction,
    is_factored,
    row_direction,
    step_size,
    touched_rows,
    update_factors,
    update_moments,
)
from ctr.optim.adafactor_options import AdafactorOptions
from ctr.optim.gradients import Gradient, all_finite, split_gradients
from ctr.optim.missing import present_among
from ctr.optim.momentum import add_weight_decay, update_momentum
from ctr.optim.protocol import WithoutHost
from ctr.optim.state import Create, create_variable


class AdafactorState:
    """Variables of Adafactor over some tensors, in float64 where a tensor has it, else in float32.

    Attributes:
        missed: int64 [tensors], the steps in which each tensor that is no table had no gradient.
        nonfinite_steps: int64, steps that were skipped for a gradient that is not finite.
        variables: all of them by name; of the tensor i ``tensor{i}/rows`` and ``/columns``, or ``/moment``; with
            beta1 ``/average``; of a table ``/rows`` [R, 1], ``/touched`` [R, 1], ``/columns`` and ``/steps``.
    """

    def __init__(
        self,
        options: AdafactorOptions,
        shapes: Sequence[Sequence[int]],
        tables: Sequence[int],
        dtypes: Sequence[tf.DType],
        create: Create = create_variable,
    ) -> None:
        self.dtype = tf.float64 if tf.float64 in dtypes else tf.float32
        self.variables: dict[str, tf.Variable] = {}

        def make(name: str, shape: Sequence[int], dtype: tf.DType) -> tf.Variable:
            self.variables[name] = create(name, shape, dtype, 0)
            return self.variables[name]

        self.step = make("step", [], tf.int64)
        self.missed = make("missed", [len(shapes)], tf.int64)
        self.nonfinite_steps = make("nonfinite_steps", [], tf.int64)
        for index, shape in enumerate(shapes):
            if index in tables:
                parts = {"rows": [shape[0], 1], "touched": [shape[0], 1], "columns": [shape[1]], "steps": []}
            elif is_factored(options, shape):
                parts = {"rows": [*shape[:-1]], "columns": [*shape[:-2], shape[-1]]}
            else:
                parts = {"moment": [*shape]}
            if options.beta1 and index not in tables:
                parts["average"] = [*shape]
            for kind, size in parts.items():
                make(f"tensor{index}/{kind}", size, self.dtype)

    def of(self, index: int) -> dict[str, tf.Variable]:
        """Returns the variables of a tensor by the last part of their names."""
        prefix = f"tensor{index}/"
        return {
            name.removeprefix(prefix): variable
            for name, variable in self.variables.items()
            if name.startswith(prefix)
        }


class AdafactorCore(WithoutHost):
    """Adafactor over variables of any floating dtype; ``tables`` are indices of matrices that learn by rows."""

    def __init__(
        self,
        options: AdafactorOptions,
        weights: Sequence[tf.Variable],
        tables: Sequence[int] = (),
        create: Create = create_variable,
    ) -> None:
        self.options = options
        self.weights = list(weights)
        self.tables = tuple(tables)
        shapes = [tuple(int(size) for size in weight.shape) for weight in weights]
        self.state = AdafactorState(options, shapes, tables, [weight.dtype for weight in weights], create)

    def replica(
        self, weights: Sequence[tf.Variable], create: Create, leader: "AdafactorCore | None"
    ) -> "AdafactorCore":
        del leader
        return AdafactorCore(self.options, weights, self.tables, create)

    def update(
        self,
        gradients: Sequence[Gradient],
        learning_rate: tf.Tensor | float,
        decayed: Sequence[bool] | None = None,
    ) -> None:
        """Takes one step on all weights, in place; None leaves a weight and its state as they are.

        Moments of a weight decay by the number of its own steps. By default all weights decay that are no tables.
        """
        dense, rows = split_gradients(gradients, self.weights, self.tables, self.state.dtype)
        self._update(dense, rows, learning_rate, decayed)

    def _update(
        self,
        dense: dict[int, tf.Tensor],
        rows: dict[int, tf.IndexedSlices],
        learning_rate: tf.Tensor | float,
        decayed: Sequence[bool] | None,
    ) -> None:
        state = self.state
        count = state.step.assign_add(1, read_value=True)
        present = present_among(dense.keys() | rows.keys(), len(self.weights))
        missed = state.missed.read_value()
        if present is not None:
            missed = state.missed.assign_add(tf.cast(~present, tf.int64), read_value=True)
        # A number would otherwise be rounded to float32 on its way to float64.
        is_number = isinstance(learning_rate, int | float)
        rate = tf.constant(learning_rate, state.dtype) if is_number else tf.cast(learning_rate, state.dtype)
        for index, slices in rows.items():
            self._update_rows(index, slices, rate)
        for index, gradient in dense.items():
            step = tf.cast(count - missed[index], state.dtype)
            self._update_dense(index, gradient, rate, step, decayed is None or decayed[index])

    def update_if_finite(
        self,
        gradients: Sequence[Gradient],
        learning_rate: tf.Tensor | float,
        decayed: Sequence[bool] | None = None,
        roots: str = "host",
    ) -> tf.Tensor:
        """Calls ``update`` if all gradients are finite, else counts the step; returns whether it did."""
        del roots
        dense, rows = split_gradients(gradients, self.weights, self.tables, self.state.dtype)
        applied = all_finite([*dense.values(), *rows.values()])

        def update() -> tf.Tensor:
            self._update(dense, rows, learning_rate, decayed)
            return tf.constant(True)

        def count() -> tf.Tensor:
            self.state.nonfinite_steps.assign_add(1)
            return tf.constant(False)

        return tf.cond(applied, update, count)

    def _update_dense(
        self, index: int, gradient: tf.Tensor, rate: tf.Tensor, step: tf.Tensor, decayed: bool
    ) -> None:
        options, weight, kept = self.options, self.weights[index], self.state.of(index)
        if "rows" in kept:
            rows, columns = update_factors(options, kept["rows"], kept["columns"], gradient, step)
            kept["rows"].assign(rows)
            kept["columns"].assign(columns)
            direction = factored_direction(gradient, rows, columns)
        else:
            moments = update_moments(options, kept["moment"], gradient, step)
            kept["moment"].assign(moments)
            direction = tf.math.divide_no_nan(gradient, tf.sqrt(moments))
        direction = clip(options, direction)
        if options.beta1:
            direction = update_momentum(kept["average"], direction, options.beta1)
            kept["average"].assign(direction)
        before = tf.cast(weight, self.state.dtype)
        if options.weight_decay and decayed:
            direction = add_weight_decay(direction, before, options.weight_decay)
        update = step_size(options, rate, before, step) * direction
        weight.assign_sub(tf.cast(update, weight.dtype))

    def _update_rows(self, index: int, slices: tf.IndexedSlices, rate: tf.Tensor) -> None:
        table, kept, rows = self.weights[index], self.state.of(index), slices.indices
        before = RowMoments(
            tf.gather(kept["rows"], rows), tf.gather(kept["touched"], rows), kept["columns"], kept["steps"]
        )
        values = tf.cast(tf.gather(table, rows), self.state.dtype)
        direction, after = row_direction(self.options, before, slices.values)
        step, touched = after.table_steps, touched_rows(slices.values)
        size = step_size(self.options, rate, values, step, touched)
        update = size * clip(self.options, direction, touched)
        # Adding, unlike replacing, leaves a repetition of a row without a gradient harmless.
        kept["rows"].scatter_add(tf.IndexedSlices(after.rows - before.rows, rows))
        kept["touched"].scatter_add(tf.IndexedSlices(after.steps - before.steps, rows))
        kept["columns"].assign(after.columns)
        kept["steps"].assign(step)
        table.scatter_sub(tf.IndexedSlices(tf.cast(update, table.dtype), rows))

    def report(self) -> dict[str, float | int]:
        return {"nonfinite_steps": int(self.state.nonfinite_steps.numpy())}

    def describe(self, names: Sequence[str] | None = None) -> str:
        """Returns a table: the treatment of each tensor, and the memory of its state."""
        names = names or [weight.name.partition(":")[0] for weight in self.weights]
        lines = []
        for index, (name, weight) in enumerate(zip(names, self.weights, strict=True)):
            kept: Mapping[str, tf.Variable] = self.state.of(index)
            size = sum(math.prod(variable.shape) * variable.dtype.size for variable in kept.values())
            how = "rows" if index in self.tables else "rows and columns" if "rows" in kept else "elements"
            shape = "x".join(map(str, weight.shape)) or "scalar"
            lines.append(f"{name}  {shape}  Adafactor by {how}, {size} bytes of state")
        return "\n".join(lines)
