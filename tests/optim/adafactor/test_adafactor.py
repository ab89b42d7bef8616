"""Adafactor beside a NumPy replay of its printed algorithms, for dense weights and for rows of tables."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.optim.adafactor.core import AdafactorCore
from ctr.optim.adafactor.options import AdafactorOptions

SHAPES = [(6, 4), (5,), (2, 3, 4), (), (7, 1)]
RATE = 0.05
CASES = {
    "algorithm 6": {},
    "vectors alone, absolute steps, no clipping": {"factored": False, "clipping": 0.0}
    | {"relative_steps": False, "inverse_sqrt": False},
    "another decay, early clipping": {"decay_power": 0.5, "clipping": 0.2, "epsilon1": 1e-3, "epsilon2": 0.5},
    "means over all steps": {"decay_power": 1.0},
    "constant decay, averages": {"beta2": 0.9, "decay_power": 0.3, "beta1": 0.9},
}


def decay(options, t):
    """Of section 7.2, or Adam's with the correction of its bias as section 7.1 writes it."""
    if options.beta2 is None:
        return 1 - t**-options.decay_power
    return options.beta2 * (1 - options.beta2 ** (t - 1)) / (1 - options.beta2**t)


def rms(values):
    return np.sqrt(np.mean(np.square(values)))


class Replay:
    """Algorithms 4 and 5 for one tensor, line by line."""

    def __init__(self, options, weight):
        self.options, self.weight, self.t = options, np.array(weight, np.float64), 0
        self.rows = self.columns = self.moment = self.average = 0.0

    def step(self, gradient, rate):
        options = self.options
        self.t += 1
        beta = decay(options, self.t)
        rho = min(rate, 1 / np.sqrt(self.t)) if options.inverse_sqrt else rate
        alpha = rho * max(options.epsilon2, rms(self.weight)) if options.relative_steps else rho
        squared = gradient**2 + options.epsilon1
        if options.factored and gradient.ndim >= 2:
            self.rows = beta * self.rows + (1 - beta) * squared.sum(axis=-1)
            self.columns = beta * self.columns + (1 - beta) * squared.sum(axis=-2)
            outer = self.rows[..., :, None] * self.columns[..., None, :]
            moment = outer / self.rows.sum(axis=-1)[..., None, None]
        else:
            self.moment = moment = beta * self.moment + (1 - beta) * squared
        update = gradient / np.sqrt(moment)
        if options.clipping:
            update = update / max(1.0, rms(update) / options.clipping)
        if options.beta1:
            self.average = update = options.beta1 * self.average + (1 - options.beta1) * update
        self.weight = self.weight - alpha * update


def gradients(steps, seed=0):
    rng = np.random.default_rng(seed)
    return [
        [np.asarray(rng.normal(size=s) * 10.0 ** rng.uniform(-2, 1)) for s in SHAPES] for _ in range(steps)
    ]


def weights(seed=1):
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.normal(size=shape)) for shape in SHAPES]


def make(options):
    return AdafactorCore(options, list(map(tf.Variable, weights())))


@pytest.mark.parametrize(
    ("case", "jit"),
    [*((case, False) for case in CASES), pytest.param("algorithm 6", True, marks=pytest.mark.slow)],
)
def test_every_step_is_that_of_the_algorithms(case, jit):
    options = AdafactorOptions(**CASES[case])
    core, replays = make(options), [Replay(options, weight) for weight in weights()]
    update = tf.function(core.update, jit_compile=True) if jit else core.update
    for found in gradients(15):
        update([tf.constant(g) for g in found], tf.constant(RATE, tf.float64))
        for weight, replay, gradient in zip(core.weights, replays, found, strict=True):
            replay.step(gradient, RATE)
            np.testing.assert_allclose(weight.numpy(), replay.weight, rtol=1e-10, atol=1e-10)


def test_a_step_that_is_not_finite_changes_nothing():
    core = make(AdafactorOptions())
    found = [tf.constant(g) for g in gradients(1)[0]]
    core.update_if_finite(found, RATE)
    kept = {name: variable.numpy() for name, variable in core.variables.items()}
    core.update_if_finite([found[0] * np.nan, *found[1:]], RATE)
    assert core.report() == {"nonfinite_steps": 1}
    for name, variable in core.variables.items():
        assert name == "nonfinite_steps" or variable.numpy().tobytes() == kept[name].tobytes()


