"""AdaGrad for dense weights and, element-wise, for the touched rows of embedding tables.

    a += g^2        w -= rate * g / sqrt(a)

FF 4.2: what decides its implicit schedule is the initial accumulator, which therefore has no default.
A weight whose gradient and accumulator are both zero stays where it is.
"""

import tensorflow as tf


def create_accumulator(variable: tf.Variable, initial: float) -> tf.Variable:
    """An accumulator beside ``variable``: its shape, filled with ``initial``; float32."""
    return tf.Variable(tf.fill(variable.shape, tf.constant(initial, tf.float32)), trainable=False)


def update_dense(
    variable: tf.Variable, accumulator: tf.Variable, gradient: tf.Tensor, rate: tf.Tensor | float
) -> None:
    """One AdaGrad step on a whole variable, in place."""
    accumulated = accumulator.assign_add(tf.square(gradient), read_value=True)
    variable.assign_sub(rate * tf.math.divide_no_nan(gradient, tf.sqrt(accumulated)))


def update_rows(
    table: tf.Variable,
    accumulator: tf.Variable,
    rows: tf.Tensor,
    gradient: tf.Tensor,
    rate: tf.Tensor | float,
) -> None:
    """One AdaGrad step on some rows of a table, in place.

    Args:
        table: float32 [R, C].
        accumulator: float32 [R, C].
        rows: int32 [U], the touched rows. A row may be there more than once only with a gradient of
            zero (padding): the squares of split gradients do not add up to the square of their sum.
        gradient: float32 [U, C], summed over the batch.
        rate: scalar, or float32 [C], a rate for each column.
    """
    squared = tf.square(gradient)
    accumulated = tf.gather(accumulator, rows) + squared
    step = rate * tf.math.divide_no_nan(gradient, tf.sqrt(accumulated))
    # Adding, unlike assigning, leaves a padded repetition of a row harmless.
    accumulator.scatter_add(tf.IndexedSlices(squared, rows))
    table.scatter_sub(tf.IndexedSlices(step, rows))
