"""Losses against closed forms."""

import math

import numpy as np
import pytest
import tensorflow as tf

from ctr.objective.losses import (
    distillation_loss,
    logistic_loss,
    rank_loss,
    squared_correlation,
    weighted_sum,
)


def softplus(x):
    """log(1 + exp(x)) in float64, without overflow."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def sigmoid(x):
    """In float64, exact at both ends."""
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def differences(function, point, step=1e-5):
    """The gradient of a scalar function of a float64 vector by central differences."""
    point = np.asarray(point, np.float64)
    gradient = np.zeros_like(point)
    for i in range(len(point)):
        shift = np.zeros_like(point)
        shift[i] = step
        gradient[i] = (function(point + shift) - function(point - shift)) / (2 * step)
    return gradient


def value_and_gradient(function, point):
    variable = tf.constant(point)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        value = function(variable)
    gradient = tape.gradient(value, variable, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return value.numpy(), tf.convert_to_tensor(gradient).numpy()


def exact_loss(label: float, logit: float) -> float:
    """-log of the probability of what happened, in float64, without overflow."""
    signed = logit if label else -logit
    return max(-signed, 0.0) + math.log1p(math.exp(-abs(signed)))


@pytest.mark.parametrize("logit", [0.0, 1e-6, -0.3, 2.0, -15.0, 40.0, -100.0, 1000.0, -1e6, 1e30])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_logistic_loss_and_its_gradient(label, logit):
    variable = tf.constant([logit])
    with tf.GradientTape() as tape:
        tape.watch(variable)
        loss = logistic_loss(tf.constant([label]), variable)
    assert loss.shape == (1,)
    assert loss.numpy()[0] == pytest.approx(exact_loss(label, logit), rel=1e-6, abs=1e-30)
    probability = 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0
    assert tape.gradient(loss, variable).numpy()[0] == pytest.approx(probability - label, rel=1e-5, abs=1e-7)


def test_the_loss_of_even_odds():
    np.testing.assert_allclose(
        logistic_loss(tf.constant([0.0, 1.0]), tf.zeros(2)), [math.log(2)] * 2, rtol=1e-6
    )


def test_the_weighted_sum_multiplies_each_row_by_its_weight():
    assert weighted_sum(
        tf.constant([1.0, 10.0, 100.0]), tf.constant([2.0, 1.0, 0.5])
    ).numpy() == pytest.approx(2 + 10 + 50)


@pytest.mark.parametrize("loss", [math.inf, -math.inf, math.nan])
def test_a_row_of_weight_0_does_not_count_whatever_its_loss(loss):
    total = weighted_sum(tf.constant([3.0, loss, 5.0]), tf.constant([1.0, 0.0, 3.0]))
    assert total.numpy() == pytest.approx(18.0)


@pytest.mark.parametrize("loss", [math.inf, math.nan])
def test_a_row_that_counts_is_not_made_finite(loss):
    assert not math.isfinite(weighted_sum(tf.constant([3.0, loss]), tf.constant([1.0, 1e-3])).numpy())
    assert not math.isfinite(weighted_sum(tf.constant([3.0, 3.0]), tf.constant([1.0, math.nan])).numpy())


def test_without_any_weight_the_sum_and_its_gradient_are_0():
    loss = tf.constant([3.0, 4.0])
    with tf.GradientTape() as tape:
        tape.watch(loss)
        total = weighted_sum(loss, tf.zeros(2))
    assert total.numpy() == 0
    assert tape.gradient(total, loss).numpy().tolist() == [0, 0]


# Distillation.

LOGITS = [0.0, 1e-6, -0.3, 2.0, -15.0, 60.0, -60.0]


@pytest.mark.parametrize("teacher", LOGITS)
@pytest.mark.parametrize("logit", [*LOGITS, 1000.0, -1e6])
def test_distillation_loss_and_its_gradient(teacher, logit):
    loss, gradient = value_and_gradient(lambda s: distillation_loss(tf.constant([teacher]), s), [logit])
    assert loss.dtype == np.float32 and loss.shape == (1,)
    # No absolute tolerance: also what is left of agreement at large logits is right.
    expected = sigmoid(teacher) * softplus(-logit) + sigmoid(-teacher) * softplus(logit)
    assert loss[0] == pytest.approx(expected, rel=1e-5, abs=0)
    larger = max(abs(sigmoid(teacher) * sigmoid(-logit)), abs(sigmoid(-teacher) * sigmoid(logit)))
    slope = sigmoid(-teacher) * sigmoid(logit) - sigmoid(teacher) * sigmoid(-logit)
    assert gradient[0] == pytest.approx(slope, rel=1e-5, abs=1e-6 * larger)
    assert slope == pytest.approx(sigmoid(logit) - sigmoid(teacher), rel=1e-9, abs=1e-15)


def test_distillation_from_certainty_is_the_logistic_loss():
    logit = tf.constant([-3.0, 0.0, 5.0])
    for label, teacher in ((1.0, np.inf), (0.0, -np.inf), (1.0, 200.0)):
        found = distillation_loss(tf.fill([3], tf.constant(teacher, tf.float32)), logit)
        np.testing.assert_allclose(found, logistic_loss(tf.fill([3], label), logit), rtol=1e-6)


def test_distillation_loss_is_least_at_the_teachers_logit_where_it_is_its_entropy():
    teacher = 0.7
    at = {s: float(distillation_loss(tf.constant([teacher]), tf.constant([s]))[0]) for s in (0.6, 0.7, 0.8)}
    p = sigmoid(teacher)
    assert at[0.7] == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p), rel=1e-6)
    assert at[0.7] < min(at[0.6], at[0.8])


def test_distillation_gradient_by_finite_differences_and_none_for_the_teacher():
    rng = np.random.default_rng(0)
    teacher, logit, weight = rng.normal(size=(3, 20)) * 3
    teacher[4] = np.nan
    weight = np.abs(weight)

    def total(s):
        return tf.reduce_sum(weight * distillation_loss(tf.constant(teacher), s))

    _, gradient = value_and_gradient(total, logit)
    np.testing.assert_allclose(
        gradient, differences(lambda s: total(tf.constant(s)).numpy(), logit), atol=1e-7
    )
    assert gradient[4] == 0
    _, of_teacher = value_and_gradient(lambda t: distillation_loss(t, tf.constant(logit)), teacher)
    assert not of_teacher.any()


@pytest.mark.parametrize("logit", [0.5, 60.0, math.inf, math.nan])
@pytest.mark.parametrize("jit", [False, True])
def test_without_a_teacher_the_loss_and_its_gradient_are_0(logit, jit):
    function = tf.function(lambda s: distillation_loss(tf.constant([math.nan, 1.0]), s), jit_compile=jit)
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
    """The loss and its gradient in float64, pair by pair."""
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
        lambda s: function(s, tf.constant(clicked), tf.constant(other), tf.constant(weights, s.dtype)),
        logit,
    )


HARD = {
    "ties": ([0.5, 0.5, 0.5, -1.0], [1, 0, 0, 1], [1, 1, 1, 1]),
    "one clicked row": ([3.0], [1], [1]),
    "all clicked": ([3.0, 1.0, 2.0], [1, 1, 1], [1, 1, 1]),
    "none clicked": ([3.0, 1.0, 2.0], [0, 0, 0], [1, 1, 1]),
    "no rows": ([], [], []),
    "wrong by far": ([-60.0, 60.0, 0.0], [1, 0, 1], [1, 1, 1]),
    "right by far": ([60.0, -60.0, 59.0], [1, 0, 0], [1, 1, 1]),
    "huge weights": ([0.3, -0.2, 0.1], [0, 1, 1], [1e15, 3e15, 1.0]),
    "weights of 0": ([0.3, -0.2, 0.1], [0, 1, 1], [1, 0, 1]),
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("case", HARD)
def test_rank_loss_and_its_gradient_on_hard_queries(case, jit):
    logit, label, weight = HARD[case]
    logit = np.array(logit, np.float32)
    pairs = all_pairs([0] * len(logit), label)
    weights = [weight[i] * weight[j] for i, j in pairs]
    loss, gradient = rank(logit, pairs, weights, tf.function(rank_loss, jit_compile=jit))
    expected, slopes = rank_by_hand(logit, pairs, weights)
    assert loss.shape == () and loss.dtype == np.float32
    assert loss == pytest.approx(expected, rel=1e-5, abs=0)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-5, atol=1e-6 * max([1.0, *weights]))


def test_rank_loss_over_many_queries_against_loops_and_finite_differences():
    rng = np.random.default_rng(1)
    queries = np.sort(rng.integers(0, 12, 60))
    labels, logit = rng.integers(0, 2, 60), rng.normal(size=60) * 3
    pairs = all_pairs(queries, labels)
    weights = rng.uniform(0, 4, len(pairs))
    loss, gradient = rank(logit, pairs, weights)
    expected, slopes = rank_by_hand(logit, pairs, weights)
    assert len(pairs) > 50 and loss == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(gradient, differences(lambda s: rank(s, pairs, weights)[0], logit), atol=1e-6)
    # It ranks within queries: a shift of all logits of one changes nothing.
    assert rank(logit + 10.0 * queries, pairs, weights)[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_padding_counts_for_nothing_whatever_its_logits(bad):
    loss, gradient = rank([bad, 1.0, 2.0], [(1, 2), (0, 0), (0, 1)], [2.0, 0.0, 0.0])
    assert loss == pytest.approx(2 * softplus(1.0), rel=1e-6)
    np.testing.assert_allclose(gradient, [0, -2 * sigmoid(1.0), 2 * sigmoid(1.0)], rtol=1e-6)


def test_the_gradient_of_many_pairs_has_the_same_bits_at_every_run():
    rng = np.random.default_rng(2)
    logit = rng.normal(size=2048).astype(np.float32)
    # Enough for TensorFlow to share the work among threads.
    pairs = rng.integers(0, 2048, size=(50_000, 2))
    function = tf.function(rank_loss)
    runs = {rank(logit, pairs, np.ones(50_000), function)[1].tobytes() for _ in range(8)}
    assert len(runs) == 1


def mean_squared_correlation(logits, weight):
    covariance = np.cov(np.asarray(logits), aweights=weight, ddof=0)
    spread = np.sqrt(np.diag(covariance))
    squared = (covariance / np.outer(spread, spread)) ** 2
    return np.mean([squared[i, j] for i in range(len(logits)) for j in range(i)])


@pytest.mark.parametrize("count", [2, 3, 5])
def test_squared_correlation_and_its_gradient(count):
    rng = np.random.default_rng(count)
    logits = rng.normal(size=(count, 12)) + rng.normal(size=12) - 3
    weight = rng.choice([0.5, 1.0, 4.0], 12)

    def loss(flat):
        return squared_correlation(tf.reshape(flat, [count, 12]), tf.constant(weight))

    value, gradient = value_and_gradient(loss, logits.ravel())
    assert value == pytest.approx(mean_squared_correlation(logits, weight), rel=1e-9)
    numeric = differences(
        lambda flat: mean_squared_correlation(flat.reshape(count, 12), weight), logits.ravel()
    )
    np.testing.assert_allclose(gradient, numeric, atol=1e-8)


def test_correlation_knows_no_scale_no_shift_and_no_sign():
    logits = np.random.default_rng(0).normal(size=30)
    weight = tf.ones(30, tf.float64)
    for other in (5 * logits - 7, -0.01 * logits):
        value = squared_correlation(tf.constant(np.stack([logits, other])), weight)
        assert float(value) == pytest.approx(1)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rows_of_weight_0_do_not_correlate(bad):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 6))
    weight = np.array([1.0, 2.0, 1.0, 1.0, 0.0, 0.0])
    expected = mean_squared_correlation(logits[:, :4], weight[:4])
    logits[:, 4:] = bad
    value, gradient = value_and_gradient(lambda z: squared_correlation(z, tf.constant(weight)), logits)
    assert value == pytest.approx(expected)
    assert np.isfinite(gradient[:, :4]).all() and not gradient[:, 4:].any()


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_components_that_say_the_same_of_every_row_correlate_with_none(rows):
    logits = np.full((2, rows), -3.0, np.float32)
    value, gradient = value_and_gradient(lambda z: squared_correlation(z, tf.ones(rows)), logits)
    assert value == 0
    assert np.isfinite(gradient).all()
