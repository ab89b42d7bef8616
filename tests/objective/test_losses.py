"""Losses against closed forms in float64."""

import math

import numpy as np
import pytest
import tensorflow as tf

from ctr.objective.config import DistillationConfig, ExtraLoss, ObjectiveConfig, RankingConfig
from ctr.objective.losses import (
    BatchObjective,
    distillation_loss,
    logistic_loss,
    logit_curvature,
    rank_loss,
    squared_correlation,
    weighted_sum,
)


def softplus(x):
    """log(1 + exp(x)), without overflow."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def sigmoid(x):
    """Exact at both ends."""
    return np.exp(-softplus(-np.asarray(x, np.float64)))


def value_and_gradient(function, point):
    variable = tf.constant(point)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        value = function(variable)
    gradient = tape.gradient(value, variable, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return value.numpy(), tf.convert_to_tensor(gradient).numpy()


def test_logistic_loss_and_its_gradient():
    logit = np.array([0.0, 1e-6, -0.3, 2.0, -15.0, 40.0, -100.0, 1000.0, -1e6, 1e30], np.float32)
    for label in (0.0, 1.0):
        labels = tf.fill(logit.shape, label)
        loss, gradient = value_and_gradient(lambda s, labels=labels: logistic_loss(labels, s), logit)
        exact = logit.astype(np.float64)
        np.testing.assert_allclose(loss, softplus(-exact if label else exact), rtol=1e-6, atol=1e-30)
        np.testing.assert_allclose(gradient, sigmoid(exact) - label, rtol=1e-5, atol=1e-7)


def test_the_weighted_sum_multiplies_each_row_by_its_weight_and_does_not_see_rows_of_weight_0():
    for loss in (100.0, math.inf, -math.inf, math.nan):
        total = weighted_sum(tf.constant([3.0, loss, 5.0]), tf.constant([1.0, 0.0, 3.0]))
        assert total.numpy() == pytest.approx(18.0)
    # A row that counts is not made finite.
    for loss, weight in ((math.inf, 1e-3), (math.nan, 1e-3), (3.0, math.nan)):
        assert not math.isfinite(weighted_sum(tf.constant([3.0, loss]), tf.constant([1.0, weight])).numpy())
    total, gradient = value_and_gradient(lambda loss: weighted_sum(loss, tf.zeros(2)), [3.0, 4.0])
    assert total == 0 and gradient.tolist() == [0, 0]


# Distillation.


def test_distillation_loss_and_its_gradient():
    logits = np.array([0.0, 1e-6, -0.3, 2.0, -15.0, 60.0, -60.0], np.float32)
    teacher, logit = (grid.ravel() for grid in np.meshgrid(logits, np.float32([*logits, 1000.0, -1e6])))
    loss, gradient = value_and_gradient(lambda s: distillation_loss(tf.constant(teacher), s), logit)
    assert loss.dtype == np.float32
    t, s = teacher.astype(np.float64), logit.astype(np.float64)
    # No absolute tolerance: also what is left of agreement at large logits is right.
    np.testing.assert_allclose(loss, sigmoid(t) * softplus(-s) + sigmoid(-t) * softplus(s), rtol=1e-5, atol=0)
    parts = sigmoid(t) * sigmoid(-s), sigmoid(-t) * sigmoid(s)
    assert (np.abs(gradient - (parts[1] - parts[0])) <= 1e-5 * np.maximum(*parts) + 1e-30).all()
    # From certainty it is the logistic loss, and the teacher itself has no gradient.
    for label, certain in ((1.0, np.inf), (0.0, -np.inf), (1.0, 200.0)):
        found = distillation_loss(tf.fill([3], tf.constant(certain, tf.float32)), tf.constant([-3.0, 0, 5]))
        expected = logistic_loss(tf.fill([3], label), tf.constant([-3.0, 0.0, 5.0]))
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert not value_and_gradient(lambda t: distillation_loss(t, tf.constant(logit)), teacher)[1].any()


@pytest.mark.parametrize("jit", [False, True])
def test_without_a_teacher_the_loss_and_its_gradient_are_0(jit):
    teacher = tf.constant([math.nan, 1.0])
    function = tf.function(lambda s: distillation_loss(teacher, s), jit_compile=jit)
    for logit in (0.5, 60.0, math.inf, math.nan):
        loss, gradient = value_and_gradient(function, [logit, 2.0])
        assert loss[0] == 0 and gradient[0] == 0
        assert loss[1] > 0 and gradient[1] == pytest.approx(sigmoid(2) - sigmoid(1), rel=1e-5)


# RankNet.


def all_pairs(queries, labels):
    """Row numbers of (clicked, other), by loops."""
    rows = range(len(labels))
    return [
        (i, j) for i in rows for j in rows if queries[i] == queries[j] and labels[i] == 1 and labels[j] == 0
    ]


def rank_by_hand(logit, pairs, weights):
    """The loss and its gradient, pair by pair."""
    loss, gradient = 0.0, np.zeros(len(logit))
    for (i, j), weight in zip(pairs, weights, strict=True):
        margin = float(logit[i]) - float(logit[j])
        loss += weight * softplus(-margin)
        gradient[i] -= weight * sigmoid(-margin)
        gradient[j] += weight * sigmoid(-margin)
    return loss, gradient


def rank(logit, pairs, weights, function=rank_loss):
    clicked, other = np.array(pairs, np.int32).reshape(-1, 2).T
    return value_and_gradient(
        lambda s: function(s, tf.constant(clicked), tf.constant(other), tf.constant(weights, s.dtype)), logit
    )


HARD = {
    "ties": ([0.5, 0.5, 0.5, -1.0], [1, 0, 0, 1], [1, 1, 1, 1]),
    "one clicked row": ([3.0], [1], [1]),
    "all clicked": ([3.0, 1.0, 2.0], [1, 1, 1], [1, 1, 1]),
    "no rows": ([], [], []),
    "wrong by far": ([-60.0, 60.0, 0.0], [1, 0, 1], [1, 1, 1]),
    "right by far": ([60.0, -60.0, 59.0], [1, 0, 0], [1, 1, 1]),
    "huge weights": ([0.3, -0.2, 0.1], [0, 1, 1], [1e15, 3e15, 1.0]),
    "weights of 0": ([0.3, -0.2, 0.1], [0, 1, 1], [1, 0, 1]),
}


@pytest.mark.parametrize("case", HARD)
def test_rank_loss_and_its_gradient_on_hard_queries(case):
    logit, label, weight = HARD[case]
    logit = np.array(logit, np.float32)
    pairs = all_pairs([0] * len(logit), label)
    weights = [weight[i] * weight[j] for i, j in pairs]
    expected, slopes = rank_by_hand(logit, pairs, weights)
    for function in (rank_loss, tf.function(rank_loss, jit_compile=True))[: 2 if case == "ties" else 1]:
        loss, gradient = rank(logit, pairs, weights, function)
        assert loss.shape == () and loss.dtype == np.float32
        assert loss == pytest.approx(expected, rel=1e-5, abs=0)
        np.testing.assert_allclose(gradient, slopes, rtol=1e-5, atol=1e-6 * max([1.0, *weights]))


def test_padding_counts_for_nothing_whatever_its_logits():
    for bad in (math.nan, math.inf):
        loss, gradient = rank([bad, 1.0, 2.0], [(1, 2), (0, 0), (0, 1)], [2.0, 0.0, 0.0])
        assert loss == pytest.approx(2 * softplus(1.0), rel=1e-6)
        np.testing.assert_allclose(gradient, [0, -2 * sigmoid(1.0), 2 * sigmoid(1.0)], rtol=1e-6)


def test_the_gradient_of_many_pairs_has_the_same_bits_at_every_run():
    rng = np.random.default_rng(2)
    logit = rng.normal(size=2048).astype(np.float32)
    # Enough for TensorFlow to share the work among threads.
    pairs = rng.integers(0, 2048, size=(50_000, 2))
    function = tf.function(rank_loss)
    assert len({rank(logit, pairs, np.ones(50_000), function)[1].tobytes() for _ in range(8)}) == 1


# Anti-distillation.


def mean_squared_correlation(logits, weight):
    covariance = np.cov(np.asarray(logits), aweights=weight, ddof=0)
    spread = np.sqrt(np.diag(covariance))
    squared = (covariance / np.outer(spread, spread)) ** 2
    return np.mean([squared[i, j] for i in range(len(logits)) for j in range(i)])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_squared_correlation_and_its_gradient_without_rows_of_weight_0(bad):
    logits = np.random.default_rng(0).normal(size=(3, 6))
    some, weight = logits[:, :4].copy(), np.array([1.0, 2.0, 1.0, 1.0, 0.0, 0.0])
    logits[:, 4:] = bad
    value, gradient = value_and_gradient(lambda z: squared_correlation(z, tf.constant(weight)), logits)
    assert value == pytest.approx(mean_squared_correlation(some, weight[:4]))
    assert not gradient[:, 4:].any()
    for place in np.ndindex(some.shape):
        shift = np.zeros(some.shape)
        shift[place] = 1e-5
        above, below = (mean_squared_correlation(one, weight[:4]) for one in (some + shift, some - shift))
        assert gradient[place] == pytest.approx((above - below) / 2e-5, abs=1e-8)


def test_components_that_say_the_same_of_every_row_correlate_with_none():
    for rows in (0, 1, 4):
        logits = np.full((2, rows), -3.0, np.float32)
        ones = tf.ones(rows)
        value, gradient = value_and_gradient(lambda z, ones=ones: squared_correlation(z, ones), logits)
        assert value == 0
        assert np.isfinite(gradient).all()


class Brier(ExtraLoss):
    def loss(self, label, logit):
        return tf.square(tf.sigmoid(logit) - label)


@pytest.mark.parametrize("trains", ["all", "outside_embeddings"])
def test_the_curvature_is_that_of_every_term(trains):
    """Second differences in float64 of each row's logit; where the Brier score bends down it counts nothing."""
    config = ObjectiveConfig(
        ranking=RankingConfig(weight=0.3, trains=trains),
        distillation=DistillationConfig(teacher="t", weight=2.0, missing="train_without"),
        extra={"brier": Brier(weight=0.7)},
    )
    ramps = {"ranking": 0.5, "distillation": 0.25, "extra_brier": 1.0}
    label, weight = np.array([1.0, 0, 0, 1, 0]), np.array([1.0, 4, 0.5, 2, 0])
    logit = np.array([-1.0, 0.3, 6.0, -0.2, 1.0])
    clicked = logit + 0.1
    teacher = np.array([0.5, -2.0, np.nan, 1.0, 0.0])
    pairs, pair_weights = [(0, 1), (0, 2), (3, 1)], np.array([1.0, 0.5, 3.0])
    targets = {"own_weight": weight, "label": label, "teacher_logit": teacher, "pairs_weight": pair_weights}
    targets = {name: tf.constant(values, tf.float32) for name, values in targets.items()}
    targets |= {
        "pairs_clicked": tf.constant([a for a, _ in pairs]),
        "pairs_other": tf.constant([b for _, b in pairs]),
    }
    given = tf.constant(logit, tf.float32), tf.constant(clicked, tf.float32)
    batch = BatchObjective(config, targets, {name: tf.constant(ramp) for name, ramp in ramps.items()})
    found = logit_curvature(batch, *given)

    def bend(function, at):
        """The second derivatives by each row, of losses [B] or of their sum."""
        h, unit = 1e-3, np.eye(len(at))
        second = [np.sum(function(at + h * e) - 2 * function(at) + function(at - h * e)) / h**2 for e in unit]
        return np.array(second)

    alpha = 0.15
    logistic, rank = (1.0, alpha / (1 - alpha)) if trains == "outside_embeddings" else (1 - alpha, alpha)
    known = ~np.isnan(teacher)
    clicks = sigmoid(np.where(known, teacher, 0.0))
    of_teacher = bend(lambda z: weight * known * (softplus(z) - clicks * z), logit)
    of_brier = bend(lambda z: weight * (sigmoid(z) - label) ** 2, logit)
    assert of_brier.min() < -0.01
    expected = bend(lambda z: logistic * weight * (softplus(z) - label * z), clicked)
    np.testing.assert_allclose(found.clicked, expected, rtol=1e-4, atol=2e-6)
    np.testing.assert_allclose(
        found.others, 0.5 * of_teacher + 0.7 * np.maximum(of_brier, 0), rtol=1e-4, atol=2e-6
    )
    of_pairs = bend(lambda z: rank * rank_by_hand(z, pairs, pair_weights)[0], logit)
    np.testing.assert_allclose(found.ranked, of_pairs, rtol=1e-4, atol=2e-6)
