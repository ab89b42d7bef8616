"""Newton's steps for a few weights against NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ctr.optim.first_order.online_newton import OnlineNewton, newton_solve


@given(size=st.integers(1, 3), seed=st.integers(0, 1000))
def test_systems_are_solved(size, seed):
    rng = np.random.default_rng(seed)
    root, vector = rng.normal(size=(size, size)), rng.normal(size=size)
    matrix = root @ root.T + 0.5 * np.eye(size)
    found = newton_solve(tf.constant(matrix, tf.float32), tf.constant(vector, tf.float32))
    np.testing.assert_allclose(found, np.linalg.solve(matrix, vector), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("forgetting", [0.0, 1.0, 3.0])
def test_steps_are_those_of_numpy(forgetting):
    rng = np.random.default_rng(2)
    weights = tf.Variable([0.3, -0.2])
    made = OnlineNewton("x", weights, [2.0, 5.0], forgetting)
    expected, information, seen = np.array([0.3, -0.2]), np.zeros((2, 2)), 0.0
    for rows in (1, 30, 7):
        inputs, gradient = rng.normal(size=(rows, 2)), rng.normal(size=rows)
        curvature, weight = rng.uniform(0, 1, rows), float(rows)
        parts = (tf.constant(part, tf.float32) for part in (gradient, curvature, weight))
        made.apply(made.step(made.sums(tf.unstack(tf.constant(inputs.T, tf.float32)), *parts)))
        seen += weight
        information = max(0, 1 - forgetting * weight / seen) * information
        information += (inputs * curvature[:, None]).T @ inputs
        expected -= np.clip(np.linalg.solve(information + np.diag([2.0, 5.0]), inputs.T @ gradient), -1, 1)
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


def test_a_batch_without_weight_changes_nothing():
    bias = tf.Variable([0.5])
    made = OnlineNewton("bias", bias, [0.3], 0.5)
    zeros = tf.zeros(4)
    made.apply(made.step(made.sums([tf.ones(4)], zeros, zeros, tf.constant(0.0))))
    assert bias.numpy()[0] == 0.5 and np.isfinite(made.variables["newton/bias/information"].numpy()).all()
