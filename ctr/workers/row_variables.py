"""Variables with a row for each row of a table, of one device (``tf.Variable``) or of chips (``RowLines``)."""

from typing import TypeAlias

import numpy as np
import tensorflow as tf

from ctr.workers.row_lines import RowLines

Rows: TypeAlias = tf.Variable | RowLines


def on_devices(variable: Rows) -> list[tf.Variable]:
    """Returns the variable of each chip; of one device the variable itself."""
    if isinstance(variable, RowLines):
        return variable.on_devices()
    return list(variable.values) if isinstance(variable, tf.distribute.DistributedValues) else [variable]


def row_count(variable: Rows) -> int:
    """Returns the number of rows of a variable that may grow; reading its value would copy it."""
    if isinstance(variable, RowLines):
        return variable.rows
    return int(tf.raw_ops.VariableShape(input=on_devices(variable)[0].handle)[0])


def rows_like(table: Rows, row: np.ndarray) -> Rows:
    """Creates a variable with as many rows as ``table``, where that is, all of which begin as ``row``, float32 [C]."""
    if isinstance(table, RowLines):
        return table.like(row)
    value = tf.broadcast_to(row, [tf.shape(table)[0], len(row)])
    return tf.Variable(value, trainable=False, shape=[table.shape[0], len(row)])


def grow_rows(variable: Rows, size: int) -> None:
    """Appends rows of zeros to a variable of any number of rows, [R, C], until there are ``size``."""
    if isinstance(variable, RowLines):
        variable.grow(size)
        return
    rows = row_count(variable)
    if rows < size:
        for own in on_devices(variable):
            own.assign(tf.pad(own.read_value(), [[0, size - rows], [0, 0]]))


def read_rows(variable: Rows, begin: int, end: int) -> np.ndarray:
    """Reads the rows from ``begin`` to ``end``, between two steps."""
    if isinstance(variable, RowLines):
        return variable.read(begin, end)
    return np.asarray(on_devices(variable)[0].sparse_read(tf.range(begin, end)))


def gather_rows(variable: Rows, rows: tf.Tensor) -> tf.Tensor:
    """Reads rows, int32 [U], in a step: [U, C]. Those that chips divide stand chip by chip (``RowLines.gather``)."""
    return variable.gather(rows) if isinstance(variable, RowLines) else tf.gather(variable, rows)


def replace_rows(variable: Rows, rows: tf.Tensor, old: tf.Tensor, new: tf.Tensor) -> None:
    """Replaces some rows, each once, in a step; those are ``old``, as ``gather_rows`` has given them."""
    if isinstance(variable, RowLines):
        variable.replace(rows, old, new)
    else:
        set_rows(variable, rows, new)


def set_rows(variable: Rows, rows: tf.Tensor, values: tf.Tensor) -> None:
    """Replaces some rows, each once: in the step of a chip those of its own, between two steps those of all chips."""
    if isinstance(variable, RowLines):
        variable.set(rows, values)
        return
    if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
        tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=rows, updates=values)
        return
    for own in on_devices(variable):
        own.scatter_update(tf.IndexedSlices(values, rows))
