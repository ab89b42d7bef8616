"""Crosses, deep layers and bottlenecks against their equations; several towers at once against each alone."""

import random

import numpy as np
import pytest
import tensorflow as tf

from ctr.models.dcn import DCN, hidden_layers

# Asymmetric, and of different width and rank: a transposed or swapped factor changes the numbers.
U = np.array([[1.0, -2.0], [0.5, 3.0], [-1.5, 0.25]])
V = np.array([[2.0, -1.0, 0.5], [0.25, 4.0, -3.0]])
BIAS = np.array([0.1, -0.2, 0.3])
FULL = np.array([[1.0, 2.0, -3.0], [0.5, -1.0, 4.0], [-2.0, 0.25, 1.5]])
E0 = np.array([[1.0, -2.0, 3.0], [0.5, 0.25, -1.0]])


SEEDS = random.Random(0)


def tower(**changed) -> DCN:
    settings = {
        "width": 3, "cross_layers": 2, "cross_rank": 2, "deep_units": (), "deep_ranks": (), "activation": tf.nn.relu,
        "compute_dtype": "float32", "compiled": True, "seeds": SEEDS,
    }  # fmt: skip
    return DCN(**{**settings, **changed})


def set_weights(layer, *values) -> None:
    for (_, weight), value in zip(layer.weights(), values, strict=True):
        weight.assign(value)


def run(*towers: DCN, e0=E0, alpha2=1.0) -> np.ndarray:
    inputs = tf.constant(e0 if np.ndim(e0) == 3 else [e0], tf.float32)
    return hidden_layers(towers, inputs, tf.constant(alpha2)).numpy()


@pytest.mark.parametrize("alpha2", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("rank", [2, 0])
def test_crosses_follow_their_equation(alpha2, rank):
    model = tower(cross_rank=rank)
    expected = E0
    for index, cross in enumerate(model.crosses):
        scale = 1.0 + index  # two different layers: their order matters
        if rank:
            set_weights(cross, U * scale, V, BIAS * scale)
            inner = expected @ (U * scale) @ V + BIAS * scale
        else:
            set_weights(cross, FULL * scale, BIAS * scale)
            inner = expected @ (FULL * scale) + BIAS * scale
        expected = alpha2 * E0 * inner + expected
    np.testing.assert_allclose(run(model, alpha2=alpha2)[0], expected, rtol=1e-5, atol=1e-5)
    if alpha2 == 0:
        np.testing.assert_allclose(expected, E0)


def test_deep_layers_are_products_biases_and_relu():
    model = tower(cross_layers=0, deep_units=(2, 3))
    set_weights(model.deep[0], U, [0.5, -0.25])
    set_weights(model.deep[1], V, BIAS)
    hidden = np.maximum(E0 @ U + [0.5, -0.25], 0)
    np.testing.assert_allclose(run(model)[0], np.maximum(hidden @ V + BIAS, 0), rtol=1e-5)


def test_a_bottleneck_is_a_product_of_two_matrices_inside_one_layer():
    model = tower(cross_layers=0, deep_units=(4, 3), deep_ranks=(0, 2))
    names = [name for name, _ in model.weights()]
    assert names == ["deep_0/w", "deep_0/w_bias", "deep_1/u", "deep_1/v", "deep_1/v_bias"]
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=weight.shape) for _, weight in model.weights()]
    for (_, variable), value in zip(model.weights(), weights, strict=True):
        variable.assign(value)
    w, w_bias, u, v, v_bias = weights
    assert (u.shape, v.shape) == ((4, 2), (2, 3))
    hidden = np.maximum(E0 @ w + w_bias, 0)
    np.testing.assert_allclose(run(model)[0], np.maximum(hidden @ u @ v + v_bias, 0), rtol=1e-5, atol=1e-6)


