"""Relations that Shampoo keeps to whatever the data, and what a step does that cannot be one."""

import numpy as np
import pytest
import tensorflow as tf

import shampoo_reference as reference
from ctr.optim.shampoo.optimizer import ShampooCore
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.schedule import shampoo_share
from ctr.optim.shampoo.triangles import pack, unpack_arrays

RATE = 0.125


def at_once(**changed):
    """Every step has the roots of its own statistics, PSO 2 without any delay."""
    options = {"start_preconditioning_step": 1, "precondition_frequency": 1, "roots": {"asynchronous": False}}
    return reference.options(**options).changed({"grafting": "sgd", "block_size": 8}).changed(changed)


# The share and size of the graft.


@pytest.mark.parametrize(
    ("start", "shares"), [(None, {1: 0, 10**9: 0}), (0, {1: 1}), (25, {1: 0, 24: 0, 25: 1, 26: 1})]
)
def test_shampoos_share_by_step(start, shares):
    options = reference.options(start_preconditioning_step=start)
    found = {step: float(shampoo_share(options, tf.constant(step, tf.int64), tf.float32)) for step in shares}
    assert found == shares


@pytest.mark.parametrize("norm", ["tensor", "block"])
def test_nothing_and_a_block_of_nothing_have_no_norm_to_normalize_by(norm):
    shapes = [(7, 5), (3,)]
    grafting = {"norm": norm, "initial_accumulator": 0.01}
    options = reference.options(grafting=grafting, start_preconditioning_step=2)
    start, history = reference.initial(shapes), reference.drifting(shapes, 5)
    history[0] = [np.zeros(shape) for shape in shapes]
    history[3][0][:4, :3] = 0.0
    expected = reference.replay(options, start, history, 0.1)[0]
    found = reference.train(reference.make_core(options, start), history, 0.1)
    assert reference.gap(found, expected, start) < 1e-9


@pytest.mark.parametrize("grafting", ["adagrad", "adam"])
def test_steps_before_the_first_one_are_those_of_the_graft_to_the_bit(grafting):
    """Which Shampoo's own steps go on from, and nothing else has moved."""
    shapes = [(7, 5), (3,), (4, 4)]
    start, history = reference.initial(shapes), reference.drifting(shapes, 9)
    averages = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}
    options = reference.options(grafting=grafting, start_preconditioning_step=3, **averages)
    late = reference.make_core(options, start, tf.float32, starts_late=True)
    alone = reference.make_core(options.graft_alone(), start, tf.float32)
    for gradients in history[:5]:
        tensors = [tf.constant(gradient, tf.float32) for gradient in gradients]
        late.graft(tensors, RATE)
        alone.update(tensors, RATE)
        for weight, other in zip(late.weights, alone.weights, strict=True):
            np.testing.assert_array_equal(weight, other)
    untouched = reference.make_core(options, start, tf.float32, starts_late=True)
    for name, variable in late.variables.items():
        if "accumulator" not in name and name != "grafted_steps":
            np.testing.assert_array_equal(variable, untouched.variables[name], err_msg=name)
    # Its first step has the graft's size and AdaGrad's sums, or Adam's count, of all before.
    before = [weight.numpy() for weight in late.weights]
    for core in (late, alone):
        core.update([tf.constant(gradient, tf.float32) for gradient in history[5]], RATE)
    mu = options.momentum
    for own, plain, old in zip(late.weights, alone.weights, before, strict=True):
        expected = (1 - mu) * (1 + mu) * (plain.numpy() - old)
        np.testing.assert_allclose(own.numpy() - old, expected, rtol=1e-4, atol=1e-7)


# Closed forms.


def test_gradients_with_fixed_singular_vectors_have_powers_of_their_singular_values():
    # G_t = c_t U diag(s) V^T: both sides' roots are (sum c^2)^(-1/4) s^(-1/2), so what remains of s is s^0.
    rng = np.random.default_rng(0)
    left = np.linalg.qr(rng.normal(size=(5, 5)))[0][:, :3]
    right = np.linalg.qr(rng.normal(size=(4, 4)))[0][:, :3]
    values, scales = np.array([3.0, 1.0, 0.1]), [1.0, -2.0, 0.5, 3.0]
    for changed, power in (({}, 0.0), ({"exponent_override": 8}, 0.5)):
        core = reference.make_core(at_once(epsilon=1e-12, **changed), [np.zeros((5, 4))])
        expected = np.zeros((5, 4))
        for scale in scales:
            gradient = scale * (left * values) @ right.T
            core.update([tf.constant(gradient)], RATE)
            direction = np.sign(scale) * (left * values**power) @ right.T
            expected -= RATE * direction * np.linalg.norm(gradient) / np.linalg.norm(direction)
            np.testing.assert_allclose(core.weights[0], expected, rtol=1e-6, atol=1e-8)


# Sums, faults and starts.


