"""Training of further labels' outputs, each with the loss of its label.

Each bias takes an online Newton step (``ctr.optim.first_order.online_bias``) before its label's loss is computed.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr.models.architecture import Architecture, label_weights
from ctr.models.click_model import Scores
from ctr.objective.losses import BatchObjective, label_losses
from ctr.objective.targets import target_columns
from ctr.optim.first_order.online_bias import Calibrator, OnlineBias
from ctr.optim.first_order.online_newton import BatchSums, CalibrationStep
from ctr.training.experts.learning import calibration_steps


def label_biases(architecture: Architecture, weights: Mapping[str, tf.Variable]) -> list[OnlineBias]:
    """Makes the online biases of further labels: for each label, one for each component."""
    names = [
        f"{prefix}{label_weights(label)[1]}"
        for label in architecture.labels
        for prefix in architecture.prefixes
    ]
    return [OnlineBias(name, weights[name]) for name in names]


def label_lesson(
    batch: BatchObjective, biases: Sequence[OnlineBias], scores: Mapping[str, Scores]
) -> tuple[list[tf.Tensor], list[tuple[Calibrator, CalibrationStep]]]:
    """Computes the labels' loss terms and bias steps; the label logits in ``scores`` are [n, B], for n components.

    Returns:
        The loss term of each label, scalars, and the steps of the biases.
    """
    logits = {name: logit for expert in scores.values() for name, logit in expert.labels.items()}
    each = [(name, part) for name, logit in logits.items() for part in tf.unstack(tf.stop_gradient(logit))]
    sums = [(bias, _sums(bias, batch.targets, *pair)) for bias, pair in zip(biases, each, strict=True)]
    steps, _ = calibration_steps(sums, batch.group)
    moves = iter(tf.split(tf.stack([step.move for _, step in steps]), len(logits)))
    # The bias explains what the whole batch has in common.
    moved = {name: logit + next(moves) for name, logit in logits.items()}
    return label_losses(batch, moved), steps


def _sums(bias: OnlineBias, targets: Mapping[str, tf.Tensor], name: str, logit: tf.Tensor) -> BatchSums:
    """Sums a bias's gradient and curvature over a component's logits [B]."""
    positive, negative = (targets[column] for column in target_columns(name))
    p = tf.sigmoid(logit)
    gradient, curvature = negative * p - positive * (1.0 - p), (positive + negative) * p * (1.0 - p)
    weight = tf.add_n([tf.reduce_sum(positive), tf.reduce_sum(negative)])
    return bias.sums([tf.ones_like(p)], gradient, curvature, weight)
