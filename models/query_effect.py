"""Query effects: offsets shared by the rows of a query beyond their features.

Rows of a query are not independent: a user in a good mood clicks more on everything. Each query has an effect u on all
of its logits, normal with variance s = ``VARIANCE``, which no feature predicts and learning must account for. For fixed
weights, one Newton step from 0 approximates its most probable value::

    u = - s sum w (p - y) / (1 + s H),     H = max(sum w p (1 - p), n m (1 - m))

summed over the query's rows, whose weights w add up to n; m is the weighted mean of all p and y, halfway between
predictions and clicks. If predictions are far from the clicks, as for the first rows, p (1 - p) underestimates the
curvature in between, and a step with it alone would overshoot.

Weights learn from the residual that u leaves. For a weight that all rows of a query share, the query counts as a single
row with curvature H / (1 + s H). A bias is shared by all rows: it learns from a query's gradient and curvature, both
divided by 1 + s sum w p (1 - p).
"""

import tensorflow as tf

VARIANCE = 0.1


def query_effect(
    query: tf.Tensor, probability: tf.Tensor, label: tf.Tensor, weight: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the effects of queries on their rows.

    Args:
        query: int32 [B], the index of each row's query, below B.
        probability, label, weight: p, y and w, float32 [B].

    Returns:
        Two float32 [B]: u, the effect of each row's query, and 1 / (1 + s H), which multiplies the curvature of a
        weight that the whole query shares.
    """
    size = tf.shape(query)[0]
    parts = tf.stack([probability - label, probability * (1.0 - probability), probability + label], axis=1)
    columns = tf.concat([parts, tf.ones_like(parts[:, :1])], axis=1) * weight[:, tf.newaxis]
    residual, curvature, clicks, total = tf.unstack(
        tf.math.unsorted_segment_sum(columns, query, size), axis=1
    )
    middle = tf.math.divide_no_nan(clicks, 2.0 * total)
    left = 1.0 / (1.0 + VARIANCE * tf.maximum(curvature, total * middle * (1.0 - middle)))
    return tf.gather(-VARIANCE * residual * left, query), tf.gather(left, query)


def query_share(query: tf.Tensor, curvature: tf.Tensor) -> tf.Tensor:
    """Computes 1 / (1 + s sum w p (1 - p)), float32 [B], the factor of a bias's gradient and curvature.

    ``query``: see ``query_effect``; ``curvature``: w p (1 - p), float32 [B].
    """
    total = tf.math.unsorted_segment_sum(curvature, query, tf.shape(query)[0])
    return tf.gather(1.0 / (1.0 + VARIANCE * total), query)


def shared_by_query(single: tf.Tensor, query: tf.Tensor, is_row: tf.Tensor) -> tf.Tensor:
    """Returns whether all rows of a row's query have the same id, for each of S features: bool [B, S].

    ``single``: the ids, int32 [B, S]; ``is_row``: bool [B, S], False for padding.
    """
    size = tf.shape(query)[0]
    low = tf.math.unsorted_segment_min(tf.where(is_row, single, single.dtype.max), query, size)
    high = tf.math.unsorted_segment_max(tf.where(is_row, single, 0), query, size)
    return tf.gather(low == high, query)
