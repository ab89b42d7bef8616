"""Losses of experts: each minimizes the whole objective of its logits, as if these were the prediction.

The logistic loss is computed after this batch's step of the expert's bias, and with the effects u of queries
(``ctr.models.query_effect``), which are computed from the batch's labels::

    logistic loss    uses z_k + step of the bias + u
    other terms      use z_k

Linear weights learn by Newton's steps, with the curvature of all terms that their gradient has. Each bias learns by the
logistic loss of its expert, the combination by the logistic loss of the prediction. A single network has neither step
nor effects: it learns by the objective of the prediction.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from ctr.models.click_model import Scores, ensemble_logit
from ctr.models.query_effect import query_effect, query_share
from ctr.objective.config import ObjectiveConfig
from ctr.objective.losses import (
    BatchObjective,
    bend,
    logistic_loss,
    logit_curvature,
    loss_and_terms,
    loss_terms,
    weighted_sum,
    without_ranking,
)
from ctr.optim.first_order.online_bias import Calibrator
from ctr.optim.first_order.online_newton import BatchSums, CalibrationStep
from ctr.training.experts.forward import Experts
from ctr.training.experts.names import NETWORK, PAIRS
from ctr.training.experts.state import ExpertState
from ctr.workers.collectives import Workers

Targets = Mapping[str, tf.Tensor]


class Lesson(NamedTuple):
    """Losses of a batch, with curvatures and calibration steps.

    Attributes:
        loss: float32 scalar, the objective of the prediction.
        terms: float32 [T], the terms that add up to ``loss``.
        learned: float32 scalar whose gradient trains the weights: the sum of the experts' losses.
        unranked: ``learned`` without the rank loss.
        curvature: by expert with linear weights, ``bends`` of ``row_curvatures``: two tensors, float32 [B].
        steps: Newton steps of the biases and of the combination of experts.
        gain: float32 [2], the batch's contribution to ``ExpertState.gain``; None if the pairs expert is inactive.
    """

    loss: tf.Tensor
    terms: tf.Tensor
    learned: tf.Tensor
    unranked: tf.Tensor
    curvature: dict[str, tuple[tf.Tensor, tf.Tensor]]
    steps: list[tuple[Calibrator, CalibrationStep]]
    gain: tf.Tensor | None = None


def lesson_of(
    state: ExpertState,
    experts: Experts,
    batch: BatchObjective,
    scores: Mapping[str, Scores],
    prediction: tf.Tensor,
) -> Lesson:
    """Computes the experts' losses, curvatures and calibration steps for a batch.

    Args:
        experts: the active experts.
        scores: the scores of each of them, by name.
        prediction: float32 [B], the logits of the prediction.
    """
    logits = {name: ensemble_logit(expert.logits) for name, expert in scores.items()}
    steps, gain = _fitting(state, experts, batch, scores, logits, prediction)
    moves = {calibrator: step.move for calibrator, step in steps}
    losses, unranked, curvature, of_each = [], [], {}, {}
    for name, expert in scores.items():
        biases = state.biases.get(name)
        shifted, left = expert.logits, None
        if biases is not None:
            # The bias explains what the whole batch has in common; no weight is to explain what only a query has.
            moved = expert.logits + tf.stack([moves[bias] for bias in biases]) if biases else expert.logits
            effects, left = _query_effects(batch.targets, moved)
            shifted = moved + effects
        loss, terms = of_each[name] = loss_and_terms(
            batch, logits[name], _ranked(batch.config, name, expert), shifted
        )
        losses.append(loss)
        unranked.append(without_ranking(batch.config, terms))
        if name in (experts.names[0], PAIRS):
            if left is None:
                left = _query_effects(batch.targets, logits[name][tf.newaxis])[1]
            clicked = ensemble_logit(shifted)
            curvature[name] = _curvature(batch, logits[name], clicked, left[0])
    loss, terms = of_each[NETWORK] if not state.biases else _of_prediction(batch, prediction, of_each)
    return Lesson(loss, terms, tf.add_n(losses), tf.add_n(unranked), curvature, steps, gain)


def _ranked(config: ObjectiveConfig, name: str, scores: Scores) -> Scores:
    """Returns an expert's scores for the rank loss; if the network has a rank head, other experts get no gradient."""
    if config.ranking is None or config.ranking.setup != "multi_task" or name == NETWORK:
        return scores
    return scores._replace(rank_scores=tf.stop_gradient(scores.rank_scores))


