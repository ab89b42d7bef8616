"""What the outputs of further labels learn by from a batch. Their biases learn by themselves, as those of experts do.

Functions of tensors alone, which ``ctr.training.batch_gradients`` calls.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from ctr.models.architecture import Architecture, label_weights
from ctr.models.click_model import ensemble_logit
from ctr.objective.config import ObjectiveConfig
from ctr.objective.labels import KINDS, label_losses, target_column, target_weights
from ctr.optim.first_order.online_bias import FORGETTING, PRIOR, Calibrator, OnlineBias
from ctr.optim.first_order.online_newton import BatchSums, CalibrationStep, OnlineNewton
from ctr.workers.collectives import Workers


class LabelLesson(NamedTuple):
    """Of each label the term of the loss, scalars, and the steps of the biases, label by label."""

    terms: list[tf.Tensor]
    steps: list[CalibrationStep]


def label_bias_names(architecture: Architecture) -> list[str]:
    """Returns the names of the biases of further labels, component by component for each label."""
    return [
        f"{prefix}{label_weights(name)[1]}"
        for name in architecture.labels
        for prefix in architecture.prefixes
    ]


def label_biases(
    config: ObjectiveConfig, architecture: Architecture, weights: Mapping[str, tf.Variable]
) -> list[Calibrator]:
    """Makes what lets the biases of further labels learn, in the order of ``label_bias_names``.

    Where labels are corrected, negatives and positives of the same rows come at different times of the day. A bias that
    follows a drift would follow that; so it learns by the sums over the past.
    """
    found: list[Calibrator] = []
    names = iter(label_bias_names(architecture))
    for label in (config.labels[name] for name in architecture.labels for _ in architecture.prefixes):
        name = next(names)
        is_steady = label.delay.kind == "correct"
        found.append(
            OnlineNewton(name, [weights[name]], [PRIOR], FORGETTING)
            if is_steady
            else OnlineBias(name, weights[name])
        )
    return found


def label_logits(logits: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
    """Returns each label's prediction, float32 [B], from the logits of components, [n, B]."""
    return [ensemble_logit(own) for own in logits.values()]


def label_lesson(
    config: ObjectiveConfig,
    biases: Sequence[Calibrator],
    workers: Workers,
    targets: Mapping[str, tf.Tensor],
    logits: Mapping[str, tf.Tensor],
    ramps: Mapping[str, tf.Tensor],
    total_weight: tf.Tensor,
) -> LabelLesson:
    """Computes what the labels learn by from the logits of components, [n, B] by label.

    Args:
        biases: in the order of ``label_bias_names``.
        workers: who divide the batch.
        total_weight: the divisor of the loss.
    """
    each = [(name, own) for name, logit in logits.items() for own in tf.unstack(tf.stop_gradient(logit))]
    sums = [
        part for bias, one in zip(biases, each, strict=True) for part in _sums(config, bias, targets, *one)
    ]
    total = iter(workers.all_reduce(sums))
    steps = [bias.step(BatchSums(next(total), next(total), next(total))) for bias in biases]
    moves = iter(tf.split(tf.stack([step.move for step in steps]), len(logits)))
    # What the whole batch shares is the bias's.
    moved = {name: logit + next(moves) for name, logit in logits.items()}
    return LabelLesson(label_losses(config, targets, moved, ramps, total_weight), steps)


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
