"""Newton's steps for a few weights against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.optim.first_order.online_newton import OnlineNewton


@pytest.mark.parametrize(("size", "forgetting"), [(1, 0.0), (2, 1.0), (3, 3.0)])
def test_steps_are_those_of_numpy(size, forgetting):
    rng = np.random.default_rng(2)
    start, prior = [0.3, -0.2, 0.1][:size], [2.0, 5.0, 1.0][:size]
    weights = tf.Variable(start)
    made = OnlineNewton("x", weights, prior, forgetting)
    expected, information, seen = np.array(start), np.zeros((size, size)), 0.0
    # The last batch has no weight, and changes nothing.
    for rows, weight in ((1, 1.0), (30, 30.0), (7, 7.0), (4, 0.0)):
        inputs, gradient = rng.normal(size=(rows, size)), np.sign(weight) * rng.normal(size=rows)
        curvature = np.sign(weight) * rng.uniform(0, 1, rows)
        parts = (tf.constant(part, tf.float32) for part in (gradient, curvature, weight))
        made.apply(made.step(made.sums(tf.unstack(tf.constant(inputs.T, tf.float32)), *parts)))
        seen += weight
        information = max(0, 1 - forgetting * weight / seen) * information
        information += (inputs * curvature[:, None]).T @ inputs
        expected -= np.clip(np.linalg.solve(information + np.diag(prior), inputs.T @ gradient), -1, 1)
    np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-4)
    assert set(made.variables) == {"newton/x/information", "newton/x/seen"}


def test_weights_stay_in_their_ranges():
    gate = tf.Variable([0.0])
    made = OnlineNewton("gate", gate, [1.0], 0.0, [(0.0, 1.0)])
    for gradient, expected in ((5.0, 0.0), (-50.0, 1.0), (-50.0, 1.0), (1.0, 0.0)):
        sums = made.sums([tf.ones(1)], tf.constant([gradient]), tf.constant([1e-3]), tf.constant(1.0))
        made.apply(made.step(sums))
        assert 0.0 <= gate.numpy()[0] <= 1.0
        if gradient != 1.0:
            assert gate.numpy()[0] == expected


def test_a_first_batch_without_weight_changes_nothing():
    bias = tf.Variable([0.5])
    made = OnlineNewton("bias", bias, [0.3], 0.5)
    zeros = tf.zeros(4)
    made.apply(made.step(made.sums([tf.ones(4)], zeros, zeros, tf.constant(0.0))))
    assert bias.numpy()[0] == 0.5 and np.isfinite(made.variables["newton/bias/information"].numpy()).all()
