"""Schedule-free averaging beside its formulas in NumPy and float64."""

import numpy as np
import pytest
import tensorflow as tf

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


@pytest.mark.parametrize("compiled", [False, True])
def test_a_rate_that_begins_at_0_moves_nothing_until_it_rises(compiled):
    start, rates = np.array([1.0, -2.0, 0.5]), [0.0, 0.0, 0.25, 0.5]
    served, learned = descend(0.9, rates, start, compiled)
    expected = replay(0.9, rates, start)
    np.testing.assert_allclose(served, expected[0], rtol=1e-6)
    np.testing.assert_allclose(learned, expected[1], rtol=1e-6)
    np.testing.assert_array_equal(descend(0.9, [0.0], start)[0], start)
