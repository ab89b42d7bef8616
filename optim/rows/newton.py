"""Newton steps for linear weights with a learned prior and a learned drift, and AdaGrad for the embeddings.

Each weight w of a feature f has a normal prior of mean 0 and precision T_f, and the information S of the log so far,
so that its posterior has the precision P = T_f + S and the variance V = 1 / P. For a batch, an assumed drift of the
weight first increases V by D, at most to the prior's variance; then the batch adds to P::

    V += D,    D = k_f / T_f * H / (S + H),    H = sum x^2 p (1 - p),    G = sum x (p - y)
    P += H + c G^2 / (1 + H / P)
    w -= G / P

H is the curvature of the logistic loss (diagonal online Newton, as in FTRL). The second term, with c = 0.1, is there
because the rows of a query are not independent, which makes G larger than H suggests; its divisor is the growth of G^2
while w is still uncertain.

T_f, by which the weights of a feature are shrunk, is learned from the gradients of the progressive loss: w is
proportional to 1 / (T_f + S), so that d w / d log T_f = - w T_f / (T_f + S). A weight is shrunk by a new T_f at its
next update: its row stores the precision that it has been shrunk by.

k_f sets the rate of forgetting: P stays below about T_f / k_f, so that frequent ids follow a drift and
rare ids lose nothing. It is learned like T_f. V_k = d V / d log k_f and w_k = d w / d log k_f are stored with each
weight and follow, by the chain rule, from their values before the batch::

    V_k = (1 - H V)^2 (V_k + D_k),    w_k = (1 - H V) w_k - G V_k         V, V_k: after the batch

(without c; D_k is d D / d log k. Kalman's filter, with the meta-gradient of Sutton, 1992, "Adapting bias by gradient
descent"). The gradient of the progressive loss by log T_f or log k_f is the sum of G d w over the touched ids, and its
curvature the sum of H (d w)^2; a Newton step on both logarithms follows each batch.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ctr.optim.protocol import Cost, RowGradient
from ctr.optim.rows.adagrad import RowAdaGrad, row_direction
from ctr.optim.rows.rule import RowSetup, State

OVERDISPERSION = 0.1  # c: how much of the squared gradient counts as information
FORGETTING = 0.005  # Initial k_f
PRIOR_INFORMATION = 1.0  # on log T_f: it starts with a standard deviation of 1
FORGETTING_INFORMATION = 0.3  # on log k_f
_MAX_STEP = 0.5
_PRIOR_RANGE = (-3.0, 12.0)  # Of log T_f
_FORGETTING_RANGE = (-9.0, 0.0)
"""Range of log k_f: at most, a weight is as uncertain after each batch as it was at first."""
_OPERATIONS = 60  # for each linear weight of a touched row


class FeatureGradient(NamedTuple):
    """Gradient and curvature of the loss with respect to a parameter of each of F features, float32 [F]."""

    gradient: tf.Tensor
    curvature: tf.Tensor


class Posterior(NamedTuple):
    """Linear weights w of U rows with S, the T that w was shrunk by, d V / d log k and d w / d log k; float32 [U]."""

    weight: tf.Tensor
    information: tf.Tensor
    prior: tf.Tensor
    variance_slope: tf.Tensor
    weight_slope: tf.Tensor


def prior_slope(before: Posterior, precision: tf.Tensor) -> tf.Tensor:
    """Computes d w / d log T of each row, float32 [U], for T of each row."""
    return -before.weight * precision / (precision + before.information)


def feature_gradient(
    slope: tf.Tensor, groups: tf.Tensor, count: int, gradient: tf.Tensor, curvature: tf.Tensor
) -> FeatureGradient:
    """Sums a batch's gradient and curvature with respect to a parameter t of each feature, before the step.

    ``slope`` is d w / d t of each row, [U]; ``groups`` is its feature, int32 [U], -1 for none.
    """
    return FeatureGradient(
        tf.math.unsorted_segment_sum(gradient * slope, groups, count),
        tf.math.unsorted_segment_sum(curvature * tf.square(slope), groups, count),
    )


def newton_step(
    before: Posterior,
    precision: tf.Tensor,
    forgetting: tf.Tensor,
    gradient: tf.Tensor,
    curvature: tf.Tensor,
    rate: tf.Tensor | float = 1.0,
) -> Posterior:
    """Updates linear weights from each row's T, k, G and H, float32 [U]; rows without curvature stay unchanged."""
    total = precision + before.information
    shrunk = before.weight * (before.prior + before.information) / total
    # No row is without a precision, and 0 / 0 is in none of them.
    spread = tf.math.divide_no_nan(forgetting / precision, before.information + curvature)
    drift = spread * curvature
    drifted = total / (1.0 + total * drift)
    remaining = tf.maximum(precision, drifted)
    gained = curvature + OVERDISPERSION * tf.square(gradient) / (1.0 + curvature / remaining)
    after = remaining + gained
    moved = (shrunk * remaining + before.weight * gained - rate * gradient) / after
    # S = 1 / V - T depends on k as well, and D on S.
    steeper = drift * tf.math.divide_no_nan(tf.square(total), before.information + curvature)
    grown = tf.square(remaining / after) * (before.variance_slope * (1.0 + steeper) + drift)
    # Once V is at the prior's variance, it does not depend on k.
    variance_slope = tf.where(drifted > precision, grown, 0.0)
    weight_slope = before.weight_slope * (1.0 - curvature / after) - rate * gradient * variance_slope
    touched = curvature > 0
    stepped = Posterior(moved, after - precision, precision, variance_slope, weight_slope)
    return Posterior(*(tf.where(touched, new, old) for new, old in zip(stepped, before, strict=True)))


