"""Second-order statistics of stacked blocks (PSO 2, 3.1).

    L += G G^T,  R += G^T G           summed     (beta2 = 1)
    L = beta2 L + (1 - beta2) G G^T   decayed

and for a tensor of order k, along each axis, the product of the axis' unfolding with its transpose. ``window``, in
the working precision, sums the collections; at an exchange it is added to ``total``, in float64: float32 alone would
stop growing after some 2^24 equal increments; a window has at most 100,000. Both are kept as triangles
(triangles.py).
"""

import tensorflow as tf

from ctr.optim.gradients import Present, keep, powers
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.triangles import matrix_size, multiplicities, pack


def gram(blocks: tf.Tensor, axis: int) -> tf.Tensor:
    """Sums products along one axis of blocks [N, d_0, ..., d_k-1] over all other dimensions: [N, d_axis, d_axis]."""
    if len(blocks.shape) == 3:
        return tf.matmul(blocks, blocks, transpose_a=axis == 1, transpose_b=axis == 0)
    dimensions = list(range(1, len(blocks.shape)))
    moved = dimensions.pop(axis)
    unfolded = tf.transpose(blocks, [0, moved, *dimensions])
    count, size = unfolded.shape[0], unfolded.shape[1]
    unfolded = tf.reshape(unfolded, [count, size, -1])
    return tf.matmul(unfolded, unfolded, transpose_b=True)


def row_statistics(values: tf.Tensor) -> tf.Tensor:
    """Computes G^T G, [1, C, C], from the distinct touched rows, [U, C]."""
    return gram(values[tf.newaxis], 1)


def collect(
    window: tf.Variable,
    products: tf.Tensor,
    beta2: float,
    weight: tf.Tensor | float = 1.0,
    present: Present = None,
) -> None:
    """Adds products [N, d, d] to a packed window, in place; times ``weight`` where they are summed (beta2 = 1)."""
    size = matrix_size(window.shape[1])
    # Their shape is not known where they come from several replicas.
    products = pack(tf.ensure_shape(products, [window.shape[0], size, size]))
    if beta2 == 1.0:
        added = tf.cast(weight, products.dtype) * products if isinstance(weight, tf.Tensor) else products
        window.assign_add(keep(added, tf.zeros_like(added), present))
    else:
        window.assign(keep(beta2 * window + (1.0 - beta2) * products, window, present))


def fold(
    total: tf.Variable, window: tf.Variable, size: int, decay: tf.Tensor, present: Present = None
) -> tf.Tensor:
    """Adds a window to its total and empties it, in place; returns the Frobenius norms of the changes, float64 [N]."""
    added = tf.cast(window, tf.float64)
    change = added + (decay - 1.0) * total
    change = keep(change, tf.zeros_like(change), present)
    total.assign_add(change)
    window.assign(keep(tf.zeros_like(window), window, present))
    return tf.sqrt(tf.reduce_sum(multiplicities(size) * tf.square(change), axis=1))


def corrected_by(options: ShampooOptions, collections: tf.Tensor) -> tf.Tensor:
    """Computes the divisor of decayed statistics, 1 - beta2^n (PT 3.1.1), float64; 1 where there is none."""
    if options.beta2 == 1.0 or not options.bias_correction:
        return tf.ones([], tf.float64)
    return 1.0 - tf.pow(tf.constant(options.beta2, tf.float64), tf.cast(collections, tf.float64))


def initial(options: ShampooOptions, collections: tf.Tensor, missed: tf.Tensor | None = None) -> tf.Tensor:
    """Computes how much of the identity statistics still have from their start, float64 scalar; [N] with ``missed``."""
    return options.initial_statistics * powers(options.beta2, collections, missed, tf.float64)
