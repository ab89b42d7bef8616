"""Limit on the size of an update, relative to the weights.

Where several losses train one model, now and then a gradient is an outlier from which training does not recover (FF
4.1.3). Clippy limits the step itself, relative to the weights (Tang et al., "Improving Training Stability for Multitask
Ranking Models in Recommender Systems", KDD 2023, arXiv 2302.09178), without turning it: one factor for a whole tensor.
"""

import tensorflow as tf

from ctr.workers.collectives import ALONE, Workers


def limit_update(
    weight: tf.Tensor,
    update: tf.Tensor,
    relative: tf.Tensor | float,
    absolute: tf.Tensor | float,
    group: Workers = ALONE,
) -> tf.Tensor:
    """Scales ``update``, of the weight's shape, by at most 1 so that each element is at most relative |w| + absolute.

    The result is finite. Elements of zero update limit nothing. An element that is not finite, or whose weight is NaN,
    has no multiple within its limit, so that nothing moves. A weight of zero may move by ``absolute``, above 0, which
    scales the whole tensor's update. The members of ``group`` hold a part of the tensor each.
    """
    size = tf.abs(update)
    limit = relative * tf.abs(weight) + absolute
    within = tf.where(size > 0, limit / tf.where(size > 0, size, tf.ones_like(size)), tf.ones_like(size))
    # Also False for NaN. The quotient of an infinite update is already 0, unless the limit is infinite.
    sound = tf.math.is_finite(update) & (within >= 0)
    within = tf.where(sound, within, tf.zeros_like(within))
    least = tf.reduce_min(within)
    if group.size > 1:
        least = tf.reduce_min(group.all_gather(least[tf.newaxis]))
    factor = tf.minimum(least, tf.ones([], update.dtype))
    return tf.math.multiply_no_nan(update, factor)
