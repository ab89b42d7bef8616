"""Losses on logits, differentiable, of any floating dtype; exact for any logits, as sums of positive terms alone."""

import tensorflow as tf

from ctr.workers.collectives import ALONE, Workers


def logistic_loss(label: tf.Tensor, logit: tf.Tensor) -> tf.Tensor:
    """Computes the cross-entropy of a click (1) or none (0) with sigmoid(logit), [B] (FF section 2)."""
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=logit)


def distillation_loss(teacher_logit: tf.Tensor, logit: tf.Tensor) -> tf.Tensor:
    """Computes the cross-entropy of the teacher's probability with the student's, float32 [B] (FF 4.1.2).

    ``teacher_logit`` is constant for the gradient; where it is NaN, loss and gradient are 0.
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
    """Sums weight * -log sigmoid(s_i - s_j) over pairs: RankNet's loss (FF 4.1.1).

    The gradient adds up in the order of the pairs, so that it is the same at every run. ``pair_weight`` is 0 for
    padding, which counts nothing even where its logits are not finite.
    """
    margin = tf.gather(logit, pairs_clicked) - tf.gather(logit, pairs_other)
    margin = tf.where(pair_weight > 0, margin, tf.zeros_like(margin))
    return tf.reduce_sum(pair_weight * tf.nn.softplus(-margin))


def squared_correlation(logits: tf.Tensor, weight: tf.Tensor, workers: Workers = ALONE) -> tf.Tensor:
    """Averages the squared correlation of the logits of two components in the batch over all pairs: in [0, 1] (FF 5).

    De-correlating outputs over a batch is how Shamir and Coviello (arXiv 2010.09923) push components apart. Constant
    logits correlate with no others. ``logits``: [n, B], n at least 2; ``weight``: [B], of all workers' rows.
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
    """Sums ``weight * loss``, both [B]. Rows of weight 0 do not count, not even with a loss that is not finite.

    (Its gradient may still be NaN: where the logit is not finite, zero times its derivative is not zero.)
    """
    return tf.reduce_sum(weight * tf.where(weight > 0, loss, tf.zeros_like(loss)))
