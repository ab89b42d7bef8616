"""Tables by rows: repeated rows summed, touched rows trained, all others left alone."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import shampoo_reference as reference
from ctr.optim.gradients import sum_duplicates
from ctr.optim.shampoo.blocks import gram
from ctr.optim.shampoo.optimizer import ShampooCore
from ctr.optim.shampoo.options import ShampooOptions

ROWS, WIDTH = 12, 3
INITIAL = 1e-6
"""Of AdaGrad's sums, the default."""
RATE = 0.125


OPTIONS = reference.options()


def slices(values, rows, dtype=tf.float64):
    return tf.IndexedSlices(tf.constant(values, dtype), tf.constant(rows), tf.constant([ROWS, WIDTH]))


def scattered(values, rows):
    dense = np.zeros((ROWS, WIDTH))
    np.add.at(dense, rows, values)
    return dense


def batches(steps, seed=0):
    """Rows with repetitions, row 0 among them now and then, and values of drifting, correlated columns."""
    rng = np.random.default_rng(seed)
    for t in range(steps):
        rows = rng.integers(t % 2, ROWS - 3, size=7)
        mix = np.array([[1, 0.5 * np.sin(t / 5), 0], [0, 0.3, 0.3], [0, 0, 0.05]])
        yield rng.normal(size=(7, WIDTH)) @ mix, rows


@tf.function(jit_compile=True, reduce_retracing=True)
def summed_by_xla(values, rows):
    result = sum_duplicates(tf.IndexedSlices(values, rows))
    return result.values, result.indices


@settings(max_examples=25)
@given(st.lists(st.integers(0, ROWS - 1), min_size=6, max_size=6), st.integers(0, 2**31))
def test_repeated_rows_are_summed_as_a_dense_scatter_sums_them(rows, seed):
    values = np.random.default_rng(seed).normal(size=(6, WIDTH))
    eager = sum_duplicates(slices(values, rows))
    assert len(set(eager.indices.numpy())) == len(eager.indices) == len(set(rows))
    np.testing.assert_allclose(scattered(eager.values, eager.indices), scattered(values, rows), rtol=1e-12)
    padded_values, padded_rows = summed_by_xla(tf.constant(values), tf.constant(rows))
    assert padded_values.shape == values.shape
    np.testing.assert_allclose(scattered(padded_values, padded_rows), scattered(values, rows), rtol=1e-12)
    # Each row once, then row 0 with nothing: a repetition does no harm only with a gradient of zero.
    distinct = len(set(rows))
    assert sorted(set(rows)) == padded_rows.numpy()[:distinct].tolist()
    assert not padded_rows.numpy()[distinct:].any() and not padded_values.numpy()[distinct:].any()
    # The product of the summed rows with themselves is that of the whole table.
    dense = scattered(values, rows)
    for summed in (eager.values, padded_values):
        np.testing.assert_allclose(gram(summed[tf.newaxis], 1)[0], dense.T @ dense, rtol=1e-10, atol=1e-12)


def table_replay(mode, options, start, steps):
    """NumPy: the table after each step; with one-sided roots exchanged as everywhere else."""
    table, total, root, sent = start.copy(), np.zeros((WIDTH, WIDTH)), None, None
    columns = 1 if mode == "adagrad_row" else WIDTH
    sums = np.full((ROWS, columns), INITIAL)
    trajectory = []
    for t, (values, rows) in enumerate(steps, 1):
        dense = scattered(values, rows)
        squares = dense**2
        sums += squares.mean(axis=1, keepdims=True) if mode == "adagrad_row" else squares
        total = options.beta2 * total + (1 - options.beta2 if options.beta2 < 1 else 1) * dense.T @ dense
        first = options.start_preconditioning_step
        if mode == "one_sided" and t >= first and (t - first) % options.precondition_frequency == 0:
            correction = 1 - options.beta2**t if options.beta2 < 1 else 1
            if sent is not None:
                root = reference.inverse_root(sent, 1 / 2, options.epsilon)
            sent = total / correction
            if t == first:
                root, sent = reference.inverse_root(sent, 1 / 2, options.epsilon), None
        step = dense / np.sqrt(sums)
        if root is not None:
            shampoo = dense @ root
            step = shampoo * np.linalg.norm(step) / np.linalg.norm(shampoo)
        table = table - RATE * step
        trajectory.append(table)
    return trajectory


