"""Newton's steps for linear weights: against ridge regression, and what may and may not move."""

import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ctr.optim.protocol import RowGradient
from ctr.optim.rows import newton as row_newton
from ctr.optim.rows.newton import Posterior, RowNewton, feature_gradient, newton_step, prior_slope
from ctr.optim.rows.rule import RowSetup

ROW_STATE = ("rows_accumulator/t", "rows_prior/t", "rows_variance_slope/t", "rows_weight_slope/t")


def posterior(weight, information, prior, variance_slope=0.0, weight_slope=0.0):
    columns = (weight, information, prior, variance_slope, weight_slope)
    return Posterior(*(tf.broadcast_to(tf.constant(one, tf.float32), np.shape(weight)) for one in columns))


def constants(*values):
    return [tf.constant(value, tf.float32) for value in values]


def test_the_gradient_by_the_prior_is_that_of_the_shrunk_weights():
    """Against differences: w(T) = Z / (T + S) in a loss of gradient G."""
    weight, information, prior = np.array([0.5, -2.0, 1.0]), np.array([1.0, 4.0, 0.5]), 2.0
    gradient, groups = np.array([0.3, -0.7, 0.2]), [0, 0, 1]
    slope = prior_slope(
        posterior(weight, information, np.full(3, prior)), tf.constant(np.full(3, prior), tf.float32)
    )
    found = feature_gradient(slope, tf.constant(groups), 2, *constants(gradient, [1.0, 1.0, 0.0]))
    sums = weight * (prior + information)
    step = 1e-6

    def loss(log_prior, rows):
        return sum(gradient[row] * sums[row] / (np.exp(log_prior) + information[row]) for row in rows)

    for group, rows in ((0, [0, 1]), (1, [2])):
        at = np.log(prior)
        slope = (loss(at + step, rows) - loss(at - step, rows)) / (2 * step)
        np.testing.assert_allclose(found.gradient[group], slope, rtol=1e-4)
    assert found.curvature[0] > 0 and found.curvature[1] == 0


@given(
    weight=st.floats(-5, 5),
    information=st.floats(0, 1e6),
    prior=st.floats(0.05, 1e4),
    precision=st.floats(0.05, 1e4),
    gradient=st.floats(-1e4, 1e4),
    curvature=st.floats(1e-6, 1e4),
    forgetting=st.floats(1e-4, 1),
)
def test_steps_are_bounded(weight, information, prior, precision, gradient, curvature, forgetting):
    before = posterior([weight], [information], [prior], 0.1, 0.3)
    after = newton_step(before, *constants([precision], [forgetting], [gradient], [curvature]))
    assert all(np.isfinite(part).all() for part in after) and after.information[0] >= 0
    shrunk = abs(weight) * (prior + information) / (precision + information)
    limit = max(abs(weight), shrunk) + abs(gradient) / (precision + curvature)
    assert abs(after.weight[0]) <= limit * (1 + 1e-4) + 1e-5


def kalman(targets, curvature, prior, forgetting):
    """The weight after a sequence of quadratic losses h (w - y)^2 / 2, in float64, with a drift of its variance."""
    weight, variance = 0.0, 1 / prior
    for h, y in zip(curvature, targets, strict=True):
        drift = forgetting / prior * h / (1 / variance - prior + h)
        variance = min(variance + drift, 1 / prior)
        variance = 1 / (1 / variance + h)
        weight -= variance * h * (weight - y)
    return weight, variance


def test_slopes_by_forgetting_are_those_of_differences(monkeypatch):
    """The derivatives that are kept, against the filter of another forgetting from the beginning on."""
    monkeypatch.setattr(row_newton, "OVERDISPERSION", 0.0)
    rng = np.random.default_rng(5)
    curvature, targets, prior = rng.uniform(0.05, 0.5, 60), rng.normal(size=60), 2.0
    forgetting = 0.2
    now = posterior([0.0], [0.0], [prior])
    for h, y in zip(curvature, targets, strict=True):
        gradient = h * (now.weight.numpy() - y)
        now = newton_step(now, *constants([prior], [forgetting], gradient, [h]))
    low, high = (kalman(targets, curvature, prior, forgetting * np.exp(d)) for d in (-1e-4, 1e-4))
    weight, _ = kalman(targets, curvature, prior, forgetting)
    np.testing.assert_allclose(now.weight, [weight], rtol=1e-4)
    np.testing.assert_allclose(now.weight_slope, [(high[0] - low[0]) / 2e-4], rtol=1e-2, atol=1e-5)
    np.testing.assert_allclose(now.variance_slope, [(high[1] - low[1]) / 2e-4], rtol=1e-2, atol=1e-5)


def optimizer(table, features=2, copies=1):
    columns = table.shape[1]
    rates = np.full(columns, 0.1, np.float32)
    rates[columns // copies - 1 :: columns // copies] = 1
    starts = np.where(rates == 1, 0, 0.5).astype(np.float32)
    made = RowNewton(RowSetup([rates], [starts], copies), [features], [3.0])
    made.build({"t": table})
    return made


def step(made, rows, gradient, curvature, groups):
    rows = tf.constant(rows)
    before = tf.gather(made.tables["t"], rows), made.read([rows])[0]
    one = RowGradient(rows, *before, *constants(gradient, curvature), tf.constant(groups))
    made.update([one], tf.constant(1.0))


def test_copies_learn_each_by_itself():
    rng = np.random.default_rng(3)
    values, gradient = rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    single, double = tf.Variable(values, dtype=tf.float32), tf.Variable(np.tile(values, 2), dtype=tf.float32)
    one, two = optimizer(single), optimizer(double, copies=2)
    for made, times in ((one, 1), (two, 2)):
        step(made, [0, 1, 2, 3], np.tile(gradient, times), [0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1])
    np.testing.assert_array_equal(double.numpy(), np.tile(single.numpy(), 2))
    for name in ("prior_precision/t", "forgetting/t", *ROW_STATE):
        expected = np.tile(one.variables[name].numpy(), 2)
        np.testing.assert_array_equal(two.variables[name].numpy(), expected, err_msg=name)


def test_rows_that_begin_anew_are_as_fresh_ones():
    size = 9
    table = tf.Variable(np.ones((5, 4), np.float32), shape=[None, 4])
    made = optimizer(table)
    fresh = {name: variable.numpy() for name, variable in made.variables.items()}
    step(made, [1, 3], np.ones((2, 4)), [0.5, 0.5], [0, 1])
    made.grow(0, size)
    made.reset_rows(0, np.array([1, 3], np.int32))
    for name in ROW_STATE:
        found = made.variables[name].numpy()
        assert len(found) == size
        np.testing.assert_array_equal(found[:5], fresh[name])
