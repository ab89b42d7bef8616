"""What the outputs of further labels learn by from a batch. Their biases learn by themselves, as those of experts do.

Functions of tensors alone, which ``ctr.training.batch_gradients`` calls.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr.models.architecture import Architecture, label_weights
from ctr.objective.config import ObjectiveConfig
from ctr.objective.labels import KINDS, label_losses, target_column, target_weights
from ctr.objective.losses import normalizer
from ctr.optim.first_order.online_bias import FORGETTING, PRIOR, Calibrator, OnlineBias
from ctr.optim.first_order.online_newton import BatchSums, CalibrationStep, OnlineNewton
from ctr.training.experts import calibration_steps
from ctr.workers.collectives import Workers


def label_biases(
    config: ObjectiveConfig, architecture: Architecture, weights: Mapping[str, tf.Variable]
) -> list[Calibrator]:
    """Makes what lets the biases of further labels learn: of each label those of the components.

    Where labels are corrected, negatives and positives of the same rows come at different times of the day. A bias that
    follows a drift would follow that; so it learns by the sums over the past.
    """
    found: list[Calibrator] = []
    for label in architecture.labels:
        is_steady = config.labels[label].delay.kind == "correct"
        for prefix in architecture.prefixes:
            name = f"{prefix}{label_weights(label)[1]}"
            found.append(
                OnlineNewton(name, [weights[name]], [PRIOR], FORGETTING)
                if is_steady
                else OnlineBias(name, weights[name])
            )
    return found


def label_lesson(
    config: ObjectiveConfig,
    biases: Sequence[Calibrator],
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
    sums = [_sums(config, bias, targets, *one) for bias, one in zip(biases, each, strict=True)]
    steps = calibration_steps(biases, workers, sums)
    moves = iter(tf.split(tf.stack([step.move for step in steps]), len(logits)))
    # What the whole batch shares is the bias's.
    moved = {name: logit + next(moves) for name, logit in logits.items()}
    return label_losses(config, targets, moved, ramps, normalizer(config, targets)), steps


def _sums(
    config: ObjectiveConfig,
    bias: Calibrator,
    targets: Mapping[str, tf.Tensor],
    name: str,
    logit: tf.Tensor,
) -> BatchSums:
    """Sums what a bias learns by from a component's logits [B]."""
    positive, negative = target_weights(config.labels[name], name, targets, logit)
    p = tf.sigmoid(logit)
    gradient, curvature = negative * p - positive * (1.0 - p), (positive + negative) * p * (1.0 - p)
    weight = tf.add_n([tf.reduce_sum(targets[target_column(name, kind)]) for kind in KINDS])
    return bias.sums([tf.ones_like(p)], gradient, curvature, weight)
