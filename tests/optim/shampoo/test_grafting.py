"""The grafted optimizers by hand, step by step, and the passage from them to Shampoo."""

import math

import pytest
import tensorflow as tf

from ctr.optim.shampoo import grafting
from shampoo_options import options as flat_options

GRADIENTS = ([3.0, -1.0], [4.0, 0.0], [0.0, 2.0])


def run(gradients=GRADIENTS, averages=None, **changed):
    """Directions at each step."""
    options = flat_options(**changed)
    if grafting.has_accumulator(options):
        accumulator = tf.fill([2], tf.constant(grafting.initial_accumulator(options), tf.float64))
    else:
        accumulator = None
    directions = []
    for step, (gradient, moving) in enumerate(zip(gradients, averages or gradients, strict=True), 1):
        gradient, moving = tf.constant(gradient, tf.float64), tf.constant(moving, tf.float64)
        if accumulator is not None:
            accumulator = grafting.update_accumulator(options, accumulator, gradient)
        direction = grafting.direction(options, accumulator, moving, tf.constant(step, tf.int64))
        directions.append(direction.numpy().tolist())
    return directions


def rows(*expected):
    return [pytest.approx(row, rel=1e-12) for row in expected]


def test_adagrad():
    assert run(initial_accumulator=0.0) == rows([1, -1], [0.8, 0], [0, 2 / math.sqrt(5)])
    assert run(initial_accumulator=7.0)[0] == pytest.approx([0.75, -1 / math.sqrt(8)], rel=1e-12)


def test_sgd_is_the_gradient():
    assert run(grafting="sgd") == [list(gradient) for gradient in GRADIENTS]


def test_rmsprop_is_not_bias_corrected():
    # b = 3/4: D = 9/4, then 3/4 9/4 + 16/4 = 91/16, then 273/64.
    found = run(grafting="rmsprop", grafting_beta2=0.75, grafting_epsilon=0.5)
    second = [math.sqrt(3 / 16), math.sqrt(9 / 64 + 1)]
    assert found == rows(
        [3 / 2, -1 / (0.5 + 0.5)], [4 / (math.sqrt(91) / 4 + 0.5), 0], [0, 2 / (second[1] + 0.5)]
    )


def test_adam_is_bias_corrected():
    found = run(grafting="adam", grafting_beta2=0.75, grafting_epsilon=0.5)
    # 1 - b^t = 1/4, 7/16, 37/64.
    assert found == rows(
        [3 / 3.5, -1 / 1.5],
        [4 / (math.sqrt(91 / 16 / (7 / 16)) + 0.5), 0],
        [0, 2 / (math.sqrt((9 / 64 + 1) / (37 / 64)) + 0.5)],
    )


def test_second_moments_take_the_gradient_and_directions_its_average():
    found = run(averages=([1.0, 1.0], [2.0, 1.0], [5.0, 1.0]), initial_accumulator=0.0)
    assert found == rows([1 / 3, 1], [2 / 5, 1], [1, 1 / math.sqrt(5)])


@pytest.mark.parametrize(
    "changed",
    [
        {"initial_accumulator": 0.0},
        {"grafting": "adam", "grafting_epsilon": 0.0},
        {"grafting": "rmsprop", "grafting_epsilon": 0.0},
    ],
)
def test_nothing_divided_by_nothing_is_nothing(changed):
    assert run(gradients=([0.0, 5.0],), **changed)[0][0] == 0.0


@pytest.mark.parametrize(
    ("start", "blend", "shares"),
    [
        (None, 3, {1: 0, 10**9: 0}),
        (0, 0, {1: 1}),
        (25, 0, {1: 0, 24: 0, 25: 1, 26: 1}),
        (25, 3, {24: 0, 25: 0.25, 26: 0.5, 27: 0.75, 28: 1, 29: 1}),
    ],
)
def test_shampoos_share_by_step(start, blend, shares):
    options = flat_options(start_preconditioning_step=start, blend_steps=blend)
    found = {
        step: float(grafting.blend_weight(options, tf.constant(step, tf.int64), tf.float32))
        for step in shares
    }
    assert found == shares
