"""AdaGrad against the same in NumPy float64."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.optim.protocol import RowGradient
from ctr.optim.rows.adagrad import RowAdaGrad
from ctr.optim.rows.rule import RowSetup

ROWS, COLUMNS = 12, 3


def reference_step(weight, accumulator, gradient, rate):
    """``a += g^2; w -= rate * g / sqrt(a)`` in place, float64; nothing where both are zero."""
    accumulator += gradient**2
    moving = accumulator > 0
    weight[moving] -= (rate * gradient)[moving] / np.sqrt(accumulator[moving])


def random_values(rng, *shape):
    # Over several magnitudes, so that an error of scale cannot hide.
    return (rng.normal(size=shape) * 10.0 ** rng.integers(-3, 3, size=shape)).astype(np.float32)


def update(table, accumulator, rows, gradient, rate):
    """Takes a step of AdaGrad on some rows of a table."""
    rows, gradient = tf.convert_to_tensor(rows), tf.convert_to_tensor(gradient)
    before = RowGradient(rows, tf.gather(table, rows), (tf.gather(accumulator, rows),), gradient)
    values, (sums,) = RowAdaGrad(RowSetup([rate])).step(0, before, rate)
    table.scatter_update(tf.IndexedSlices(values, rows))
    accumulator.scatter_update(tf.IndexedSlices(sums, rows))


@pytest.mark.parametrize(("initial", "rate"), [(0.0, 0.3), (0.1, [0.5, 0.01, 0.0])])
def test_rows_follow_the_reference_for_many_steps(initial, rate):
    rng = np.random.default_rng(1)
    start = random_values(rng, ROWS, COLUMNS)
    table = tf.Variable(start)
    accumulator = tf.Variable(tf.fill(table.shape, initial))
    expected, sums = start.astype(np.float64), np.full((ROWS, COLUMNS), np.float32(initial), np.float64)
    step = tf.function(lambda rows, gradient: update(table, accumulator, rows, gradient, tf.constant(rate)))
    for number in range(100):
        touched = rng.choice(ROWS - 1, size=rng.integers(1, 6), replace=False)
        gradient = random_values(rng, len(touched), COLUMNS)
        if number % 5 == 0:
            gradient[0] = 0
        # Padding: other rows, without a gradient.
        others = np.setdiff1d(np.arange(ROWS), touched)[:4]
        rows = np.concatenate([touched, others]).astype(np.int32)
        step(tf.constant(rows), tf.constant(np.concatenate([gradient, np.zeros((4, COLUMNS), np.float32)])))
        full = np.zeros((ROWS, COLUMNS))
        full[touched] = gradient
        reference_step(expected, sums, full, np.broadcast_to(rate, full.shape))
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(table.numpy()[-1], start[-1])
    np.testing.assert_allclose(accumulator.numpy(), sums, rtol=1e-4)


def test_padding_alone_changes_nothing_even_without_an_accumulator():
    table = tf.Variable([[1.0, -0.0], [2.0, 3.0]])
    accumulator = tf.Variable(tf.zeros([2, 2]))
    update(table, accumulator, [1, 0], np.zeros((2, 2), np.float32), 0.1)
    assert table.numpy().tobytes() == np.array([[1.0, -0.0], [2.0, 3.0]], np.float32).tobytes()
    assert not accumulator.numpy().any()


def test_one_sum_a_row_is_that_of_the_mean_square():
    table, accumulator = tf.Variable([[1.0, 1.0], [2.0, 2.0]]), tf.Variable([[0.5], [7.0]])
    update(table, accumulator, [0], [[3.0, -4.0]], 0.1)
    assert accumulator.numpy().tolist() == [[13.0], [7.0]]
    expected = [[1 - 0.3 / np.sqrt(13), 1 + 0.4 / np.sqrt(13)], [2, 2]]
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-6)
