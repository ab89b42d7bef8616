"""The first-order optimizers by hand, step by step."""

import math

import pytest
import tensorflow as tf

from ctr.optim.first_order import directions
from ctr.optim.first_order.options import LAMB, LARS, SGD, AdaGrad, Adam, RMSprop, Sign

GRADIENTS = ([3.0, -1.0], [4.0, 0.0], [0.0, 2.0])
SECOND = 9 / 64 + 1
"""Of the second element, with b = 3/4, D at step 3; that of the first is 9/4, 91/16, 273/64."""
OF_ADAM = [  # 1 - b^t = 1/4, 7/16, 37/64
    [3 / 3.5, -1 / 1.5],
    [4 / (math.sqrt(91 / 16 / (7 / 16)) + 0.5), 0],
    [0, 2 / (math.sqrt(SECOND / (37 / 64)) + 0.5)],
]


def run(options, gradients=GRADIENTS, averages=None):
    """Directions at each step."""
    accumulator = None
    if directions.has_accumulator(options):
        accumulator = tf.fill([2], tf.constant(directions.initial_accumulator(options), tf.float64))
    found = []
    for step, (gradient, moving) in enumerate(zip(gradients, averages or gradients, strict=True), 1):
        gradient, moving = tf.constant(gradient, tf.float64), tf.constant(moving, tf.float64)
        if accumulator is not None:
            accumulator = directions.update_accumulator(options, accumulator, gradient)
        direction = directions.direction(options, accumulator, moving, tf.constant(step, tf.int64))
        found.append(direction.numpy().tolist())
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (AdaGrad(initial_accumulator=0.0), [[1, -1], [0.8, 0], [0, 2 / math.sqrt(5)]]),
        (
            AdaGrad(initial_accumulator=7.0),
            [[0.75, -1 / math.sqrt(8)], [4 / math.sqrt(32), 0], [0, 2 / math.sqrt(12)]],
        ),
        # Epsilon is added to the root.
        (
            AdaGrad(initial_accumulator=0.0, epsilon=1.0),
            [[3 / 4, -1 / 2], [4 / 6, 0], [0, 2 / (math.sqrt(5) + 1)]],
        ),
        (SGD(), GRADIENTS),
        (Sign(), [[1, -1], [1, 0], [0, 1]]),
        # Not corrected for the bias.
        (
            RMSprop(beta2=0.75, epsilon=0.5),
            [
                [3 / 2, -1 / (0.5 + 0.5)],
                [4 / (math.sqrt(91) / 4 + 0.5), 0],
                [0, 2 / (math.sqrt(SECOND) + 0.5)],
            ],
        ),
        (Adam(beta2=0.75, epsilon=0.5), OF_ADAM),
        # Before the factor of a layer they are those of SGD and of Adam.
        (LARS(), GRADIENTS),
        (LAMB(beta2=0.75, epsilon=0.5), OF_ADAM),
    ],
)
def test_directions_by_hand(options, expected):
    assert run(options) == [pytest.approx(list(row), rel=1e-12) for row in expected]
    assert directions.is_layerwise(options) == isinstance(options, LARS | LAMB)


def test_layerwise_directions_have_the_norm_of_their_weights():
    def factor(weight_norm, norm):
        return float(directions.layer_factor(tf.constant(weight_norm), tf.constant(norm)))

    assert factor(6.0, 1.5) == 4.0
    # Weights that begin at zero move, and a direction of zero stays one.
    assert factor(0.0, 1.5) == factor(6.0, 0.0) == 1.0


def test_nothing_divided_by_nothing_is_nothing():
    for options in (AdaGrad(initial_accumulator=0.0), Adam(epsilon=0.0), RMSprop(epsilon=0.0)):
        assert run(options, gradients=([0.0, 5.0],))[0][0] == 0.0
