"""Adafactor: second moments by rows and columns (ADAFACTOR, algorithms 4-6), as pure functions and over variables.

For a matrix X of n x m with gradient G, at step t (algorithm 4, in the printed form, with sums)::

    R = b R + (1 - b) (G^2 + e1) 1,   C = b C + (1 - b) 1^T (G^2 + e1),     b = 1 - t^(-c)
    V = R C / (1^T R),    U = G / sqrt(V),    X -= a U / max(1, RMS(U) / d)
    a = max(e2, RMS(X)) rho

Vectors keep V itself (algorithm 5). A tensor of higher order is a stack of matrices of its last two dimensions, each
with its own R and C; RMS(U) and RMS(X) are of the whole tensor.

**Rows of tables.** A batch touches some rows (those whose gradient is not zero), and only these may move. So R_i is
the average of the mean square of row i over the steps that touched it, with a step number t_i of its own; C_j is
that of the mean square of column j over the touched rows; and V_ij = R_i C_j / mean(C). Where every step touches all
rows this is algorithm 4 to the last digit of arithmetic. RMS(U) and RMS(X) are those of the touched rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from ctr.optim.adafactor_options import AdafactorOptions
from ctr.optim.clipping import clip_update
from ctr.workers.collectives import ALONE, Workers


class RowMoments(NamedTuple):
    """Second moments of a table: R [U, 1] with the steps [U, 1] that touched each row; C [C] with the table's steps."""

    rows: tf.Tensor
    steps: tf.Tensor
    columns: tf.Tensor
    table_steps: tf.Tensor


def second_moment_decay(options: AdafactorOptions, step: tf.Tensor) -> tf.Tensor:
    """Computes b at a step, a float tensor of any shape, 1 at the first step."""
    return 1.0 - tf.pow(step, tf.constant(-options.decay_power, step.dtype))


def is_factored(options: AdafactorOptions, shape: Sequence[int]) -> bool:
    """Tells whether a weight of this shape has sums by row and column."""
    return options.factored and len(shape) >= 2


def update_factors(
    options: AdafactorOptions, rows: tf.Tensor, columns: tf.Tensor, gradient: tf.Tensor, step: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns R [..., n] and C [..., m] after a gradient [..., n, m] (algorithm 4, lines 5 and 6)."""
    decay, squared = second_moment_decay(options, step), tf.square(gradient) + options.epsilon1
    rows = decay * rows + (1.0 - decay) * tf.reduce_sum(squared, axis=-1)
    return rows, decay * columns + (1.0 - decay) * tf.reduce_sum(squared, axis=-2)


def update_moments(
    options: AdafactorOptions, moments: tf.Tensor, gradient: tf.Tensor, step: tf.Tensor
) -> tf.Tensor:
    """Returns V after a gradient of its shape (algorithm 5, line 5)."""
    decay = second_moment_decay(options, step)
    return decay * moments + (1.0 - decay) * (tf.square(gradient) + options.epsilon1)


def factored_direction(gradient: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """Computes U = G / sqrt(R C / 1^T R) (algorithm 4, lines 7 and 8)."""
    # Of each factor by itself: their product would leave float32 where gradients are tiny.
    share = tf.math.divide_no_nan(rows, tf.reduce_sum(rows, axis=-1, keepdims=True))
    found = tf.math.divide_no_nan(gradient, tf.sqrt(share)[..., :, tf.newaxis])
    return tf.math.divide_no_nan(found, tf.sqrt(columns)[..., tf.newaxis, :])


def row_direction(
    options: AdafactorOptions, moments: RowMoments, gradient: tf.Tensor, owners: Workers = ALONE
) -> tuple[tf.Tensor, RowMoments]:
    """Computes U of touched rows [U, C] of a table, and their moments after this step; sums are of all owners' rows."""
    touched = touched_rows(gradient)
    squared = touched * (tf.square(gradient) + options.epsilon1)
    count, total = owners.all_reduce([tf.reduce_sum(touched), tf.reduce_sum(squared, axis=0)])
    steps, table_steps = moments.steps + touched, moments.table_steps + tf.minimum(count, 1.0)
    decay = second_moment_decay(options, tf.maximum(steps, 1.0))
    rows = decay * moments.rows + (1.0 - decay) * _mean(squared, 1)
    rows = tf.where(touched > 0, rows, moments.rows)
    decay = second_moment_decay(options, tf.maximum(table_steps, 1.0))
    found = tf.math.divide_no_nan(total, count)
    columns = tf.where(count > 0, decay * moments.columns + (1.0 - decay) * found, moments.columns)
    share = tf.math.divide_no_nan(columns, _mean(columns, 0))
    direction = tf.math.divide_no_nan(gradient, tf.sqrt(rows))
    direction = tf.math.divide_no_nan(direction, tf.sqrt(share)[tf.newaxis])
    return direction, RowMoments(rows, steps, columns, table_steps)


def touched_rows(gradient: tf.Tensor) -> tf.Tensor:
    """Marks touched rows of [U, C]: 1 or 0, [U, 1]."""
    return tf.cast(tf.reduce_any(gradient != 0, axis=1, keepdims=True), gradient.dtype)


def _mean(values: tf.Tensor, axis: int) -> tf.Tensor:
    return tf.reduce_sum(values, axis=axis, keepdims=True) / max(int(values.shape[axis]), 1)


def clip(
    options: AdafactorOptions, update: tf.Tensor, touched: tf.Tensor | None = None, owners: Workers = ALONE
) -> tf.Tensor:
    """Computes U / max(1, RMS(U) / d) (algorithm 4, line 9); RMS is that of the touched rows."""
    if not options.clipping:
        return update
    return clip_update(update, root_mean_square(update, touched, owners), (), options.clipping)


def root_mean_square(
    values: tf.Tensor, touched: tf.Tensor | None = None, owners: Workers = ALONE
) -> tf.Tensor:
    """Computes RMS, a scalar; of all owners' touched rows of [U, C] where ``touched`` [U, 1] is given; 0 of nothing."""
    if touched is None:
        count = tf.cast(tf.size(values), values.dtype)
    else:
        values, count = touched * values, tf.reduce_sum(touched) * float(values.shape[1])
    total, count = owners.all_reduce([2.0 * tf.nn.l2_loss(values), count])
    return tf.sqrt(tf.math.divide_no_nan(total, count))


def step_size(
    options: AdafactorOptions,
    rate: tf.Tensor,
    weight: tf.Tensor,
    step: tf.Tensor,
    touched: tf.Tensor | None = None,
    owners: Workers = ALONE,
) -> tf.Tensor:
    """Computes a (algorithm 4, line 3; algorithm 6, line 4) for X before the step; ``step`` is a float, 1 at first."""
    if options.inverse_sqrt:
        rate = tf.minimum(rate, tf.math.rsqrt(tf.maximum(step, 1.0)))
    if not options.relative_steps:
        return rate
    return rate * tf.maximum(root_mean_square(weight, touched, owners), options.epsilon2)
