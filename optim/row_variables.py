"""Variables whose rows are replaced in place: of one device, or on several chips of a process, each with its own."""

import tensorflow as tf


def on_devices(variable: tf.Variable) -> list[tf.Variable]:
    """The variable of each chip; of one device the variable itself."""
    return list(variable.values) if isinstance(variable, tf.distribute.DistributedValues) else [variable]


def row_count(variable: tf.Variable) -> int:
    """The number of rows of a variable that may grow; reading its value would copy it."""
    return int(tf.raw_ops.VariableShape(input=on_devices(variable)[0].handle)[0])


def grow_rows(variable: tf.Variable, size: int) -> None:
    """Appends rows of zeros to a variable of any number of rows, [R, C], until there are ``size``."""
    rows = row_count(variable)
    if rows < size:
        for own in on_devices(variable):
            own.assign(tf.pad(own.read_value(), [[0, size - rows], [0, 0]]))


def set_rows(variable: tf.Variable, rows: tf.Tensor, values: tf.Tensor) -> None:
    """Replaces some rows, each once: in the step of a chip those of its own, between two steps those of all chips."""
    if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
        tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=rows, updates=values)
        return
    for own in on_devices(variable):
        own.scatter_update(tf.IndexedSlices(values, rows))
