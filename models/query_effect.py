"""What the rows of a query have in common beyond their features.

Rows of a query are not independent: a user in a good mood clicks more on everything. Each query has an effect u on all
of its logits, normal with variance s = ``VARIANCE``, which nothing can predict and learning has to allow for. Given the
weights, its most probable value is after one Newton step from 0::

    u = - s sum (p - y) / (1 + s H),     H = sum p (1 - p) over the query

Weights learn from what u leaves; and the query says no more of a weight that all of its rows share than one row would
that has the curvature H / (1 + s H).
"""

from collections.abc import Mapping

import tensorflow as tf

VARIANCE = 0.1


def query_effect(query: tf.Tensor, gradient: tf.Tensor, curvature: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the effects of the queries of B rows.

    Args:
        query: int32 [B], the number of each row's query, below B.
        gradient, curvature: float32 [B], of the loss by the logit of each row.

    Returns:
        For each row u, and the share 1 / (1 + s H) of curvature that is left to a weight that the query shares; both
        float32 [B].
    """
    size = tf.shape(query)[0]
    total = tf.gather(tf.math.unsorted_segment_sum(gradient, query, size), query)
    information = tf.gather(tf.math.unsorted_segment_sum(curvature, query, size), query)
    left = 1.0 / (1.0 + VARIANCE * information)
    return -VARIANCE * total * left, left


def shared_by_query(plan: Mapping[str, tf.Tensor], query: tf.Tensor, is_row: tf.Tensor) -> tf.Tensor:
    """Finds which single-valued features have one id in all rows of a query.

    Args:
        plan: of a table, see ``ctr.models.rows.TablePlan``.
        query: int32 [B].
        is_row: bool [B], rows that count; not padding.

    Returns:
        bool [B, S].
    """
    single, size = plan["single"], tf.shape(query)[0]
    none = tf.zeros_like(single)
    low = tf.math.unsorted_segment_min(tf.where(is_row[:, tf.newaxis], single, single.dtype.max), query, size)
    high = tf.math.unsorted_segment_max(tf.where(is_row[:, tf.newaxis], single, none), query, size)
    return tf.gather(low == high, query)