def test_state_is_smaller_than_the_weights_and_bfloat16_works():
    core = AdafactorCore(AdafactorOptions(), [tf.Variable(tf.ones([64, 32], tf.bfloat16))])
    assert sum(v.numpy().size for v in core.state[0].values()) == 96
    core.update([tf.ones([64, 32], tf.bfloat16)], 0.01)
    assert core.dtype == tf.float32
    assert float(core.weights[0][0, 0]) == pytest.approx(0.99, rel=2**-7)
    assert "Adafactor by rows and columns, 384 bytes" in core.describe(["kernel"])


def replay_rows(options, table, history, rate):
    """The module's own words: means over touched steps by row, over touched rows by column."""
    table = np.array(table)
    rows, touched = np.zeros(len(table)), np.zeros(len(table))
    columns, steps = np.zeros(table.shape[1]), 0
    for ids, gradient in history:
        if not len(ids):
            continue
        steps += 1
        beta = decay(options, steps)
        columns = beta * columns + (1 - beta) * np.mean(gradient**2 + options.epsilon1, axis=0)
        for i, g in zip(ids, gradient, strict=True):
            touched[i] += 1
            beta = decay(options, touched[i])
            rows[i] = beta * rows[i] + (1 - beta) * np.mean(g**2 + options.epsilon1)
        update = gradient / np.sqrt(rows[ids][:, None] * columns[None] / columns.mean())
        update = update / max(1.0, rms(update) / options.clipping)
        table[ids] -= min(rate, 1 / np.sqrt(steps)) * max(options.epsilon2, rms(table[ids])) * update
    return table


def row_history(rows, width, steps=30, seed=2):
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(steps):
        ids = rng.permutation(rows)[: rng.integers(0, 5)]
        found.append((ids, rng.normal(size=(len(ids), width))))
    return found


@pytest.mark.parametrize(
    ("jit", "changed"),
    [(False, {}), (False, {"beta2": 0.9}), pytest.param(True, {"decay_power": 1.0}, marks=pytest.mark.slow)],
)
def test_only_touched_rows_move_by_the_averages_of_rows_and_columns(jit, changed):
    options, start = AdafactorOptions(epsilon1=1e-4, **changed), np.random.default_rng(5).normal(size=(9, 4))
    core = AdafactorCore(options, [tf.Variable(start)], tables=[0])
    update = tf.function(core.update, jit_compile=True) if jit else core.update
    history = row_history(9, 4)
    for ids, gradient in history:
        # Of repeated rows the gradients are summed, and a row without a gradient is not touched.
        repeated = np.concatenate([gradient / 2, gradient / 2, np.zeros((1, 4))])
        indices = np.concatenate([ids, ids, [8]])
        slices = tf.IndexedSlices(tf.constant(repeated), tf.constant(indices), tf.constant([9, 4]))
        update([slices], tf.constant(RATE, tf.float64))
    expected = replay_rows(options, start, history, RATE)
    np.testing.assert_allclose(core.weights[0].numpy(), expected, rtol=1e-9, atol=1e-12)


def test_options_and_gradients_that_are_refused():
    for given, message in (
        ({"decay_power": 1.1}, "decay_power is 1.1; allowed: less than or equal to 1"),
        ({"factored": 1}, "factored is 1; allowed: a valid boolean"),
        ({"beta2": 1.0}, "beta2 is 1.0; allowed: less than 1"),
    ):
        with pytest.raises(ValueError, match=message):
            AdafactorOptions(**given)
    weight = tf.Variable(tf.ones([3, 4]))
    core = AdafactorCore(AdafactorOptions(), [weight])
    for shape in ([1, 4], [4, 3]):
        message = r"gradient 0 is of shape .*; allowed: that of its weight, \(3, 4\)"
        with pytest.raises(ValueError, match=message):
            core.update([tf.ones(shape)], 0.1)
    assert (weight.numpy() == 1).all()
