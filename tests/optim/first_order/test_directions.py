"""First-order directions where there is nothing to divide by, and momentum, by hand.

All other directions are in the replay of Shampoo's steps.
"""

import pytest
import tensorflow as tf

from ctr.optim.first_order import directions
from ctr.optim.first_order.options import AdaGrad, Adam, RMSprop


def test_layerwise_directions_have_the_norm_of_their_weights():
    def factor(weight_norm, norm):
        return float(directions.layer_factor(tf.constant(weight_norm), tf.constant(norm)))

    assert factor(6.0, 1.5) == 4.0
    # Weights that begin at zero move, and a direction of zero stays one.
    assert factor(0.0, 1.5) == factor(6.0, 0.0) == 1.0


def test_nothing_divided_by_nothing_is_nothing():
    gradient, step = tf.constant([0.0, 5.0]), tf.constant(1, tf.int64)
    for options in (AdaGrad(initial_accumulator=0.0), Adam(epsilon=0.0), RMSprop(epsilon=0.0)):
        sums = directions.update_accumulator(options, tf.zeros([2]), gradient)
        assert directions.direction(options, sums, gradient, step)[0] == 0.0


@pytest.mark.parametrize(
    ("nesterov", "steps"),
    # M = 0.25 P then on: 2, 2.5, 1.875. Nesterov once more towards P: 3.5, 2.875, 1.40625.
    [(False, [2.0, 2.5, 1.875]), (True, [3.5, 2.875, 1.40625])],
)
def test_normalised_momentum_by_hand(nesterov, steps):
    average, found = tf.constant([0.0]), []
    for direction in (8.0, 4.0, 0.0):
        average, step = directions.momentum_step(average, tf.constant([direction]), 0.75, nesterov)
        found.append(float(step[0]))
    assert found == steps
