"""AdaGrad for the touched rows of embedding tables.

    a += g^2        w -= rate * g / sqrt(a)

FF 4.2: what decides its implicit schedule is the initial accumulator, which therefore has no default.
A weight whose gradient and accumulator are both zero stays where it is.
"""

import tensorflow as tf

from ctr.optim.update_limit import limit_update


def row_direction(accumulator: tf.Variable, rows: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """Takes a gradient into the accumulator, in place, and gives the direction g / sqrt(a) of its rows.

    Args:
        accumulator: [R, C], or [R, 1] for one sum a row: then of the mean of a row's squares.
        rows: int [U], the touched rows. A row may be there more than once only with a gradient of
            zero (padding): the squares of split gradients do not add up to the square of their sum.
        gradient: [U, C], summed over the batch.

    Returns:
        [U, C].
    """
    squared = tf.square(gradient)
    if accumulator.shape[1] == 1:
        squared = tf.reduce_mean(squared, axis=1, keepdims=True)
    accumulated = tf.gather(accumulator, rows) + squared
    # Adding, unlike assigning, leaves a padded repetition of a row harmless.
    accumulator.scatter_add(tf.IndexedSlices(squared, rows))
    return tf.math.divide_no_nan(gradient, tf.sqrt(accumulated))


def update_rows(
    table: tf.Variable,
    accumulator: tf.Variable,
    rows: tf.Tensor,
    gradient: tf.Tensor,
    rate: tf.Tensor | float,
    limit: tuple[float, float] | None = None,
) -> None:
    """One AdaGrad step on some rows of a table, in place.

    Args:
        table: [R, C].
        accumulator: as in ``row_direction``, likewise ``rows`` and ``gradient``.
        rate: scalar, or [C], a rate for each column.
        limit: ``relative`` and ``absolute`` of ``limit_update``, one factor for all touched rows; None: none.
    """
    update = rate * row_direction(accumulator, rows, gradient)
    if limit is not None:
        update = limit_update(tf.gather(table, rows), update, *limit)
    table.scatter_sub(tf.IndexedSlices(update, rows))
