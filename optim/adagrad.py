"""AdaGrad for the touched rows of embedding tables.

    a += g^2        w -= rate * g / sqrt(a)

FF 4.2: what decides its implicit schedule is the initial accumulator, which therefore has no default.
A weight whose gradient and accumulator are both zero stays where it is.
"""

import tensorflow as tf

from ctr.optim.update_limit import limit_update


def row_direction(accumulated: tf.Tensor, gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The direction g / sqrt(a) of some rows, and what their accumulators grow by.

    Args:
        accumulated: [U, C], or [U, 1] for one sum a row, before this gradient.
        gradient: [U, C], summed over the batch.

    Returns:
        The direction, [U, C], and the squares, of the shape of ``accumulated``: of one sum a row the means of its
        squares.
    """
    squared = tf.square(gradient)
    if accumulated.shape[1] == 1:
        squared = tf.reduce_mean(squared, axis=1, keepdims=True)
    return tf.math.divide_no_nan(gradient, tf.sqrt(accumulated + squared)), squared


def update_rows(
    table: tf.Variable,
    accumulator: tf.Variable,
    rows: tf.Tensor,
    values: tf.Tensor,
    accumulated: tf.Tensor,
    gradient: tf.Tensor,
    rate: tf.Tensor | float,
    limit: tuple[float, float] | None = None,
) -> None:
    """One AdaGrad step on some rows of a table, in place.

    Args:
        table: [R, C].
        accumulator: [R, C], or [R, 1] for one sum a row: then of the mean of a row's squares.
        rows: int [U], the touched rows, each once.
        values: [U, C], what these rows are.
        accumulated: [U, C] or [U, 1], what these rows of the accumulator are.
        gradient: [U, C], summed over the batch.
        rate: scalar, or [C], a rate for each column.
        limit: ``relative`` and ``absolute`` of ``limit_update``, one factor for all touched rows; None: none.
    """
    direction, squared = row_direction(accumulated, gradient)
    update = rate * direction
    if limit is not None:
        update = limit_update(values, update, *limit)
    # Rows are replaced, as TensorFlow adds to them one by one, several times slower.
    accumulator.scatter_update(tf.IndexedSlices(accumulated + squared, rows))
    table.scatter_update(tf.IndexedSlices(values - update, rows))
