"""Crosses, deep layers and bottlenecks against their equations; several towers at once against each alone."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.models.architecture import Architecture
from ctr.models.dcn import hidden_layers, recorded, tower_outputs
from ctr.models.initial_weights import init_weights

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


SHAPES = [
    {"cross_layers": 0, "deep_units": (5, 4)},
    {"cross_rank": 0},
    {"deep_units": (5, 4), "deep_ranks": (2, 0)},
]


@pytest.mark.parametrize(
    ("shape", "own_inputs", "dtype"),
    [(SHAPES[0], True, "float32"), (SHAPES[1], False, "bfloat16"), (SHAPES[2], False, "float32")],
)
def test_several_towers_at_once_are_each_tower_alone(shape, own_inputs, dtype):
    rng, shape = np.random.default_rng(1), tower(**shape, compute_dtype=dtype)
    towers = [
        {
            name: tf.constant(rng.normal(size=weight.shape), tf.float32) if name.endswith("_bias") else weight
            for name, weight in fresh(shape, seed=seed).items()
        }
        for seed in range(3)
    ]
    e0 = rng.normal(size=(3 if own_inputs else 1, 20, 3))
    together = run(shape, *towers, e0=e0, alpha2=0.5, compiled=True)
    alone = [
        run(shape, one, e0=e0[index if own_inputs else 0], alpha2=0.5, compiled=True)[0]
        for index, one in enumerate(towers)
    ]
    assert np.abs(together[0] - together[1]).max() > 0.01
    np.testing.assert_allclose(together, alone, rtol=1e-6 if dtype == "float32" else 2**-6, atol=1e-6)


def test_under_bfloat16_every_product_is_in_it_on_float32_weights():
    shape = tower(deep_units=(4,), deep_ranks=(2,), compute_dtype="bfloat16")
    towers = [fresh(shape, seed=seed) for seed in range(2)]
    function = tf.function(lambda e0: hidden_layers(shape, towers, "quality", e0, tf.constant(1.0), True))
    graph = function.get_concrete_function(tf.TensorSpec([1, None, 3])).graph
    dtypes = [op.inputs[0].dtype for op in graph.get_operations() if "MatMul" in op.type]
    assert dtypes == [tf.bfloat16] * 6
    assert {weight.dtype for one in towers for weight in one.values()} == {tf.float32}


def test_a_function_that_multiplies_sees_every_product():
    shape = tower(deep_units=(4,), deep_ranks=(2,))
    weights, products = fresh(shape), []
    found = run(shape, weights, compiled=True, multiply=recorded(products))
    np.testing.assert_allclose(found, run(shape, weights, compiled=True), rtol=1e-6)
    matrices = [weight for weight in weights.values() if weight.shape.rank == 2]
    for (inputs, outputs), matrix in zip(products, matrices, strict=True):
        np.testing.assert_allclose(outputs, inputs @ matrix, rtol=1e-5, atol=1e-6)


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
