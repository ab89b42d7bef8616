"""Schedule-free averaging beside its formulas in NumPy and float64."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.optim.contrib.schedule_free import ScheduleFree, served_weights

CURVATURES = np.array([1.0, 0.1, 3.0])


def replay(beta, rates, start):
    """Gradient descent on sum c y^2 / 2, by the equations."""
    x, z, total = start.copy(), start.copy(), 0.0
    for rate in rates:
        y = (1 - beta) * z + beta * x
        z = z - rate * CURVATURES * y
        total += rate**2
        share = rate**2 / total if total else 0.0
        x = (1 - share) * x + share * z
    return x, (1 - beta) * z + beta * x


def descend(beta, rates, start, compiled=False):
    weight = tf.Variable(start)
    averaging = ScheduleFree(beta, {"dense/000": weight})

    @tf.function(jit_compile=compiled)
    def step(rate):
        gradient = CURVATURES * weight
        averaging.step(rate, lambda: weight.assign_sub(tf.cast(rate, tf.float64) * gradient))

    for rate in rates:
        step(tf.constant(rate, tf.float32))
    arrays = {name: variable.numpy() for name, variable in averaging.variables.items()}
    arrays["dense/000"] = weight.numpy()
    return served_weights(arrays, beta)["dense/000"], weight.numpy()


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    beta=st.floats(0.05, 0.98),
    # Powers of 2 and their sums of squares are the same in float32.
    powers=st.lists(st.integers(-4, 0), min_size=1, max_size=12),
)
def test_steps_are_those_of_the_equations(beta, powers):
    start, rates = np.array([1.0, -2.0, 0.5]), [2.0**power for power in powers]
    for found, expected in zip(descend(beta, rates, start), replay(beta, rates, start), strict=True):
        # The share of a step is a float32.
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_rate_that_begins_at_0_moves_nothing_until_it_rises(compiled):
    start, rates = np.array([1.0, -2.0, 0.5]), [0.0, 0.0, 0.25, 0.5]
    served, learned = descend(0.9, rates, start, compiled)
    expected = replay(0.9, rates, start)
    np.testing.assert_allclose(served, expected[0], rtol=1e-6)
    np.testing.assert_allclose(learned, expected[1], rtol=1e-6)
    np.testing.assert_array_equal(descend(0.9, [0.0], start)[0], start)
