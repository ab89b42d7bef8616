"""The bias that follows a base rate: against the filters that it is made of, on rates that stay and that drift."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.optim.first_order import online_bias
from ctr.optim.first_order.online_bias import OnlineBias


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@tf.function
def learn(made, label):
    p = tf.fill([len(label)], tf.sigmoid(made.bias))
    made.apply(
        made.step(made.sums([tf.ones(len(label))], p - label, p * (1 - p), tf.constant(float(len(label)))))
    )


def excess(label, rate, walks, monkeypatch):
    """What the loss is above that of the true rate, with these walks."""
    monkeypatch.setattr(online_bias, "WALKS", walks)
    made, total = OnlineBias("bias", tf.Variable(-1.0)), 0.0
    for part, true in zip(label, rate, strict=True):
        p = sigmoid(float(made.bias))
        total += (true * np.log(true / p) + (1 - true) * np.log((1 - true) / (1 - p))).sum()
        learn(made, tf.constant(part, tf.float32))
    return total


@pytest.mark.parametrize("drifts", [False, True])
def test_it_is_nearly_as_good_as_the_best_of_its_walks(drifts, monkeypatch):
    rng = np.random.default_rng(4)
    time = np.linspace(0, 1, 100)[:, np.newaxis] * np.ones(100)
    rate = sigmoid(-1 + drifts * np.sin(4 * time))
    label = (rng.random(rate.shape) < rate).astype(float)
    walks = online_bias.WALKS
    alone = [excess(label, rate, (walk,), monkeypatch) for walk in walks]
    together = excess(label, rate, walks, monkeypatch)
    # The best one is another one by the log, and the worst one is far worse.
    assert int(np.argmin(alone)) == (1 if drifts else 0)
    assert max(alone) > 2 * min(alone)
    assert together < min(alone) + np.log(len(walks)) + 1


def test_the_mean_of_one_walk_is_its_filter(monkeypatch):
    monkeypatch.setattr(online_bias, "WALKS", (0.3,))
    rng = np.random.default_rng(3)
    made = OnlineBias("bias", tf.Variable(0.5))
    bias, information, seen = 0.5, 0.0, 0.0
    for rows in (1, 30, 7, 60):
        gradient, curvature = rng.normal(size=rows) * 0.1, rng.uniform(0, 0.25, rows)
        parts = (tf.constant(part, tf.float32) for part in (gradient, curvature))
        made.apply(made.step(made.sums([tf.ones(rows)], *parts, tf.constant(float(rows)))))
        seen += rows
        information *= 1 - online_bias.FORGETTING * rows / seen
        if information:
            information = 1 / (1 / information + 0.3 * rows / seen)
        information += curvature.sum()
        bias -= np.clip(gradient.sum() / (information + online_bias.PRIOR), -1, 1)
    np.testing.assert_allclose(made.bias.numpy(), bias, rtol=1e-5)


def test_a_batch_without_weight_changes_nothing():
    made = OnlineBias("bias", tf.Variable(0.5))
    made.apply(made.step(made.sums([tf.ones(4)], tf.zeros(4), tf.zeros(4), tf.constant(0.0))))
    assert made.bias.numpy() == 0.5
    assert {name.rpartition("/")[2] for name in made.variables} == {"distance", "information", "loss", "seen"}
    assert all(np.isfinite(variable.numpy()).all() for variable in made.variables.values())
