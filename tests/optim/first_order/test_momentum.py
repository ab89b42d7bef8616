"""Momentum by hand."""

import pytest
import tensorflow as tf

from ctr.optim.first_order import momentum


@pytest.mark.parametrize(
    ("nesterov", "steps"),
    # M = 0.25 P then on: 2, 2.5, 1.875. Nesterov once more towards P: 3.5, 2.875, 1.40625.
    [(False, [2.0, 2.5, 1.875]), (True, [3.5, 2.875, 1.40625])],
)
def test_normalised_momentum_by_hand(nesterov, steps):
    average, found = tf.constant([0.0]), []
    for direction in (8.0, 4.0, 0.0):
        average = momentum.update_momentum(average, tf.constant([direction]), 0.75)
        found.append(float(momentum.momentum_step(average, tf.constant([direction]), 0.75, nesterov)[0]))
    assert found == steps
