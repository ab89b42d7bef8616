"""Variables with a row for each row of a table."""

import numpy as np
import tensorflow as tf


def row_count(variable: tf.Variable) -> int:
    """Returns the number of rows of a growing variable, without a copy of its value."""
    return int(tf.raw_ops.VariableShape(input=variable.handle)[0])


def rows_like(table: tf.Variable, row: np.ndarray) -> tf.Variable:
    """Creates a variable with as many rows as ``table``, all with the initial value ``row``, float32 [C]."""
    value = tf.broadcast_to(row, [tf.shape(table)[0], len(row)])
    return tf.Variable(value, trainable=False, shape=[table.shape[0], len(row)])


def grow_rows(variable: tf.Variable, size: int) -> None:
    """Appends rows of zeros to a variable, [R, C] with dynamic R, until it has ``size`` rows."""
    rows = row_count(variable)
    if rows < size:
        variable.assign(tf.pad(variable.read_value(), [[0, size - rows], [0, 0]]))


def read_rows(variable: tf.Variable, begin: int, end: int) -> np.ndarray:
    """Reads the rows from ``begin`` to ``end`` (exclusive), between two steps."""
    return np.asarray(variable.sparse_read(tf.range(begin, end)))


def set_rows(variable: tf.Variable, rows: tf.Tensor, values: tf.Tensor) -> None:
    """Replaces rows of a variable; ``rows`` are distinct."""
    variable.scatter_update(tf.IndexedSlices(values, rows))
