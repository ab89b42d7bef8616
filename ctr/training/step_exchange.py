"""Exchange of scores among the members of a group at the end of a step."""

from collections.abc import Sequence

import tensorflow as tf

from ctr.workers.collectives import Workers


def gather_scores(
    group: Workers, holds: tf.Tensor, logit: tf.Tensor, slices: Sequence[tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    """Gathers whether something holds in all members, and the scores of their rows: [B] of each become [W * B]."""
    if group.size == 1:
        return holds, logit, list(slices)
    # Slices are far fewer than float32 counts without gaps.
    columns = [logit, *(tf.cast(numbers, tf.float32) for numbers in slices)]
    flag = tf.fill([1, len(columns)], tf.cast(holds, tf.float32))
    with tf.name_scope("gather_scores"):
        message = tf.concat([tf.stack(columns, axis=1), flag], axis=0)
        gathered = tf.reshape(group.all_gather(message), [-1, tf.shape(message)[0], len(columns)])
    holds, rows = tf.reduce_all(gathered[:, -1] > 0), tf.reshape(gathered[:, :-1], [-1, len(columns)])
    return holds, rows[:, 0], [tf.cast(rows[:, column], tf.int32) for column in range(1, len(columns))]
