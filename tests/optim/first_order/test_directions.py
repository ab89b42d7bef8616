"""The first-order optimizers by hand, step by step."""

import math

import pytest
import tensorflow as tf

from ctr.optim.first_order import directions
from ctr.optim.first_order.options import LAMB, LARS, SGD, AdaGrad, Adam, RMSprop, Sign

GRADIENTS = ([3.0, -1.0], [4.0, 0.0], [0.0, 2.0])


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


def rows(*expected):
    return [pytest.approx(row, rel=1e-12) for row in expected]


def test_adagrad():
    assert run(AdaGrad(initial_accumulator=0.0)) == rows([1, -1], [0.8, 0], [0, 2 / math.sqrt(5)])
    assert run(AdaGrad(initial_accumulator=7.0))[0] == pytest.approx([0.75, -1 / math.sqrt(8)], rel=1e-12)


def test_sgd_is_the_gradient():
    assert run(SGD()) == [list(gradient) for gradient in GRADIENTS]


def test_adagrads_epsilon_is_added_to_the_root():
    assert run(AdaGrad(initial_accumulator=0.0, epsilon=1.0)) == rows(
        [3 / 4, -1 / 2], [4 / 6, 0], [0, 2 / (math.sqrt(5) + 1)]
    )


def test_signs_of_gradients():
    assert run(Sign()) == [[1, -1], [1, 0], [0, 1]]


def test_layerwise_directions_have_the_norm_of_their_weights():
    # Before the factor they are those of SGD and of Adam.
    assert run(LARS()) == run(SGD())
    assert run(LAMB(beta2=0.75, epsilon=0.5)) == run(Adam(beta2=0.75, epsilon=0.5))
    assert [directions.is_layerwise(options) for options in (LARS(), LAMB(), SGD(), Adam())] == [
        True,
        True,
        False,
        False,
    ]

    def factor(weight_norm, norm):
        return float(directions.layer_factor(tf.constant(weight_norm), tf.constant(norm)))

    assert factor(6.0, 1.5) == 4.0
    # Weights that begin at zero move, and a direction of zero stays one.
    assert factor(0.0, 1.5) == factor(6.0, 0.0) == 1.0


def test_rmsprop_is_not_bias_corrected():
    # b = 3/4: D = 9/4, then 3/4 9/4 + 16/4 = 91/16, then 273/64.
    found = run(RMSprop(beta2=0.75, epsilon=0.5))
    second = [math.sqrt(3 / 16), math.sqrt(9 / 64 + 1)]
    assert found == rows(
        [3 / 2, -1 / (0.5 + 0.5)], [4 / (math.sqrt(91) / 4 + 0.5), 0], [0, 2 / (second[1] + 0.5)]
    )


def test_adam_is_bias_corrected():
    found = run(Adam(beta2=0.75, epsilon=0.5))
    # 1 - b^t = 1/4, 7/16, 37/64.
    assert found == rows(
        [3 / 3.5, -1 / 1.5],
        [4 / (math.sqrt(91 / 16 / (7 / 16)) + 0.5), 0],
        [0, 2 / (math.sqrt((9 / 64 + 1) / (37 / 64)) + 0.5)],
    )


def test_second_moments_take_the_gradient_and_directions_its_average():
    found = run(AdaGrad(initial_accumulator=0.0), averages=([1.0, 1.0], [2.0, 1.0], [5.0, 1.0]))
    assert found == rows([1 / 3, 1], [2 / 5, 1], [1, 1 / math.sqrt(5)])


@pytest.mark.parametrize(
    "options", [AdaGrad(initial_accumulator=0.0), Adam(epsilon=0.0), RMSprop(epsilon=0.0)]
)
def test_nothing_divided_by_nothing_is_nothing(options):
    assert run(options, gradients=([0.0, 5.0],))[0][0] == 0.0
