"""Adafactor: second moments by rows and columns (ADAFACTOR, algorithms 4-6): pure functions, and an optimizer.

For a matrix X of n x m with gradient G, at step t (algorithm 4, in the printed form, with sums)::

    R = b R + (1 - b) (G^2 + e1) 1,   C = b C + (1 - b) 1^T (G^2 + e1)
    b = 1 - t^(-c) (7.2), or beta2 (1 - beta2^(t-1)) / (1 - beta2^t): Adam's, corrected for its bias (7.1)
    V = R C / (1^T R),    U = G / sqrt(V),    X -= a U / max(1, RMS(U) / d)
    a = max(e2, RMS(X)) rho

Vectors keep V itself (algorithm 5). A tensor of higher order is a stack of matrices, each with its R and C; RMS(U)
and RMS(X) are of the whole tensor. In **tables**, a batch changes only the rows with a nonzero gradient. So
R_i averages the mean square of row i over the t_i steps that touched it, C_j averages column j over the touched rows,
V_ij = R_i C_j / mean(C), and RMS is over the touched rows. If every step touches all rows, this equals algorithm 4 up
to rounding.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from ctr.optim.adafactor.options import AdafactorOptions
from ctr.optim.first_order.directions import momentum_step
from ctr.optim.gradients import GradientSteps, present_among
from ctr.optim.variables import Create, Variables, create_variable


def second_moment_decay(options: AdafactorOptions, step: tf.Tensor) -> tf.Tensor:
    """Computes b for ``step``, a float tensor of any shape that counts from 1; b is 0 at step 1."""
    if options.beta2 is None:
        return 1.0 - tf.pow(step, tf.constant(-options.decay_power, step.dtype))
    # In float32 1 - beta2^t has few digits at first.
    logarithm = math.log(options.beta2)
    return options.beta2 * tf.math.expm1((step - 1.0) * logarithm) / tf.math.expm1(step * logarithm)


def factored_direction(gradient: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """Computes U = G / sqrt(R C / 1^T R), [..., n, m], from R [..., n] and C [..., m] (algorithm 4, lines 7 and 8)."""
    # The factors are applied one by one: their product would underflow float32 for tiny gradients.
    share = tf.math.divide_no_nan(rows, tf.reduce_sum(rows, axis=-1, keepdims=True))
    scaled = tf.math.divide_no_nan(gradient, tf.sqrt(share)[..., :, tf.newaxis])
    return tf.math.divide_no_nan(scaled, tf.sqrt(columns)[..., tf.newaxis, :])


def _mean(values: tf.Tensor, axis: int) -> tf.Tensor:
    return tf.reduce_sum(values, axis=axis, keepdims=True) / max(int(values.shape[axis]), 1)


def clip(options: AdafactorOptions, update: tf.Tensor, touched: tf.Tensor | None = None) -> tf.Tensor:
    """Computes U / max(1, RMS(U) / d) (algorithm 4, line 9; section 6), for U of any shape, or for touched rows.

    RMS(U) is about 1 while the second moments are up to date, and larger when they lag. Clipping gradients would not
    limit the step, because dividing by sqrt(V) removes their scale.
    """
    if not options.clipping:
        return update
    rms = root_mean_square(update, touched)
    return update / tf.maximum(tf.ones_like(rms), rms / options.clipping)


def root_mean_square(values: tf.Tensor, touched: tf.Tensor | None = None) -> tf.Tensor:
    """Computes the scalar RMS of a tensor, or of the rows of [U, C] whose ``touched``, [U, 1], is 1.0; 0 if empty."""
    if touched is None:
        count = tf.cast(tf.size(values), values.dtype)
    else:
        values, count = touched * values, tf.reduce_sum(touched) * float(values.shape[1])
    return tf.sqrt(tf.math.divide_no_nan(2.0 * tf.nn.l2_loss(values), count))


def step_size(
    options: AdafactorOptions,
    rate: tf.Tensor,
    weight: tf.Tensor,
    step: tf.Tensor,
    touched: tf.Tensor | None = None,
) -> tf.Tensor:
    """Computes the step size a (algorithm 4, line 3; algorithm 6, line 4) from X before the step; ``step`` is >= 1."""
    if options.inverse_sqrt:
        rate = tf.minimum(rate, tf.math.rsqrt(tf.maximum(step, 1.0)))
    if not options.relative_steps:
        return rate
    return rate * tf.maximum(root_mean_square(weight, touched), options.epsilon2)


class AdafactorCore(GradientSteps):
    """Adafactor over variables of any floating dtype; ``tables`` are indices of matrices that are trained by rows.

    Its floating-point ``variables`` are float64 if any weight is, else float32. Weight i has ``tensor{i}/rows`` and
    ``/columns``, or ``/moment``; with beta1 also ``/average``; a table has ``/rows`` [R, 1], ``/touched`` [R, 1],
    ``/columns`` and ``/steps``. ``missed``, int64 [weights], counts steps without a gradient; for dense weights only.
    """

    def __init__(
        self,
        options: AdafactorOptions,
        weights: Sequence[tf.Variable],
        tables: Sequence[int] = (),
        create: Create = create_variable,
    ) -> None:
        self.options, self.weights, self.tables = options, list(weights), tuple(tables)
        self.dtype = tf.float64 if tf.float64 in [weight.dtype for weight in weights] else tf.float32
        self.variables = variables = Variables(create, self.dtype)
        self.step = variables.make("step", [], tf.int64)
        self.missed = variables.make("missed", [len(weights)], tf.int64)
        self.nonfinite_steps = variables.make("nonfinite_steps", [], tf.int64)
        # By weight and kind.
        self.state: list[dict[str, tf.Variable]] = []
        for index, weight in enumerate(weights):
            shape = [int(size) for size in weight.shape]
            if index in tables:
                parts = {"rows": [shape[0], 1], "touched": [shape[0], 1], "columns": [shape[1]], "steps": []}
            elif options.factored and len(shape) >= 2:
                parts = {"rows": shape[:-1], "columns": [*shape[:-2], shape[-1]]}
            else:
                parts = {"moment": shape}
            if options.beta1 and index not in tables:
                parts["average"] = shape
            self.state.append(
                {kind: variables.make(f"tensor{index}/{kind}", size) for kind, size in parts.items()}
            )

    def _update(
        self,
        dense: dict[int, tf.Tensor],
        rows: dict[int, tf.IndexedSlices],
        rate: tf.Tensor,
        decayed: Sequence[bool] | None,
        on_device: bool,
    ) -> None:
        del decayed, on_device  # Nothing decays, as in the paper.
        count = self.step.assign_add(1, read_value=True)
        present = present_among(dense.keys() | rows.keys(), len(self.weights))
        missed = self.missed.read_value()
        if present is not None:
            missed = self.missed.assign_add(tf.cast(~present, tf.int64), read_value=True)
        for index, slices in rows.items():
            self._update_rows(index, slices, rate)
        for index, gradient in dense.items():
            step = tf.cast(count - missed[index], self.dtype)
            self._update_dense(index, gradient, rate, step)

    def _count_nonfinite(self) -> None:
        self.nonfinite_steps.assign_add(1)

    def _update_dense(self, index: int, gradient: tf.Tensor, rate: tf.Tensor, step: tf.Tensor) -> None:
        options, weight, state = self.options, self.weights[index], self.state[index]
        decay, squared = second_moment_decay(options, step), tf.square(gradient) + options.epsilon1
        sums = {"rows": -1, "columns": -2} if "rows" in state else {"moment": None}
        new = {}
        for kind, axis in sums.items():
            added = squared if axis is None else tf.reduce_sum(squared, axis=axis)
            new[kind] = decay * state[kind] + (1.0 - decay) * added
            state[kind].assign(new[kind])
        if "rows" in new:
            direction = factored_direction(gradient, new["rows"], new["columns"])
        else:
            direction = tf.math.divide_no_nan(gradient, tf.sqrt(new["moment"]))
        direction = clip(options, direction)
        if options.beta1:
            direction, _ = momentum_step(state["average"], direction, options.beta1)
            state["average"].assign(direction)
        before = tf.cast(weight, self.dtype)
        update = step_size(options, rate, before, step) * direction
        weight.assign_sub(tf.cast(update, weight.dtype))

    def _update_rows(self, index: int, slices: tf.IndexedSlices, rate: tf.Tensor) -> None:
        """Updates touched rows of a table by a U / max(1, RMS(U) / d); rows with a zero gradient are not touched."""
        options, table, state = self.options, self.weights[index], self.state[index]
        at, gradient = slices.indices, slices.values
        before, times = tf.gather(state["rows"], at), tf.gather(state["touched"], at)
        touched = tf.cast(tf.reduce_any(gradient != 0, axis=1, keepdims=True), gradient.dtype)
        squared = touched * (tf.square(gradient) + options.epsilon1)
        count, total = tf.reduce_sum(touched), tf.reduce_sum(squared, axis=0)
        steps, table_steps = times + touched, state["steps"] + tf.minimum(count, 1.0)
        decay = second_moment_decay(options, tf.maximum(steps, 1.0))
        rows = decay * before + (1.0 - decay) * _mean(squared, 1)
        rows = tf.where(touched > 0, rows, before)
        decay = second_moment_decay(options, tf.maximum(table_steps, 1.0))
        mean = tf.math.divide_no_nan(total, count)
        columns = tf.where(count > 0, decay * state["columns"] + (1.0 - decay) * mean, state["columns"])
        share = tf.math.divide_no_nan(columns, _mean(columns, 0))
        direction = tf.math.divide_no_nan(gradient, tf.sqrt(rows))
        direction = tf.math.divide_no_nan(direction, tf.sqrt(share)[tf.newaxis])
        values = tf.cast(tf.gather(table, at), self.dtype)
        update = step_size(options, rate, values, table_steps, touched) * clip(options, direction, touched)
        # Adding, unlike replacing, makes a repeated row without a gradient harmless.
        state["rows"].scatter_add(tf.IndexedSlices(rows - before, at))
        state["touched"].scatter_add(tf.IndexedSlices(steps - times, at))
        state["columns"].assign(columns)
        state["steps"].assign(table_steps)
        table.scatter_sub(tf.IndexedSlices(tf.cast(update, table.dtype), at))

    def report(self) -> dict[str, float | int]:
        """Returns the number of steps skipped because of a non-finite gradient."""
        return {"nonfinite_steps": int(self.nonfinite_steps.numpy())}

    def describe(self, names: Sequence[str] | None = None) -> str:
        """Returns a line for each weight: its shape, the form of its moments, and their bytes."""
        names = names or self._names()
        lines = []
        for index, (name, weight) in enumerate(zip(names, self.weights, strict=True)):
            state = self.state[index]
            size = sum(math.prod(variable.shape) * variable.dtype.size for variable in state.values())
            how = "rows" if index in self.tables else "rows and columns" if "rows" in state else "elements"
            shape = "x".join(map(str, weight.shape)) or "scalar"
            lines.append(f"{name}  {shape}  Adafactor by {how}, {size} bytes of state")
        return "\n".join(lines)