def _learn_logs(logs: tf.Tensor, sums: FeatureGradient, limits: tuple[float, float]) -> list[tf.Tensor]:
    """Takes a Newton step on ``logs``, float32 [F, 2]: each feature's logarithm and the information on it."""
    information = logs[:, 1] + sums.curvature
    step = tf.clip_by_value(sums.gradient / information, -_MAX_STEP, _MAX_STEP)
    return [tf.clip_by_value(logs[:, 0] - step, *limits), information]


class _LinearPart(NamedTuple):
    """Linear weights of one copy in U touched rows: ``groups`` int32, all others float32 [U]."""

    before: Posterior
    gradient: tf.Tensor
    curvature: tf.Tensor
    groups: tf.Tensor
    rate: tf.Tensor


def _linear_part(rows: RowGradient, rates: tf.Tensor, copy: int, copies: int) -> _LinearPart:
    assert rows.curvature is not None and rows.groups is not None
    sums, *rest = rows.state
    at = (copy + 1) * (rows.values.shape[1] // copies) - 1
    before = Posterior(rows.values[:, at], sums[:, at], *(part[:, copy] for part in rest))
    rate = tf.fill(tf.shape(rows.curvature), rates[at])
    return _LinearPart(before, rows.gradient[:, at], rows.curvature, rows.groups, rate)


class RowNewton(RowAdaGrad):
    """Newton steps for the linear weights of tables, element-wise AdaGrad for their embeddings.

    The information S replaces AdaGrad's sum of squares of a linear weight, in the last column of each of
    the ``copies`` in a row. The learning rates of linear weights multiply G. ``features`` has the number of
    features of each table, and ``precisions`` their initial T.
    """

    row_state: tuple[str, ...] = (
        "rows_accumulator",
        "rows_prior",
        "rows_variance_slope",
        "rows_weight_slope",
    )
    feature_state: tuple[str, ...] = ("prior_precision", "forgetting")
    needs_curvature = True

    def __init__(self, setup: RowSetup, features: Sequence[int], precisions: Sequence[float]) -> None:
        super().__init__(setup)
        self.features, self.precisions = tuple(features), tuple(precisions)

    def first_state(self, table: int) -> Sequence[np.ndarray]:
        starts = (np.full(self.copies, start, np.float32) for start in (self.precisions[table], 0.0, 0.0))
        return *super().first_state(table), *starts

    def build(self, weights: Mapping[str, tf.Variable]) -> None:
        super().build(weights)
        # For each feature and copy, log T or log k, and the information on it: [F, 2 copies].
        for name, features, precision in zip(weights, self.features, self.precisions, strict=True):
            begins = (np.log(precision), PRIOR_INFORMATION), (np.log(FORGETTING), FORGETTING_INFORMATION)
            for kind, begin in zip(self.feature_state, begins, strict=True):
                value = np.tile(np.array([begin], np.float32), (features, self.copies))
                self.shared[f"{kind}/{name}"] = tf.Variable(value, trainable=False)

    def steps(
        self, gradients: Sequence[RowGradient], rates: Sequence[tf.Tensor]
    ) -> list[tuple[tf.Tensor, State]]:
        names, copies = list(self.tables)[: len(gradients)], self.copies
        # All linear weights together: a step is many operations with a few numbers each.
        counts = [features for features in self.features[: len(gradients)] for _ in range(copies)]
        parts = [
            _linear_part(rows, rate, copy, copies)
            for rows, rate in zip(gradients, rates, strict=True)
            for copy in range(copies)
        ]
        shared = [[self.shared[f"{kind}/{name}"] for name in names] for kind in self.feature_state]
        logs = [
            tf.concat([pair for v in variables for pair in tf.split(v.read_value(), copies, axis=1)], axis=0)
            for variables in shared
        ]
        after, learned = self._step_together(parts, logs, counts)
        for variables, whole in zip(shared, learned, strict=True):
            pairs = tf.split(whole, counts)
            for number, variable in enumerate(variables):
                variable.assign(tf.concat(pairs[number * copies : (number + 1) * copies], axis=1))
        return [
            self._with_embeddings(number, rows, rates[number], after[number * copies : (number + 1) * copies])
            for number, rows in enumerate(gradients)
        ]

    def _step_together(
        self, parts: Sequence[_LinearPart], logs: Sequence[tf.Tensor], counts: Sequence[int]
    ) -> tuple[list[Posterior], list[tf.Tensor]]:
        """Updates linear weights and ``logs``: log T and log k of all features, float32 [F, 2] with the information."""
        begins = np.cumsum(counts) - counts
        moved = [
            part._replace(groups=tf.where(part.groups < 0, part.groups, part.groups + int(begin)))
            for part, begin in zip(parts, begins, strict=True)
        ]
        rows: _LinearPart = tf.nest.map_structure(lambda *arrays: tf.concat(arrays, axis=0), *moved)
        before = rows.before
        precision, forgetting = (tf.gather(tf.exp(part[:, 0]), tf.maximum(rows.groups, 0)) for part in logs)
        slopes = prior_slope(before, precision), before.weight_slope
        of_rows = [
            feature_gradient(slope, rows.groups, sum(counts), rows.gradient, rows.curvature)
            for slope in slopes
        ]
        sums = self._over_all_rows([part for both in of_rows for part in both], counts)
        pairs = FeatureGradient(*sums[:2]), FeatureGradient(*sums[2:])
        learned = [
            tf.stack(_learn_logs(part, by_feature, limits), axis=1)
            for part, by_feature, limits in zip(logs, pairs, (_PRIOR_RANGE, _FORGETTING_RANGE), strict=True)
        ]
        after = newton_step(before, precision, forgetting, rows.gradient, rows.curvature, rows.rate)
        lengths = [tf.size(part.rate) if part.rate.shape[0] is None else part.rate.shape[0] for part in parts]
        of_parts = zip(*(tf.split(part, lengths) for part in after), strict=True)
        return [Posterior(*part) for part in of_parts], learned

    def _over_all_rows(self, sums: list[tf.Tensor], counts: Sequence[int]) -> list[tf.Tensor]:
        """Sums the features' gradients and curvatures over the workers that share their tables, float32 [F] each."""
        if all(group.size == 1 for group in self.table_groups):
            return sums
        each = [list(parts) for parts in zip(*(tf.split(total, counts) for total in sums), strict=True)]
        for number in range(len(each)):
            each[number] = self.table_groups[number // self.copies].all_reduce(each[number])
        return [tf.concat(parts, axis=0) for parts in zip(*each, strict=True)]

    def _with_embeddings(
        self, table: int, rows: RowGradient, rates: tf.Tensor, linear: Sequence[Posterior]
    ) -> tuple[tf.Tensor, State]:
        """Updates the embeddings of touched rows; returns the rows and their state, with the new linear weights."""
        width = rows.values.shape[1] // self.copies
        sums, *_ = rows.state
        direction, squared = row_direction(sums, rows.gradient)
        values, accumulators = [], []
        for copy, after in enumerate(linear):
            at = slice(copy * width, (copy + 1) * width - 1)
            values += [rows.values[:, at] - rates[at] * direction[:, at], after.weight[:, tf.newaxis]]
            accumulators += [sums[:, at] + squared[:, at], after.information[:, tf.newaxis]]
        moved = tf.concat(values, axis=1)
        if self.limit is not None:
            moved = rows.values - self.limited(table, rows.values, rows.values - moved)
        slopes = [tf.stack(parts, axis=1) for parts in zip(*(after[2:] for after in linear), strict=True)]
        return moved, (tf.concat(accumulators, axis=1), *slopes)

    def cost(self, shapes: Sequence[Sequence[float]]) -> Cost:
        linear = sum(_OPERATIONS * rows * self.copies for rows, _ in shapes)
        return Cost(update=super().cost(shapes).update + linear)
