"""Losses, their weighted sum over a batch, and the dual step of its bias constraints.

    (1 - a) L_logistic + a L_rank + d L_distillation + sum_j x_j L_j + r sum_k sum_{i in S_k} w_i lambda_k (y_i - p_i)

where a is alpha1, d and x_j are the weights of distillation and of losses of other packages, and r is 1, each times its
ramp (FF 4.1, 7.1). Each L is a sum over rows or pairs, multiplied by train weights, and all are divided by one number,
``normalizer``. So the balance between the terms is FF's, no term depends on the batch size, and rows that serve only a
constraint do not change the gradient of the other rows.

If pairs do not train embeddings, the first two terms are L_logistic + a / (1 - a) L_rank, with the same balance, and
embeddings descend on the sum without L_rank (``without_ranking``).

In an ensemble each L is the mean of the components' losses, while the constraints are about the prediction, whose
probability is the components' mean. Anti-distillation adds the correlation of the components. Losses are exact for
logits of any size: sums of positive terms, no differences.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from ctr.models.click_model import Scores
from ctr.objective.bias_constraints import Family, SliceRows, constraint_term, dual_step, slice_index
from ctr.objective.config import ObjectiveConfig
from ctr.objective.targets import target_columns
from ctr.workers.collectives import ALONE, Workers

_LEAST_CURVATURE = 1e-6


class BatchObjective(NamedTuple):
    """Inputs of a batch's objective, except the logits.

    Attributes:
        targets: the result of ``ctr.objective.targets.make_targets``.
        ramps: the value of each term's ramp, scalars.
        duals: lambda_k of each family of slices, float32 [slices].
        slices: for each family, the slice of each row, int32 [B] (``slices_of``).
        group: the workers that share the batch; its sums are over the whole batch.
    """

    config: ObjectiveConfig
    targets: Mapping[str, tf.Tensor]
    ramps: Mapping[str, tf.Tensor]
    duals: Sequence[tf.Tensor] = ()
    slices: Sequence[tf.Tensor] = ()
    group: Workers = ALONE


def logistic_loss(label: tf.Tensor, logit: tf.Tensor) -> tf.Tensor:
    """Computes the cross-entropy, [B], between the label, 1 for a click or 0, and sigmoid(logit) (FF section 2)."""
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=logit)


def distillation_loss(teacher_logit: tf.Tensor, logit: tf.Tensor) -> tf.Tensor:
    """Computes the cross-entropy of the teacher's probability with the student's (FF 4.1.2), [B]; 0 without a teacher.

    Its minimum, at equal logits, is the entropy of the teacher's probability, not 0. ``teacher_logit`` is NaN for rows
    without a teacher; no gradient flows to it.
    """
    has_teacher = ~tf.math.is_nan(teacher_logit)
    teacher = tf.stop_gradient(teacher_logit)
    # Also before the formula, not only after it: zero times a NaN derivative would be NaN.
    student = tf.where(has_teacher, logit, tf.zeros_like(logit))
    # With 1 - sigmoid(t) instead of sigmoid(-t), or max(s, 0) - s sigmoid(t)
    # instead of the sum, large logits would leave nothing but rounding.
    clicked = tf.sigmoid(teacher) * tf.nn.softplus(-student)
    other = tf.sigmoid(-teacher) * tf.nn.softplus(student)
    return tf.where(has_teacher, clicked + other, tf.zeros_like(student))


def rank_loss(
    logit: tf.Tensor, pairs_clicked: tf.Tensor, pairs_other: tf.Tensor, pair_weight: tf.Tensor
) -> tf.Tensor:
    """Sums weight * -log sigmoid(s_i - s_j) over pairs: RankNet's loss (FF 4.1.1).

    The gradient is summed in the order of the pairs, so that it is deterministic. ``pair_weight`` is 0 for padding,
    which has no effect even if its logits are not finite.
    """
    margin = tf.gather(logit, pairs_clicked) - tf.gather(logit, pairs_other)
    margin = tf.where(pair_weight > 0, margin, tf.zeros_like(margin))
    return tf.reduce_sum(pair_weight * tf.nn.softplus(-margin))


def squared_correlation(logits: tf.Tensor, weight: tf.Tensor, group: Workers = ALONE) -> tf.Tensor:
    """Returns the squared correlation, in [0, 1], of two components' logits over the batch, averaged over pairs (FF 5).

    De-correlating outputs over a batch is how Shamir and Coviello (arXiv 2010.09923) push components apart. Constant
    logits have correlation 0. ``logits``: [n, B], n at least 2; ``weight``: [B]; both of this worker's rows.
    """
    count = logits.shape[0]
    logits = tf.where(weight > 0, logits, tf.zeros_like(logits))
    total, sums = group.all_reduce([tf.reduce_sum(weight), tf.linalg.matvec(logits, weight)])
    mean = tf.math.divide_no_nan(sums, total)
    # The derivative of a covariance by the mean is zero, but not that of some of its terms.
    mean = mean if group.size == 1 else tf.stop_gradient(mean)
    deviation = logits - mean[:, tf.newaxis]
    (covariance,) = group.total([tf.matmul(deviation * weight, deviation, transpose_b=True)])
    variance = tf.linalg.diag_part(covariance)
    squared = tf.math.divide_no_nan(tf.square(covariance), variance[:, tf.newaxis] * variance)
    upper = tf.linalg.band_part(squared, 0, -1) - tf.linalg.diag(tf.linalg.diag_part(squared))
    return tf.reduce_sum(upper) / (count * (count - 1) / 2)


def weighted_sum(loss: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Sums ``weight * loss``, both [B]. Rows of weight 0 do not count, even if their loss is not finite.

    The gradient may still be NaN: where the logit is not finite, zero times its derivative is not zero.
    """
    return tf.reduce_sum(weight * tf.where(weight > 0, loss, tf.zeros_like(loss)))


