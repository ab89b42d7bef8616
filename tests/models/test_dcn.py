"""Crosses, deep layers and bottlenecks against their equations; several towers at once against each alone."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from ctr.models.architecture import Architecture
from ctr.models.crosses import crosses, fused_crosses
from ctr.models.dcn import hidden_layers, tower_outputs
from ctr.models.initial_weights import init_weights
from ctr.models.own_gradient import sum_of_rows

# Asymmetric, and of different width and rank: a transposed or swapped factor changes the numbers.
U = np.array([[1.0, -2.0], [0.5, 3.0], [-1.5, 0.25]])
V = np.array([[2.0, -1.0, 0.5], [0.25, 4.0, -3.0]])
BIAS = np.array([0.1, -0.2, 0.3])
FULL = np.array([[1.0, 2.0, -3.0], [0.5, -1.0, 4.0], [-2.0, 0.25, 1.5]])
E0 = np.array([[1.0, -2.0, 3.0], [0.5, 0.25, -1.0]])


def tower(**changed) -> Architecture:
    settings = {"cross_layers": 2, "cross_rank": 2, "deep_units": ()}
    return Architecture(**{**settings, **changed})


def fresh(shape: Architecture, width=3, seed=0) -> dict[str, tf.Tensor]:
    """The weights of the layers alone."""
    weights = init_weights(shape, {"quality": width}, seed)
    return {name: weight for name, weight in weights.items() if name.startswith("quality/")}


def named(shape: Architecture, *values) -> dict[str, tf.Tensor]:
    """These weights, in their order."""
    return {name: tf.constant(value, tf.float32) for name, value in zip(fresh(shape), values, strict=True)}


def run(shape: Architecture, *towers, e0=E0, alpha2=1.0, **options) -> np.ndarray:
    inputs = tf.constant(e0 if np.ndim(e0) == 3 else [e0], tf.float32)
    last = hidden_layers(shape, towers, "quality", inputs, tf.constant(alpha2), **options)[-1]
    return tf.cast(last, tf.float32).numpy()


@pytest.mark.parametrize(("alpha2", "rank"), [(0.0, 2), (0.3, 2), (1.0, 0)])
def test_crosses_follow_their_equation(alpha2, rank):
    shape, expected, weights = tower(cross_rank=rank), E0, []
    for scale in (1.0, 2.0):  # two different layers: their order matters
        matrices = (U * scale, V) if rank else (FULL * scale,)
        weights += [*matrices, BIAS * scale]
        inner = expected
        for matrix in matrices:
            inner = inner @ matrix
        expected = alpha2 * E0 * (inner + BIAS * scale) + expected
    for compiled in (False, True):
        found = run(shape, named(shape, *weights), alpha2=alpha2, compiled=compiled)
        np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-5)
    if alpha2 == 0:
        np.testing.assert_allclose(expected, E0)


def test_a_bottleneck_is_a_product_of_two_matrices_inside_one_layer():
    shape, rng = tower(cross_layers=0, deep_units=(4, 3), deep_ranks=(0, 2)), np.random.default_rng(0)
    weights = {name: rng.normal(size=weight.shape) for name, weight in fresh(shape).items()}
    names = ["deep_0/w", "deep_0/w_bias", "deep_1/u", "deep_1/v", "deep_1/v_bias"]
    assert list(weights) == [f"quality/{name}" for name in names]
    w, w_bias, u, v, v_bias = weights.values()
    assert (u.shape, v.shape) == ((4, 2), (2, 3))
    hidden = np.maximum(E0 @ w + w_bias, 0)
    found = run(shape, named(shape, *weights.values()))
    np.testing.assert_allclose(found[0], np.maximum(hidden @ u @ v + v_bias, 0), rtol=1e-5, atol=1e-6)


def test_under_bfloat16_every_product_is_in_it_on_float32_weights():
    shape = tower(deep_units=(4,), deep_ranks=(2,), compute_dtype="bfloat16")
    towers = [fresh(shape, seed=seed) for seed in range(2)]
    function = tf.function(lambda e0: hidden_layers(shape, towers, "quality", e0, tf.constant(1.0), True))
    graph = function.get_concrete_function(tf.TensorSpec([1, None, 3])).graph
    dtypes = [op.inputs[0].dtype for op in graph.get_operations() if "MatMul" in op.type]
    assert dtypes == [tf.bfloat16] * 6
    assert {weight.dtype for one in towers for weight in one.values()} == {tf.float32}


def test_a_layer_adds_up_what_it_reads():
    sources = {"quality": ((), (0,), (1, 0))}
    shape = tower(cross_layers=0, deep_units=(2, 3), sources=sources)
    weights, e0 = fresh(shape), tf.constant(E0, tf.float32)
    w = {name.removeprefix("quality/"): weight for name, weight in weights.items()}
    first = tf.nn.relu(e0 @ w["deep_0/w"])
    second = tf.nn.relu(first @ w["deep_1/w"] + e0 @ w["deep_1_from_0"])
    np.testing.assert_allclose(run(shape, weights)[0], second, rtol=1e-5, atol=1e-6)
    all_weights = init_weights(shape, {"quality": 3}, seed=0)
    (output,) = tower_outputs(shape, [all_weights], "quality", e0[tf.newaxis], tf.constant(1.0))
    read = second @ all_weights["quality_head"] + first @ w["head_from_1"] + e0 @ w["head_from_0"]
    np.testing.assert_allclose(output[0], read, rtol=1e-5, atol=1e-6)


ROWS, WIDTH = 7, 3


def cross_inputs(towers, own_inputs, ranks, layers=3, dtype="float32"):
    """e_0 and the weights of crosses: an empty ``ranks`` stands for full matrices."""
    rng = np.random.default_rng(towers)
    sizes = [WIDTH, *ranks, WIDTH]
    e0 = tf.cast(rng.normal(size=(towers if own_inputs else 1, ROWS, WIDTH)), dtype)
    weights = []
    for _ in range(layers):
        kernels = [tf.cast(rng.normal(size=(towers, m, n)), dtype) for m, n in itertools.pairwise(sizes)]
        weights.append((kernels, tf.cast(rng.normal(size=(towers, 1, WIDTH)), dtype)))
    return e0, weights


def value_and_gradients(function, e0, weights, alpha2):
    upstream = tf.cast(np.random.default_rng(9).normal(size=(weights[0][1].shape[0], ROWS, WIDTH)), e0.dtype)
    with tf.GradientTape() as tape:
        tape.watch((e0, weights))
        value = function(e0, tf.constant(alpha2), weights)
    return value, tf.nest.flatten(tape.gradient(value, (e0, weights), output_gradients=upstream))


def close(found, expected, tolerance):
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize(
    ("towers", "own_inputs", "ranks", "alpha2"),
    [(1, True, (2,), 0.3), (3, False, (), 1.0), (3, True, (2,), 1.0), (1, True, (), 0.0)],
)
def test_crosses_have_the_gradient_of_their_formula(ranks, towers, own_inputs, alpha2):
    e0, weights = cross_inputs(towers, own_inputs, ranks)
    value, gradients = value_and_gradients(fused_crosses, e0, weights, alpha2)
    plain, expected = value_and_gradients(crosses, e0, weights, alpha2)
    close(value, plain, 1e-5)
    assert len(gradients) == 1 + 3 * (len(ranks) + 2)
    for found, exact in zip(gradients, expected, strict=True):
        assert found.shape == exact.shape
        close(found.numpy(), exact.numpy(), 1e-5)


def test_in_bfloat16_crosses_are_right_within_its_precision():
    e0, weights = cross_inputs(1, True, (2,))
    value, gradients = value_and_gradients(crosses, e0, weights, 0.5)
    rounded = tf.nest.map_structure(lambda one: tf.cast(one, tf.bfloat16), (e0, weights))
    low, low_gradients = value_and_gradients(fused_crosses, *rounded, 0.5)
    # That of e_0 goes on to be summed over the batch.
    assert [one.dtype for one in low_gradients] == [tf.float32, *[tf.bfloat16] * 9]
    for found, exact in zip([low, *low_gradients], [value, *gradients], strict=True):
        error = np.abs(tf.cast(found, tf.float32).numpy() - exact.numpy())
        assert 0 < error.max() < 0.1 * np.abs(exact).max()


@pytest.mark.parametrize("function", [crosses, fused_crosses])
def test_a_value_that_is_not_finite_stays_so(function):
    e0, weights = cross_inputs(1, True, (2,))
    e0 = tf.tensor_scatter_nd_update(e0, [[0, 2, 1]], [np.nan])
    value, _ = value_and_gradients(function, e0, weights, 1.0)
    assert np.isnan(value.numpy()[0, 2]).all()
    assert np.isfinite(np.delete(value.numpy()[0], 2, axis=0)).all()


def test_sums_of_many_rows_are_not_rounded_on_the_way():
    # 4096 ones in bfloat16 end at 256 when each sum is rounded.
    assert sum_of_rows(tf.ones([2, 4096, 3], tf.bfloat16)).numpy().tolist() == [[[4096] * 3]] * 2
