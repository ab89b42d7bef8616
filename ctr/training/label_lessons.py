"""What the outputs of further labels learn by from a batch. Their biases learn by themselves, as those of experts do.

Functions of tensors alone, which ``ctr.training.batch_gradients`` calls.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr.models.architecture import Architecture, label_weights
from ctr.objective.config import ObjectiveConfig
from ctr.objective.labels import label_losses, target_columns
from ctr.objective.losses import normalizer
from ctr.optim.first_order.online_bias import OnlineBias
from ctr.optim.first_order.online_newton import BatchSums, CalibrationStep
from ctr.training.experts import calibration_steps
from ctr.workers.collectives import Workers


def label_biases(architecture: Architecture, weights: Mapping[str, tf.Variable]) -> list[OnlineBias]:
    """Makes what lets the biases of further labels learn: of each label those of the components."""
    names = [
        f"{prefix}{label_weights(label)[1]}"
        for label in architecture.labels
        for prefix in architecture.prefixes
    ]
    return [OnlineBias(name, weights[name]) for name in names]


def label_lesson(
    config: ObjectiveConfig,
    biases: Sequence[OnlineBias],
    workers: Workers,
    targets: Mapping[str, tf.Tensor],
    logits: Mapping[str, tf.Tensor],
    ramps: Mapping[str, tf.Tensor],
) -> tuple[list[tf.Tensor], list[CalibrationStep]]:
    """Computes what the labels learn by from the logits of components, [n, B] by label.

    Returns:
        Of each label the term of the loss, scalars, and the steps of the biases.
    """
    each = [(name, own) for name, logit in logits.items() for own in tf.unstack(tf.stop_gradient(logit))]
    sums = [_sums(bias, targets, *one) for bias, one in zip(biases, each, strict=True)]
    steps = calibration_steps(biases, workers, sums)
    moves = iter(tf.split(tf.stack([step.move for step in steps]), len(logits)))
    # What the whole batch shares is the bias's.
    moved = {name: logit + next(moves) for name, logit in logits.items()}
    return label_losses(config, targets, moved, ramps, normalizer(config, targets)), steps


def _sums(bias: OnlineBias, targets: Mapping[str, tf.Tensor], name: str, logit: tf.Tensor) -> BatchSums:
    """Sums what a bias learns by from a component's logits [B]."""
    positive, negative = (targets[column] for column in target_columns(name))
    p = tf.sigmoid(logit)
    gradient, curvature = negative * p - positive * (1.0 - p), (positive + negative) * p * (1.0 - p)
    weight = tf.add_n([tf.reduce_sum(positive), tf.reduce_sum(negative)])
    return bias.sums([tf.ones_like(p)], gradient, curvature, weight)
