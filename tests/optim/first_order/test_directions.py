"""First-order directions where there is nothing to divide by; all others are in the replay of Shampoo's steps."""

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