@pytest.mark.parametrize(("mode", "beta2"), [("adagrad", 1.0), ("adagrad_row", 1.0), ("one_sided", 0.9)])
def test_tables_learn_as_in_numpy_and_take_no_momentum_no_average_no_decay(mode, beta2):
    averages = {"beta2": beta2, "momentum": 0.9, "beta1": 0.5, "weight_decay": 0.1}
    options = OPTIONS.changed({"rows": mode, **averages})
    start = np.random.default_rng(1).normal(size=(ROWS, WIDTH))
    core = reference.make_core(options, [start], tables=[0])
    steps = list(batches(30))
    trajectory = reference.train(core, [[slices(*batch)] for batch in steps], RATE)
    expected = [[table] for table in table_replay(mode, options, start, steps)]
    assert reference.gap(trajectory, expected, [start]) < 1e-9
    # Rows that no batch has touched keep every bit.
    np.testing.assert_array_equal(trajectory[-1][0][-3:], start[-3:])
    initial = np.full((3, core.variables["tensor0/accumulator"].shape[1]), INITIAL)
    np.testing.assert_array_equal(core.variables["tensor0/accumulator"].numpy()[-3:], initial)
    assert core.report()["layers_ready"] == (mode == "one_sided")


def test_rows_of_a_weight_that_is_no_table_are_made_dense():
    options = OPTIONS.changed({"momentum": 0.5, "weight_decay": 0.1})
    start, steps = np.ones((ROWS, WIDTH)), list(batches(12))
    by_rows, dense = (reference.make_core(options, [start]) for _ in range(2))
    one = reference.train(by_rows, [[slices(*batch)] for batch in steps], RATE)
    other = reference.train(dense, [[scattered(*batch)] for batch in steps], RATE)
    assert reference.gap(other, one, [start]) < 1e-12
    assert by_rows.report()["layers_ready"] == 1


@pytest.mark.parametrize(
    ("dtype", "value", "is_table"), [(tf.float16, 100.0, True), (tf.bfloat16, 1.0, False)]
)
def test_repeated_rows_of_a_small_dtype_are_summed_in_float32(dtype, value, is_table):
    weight = tf.Variable(tf.zeros([4, 2], dtype))
    core = ShampooCore(ShampooOptions(start_preconditioning_step=None), [weight], [0] if is_table else [])
    values = tf.fill([4096, 2], tf.constant(value, dtype))
    gradient = tf.IndexedSlices(values, tf.zeros([4096], tf.int32), tf.constant([4, 2]))
    assert bool(core.update_if_finite([gradient], RATE))
    np.testing.assert_allclose(core.variables["tensor0/accumulator"][0], (4096 * value) ** 2, rtol=1e-6)
    np.testing.assert_allclose(tf.cast(weight, tf.float32), [[-RATE] * 2, *[[0.0] * 2] * 3], rtol=1e-3)


def test_rows_whose_sum_is_not_finite_change_nothing():
    weight = tf.Variable(tf.ones([4, 2]))
    core = ShampooCore(ShampooOptions(), [weight], [0])
    repeated = tf.IndexedSlices(tf.fill([100, 2], 1e18), tf.zeros([100], tf.int32), tf.constant([4, 2]))
    assert not bool(core.update_if_finite([repeated], RATE))
    assert core.report()["nonfinite_steps"] == 1
    assert (weight.numpy() == 1).all() and core.variables["tensor0/accumulator"].numpy().max() < 1


def test_a_table_that_is_no_matrix_is_refused():
    with pytest.raises(ValueError, match=r"tensor 0 of shape \[4\] .* allowed: matrices"):
        reference.make_core(OPTIONS, [np.zeros(4)], tables=[0])