def test_a_fresh_bottleneck_keeps_the_variance_of_a_full_layer():
    rng = np.random.default_rng(0)
    e0 = rng.normal(size=(500, 300))
    spreads = []
    for ranks in ((), (40,)):
        model = tower(width=300, cross_layers=0, deep_units=(400,), deep_ranks=ranks, activation=tf.identity)
        spreads.append(
            hidden_layers([model], tf.constant(e0[np.newaxis], tf.float32), tf.constant(0.0)).numpy().std()
        )
    assert spreads[1] == pytest.approx(spreads[0], rel=0.1)


SHAPES = [
    {"cross_layers": 0, "deep_units": (5, 4)},
    {"cross_rank": 0},
    {"deep_units": (5, 4), "deep_ranks": (2, 0)},
    {"cross_layers": 0},
]


@pytest.mark.parametrize("own_inputs", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_several_towers_at_once_are_each_tower_alone(shape, own_inputs, dtype):
    rng = np.random.default_rng(1)
    towers = [tower(**shape, compute_dtype=dtype) for _ in range(3)]
    for one in towers:
        for name, variable in one.weights():
            if name.endswith("_bias"):
                variable.assign(rng.normal(size=variable.shape))
    e0 = rng.normal(size=(3 if own_inputs else 1, 20, 3))
    together = run(*towers, e0=e0, alpha2=0.5)
    alone = [run(one, e0=e0[index if own_inputs else 0], alpha2=0.5)[0] for index, one in enumerate(towers)]
    if not towers[0].crosses and not towers[0].deep:
        alone = alone[: len(e0)]  # without layers there is nothing that differs
    else:
        assert np.abs(together[0] - together[1]).max() > 0.01
    np.testing.assert_allclose(together, alone, rtol=1e-6 if dtype == "float32" else 2**-6, atol=1e-6)


def test_several_towers_are_one_product_a_layer():
    towers = [tower(deep_units=(4,)) for _ in range(3)]
    function = tf.function(lambda e0: hidden_layers(towers, e0, tf.constant(1.0)))
    graph = function.get_concrete_function(tf.TensorSpec([1, None, 3])).graph
    products = [operation for operation in graph.get_operations() if "MatMul" in operation.type]
    assert len(products) == 2 * 2 + 1


@pytest.mark.parametrize("count", [1, 2])
def test_under_bfloat16_every_product_is_in_it_on_float32_weights(count):
    towers = [tower(deep_units=(4,), deep_ranks=(2,), compute_dtype="bfloat16") for _ in range(count)]
    function = tf.function(lambda e0: hidden_layers(towers, e0, tf.constant(1.0)))
    graph = function.get_concrete_function(tf.TensorSpec([1, None, 3])).graph
    dtypes = [op.inputs[0].dtype for op in graph.get_operations() if "MatMul" in op.type]
    assert dtypes == [tf.bfloat16] * 6
    assert {weight.dtype for one in towers for _, weight in one.weights()} == {tf.float32}


def test_bfloat16_gives_the_numbers_of_float32_within_its_precision():
    models = [tower(deep_units=(5,), compute_dtype=dtype) for dtype in ("float32", "bfloat16")]
    for (_, exact), (_, rounded) in zip(*(model.weights() for model in models), strict=True):
        rounded.assign(exact)
    e0 = np.random.default_rng(0).normal(size=(50, 3))
    exact, rounded = (run(model, e0=e0, alpha2=0.5) for model in models)
    error = np.abs(rounded - exact)
    assert 0 < error.max() < 0.05 * np.abs(exact).max()


@pytest.mark.parametrize("count", [1, 3])
def test_gradients_reach_every_weight_once_the_crosses_are_on(count):
    towers = [tower(deep_units=(4,), activation=tf.nn.tanh) for _ in range(count)]
    weights = {f"{index}/{name}": w for index, one in enumerate(towers) for name, w in one.weights()}
    assert len(weights) == 8 * count
    for alpha2, reached in ((0.0, False), (1.0, True)):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(hidden_layers(towers, tf.constant([E0], tf.float32), tf.constant(alpha2)))
        gradients = tape.gradient(total, weights)
        for name, gradient in gradients.items():
            assert bool(tf.reduce_any(gradient != 0)) == (reached or "deep" in name), name
