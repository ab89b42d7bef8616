"""What the few numbers are learned by that are fitted beside the network: biases, offset and gate."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf

from ctr.models.query_effect import query_share
from ctr.optim.online_bias import Calibrator
from ctr.optim.online_newton import BatchSums, CalibrationStep
from ctr.workers.collectives import Workers

CalibrationSteps: TypeAlias = list[CalibrationStep]

_LEAST_CURVATURE = 1e-6


def calibration_steps(
    calibrators: Sequence[Calibrator],
    workers: Workers,
    targets: Mapping[str, tf.Tensor],
    logit: tf.Tensor,
    models: Sequence[tf.Tensor],
) -> CalibrationSteps:
    """The steps of the biases of some models with logits [1, B] each, and then of what combines them to one.

    Args:
        calibrators: of these biases, and of what combines them.
        workers: who divide the batch.
        targets: of the batch.
        logit: float32 [B], the prediction.
        models: the logits of each model.
    """
    sums = [
        _sums(calibrator, targets, model[0], [], is_bias=True)
        for calibrator, model in zip(calibrators, models, strict=False)
    ]
    sums.append(
        _sums(calibrators[len(models)], targets, logit, [model[0] - models[0][0] for model in models[1:]])
    )
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
    """What a calibrator learns by from a logit, which multiplies a constant and ``inputs``."""
    logit, weight = tf.stop_gradient(logit), targets["own_weight"]
    gradient = weight * (tf.sigmoid(logit) - targets["label"])
    columns = [tf.ones_like(weight), *(tf.stop_gradient(one) for one in inputs)]
    curvature = weight * logit_curvature(logit)
    if is_bias:
        share = query_share(targets["query"], curvature)
        gradient, curvature = gradient * share, curvature * share
    return calibrator.sums(columns, gradient, curvature, tf.reduce_sum(weight))


def logit_curvature(logit: tf.Tensor) -> tf.Tensor:
    """p (1 - p), the logistic loss's second derivative by the logit, never quite 0."""
    probability = tf.sigmoid(logit)
    return tf.maximum(probability * (1.0 - probability), _LEAST_CURVATURE)
