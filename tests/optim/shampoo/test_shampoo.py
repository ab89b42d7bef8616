"""Relations that Shampoo keeps to whatever the data: to its graft, its blocks, its sums, rotations, closed forms."""

import numpy as np
import pytest
import tensorflow as tf

import shampoo_reference as reference
from ctr.optim.shampoo.optimizer import ShampooCore
from shampoo_options import options as flat_options

RATE = 0.125
SHAPES = [(7, 5), (4,), (3, 2, 4)]


def first_directions(options, gradients, dtype=tf.float64, **rest):
    """The direction of each weight at the start step, from zero with rate 1."""
    core = reference.make_core(options, [np.zeros(g.shape) for g in gradients], dtype, **rest)
    core.update([tf.constant(g, dtype) for g in gradients], 1.0)
    return [-weight.numpy() for weight in core.weights]


def at_once(**changed):
    """Every step has the roots of its own statistics, PSO 2 without any delay."""
    return reference.options(
        start_preconditioning_step=1, precondition_frequency=1, asynchronous=False, **changed
    )


# The grafted optimizer.


@pytest.mark.slow
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.75, False), (0.75, True)])
@pytest.mark.parametrize("start", [None, 41])
def test_before_its_start_it_is_the_grafted_optimizer_to_the_last_bit(start, momentum, nesterov):
    history = reference.drifting(SHAPES, 40)
    options = reference.options(start_preconditioning_step=start, momentum=momentum, nesterov=nesterov)
    weights = reference.initial(SHAPES)
    core = reference.make_core(options, weights, tf.float32)
    trajectory = reference.train(core, history, RATE)
    plain = [tf.constant(w, tf.float32) for w in weights]
    sums = [tf.fill(w.shape, tf.constant(options.grafting.initial_accumulator)) for w in plain]
    averages = [tf.zeros_like(w) for w in plain]
    mu = momentum
    for gradients, found in zip(history, trajectory, strict=True):
        for i, gradient in enumerate(gradients):
            gradient = tf.constant(gradient, tf.float32)
            sums[i] = sums[i] + tf.square(gradient)
            step = gradient / tf.sqrt(sums[i])
            if mu:
                averages[i] = mu * averages[i] + (1 - mu) * step
                step = mu * averages[i] + (1 - mu) * step if nesterov else averages[i]
            plain[i] = plain[i] - tf.constant(RATE) * step
            assert plain[i].numpy().tobytes() == found[i].tobytes()
    if start is None:
        assert not core.layout.factors


@pytest.mark.parametrize("grafting", ["adagrad", "sgd", "rmsprop", "adam"])
def test_each_layer_takes_the_norm_of_its_graft_and_the_direction_of_shampoo(grafting):
    gradients = reference.drifting(SHAPES, 1)[0]
    changed = {"grafting": grafting, "grafting_beta2": 0.9, "grafting_epsilon": 1e-3}
    grafts = first_directions(reference.options(start_preconditioning_step=None, **changed), gradients)
    found = first_directions(at_once(**changed), gradients)
    np.testing.assert_array_equal(found[1], grafts[1])
    for index, exponent in ((0, 1 / 4), (2, 1 / 6)):
        assert np.linalg.norm(found[index]) == pytest.approx(np.linalg.norm(grafts[index]), rel=1e-12)
        # Where the layer is one block, the direction by itself.
        whole = first_directions(at_once(block_size=256, **changed), gradients)[index]
        expected = gradients[index]
        for axis in range(expected.ndim):
            unfolded = reference.unfolded(gradients[index], axis)
            root = reference.inverse_root(unfolded @ unfolded.T, exponent, 1e-4)
            expected = reference.multiplied(expected, axis, root)
        cosine = np.sum(whole * expected) / np.linalg.norm(whole) / np.linalg.norm(expected)
        assert cosine == pytest.approx(1, abs=1e-12)
        # Not that of the graft.
        cosine = np.sum(whole * grafts[index]) / np.linalg.norm(whole) / np.linalg.norm(grafts[index])
        assert cosine < 0.99


