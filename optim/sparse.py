"""Tables, of whose rows a batch touches some: AdaGrad by element or by row, or one-sided Shampoo.

Gradients of repeated rows are summed before anything else. Then ``values^T values`` is exactly G^T G of the
whole table's gradient (PSO App. D's shortcut through the layer's outputs holds only when no row repeats).
Untouched rows stay as they are: tables take no momentum, no moving average and no decay, each of which would
move all rows at every step.
"""

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from ctr.optim.adagrad import row_direction
from ctr.optim.statistics import gram


def in_xla() -> bool:
    """Tells whether the graph that is being traced will be compiled by XLA (``jit_compile=True``)."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def sum_duplicates(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """Sums the values [U, C] of repeated rows. Under XLA, the result is padded with rows of zero gradient."""
    indices, values = gradient.indices, gradient.values
    if not in_xla():
        rows, places = tf.unique(indices)
        summed = tf.math.unsorted_segment_sum(values, places, tf.size(rows))
        return tf.IndexedSlices(summed, rows, gradient.dense_shape)
    # Shapes that depend on values do not compile: as many rows stay as there were.
    order = tf.argsort(indices, stable=True)
    ordered = tf.gather(indices, order)
    is_new = tf.concat([[1], tf.cast(ordered[1:] != ordered[:-1], tf.int32)], axis=0)
    places = tf.cumsum(is_new) - 1
    size = tf.size(indices)
    summed = tf.math.unsorted_segment_sum(tf.gather(values, order), places, size)
    rows = tf.maximum(tf.math.unsorted_segment_max(ordered, places, size), 0)
    return tf.IndexedSlices(summed, rows, gradient.dense_shape)


def row_statistics(values: tf.Tensor) -> tf.Tensor:
    """Computes G^T G, [1, C, C], from the distinct touched rows, [U, C]."""
    return gram(values[tf.newaxis], 1)


def update_table(
    table: tf.Variable,
    accumulator: tf.Variable,
    gradient: tf.IndexedSlices,
    rate: tf.Tensor,
    root: tf.Tensor | None,
    ready: tf.Tensor | None,
) -> None:
    """Takes one step on the touched rows, in place.

    The accumulator is [R, C], or [R, 1] for one sum a row. Rows are distinct; repetitions with zero gradient do no
    harm. With ``root`` [C, C], of one-sided Shampoo, its direction takes the norm of AdaGrad's step on these rows,
    and its share is ``ready``, a scalar in 0..1.
    """
    rows, values = gradient.indices, gradient.values
    step, squared = row_direction(tf.gather(accumulator, rows), values)
    # Adding, unlike replacing, leaves a repetition of a row without a gradient harmless.
    accumulator.scatter_add(tf.IndexedSlices(squared, rows))
    if root is not None and ready is not None:
        shampoo = tf.matmul(values, root)
        shampoo_norm = tf.norm(shampoo)
        usable = (shampoo_norm > 0) & tf.math.is_finite(shampoo_norm)
        ready = tf.where(usable, ready, tf.zeros_like(ready))
        scale = ready * tf.norm(step) / tf.where(usable, shampoo_norm, tf.ones_like(shampoo_norm))
        step = tf.math.multiply_no_nan(shampoo, scale) + (1.0 - ready) * step
    table.scatter_sub(tf.IndexedSlices(tf.cast(rate * step, table.dtype), rows))
