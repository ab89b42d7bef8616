"""Experts: models with a loss of their own each, and the few numbers that combine them to one prediction.

Where the network is gated there are two, of logits z_k for each row: the linear weights, and the network. Each has a
bias b_k, and the prediction lies between them::

    z_k        = model_k + b_k
    prediction = z_1 + gate (z_2 - z_1) + offset
    u_k        = the effects of the queries of z_k (``ctr.models.query_effect``)

Each model learns by the objective of its own logits, as if they were the prediction, with what the others have in
common taken out: the step that its bias makes in this batch, and, in the logistic loss alone, u_k. The biases learn
each with its own model, gate and offset by the logistic loss of the prediction (``online_newton``). The
experts of a model are named by ``ctr.models.architecture``; with a third, its gate joins the sum.

The outputs of further labels learn so, too: their biases by themselves, the rest with the biases' steps taken out.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from ctr.models.architecture import Architecture, label_weights
from ctr.models.query_effect import query_effect, query_share
from ctr.objective.config import ObjectiveConfig
from ctr.objective.losses import bend, label_losses, logit_curvature, normalizer
from ctr.objective.targets import target_columns
from ctr.optim.first_order.online_bias import Calibrator, OnlineBias
from ctr.optim.first_order.online_newton import BatchSums, CalibrationStep
from ctr.workers.collectives import Workers


class Lesson(NamedTuple):
    """Loss and steps that weights and combiner learn by from a batch.

    Attributes:
        loss: float32 scalar, of which the weights' gradients are taken.
        logit: float32 [B], the one that the linear weights learn by.
        clicked: float32 [B], what the logistic loss sees in its place.
        left: float32 [B], the share of the logistic loss's curvature that effects leave to what a query shares.
        steps: of the calibrators.
    """

    loss: tf.Tensor
    logit: tf.Tensor
    clicked: tf.Tensor
    left: tf.Tensor
    steps: Sequence[CalibrationStep] = ()


def own_lessons(
    loss_of: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    calibrators: Sequence[Calibrator],
    workers: Workers,
    targets: Mapping[str, tf.Tensor],
    logit: tf.Tensor,
    models: Sequence[tf.Tensor],
) -> Lesson:
    """Computes what each expert learns by its own loss.

    Args:
        loss_of: the objective of logits [1, B], with those that the logistic loss is to see in their place.
        calibrators: of each model's bias, and of what combines the models.
        logit: float32 [B], the prediction.
        models: float32 [1, B] each, the experts' logits, those of the linear weights first.
    """
    steps = _own_steps(calibrators, workers, targets, logit, models)
    # What the whole batch shares is the bias's, what a query shares is nobody's.
    moved = [model + step.move for model, step in zip(models, steps[:-1], strict=True)]
    effects = [_query_effect(targets, one[0]) for one in moved]
    shifted = [one + effect for one, (effect, _) in zip(moved, effects, strict=True)]
    # The effects are made of the labels: the logistic loss alone may know them.
    losses = [loss_of(one, known) for one, known in zip(models, shifted, strict=True)]
    return Lesson(tf.add_n(losses), models[0][0], shifted[0][0], effects[0][1], steps)


def joint_lesson(loss: tf.Tensor, targets: Mapping[str, tf.Tensor], logit: tf.Tensor) -> Lesson:
    """Returns what a model learns by the loss of its prediction, which sees no effects of queries."""
    return Lesson(loss, logit, logit, _query_effect(targets, logit)[1])


def linear_curvature(
    config: ObjectiveConfig, targets: Mapping[str, tf.Tensor], ramps: Mapping[str, tf.Tensor], lesson: Lesson
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes ``curvature`` and ``shared`` of ``row_curvature``: of the loss, by the logit of the linear weights.

    A Newton step needs that of every term in the gradient.
    """
    clicked, others, ranked = logit_curvature(config, targets, lesson.logit, lesson.clicked, ramps)
    shared = clicked * lesson.left
    if others is not None:
        clicked, shared = clicked + others, shared + others
    return clicked if ranked is None else clicked + ranked, shared


def _query_effect(targets: Mapping[str, tf.Tensor], logit: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The effects of the queries of rows with logits [B]; nothing learns from them."""
    probability = tf.sigmoid(tf.stop_gradient(logit))
    return query_effect(targets["query"], probability, targets["label"], targets["own_weight"])


def _own_steps(
    calibrators: Sequence[Calibrator],
    workers: Workers,
    targets: Mapping[str, tf.Tensor],
    logit: tf.Tensor,
    models: Sequence[tf.Tensor],
) -> list[CalibrationStep]:
    """The steps of the biases of some models with logits [1, B] each, and then of what combines them to one."""
    *biases, combiner = calibrators
    sums = [
        _sums(calibrator, targets, model[0], [], is_bias=True)
        for calibrator, model in zip(biases, models, strict=True)
    ]
    sums.append(_sums(combiner, targets, logit, [model[0] - models[0][0] for model in models[1:]]))
    return calibration_steps(calibrators, workers, sums)


def calibration_steps(
    calibrators: Sequence[Calibrator], workers: Workers, sums: Sequence[BatchSums]
) -> list[CalibrationStep]:
    """Computes the steps of calibrators by the sums of each over the rows of this worker."""
    # In one message: each has its latency.
    total = iter(workers.all_reduce([part for one in sums for part in one]))
    return [calibrator.step(BatchSums(next(total), next(total), next(total))) for calibrator in calibrators]


def _sums(
    calibrator: Calibrator,
    targets: Mapping[str, tf.Tensor],
    logit: tf.Tensor,
    inputs: Sequence[tf.Tensor],
    is_bias: bool = False,
) -> BatchSums:
    """Returns what a calibrator learns by from a logit, which multiplies a constant and ``inputs``."""
    logit, weight = tf.stop_gradient(logit), targets["own_weight"]
    gradient = weight * (tf.sigmoid(logit) - targets["label"])
    columns = [tf.ones_like(weight), *(tf.stop_gradient(one) for one in inputs)]
    curvature = weight * bend(logit)
    if is_bias:
        share = query_share(targets["query"], curvature)
        gradient, curvature = gradient * share, curvature * share
    return calibrator.sums(columns, gradient, curvature, tf.reduce_sum(weight))


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
    sums = [_label_sums(bias, targets, *one) for bias, one in zip(biases, each, strict=True)]
    steps = calibration_steps(biases, workers, sums)
    moves = iter(tf.split(tf.stack([step.move for step in steps]), len(logits)))
    # What the whole batch shares is the bias's.
    moved = {name: logit + next(moves) for name, logit in logits.items()}
    return label_losses(config, targets, moved, ramps, normalizer(config, targets)), steps


def _label_sums(bias: OnlineBias, targets: Mapping[str, tf.Tensor], name: str, logit: tf.Tensor) -> BatchSums:
    """Sums what a bias learns by from a component's logits [B]."""
    positive, negative = (targets[column] for column in target_columns(name))
    p = tf.sigmoid(logit)
    gradient, curvature = negative * p - positive * (1.0 - p), (positive + negative) * p * (1.0 - p)
    weight = tf.add_n([tf.reduce_sum(positive), tf.reduce_sum(negative)])
    return bias.sums([tf.ones_like(p)], gradient, curvature, weight)
