"""Losses on logits. Train weights multiply every term."""

import tensorflow as tf


def logistic_loss(label: tf.Tensor, logit: tf.Tensor) -> tf.Tensor:
    """Cross-entropy of a click (1) or no click (0) with sigmoid(logit), float32 [B] (FF section 2)."""
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=logit)


def weighted_mean(loss: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Mean of ``loss`` [B] under ``weight`` [B]; 0 when all weights are 0.

    Rows of weight 0 do not count, not even with a loss that is not finite. (Its gradient may be NaN all
    the same: where the logit is not finite, zero times its derivative is not zero.)
    """
    kept = tf.where(weight > 0, loss, tf.zeros_like(loss))
    return tf.math.divide_no_nan(tf.reduce_sum(weight * kept), tf.reduce_sum(weight))