def _of_prediction(
    batch: BatchObjective, prediction: tf.Tensor, of_each: Mapping[str, tuple[tf.Tensor, tf.Tensor]]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the objective of the combined prediction and its terms; the anti-distillation term is the network's."""
    loss, terms = loss_and_terms(batch, prediction, Scores(prediction[tf.newaxis], prediction[tf.newaxis]))
    if batch.config.anti_distillation is None:
        return loss, terms
    index = loss_terms(batch.config).index("anti_distillation")
    common = of_each[NETWORK][1][index]
    return loss + common, terms + common * tf.one_hot(index, terms.shape[0])


def _query_effects(targets: Targets, logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns both results of ``query_effect``, [n, B] each, for logits [n, B]; no gradient flows through them."""
    results = [
        query_effect(targets["query"], probability, targets["label"], targets["own_weight"])
        for probability in tf.unstack(tf.sigmoid(tf.stop_gradient(logits)))
    ]
    effects, left = zip(*results, strict=True)
    return tf.stack(effects), tf.stack(left)


def _curvature(
    batch: BatchObjective, logit: tf.Tensor, clicked: tf.Tensor, left: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the loss's curvature in the linear logit, as ``bends`` of ``row_curvatures``: two float32 [B]."""
    clicked, others, ranked = logit_curvature(batch, logit, clicked)
    shared = clicked * left
    if others is not None:
        clicked, shared = clicked + others, shared + others
    return clicked if ranked is None else clicked + ranked, shared


def _fitting(
    state: ExpertState,
    experts: Experts,
    batch: BatchObjective,
    scores: Mapping[str, Scores],
    logits: Mapping[str, tf.Tensor],
    prediction: tf.Tensor,
) -> tuple[list[tuple[Calibrator, CalibrationStep]], tf.Tensor | None]:
    """Returns the steps of the experts' biases and combiners, and the gain of pairs (``ExpertState.gain``) or None."""
    targets, sums = batch.targets, list[tuple[Calibrator, BatchSums]]()
    for name in scores:
        biases = state.biases.get(name, ())
        for bias, logit in zip(biases, tf.unstack(scores[name].logits), strict=False):
            sums.append((bias, _sums(targets, bias, logit, [], is_bias=True)))
    predictions, gain = [(experts, prediction)], list[tf.Tensor]()
    if PAIRS in experts.names:
        rest = experts.without_pairs
        predictions.append((rest, rest.combine(state.weights, logits)))
    for some, logit in predictions:
        if len(some.names) > 1:
            first, *others = (logits[name] for name in some.names)
            combiner = state.combiners[some.combination]
            sums.append((combiner, _sums(targets, combiner, logit, [other - first for other in others])))
    if PAIRS in experts.names:
        with_pairs, without = (
            weighted_sum(logistic_loss(targets["label"], tf.stop_gradient(logit)), targets["own_weight"])
            for _, logit in predictions
        )
        gain = [tf.stack([without - with_pairs, without])]
    steps, gain = calibration_steps(sums, batch.group, gain)
    return steps, gain[0] if gain else None


def calibration_steps(
    sums: Sequence[tuple[Calibrator, BatchSums]], group: Workers, others: Sequence[tf.Tensor] = ()
) -> tuple[list[tuple[Calibrator, CalibrationStep]], list[tf.Tensor]]:
    """Adds up each calibrator's ``sums`` over the group and computes its step; also adds up ``others``."""
    # In one message: each has its latency.
    total = iter(group.all_reduce([*(part for _, batch_sums in sums for part in batch_sums), *others]))
    steps = [(c, c.step(BatchSums(next(total), next(total), next(total)))) for c, _ in sums]
    return steps, list(total)


def _sums(
    targets: Targets,
    calibrator: Calibrator,
    logit: tf.Tensor,
    inputs: Sequence[tf.Tensor],
    is_bias: bool = False,
) -> BatchSums:
    """Sums the gradient and curvature of a calibrator, whose weights multiply a constant and ``inputs``, at a logit."""
    logit, weight = tf.stop_gradient(logit), targets["own_weight"]
    gradient = weight * (tf.sigmoid(logit) - targets["label"])
    columns = [tf.ones_like(weight), *(tf.stop_gradient(value) for value in inputs)]
    curvature = weight * bend(logit)
    if is_bias:
        share = query_share(targets["query"], curvature)
        gradient, curvature = gradient * share, curvature * share
    return calibrator.sums(columns, gradient, curvature, tf.reduce_sum(weight))