def test_blocks_are_tensors_of_their_own_but_for_one_norm_for_all_of_a_layer():
    history = reference.drifting([(7, 5)], 12, condition=30)
    rows, columns = (slice(0, 4), slice(4, 7)), (slice(0, 3), slice(3, 5))
    parts = [(r, c) for r in rows for c in columns]
    whole = reference.make_core(reference.options(), [np.zeros((7, 5))])
    apart = reference.make_core(reference.options(), [np.zeros((7, 5))[part] for part in parts])
    previous = np.zeros((7, 5))
    for t, (gradient,) in enumerate(history, 1):
        reference.train(whole, [[gradient]], RATE)
        before = [weight.numpy() for weight in apart.weights]
        reference.train(apart, [[gradient[part] for part in parts]], RATE)
        step = whole.weights[0].numpy() - previous
        previous = whole.weights[0].numpy()
        steps = [weight.numpy() - old for weight, old in zip(apart.weights, before, strict=True)]
        ratios = [
            np.linalg.norm(step[part]) / np.linalg.norm(s) for part, s in zip(parts, steps, strict=True)
        ]
        for part, single, ratio in zip(parts, steps, ratios, strict=True):
            np.testing.assert_allclose(step[part], ratio * single, rtol=1e-9, atol=1e-13)
        # The norms of blocks differ from their grafts', that of the layer does not.
        assert (np.ptp(ratios) > 0.1) == (t >= 3)
        assert np.linalg.norm(step) == pytest.approx(
            np.linalg.norm(np.concatenate([s.ravel() for s in steps]))
        )


# Closed forms.


def test_gradients_with_fixed_singular_vectors_have_powers_of_their_singular_values():
    # G_t = c_t U diag(s) V^T: both sides' roots are (sum c^2)^(-1/4) s^(-1/2), so what remains of s is s^0.
    rng = np.random.default_rng(0)
    left = np.linalg.qr(rng.normal(size=(5, 5)))[0][:, :3]
    right = np.linalg.qr(rng.normal(size=(4, 4)))[0][:, :3]
    values, scales = np.array([3.0, 1.0, 0.1]), [1.0, -2.0, 0.5, 3.0]
    for changed, power in (({}, 0.0), ({"exponent_override": 8}, 0.5), ({"exponent_multiplier": 0.5}, 0.5)):
        options = at_once(grafting="sgd", block_size=8, epsilon=1e-12, **changed)
        core = reference.make_core(options, [np.zeros((5, 4))])
        expected = np.zeros((5, 4))
        for scale in scales:
            gradient = scale * (left * values) @ right.T
            core.update([tf.constant(gradient)], RATE)
            direction = np.sign(scale) * (left * values**power) @ right.T
            expected -= RATE * direction * np.linalg.norm(gradient) / np.linalg.norm(direction)
            np.testing.assert_allclose(core.weights[0], expected, rtol=1e-6, atol=1e-8)


def test_diagonal_gradients_are_preconditioned_element_by_element():
    rng = np.random.default_rng(0)
    options = at_once(grafting="sgd", block_size=8, epsilon=1e-9)
    core = reference.make_core(options, [np.zeros((4, 4))])
    sums, expected = np.zeros(4), np.zeros(4)
    for _ in range(6):
        diagonal = rng.normal(size=4) * [10, 1, 0.1, 1]
        core.update([tf.constant(np.diag(diagonal))], RATE)
        sums += diagonal**2
        direction = diagonal / np.sqrt(sums + 1e-9 * sums.max())
        expected -= RATE * direction * np.linalg.norm(diagonal) / np.linalg.norm(direction)
        np.testing.assert_allclose(core.weights[0], np.diag(expected), rtol=1e-9, atol=1e-12)


def test_one_side_alone_takes_the_square_root_by_hand():
    # R = G^T G = diag(16, 1), so G R^(-1/2) = [1 1; 0 0; ...] / the left side is too long.
    options = at_once(grafting="sgd", block_size=4, max_dimension=3, epsilon=1e-13)
    gradient = np.array([[4.0, 0, 0], [0, -1, 0], [0, 0, 0.25], [0, 0, 0], [0, 0, 0]])
    found = first_directions(options, [gradient])[0]
    expected = np.sign(gradient) * np.linalg.norm(gradient) / np.sqrt(3)
    np.testing.assert_allclose(found, expected, atol=1e-9)