def normalizer(config: ObjectiveConfig, targets: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Returns the divisor of the sums over a batch: the sum of the train weights of rows that have a loss.

    If there are none, because sampling dropped all rows of the training log, it is the sum of the weights of
    constraint logs, from which the batch still learns. For a part of a batch it is the sum over the whole batch.
    """
    if "batch_weight" in targets:
        return targets["batch_weight"]
    weight = tf.reduce_sum(targets["own_weight"])
    if config.bias_constraints is None or not config.bias_constraints.logs:
        return weight
    return tf.where(weight > 0, weight, tf.reduce_sum(targets["weight"]))


def loss_terms(config: ObjectiveConfig) -> tuple[str, ...]:
    """Returns the names of the terms of the objective, further labels last."""
    return "logistic", *config.terms


def loss_and_terms(
    batch: BatchObjective, prediction: tf.Tensor, scores: Scores, shifted: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the loss that the weights minimize, and its terms [T]: ``loss_terms`` except the further labels.

    For a part of a batch the results are shares, which add up to the loss and its terms over the group; the gradient
    with respect to the part's rows is the gradient of the whole loss.

    Args:
        prediction: float32 [B], the logit of the prediction.
        scores: scores of the prediction's n components.
        shifted: float32 [n, B], the logits for the logistic loss, if offsets that depend on the labels shift them;
            None: the components' logits.
    """
    config, targets, ramps, logits = batch.config, batch.targets, batch.ramps, scores.logits
    outside = config.ranks_outside_embeddings
    total_weight = normalizer(config, targets)

    def mean(losses: tf.Tensor) -> tf.Tensor:
        return tf.math.divide_no_nan(weighted_sum(losses, targets["own_weight"]), total_weight)

    def of_component(
        logit: tf.Tensor, score: tf.Tensor, clicked: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        loss = mean(logistic_loss(targets["label"], clicked))
        parts = [loss]
        if config.ranking is not None:
            share = config.ranking.weight * ramps["ranking"]
            pairs = targets["pairs_clicked"], targets["pairs_other"], targets["pairs_weight"]
            ranked = tf.math.divide_no_nan(rank_loss(score, *pairs), total_weight)
            # Not scaled if embeddings learn from the loss without ranking.
            parts = [loss, share / (1 - share) * ranked] if outside else [(1 - share) * loss, share * ranked]
            loss = parts[0] + parts[1]
        if config.distillation is not None:
            share = config.distillation.weight * ramps["distillation"]
            parts.append(share * mean(distillation_loss(targets["teacher_logit"], logit)))
            loss += parts[-1]
        for name, extra in config.extra_terms.items():
            parts.append(extra.weight * ramps[name] * mean(extra.loss(targets["label"], logit)))
            loss += parts[-1]
        return loss, parts

    of_each = map(tf.unstack, (logits, scores.rank_scores, logits if shifted is None else shifted))
    components = [of_component(*component) for component in zip(*of_each, strict=True)]
    loss = tf.add_n([loss for loss, _ in components]) / len(components)
    by_term = zip(*(parts for _, parts in components), strict=True)
    terms = [tf.add_n(list(parts)) / len(components) for parts in by_term]
    if config.anti_distillation is not None:
        share = config.anti_distillation.weight * ramps["anti_distillation"]
        correlation = tf.constant(0.0)
        if len(components) > 1:
            correlation = squared_correlation(logits, targets["own_weight"], batch.group)
        terms.append(share * _counted_once(correlation, batch.group))
        loss += terms[-1]
    if config.bias_constraints is not None:
        rows = _slice_rows(batch, tf.sigmoid(prediction))
        constraints = [constraint_term(*pair) for pair in zip(batch.duals, rows, strict=True)]
        terms.append(ramps["bias_constraints"] * tf.math.divide_no_nan(tf.add_n(constraints), total_weight))
        loss += terms[-1]
    return loss, tf.stack(terms)


def _slice_rows(batch: BatchObjective, probability: tf.Tensor) -> list[SliceRows]:
    label, weight = batch.targets["label"], batch.targets["weight"]
    return [SliceRows(index, label, probability, weight) for index in batch.slices]


def label_losses(batch: BatchObjective, logits: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
    """Computes the loss term of each further label, scalars: weighted sums over rows, divided by ``normalizer``.

    ``logits``: by label, float32 [n, B], of n components, each of which is trained on a separate loss.
    """
    terms, total_weight = [], normalizer(batch.config, batch.targets)
    for (term, label), (name, logit) in zip(batch.config.label_terms.items(), logits.items(), strict=True):
        positive, negative = (batch.targets[column] for column in target_columns(name))
        loss = positive * tf.nn.softplus(-logit) + negative * tf.nn.softplus(logit)
        # Rows without the label contribute nothing, even if their loss is not finite.
        loss = tf.reduce_sum(tf.where(positive + negative > 0, loss, tf.zeros_like(loss)))
        share = label.weight * batch.ramps[term] / logit.shape[0]
        terms.append(share * tf.math.divide_no_nan(loss, total_weight))
    return terms


class LogitCurvature(NamedTuple):
    """Second derivatives of ``normalizer`` times the loss with respect to each logit of a batch (the diagonal).

    Attributes:
        clicked: float32 [B], of the logistic loss.
        others: float32 [B], of distillation and plug-in losses, negative values as 0; None without such terms.
        ranked: float32 [B], of the rank loss, which a shift of a query's logits does not change; None without one.
    """

    clicked: tf.Tensor
    others: tf.Tensor | None
    ranked: tf.Tensor | None


def logit_curvature(batch: BatchObjective, logit: tf.Tensor, clicked: tf.Tensor) -> LogitCurvature:
    """Computes a component's curvature without constraints and anti-distillation (not convex) and a rank head's loss.

    Args:
        logit: float32 [B], the component's logit.
        clicked: float32 [B], the logit in its logistic loss.
    """
    config, targets, ramps = batch.config, batch.targets, batch.ramps
    # Rows of constraint logs learn from their constraint alone.
    own_weight = targets["own_weight"]
    weight = own_weight if config.bias_constraints is None else targets["weight"]
    logistic, ranked = weight * bend(clicked), None
    others: list[tf.Tensor] = []
    if (ranking := config.ranking) is not None:
        share = ranking.weight * ramps["ranking"]
        if not config.ranks_outside_embeddings:
            logistic *= 1 - share
        if ranking.setup == "multi_objective":
            share = share / (1 - share) if config.ranks_outside_embeddings else share
            pairs = targets["pairs_clicked"], targets["pairs_other"]
            bends = (
                share
                * targets["pairs_weight"]
                * bend(tf.gather(logit, pairs[0]) - tf.gather(logit, pairs[1]))
            )
            ranked = tf.add_n(
                [tf.math.unsorted_segment_sum(bends, rows, tf.shape(logit)[0]) for rows in pairs]
            )
    if config.distillation is not None:
        has_teacher = ~tf.math.is_nan(targets["teacher_logit"])
        share = config.distillation.weight * ramps["distillation"]
        others.append(tf.where(has_teacher, share * own_weight * bend(logit), tf.zeros_like(logit)))
    for name, extra in config.extra_terms.items():
        with tf.GradientTape() as second:
            second.watch(logit)
            with tf.GradientTape() as first:
                first.watch(logit)
                loss = extra.loss(targets["label"], logit)
            slope = first.gradient(loss, logit, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        bends = second.gradient(slope, logit, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        others.append(extra.weight * ramps[name] * own_weight * tf.maximum(bends, 0.0))
    return LogitCurvature(logistic, tf.add_n(others) if others else None, ranked)


def bend(logit: tf.Tensor) -> tf.Tensor:
    """Computes p (1 - p), the second derivative of the logistic loss, bounded below by ``_LEAST_CURVATURE``."""
    probability = tf.sigmoid(logit)
    return tf.maximum(probability * (1.0 - probability), _LEAST_CURVATURE)


def without_ranking(config: ObjectiveConfig, terms: tf.Tensor) -> tf.Tensor:
    """Sums the ``terms`` that ``loss_and_terms`` returns, except the rank loss."""
    # The terms of further labels, which are last, are left out.
    names = zip(loss_terms(config), tf.unstack(terms), strict=False)
    return tf.add_n([term for name, term in names if name != "ranking"])


def _counted_once(term: tf.Tensor, group: Workers) -> tf.Tensor:
    """Zeroes, on all workers but the first, a term that each computes for the whole batch; keeps its gradient."""
    if group.size == 1:
        return term
    share = term if group.is_chief else tf.zeros_like(term)
    return tf.stop_gradient(share - term) + term


def slices_of(
    families: Sequence[Family], targets: Mapping[str, tf.Tensor], logit: tf.Tensor
) -> list[tf.Tensor]:
    """Returns each row's slice in each family, int32 [B], -1 for none; no gradient reaches the estimated CTR."""
    probability = tf.stop_gradient(tf.sigmoid(logit))
    indices = [(targets[f"slice/{family.name}"], family.boundaries) for family in families]
    return [slice_index(index, probability, boundaries) for index, boundaries in indices]


def next_duals(
    batch: BatchObjective,
    families: Sequence[Family],
    prediction: tf.Tensor,
    rate: tf.Tensor,
    seen: Sequence[tf.Tensor],
) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Returns ``dual_step`` of each family after a batch: the next lambda_k and ``seen``, from the batch's predictions.

    ``rate`` multiplies the families' learning rates; the result is empty without constraints.
    """
    constraints = batch.config.bias_constraints
    if constraints is None:
        return []
    rows = _slice_rows(batch, tf.stop_gradient(tf.sigmoid(prediction)))
    return [
        dual_step(
            dual,
            weights,
            of_family,
            family.learning_rate * rate,
            constraints.regularization,
            batch.group.all_reduce,
        )
        for family, dual, weights, of_family in zip(families, batch.duals, seen, rows, strict=True)
    ]