def test_sums_still_grow_by_one_after_three_times_two_to_the_24_increments():
    many = 3 * 2**24
    assert np.float32(many) + np.float32(1) == np.float32(many)
    options = reference.options(start_preconditioning_step=1, precondition_frequency=1)
    core = reference.make_core(options, [np.zeros((2, 2))], tf.float32)
    for total in core.statistics.totals:
        total.assign(pack(tf.eye(2, batch_shape=[1], dtype=tf.float64) * many))
    for n in range(1, 4):
        # Of norm 1 in each row and each column: both sides grow by I.
        core.update([tf.constant([[0.6, -0.8], [0.8, 0.6]])], 0.0)
        for total in core.statistics.totals:
            assert total.dtype == tf.float64
            whole = unpack_arrays(total.numpy(), 2)[0]
            np.testing.assert_allclose(np.diag(whole), [many + n] * 2, rtol=0, atol=1e-6)


def test_a_gradient_that_is_not_finite_changes_nothing_but_its_counter():
    options = reference.options(momentum=0.5, beta1=0.5)
    core = reference.make_core(options, [np.ones((4, 3)), np.ones(2)], tf.float32)
    step = core.update_if_finite
    history = reference.drifting([(4, 3), (2,)], 4)
    for gradients in history:
        assert step([tf.constant(g, tf.float32) for g in gradients], tf.constant(RATE))
    before = reference.state_of(core)
    # 1e30 is finite, but its square in float32 is not.
    for count, bad in enumerate((np.nan, np.inf, -np.inf, 1e30), 1):
        gradients = [tf.constant(history[0][0], tf.float32), tf.constant([1.0, bad], tf.float32)]
        assert not step(gradients, tf.constant(RATE))
        assert core.report()["nonfinite_steps"] == count
        after = reference.state_of(core)
        after[0]["counters"] = before[0]["counters"]
        reference.assert_same_bits(before, after)
    assert step([tf.constant(g, tf.float32) for g in history[1]], tf.constant(RATE))
    assert int(core.step) == 5


def test_a_layer_without_gradients_stays_on_its_graft_until_all_its_blocks_have_real_roots():
    # A layer of [8, 3] in two blocks: switched off, then its upper half only, then all of it.
    on = reference.drifting([(8, 3), (4, 3)], 30, condition=10)
    for t in range(14):
        on[t][0][:] = 0
    for t in range(14, 21):
        on[t][0][4:] = 0
    start = [np.ones((8, 3)), np.ones((4, 3))]
    core = reference.make_core(reference.options(), start)
    plain = reference.make_core(reference.options(start_preconditioning_step=None), start)
    ready = []
    for gradients in on:
        old = core.weights[0].numpy(), plain.weights[0].numpy()
        reference.train(core, [gradients], RATE)
        reference.train(plain, [gradients], RATE)
        steps = [core.weights[0].numpy() - old[0], plain.weights[0].numpy() - old[1]]
        ready.append(core.report()["layers_ready"])
        same = np.allclose(steps[0], steps[1], rtol=1e-9, atol=1e-12)
        assert same == (ready[-1] < 2)
        assert np.linalg.norm(steps[0]) == pytest.approx(np.linalg.norm(steps[1]), rel=1e-6)
    # Exchanges at 3, 8, ... The upper half's gradients begin at 15, are sent at 18 and in at 23; those of the
    # lower half begin at 22, are sent at 23 and in at 28.
    assert ready == [0] * 2 + [1] * 25 + [2] * 3
    assert core.report()["failed"] == core.report()["lost"] == 0
    # A direction of zero has no norm: the graft is taken, which is zero, too.
    before = core.weights[0].numpy()
    reference.train(core, [[np.zeros((8, 3)), None]], RATE)
    np.testing.assert_array_equal(core.weights[0].numpy(), before)


# Roots A^(-1/2) on four sides: the direction grows with the inverse cube of the gradient.
STEEP = ShampooOptions(exponent_override=2, grafting={"initial_accumulator": 0}, roots={"early_growth": 0})


def test_directions_whose_squares_leave_float32_still_have_the_grafts_norm():
    rng, weight = np.random.default_rng(0), tf.Variable(tf.zeros([3, 3, 8, 8]))
    core = ShampooCore(STEEP.changed({"roots": {"early_growth": 0.25}}), [weight])
    for _ in range(4):
        before = weight.numpy()
        core.update([tf.constant((1e-9 * rng.normal(size=weight.shape)).astype(np.float32))], 0.5)
    assert np.isfinite(weight.numpy()).all()
    step = (weight.numpy() - before).ravel().astype(np.float64)
    # AdaGrad's steps have elements of some rate / sqrt(steps).
    assert 0.1 < np.linalg.norm(step) / np.sqrt(step.size) < 0.5
    assert core.report()["layers_ready"] == 1


def test_a_direction_beyond_float32_gives_way_to_the_graft_and_is_counted():
    rng, weight = np.random.default_rng(1), tf.Variable(tf.zeros([3, 3, 8, 8]))
    core = ShampooCore(STEEP, [weight])
    core.update([tf.constant((1e-16 * rng.normal(size=weight.shape)).astype(np.float32))], 0.5)
    before = weight.numpy()
    gradient = rng.normal(size=weight.shape).astype(np.float32)
    core.update([tf.constant(gradient)], 0.5)
    np.testing.assert_allclose(weight.numpy() - before, -0.5 * np.sign(gradient), rtol=1e-3)
    # In the first step too: roots of some 1e15 on each side.
    assert core.report()["overflowed"] == 2