# Equivariance.


def test_it_turns_with_the_gradient():
    rng = np.random.default_rng(0)
    history = [h[0] for h in reference.drifting([(5, 4)], 8)]
    left, right = (np.linalg.qr(rng.normal(size=(n, n)))[0] for n in (5, 4))
    options = reference.options(grafting="sgd", block_size=8, momentum=0.5)
    one = reference.train(reference.make_core(options, [np.zeros((5, 4))]), [[g] for g in history], RATE)
    turned = [[left @ g @ right] for g in history]
    other = reference.train(reference.make_core(options, [np.zeros((5, 4))]), turned, RATE)
    expected = [[left @ weights[0] @ right] for weights in one]
    assert reference.gaps(other, expected, [np.zeros((5, 4))]).max() < 1e-9


def test_the_order_of_rows_and_columns_and_the_scale_of_gradients_do_not_matter():
    rng = np.random.default_rng(0)
    history = [h[0] for h in reference.drifting([(5, 4)], 8)]
    rows, columns = rng.permutation(5), rng.permutation(4)
    options = reference.options(block_size=8, initial_accumulator=0.0)
    zero = [np.zeros((5, 4))]
    one = reference.train(reference.make_core(options, zero), [[g] for g in history], RATE)
    mixed = [[1e6 * g[rows][:, columns]] for g in history]
    other = reference.train(reference.make_core(options, zero), mixed, RATE)
    expected = [[weights[0][rows][:, columns]] for weights in one]
    assert reference.gaps(other, expected, zero).max() < 1e-9


def test_transposed_gradients_give_the_transposed_step():
    history = [h[0] for h in reference.drifting([(7, 4)], 8)]
    options = reference.options(block_size=3)
    one = reference.train(reference.make_core(options, [np.zeros((7, 4))]), [[g] for g in history], RATE)
    other = reference.train(reference.make_core(options, [np.zeros((4, 7))]), [[g.T] for g in history], RATE)
    assert reference.gaps(other, [[w[0].T] for w in one], [np.zeros((4, 7))]).max() < 1e-9


# Faults and starts.


@pytest.mark.slow
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gradient_that_is_not_finite_changes_nothing_but_its_counter(bad, compiled):
    # 1e30 is finite, but its square in float32 is not.
    core = reference.make_core(
        reference.options(momentum=0.5, beta1=0.5), [np.ones((4, 3)), np.ones(2)], tf.float32
    )
    step = tf.function(core.update_if_finite) if compiled else core.update_if_finite
    history = reference.drifting([(4, 3), (2,)], 4)
    for gradients in history:
        assert step([tf.constant(g, tf.float32) for g in gradients], tf.constant(RATE))
    before = reference.state_of(core)
    spoiled = np.ones(2)
    spoiled[1] = bad
    gradients = [tf.constant(history[0][0], tf.float32), tf.constant(spoiled, tf.float32)]
    assert not step(gradients, tf.constant(RATE))
    assert core.report()["nonfinite_steps"] == 1
    after = reference.state_of(core)
    after[0]["counters"] = before[0]["counters"]
    reference.assert_same_bits(before, after)
    assert step([tf.constant(g, tf.float32) for g in history[1]], tf.constant(RATE))
    assert int(core.step) == 5


def test_rows_that_are_not_finite_and_no_gradients_at_all():
    core = reference.make_core(reference.options(), [np.ones((4, 3))], tables=[0])
    rows = tf.IndexedSlices(tf.constant([[1.0, np.nan, 1.0]], tf.float64), tf.constant([1]))
    assert not core.update_if_finite([rows], RATE)
    assert core.update_if_finite([None], RATE)
    assert int(core.step) == 1 and core.report()["nonfinite_steps"] == 1
    np.testing.assert_array_equal(core.weights[0], np.ones((4, 3)))


