"""Losses on logits, differentiable, of any floating dtype. Train weights multiply every term.

All are exact for logits of any size that the dtype holds: sums of positive terms, no differences.
"""

import tensorflow as tf

from ctr.workers.collectives import ALONE, Workers


def logistic_loss(label: tf.Tensor, logit: tf.Tensor) -> tf.Tensor:
    """Computes the cross-entropy of a click (1) or no click (0) with sigmoid(logit), float32 [B] (FF section 2)."""
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=logit)


def distillation_loss(teacher_logit: tf.Tensor, logit: tf.Tensor) -> tf.Tensor:
    """Computes the cross-entropy of the teacher's probability with the student's (FF 4.1.2).

    Its smallest value, at equal logits, is the entropy of the teacher's probability, not 0.

    Args:
        teacher_logit: float32 [B], a constant for the gradient; NaN where there is none.
        logit: float32 [B], the student's.

    Returns:
        float32 [B]; 0, with a gradient of 0, where the teacher's logit is NaN.
    """
    known = ~tf.math.is_nan(teacher_logit)
    teacher = tf.stop_gradient(teacher_logit)
    # Before the formula, not only after it: zero times a derivative that is NaN would be NaN.
    student = tf.where(known, logit, tf.zeros_like(logit))
    # With 1 - sigmoid(t) in place of sigmoid(-t), or max(s, 0) - s sigmoid(t)
    # in place of the sum, large logits would leave nothing but rounding.
    clicked = tf.sigmoid(teacher) * tf.nn.softplus(-student)
    other = tf.sigmoid(-teacher) * tf.nn.softplus(student)
    return tf.where(known, clicked + other, tf.zeros_like(student))


def rank_loss(
    logit: tf.Tensor, pairs_clicked: tf.Tensor, pairs_other: tf.Tensor, pair_weight: tf.Tensor
) -> tf.Tensor:
    """Computes RankNet's loss: the sum over pairs of weight * -log sigmoid(s_i - s_j) (FF 4.1.1).

    The gradient adds up in the order of the pairs, so that it is the same at every run.

    Args:
        logit: float32 [B].
        pairs_clicked: int32 [P], the row of each pair's clicked example, in 0..B-1 (``ctr.objective.pairs``).
        pairs_other: int32 [P], the row of its other one.
        pair_weight: float32 [P]; 0 for padding, which counts nothing even where its logits are not finite.

    Returns:
        float32 scalar, 0 without pairs.
    """
    margin = tf.gather(logit, pairs_clicked) - tf.gather(logit, pairs_other)
    margin = tf.where(pair_weight > 0, margin, tf.zeros_like(margin))
    return tf.reduce_sum(pair_weight * tf.nn.softplus(-margin))


def squared_correlation(
    logits: tf.Tensor,
    weight: tf.Tensor,
    workers: Workers = ALONE,
) -> tf.Tensor:
    """Averages the squared correlation of the logits of two components in the batch over all pairs (FF 5).

    FF names the technique; de-correlating outputs over a batch is how Shamir and Coviello (arXiv 2010.09923) push
    components apart.

    Args:
        logits: float32 [n, B], n at least 2.
        weight: float32 [B]; rows of weight 0 do not count.
        workers: those that divide the batch; the correlation is that of all of their rows.

    Returns:
        float32 scalar in [0, 1]; a component of constant logits correlates with no other.
    """
    count = logits.shape[0]
    logits = tf.where(weight > 0, logits, tf.zeros_like(logits))
    total, sums = workers.all_reduce([tf.reduce_sum(weight), tf.linalg.matvec(logits, weight)])
    mean = tf.math.divide_no_nan(sums, total)
    # The derivative of a covariance by the mean is zero, but not that of some of its terms.
    mean = mean if workers.size == 1 else tf.stop_gradient(mean)
    deviation = logits - mean[:, tf.newaxis]
    (covariance,) = workers.total([tf.matmul(deviation * weight, deviation, transpose_b=True)])
    variance = tf.linalg.diag_part(covariance)
    squared = tf.math.divide_no_nan(tf.square(covariance), variance[:, tf.newaxis] * variance)
    upper = tf.linalg.band_part(squared, 0, -1) - tf.linalg.diag(tf.linalg.diag_part(squared))
    return tf.reduce_sum(upper) / (count * (count - 1) / 2)


def weighted_sum(loss: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Sums ``weight * loss``, both [B].

    Rows of weight 0 do not count, not even with a loss that is not finite. (Its gradient may still be NaN: where the
    logit is not finite, zero times its derivative is not zero.)
    """
    return tf.reduce_sum(weight * tf.where(weight > 0, loss, tf.zeros_like(loss)))
