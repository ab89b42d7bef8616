"""Losses against closed forms."""

import math

import numpy as np
import pytest
import tensorflow as tf

from ctr.objective.losses import logistic_loss, weighted_mean


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


def test_weighted_mean():
    assert weighted_mean(
        tf.constant([1.0, 10.0, 100.0]), tf.constant([2.0, 1.0, 0.5])
    ).numpy() == pytest.approx((2 + 10 + 50) / 3.5)


@pytest.mark.parametrize("loss", [math.inf, -math.inf, math.nan])
def test_a_row_of_weight_0_does_not_count_whatever_its_loss(loss):
    mean = weighted_mean(tf.constant([3.0, loss, 5.0]), tf.constant([1.0, 0.0, 3.0]))
    assert mean.numpy() == pytest.approx(4.5)


@pytest.mark.parametrize("loss", [math.inf, math.nan])
def test_a_row_that_counts_is_not_made_finite(loss):
    assert not math.isfinite(weighted_mean(tf.constant([3.0, loss]), tf.constant([1.0, 1e-3])).numpy())
    assert not math.isfinite(weighted_mean(tf.constant([3.0, 3.0]), tf.constant([1.0, math.nan])).numpy())


def test_without_any_weight_the_mean_and_its_gradient_are_0():
    loss = tf.constant([3.0, 4.0])
    with tf.GradientTape() as tape:
        tape.watch(loss)
        mean = weighted_mean(loss, tf.zeros(2))
    assert mean.numpy() == 0
    assert tape.gradient(mean, loss).numpy().tolist() == [0, 0]