def test_a_layer_without_gradients_stays_on_its_graft_until_all_its_blocks_have_real_roots():
    # A layer of [8, 3] in two blocks: switched off, then its upper half only, then all of it.
    options = reference.options(block_size=4, momentum=0.0)
    on = reference.drifting([(8, 3), (4, 3)], 40, condition=10)
    for t in range(14):
        on[t][0][:] = 0
    for t in range(14, 21):
        on[t][0][4:] = 0
    start = [np.ones((8, 3)), np.ones((4, 3))]
    core = reference.make_core(options, start)
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
    assert ready == [0] * 2 + [1] * 25 + [2] * 13
    assert core.report()["failed"] == core.report()["lost"] == 0


def test_a_direction_of_zero_has_no_norm_and_the_graft_is_taken():
    core = reference.make_core(reference.options(), [np.ones((4, 3))])
    history = reference.drifting([(4, 3)], 6)
    reference.train(core, history, RATE)
    before = core.weights[0].numpy()
    reference.train(core, [[np.zeros((4, 3))]], RATE)
    np.testing.assert_array_equal(core.weights[0].numpy(), before)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_weights_of_half_precision_are_worked_on_in_float32(dtype):
    shapes = [(6, 4), (3,)]
    # Norms of hundreds: their squares are beyond float16.
    history = [
        [tf.cast(tf.constant(1e3 * g), dtype) for g in gradients]
        for gradients in reference.drifting(shapes, 12, condition=5)
    ]
    weights = [tf.Variable(tf.cast(tf.constant(w), dtype)) for w in reference.initial(shapes)]
    core = reference.make_core(reference.options(), [])
    core = type(core)(reference.options(), weights)
    wide = reference.make_core(reference.options(), [np.zeros(shape) for shape in shapes], tf.float32)
    assert core.dtype == tf.float32
    for gradients in history:
        old = [tf.cast(weight, tf.float32) for weight in core.weights], [w.numpy() for w in wide.weights]
        assert core.update_if_finite(gradients, RATE)
        assert wide.update_if_finite([tf.cast(g, tf.float32) for g in gradients], RATE)
        for weight, before, other, other_before in zip(
            core.weights, old[0], wide.weights, old[1], strict=True
        ):
            step = tf.cast(weight, tf.float32) - before
            np.testing.assert_allclose(step, other.numpy() - other_before, atol=0.03)
    for name, variable in core.variables.items():
        np.testing.assert_allclose(variable, wide.variables[name], rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("scale", [1e-7, 1e-9])
def test_directions_whose_squares_leave_float32_still_have_the_grafts_norm(scale):
    # Roots A^(-1/2) on four sides: the direction grows with the inverse cube of the gradient.
    rng = np.random.default_rng(0)
    weight = tf.Variable(tf.zeros([3, 3, 8, 8]))
    core = ShampooCore(flat_options(exponent_override=2, initial_accumulator=0.0), [weight])
    for _ in range(4):
        before = weight.numpy()
        core.update([tf.constant((scale * rng.normal(size=weight.shape)).astype(np.float32))], 0.5)
    assert np.isfinite(weight.numpy()).all()
    step = (weight.numpy() - before).ravel().astype(np.float64)
    # AdaGrad's steps have elements of some rate / sqrt(steps).
    assert 0.1 < np.linalg.norm(step) / np.sqrt(step.size) < 0.5
    assert core.report()["layers_ready"] == 1


def test_a_direction_beyond_float32_gives_way_to_the_graft_and_is_counted():
    rng = np.random.default_rng(1)
    weight = tf.Variable(tf.zeros([3, 3, 8, 8]))
    options = flat_options(exponent_override=2, initial_accumulator=0.0, early_growth=0.0)
    core = ShampooCore(options, [weight])
    core.update([tf.constant((1e-16 * rng.normal(size=weight.shape)).astype(np.float32))], 0.5)
    before = weight.numpy()
    gradient = rng.normal(size=weight.shape).astype(np.float32)
    core.update([tf.constant(gradient)], 0.5)
    np.testing.assert_allclose(weight.numpy() - before, -0.5 * np.sign(gradient), rtol=1e-3)
    # In the first step too: roots of some 1e15 on each side.
    assert core.report()["overflowed"] == 2
