"""The update limit against its definition, in steps of Shampoo and of rows."""

import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import shampoo_reference as reference
from ctr.optim.protocol import RowGradient
from ctr.optim.rows.adagrad import RowAdaGrad
from ctr.optim.rows.rule import RowSetup
from ctr.optim.update_limit import limit_update

SHAPES = [(7, 5), (4,)]
RATE = 0.25
OPTIONS = reference.options()


def factor_by_hand(weight, update, relative, absolute):
    """In float64, element by element."""
    factor = 1.0
    for w, u in zip(np.ravel(weight), np.ravel(update), strict=True):
        if u != 0:
            factor = min(factor, (relative * abs(w) + absolute) / abs(u))
    return factor


# The definition.

numbers = st.one_of(st.just(0.0), st.floats(1e-9, 1e6), st.floats(-1e6, -1e-9))


@given(
    st.lists(st.tuples(numbers, numbers), max_size=6),
    st.one_of(st.just(0.0), st.floats(1e-9, 10)),
    st.floats(1e-9, 10),
)
def test_it_is_the_largest_multiple_within_the_limit(pairs, relative, absolute):
    weight, update = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    found = limit_update(tf.constant(weight), tf.constant(update), relative, absolute).numpy()
    factor = factor_by_hand(weight, update, relative, absolute)
    np.testing.assert_allclose(found, update * factor, rtol=1e-12, atol=0)
    assert (np.abs(found) <= (relative * np.abs(weight) + absolute) * (1 + 1e-12)).all()


def test_a_step_within_its_limit_keeps_every_bit():
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(4, 5)).astype(np.float32)
    for share, relative, absolute in ((0.1, 0.1, 1e-7), (1.0, 1.0, 1e-9)):
        update = (share * weight * rng.choice([1.0, 0.5], weight.shape)).astype(np.float32)
        found = limit_update(tf.constant(weight), tf.constant(update), relative, absolute)
        assert found.numpy().tobytes() == update.tobytes()
    # Elements without an update limit nothing, whatever their weight.
    found = limit_update(tf.constant([0.0, 1.0, 0.0]), tf.constant([0.0, 0.25, -0.0]), 0.5, 0.0)
    assert found.numpy().tolist() == [0, 0.25, 0]


def test_it_is_finite_for_any_input():
    @tf.function(jit_compile=True)
    def limited(weight, update, relative):
        def each(given):
            return limit_update(tf.stack([given[0], 1.0]), tf.stack([given[1], 0.5]), given[2], 1e-7)

        return tf.map_fn(each, (weight, update, relative), fn_output_signature=tf.float32)

    extremes = [np.inf, -np.inf, np.nan]
    cases = np.meshgrid([0.0, 1.0, 3e38, *extremes], [0.0, 1e-38, -3e38, *extremes], [0.0, 0.1, 1e30])
    weight, update, relative = (tf.constant(one.ravel(), tf.float32) for one in cases)
    found = limited(weight, update, relative).numpy()
    assert np.isfinite(found).all()
    assert not found[~np.isfinite(update.numpy())].any()


# In Shampoo's step.


LIMITS = {"limits": {"relative": 0.125, "absolute": 2**-7}}


def test_each_tensor_takes_the_limited_step_of_an_unlimited_optimizer():
    # Momentum and decay come before the limit, and see nothing of it: the free optimizer is put on the same weights.
    changed = {"momentum": 0.75, "nesterov": True, "weight_decay": 0.1, "grafting": "sgd"}
    start = reference.initial(SHAPES)
    bound = reference.make_core(OPTIONS.changed(LIMITS | changed), start)
    free = reference.make_core(OPTIONS.changed(changed), start)
    factors = []
    for gradients in reference.drifting(SHAPES, 12):
        before = [weight.numpy() for weight in bound.weights]
        for weight, value in zip(free.weights, before, strict=True):
            weight.assign(value)
        tensors = [tf.constant(g) for g in gradients]
        bound.update(tensors, RATE)
        free.update(tensors, RATE)
        factors.append([])
        for old, new, unlimited in zip(before, bound.weights, free.weights, strict=True):
            step = old - unlimited.numpy()
            factors[-1].append(factor_by_hand(old, step, 0.125, 2**-7))
            np.testing.assert_allclose(old - new.numpy(), factors[-1][-1] * step, rtol=1e-9, atol=1e-15)
    # Each tensor has a factor of its own, and the limit holds back some steps, not all.
    factors = np.array(factors)
    assert (factors[:, 0] != factors[:, 1]).any()
    assert factors.min() < 0.5 and factors.max() == 1


def test_tables_are_not_limited():
    start = [np.ones((3, 2))]
    rows = tf.IndexedSlices(tf.constant([[3.0, 4.0]], tf.float64), tf.constant([1]))
    found = []
    for options in (OPTIONS.changed({"limits": {"absolute": 1e-6}}), OPTIONS):
        core = reference.make_core(options, start, tables=[0])
        core.update([rows], RATE)
        found.append(core.weights[0].numpy())
    np.testing.assert_array_equal(*found)
    assert (found[0][1] != 1).all()


# Rows.


def test_touched_rows_have_one_factor_and_padding_counts_for_nothing():
    rng = np.random.default_rng(3)
    start = rng.normal(size=(12, 3)).astype(np.float32)
    start[0] = 0.0  # the row that pads
    table, accumulator = tf.Variable(start), tf.Variable(tf.fill([12, 3], 0.1))
    expected, sums = start.astype(np.float64), np.full((12, 3), np.float32(0.1), np.float64)
    rate = np.array([0.3, 0.5, 0.05])

    @tf.function
    def step(rows, gradient):
        rates = tf.constant(rate, tf.float32)
        given = RowGradient(rows, tf.gather(table, rows), (tf.gather(accumulator, rows),), gradient)
        values, (added,) = RowAdaGrad(RowSetup([rates], limit=(0.125, 1e-3))).step(0, given, rates)
        table.scatter_update(tf.IndexedSlices(values, rows))
        accumulator.scatter_update(tf.IndexedSlices(added, rows))

    factors = []
    for number in range(40):
        touched = 1 + rng.choice(11, size=rng.integers(1, 5), replace=False)
        gradient = (rng.normal(size=(len(touched), 3)) * 10.0 ** rng.integers(-4, 2)).astype(np.float32)
        rows = np.concatenate([touched, [0]]).astype(np.int32)
        step(tf.constant(rows), tf.constant(np.concatenate([gradient, np.zeros((1, 3), np.float32)])))
        sums[touched] += gradient.astype(np.float64) ** 2
        wanted = rate * gradient / np.sqrt(sums[touched])
        factors.append(factor_by_hand(expected[touched], wanted, 0.125, 1e-3))
        expected[touched] -= factors[-1] * wanted
        np.testing.assert_allclose(table, expected, rtol=1e-4, atol=1e-5, err_msg=str(number))
    assert min(factors) < 0.1 and max(factors) == 1
    assert not table.numpy()[0].any()
