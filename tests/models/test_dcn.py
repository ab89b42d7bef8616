"""The crosses against their equation, and what computes in bfloat16."""

import math

import numpy as np
import pytest
import tensorflow as tf

from ctr.models.dcn import DCN, LowRankCross

# Asymmetric, and of different width and rank: a transposed or swapped factor changes the numbers.
U = np.array([[1.0, -2.0], [0.5, 3.0], [-1.5, 0.25]])
V = np.array([[2.0, -1.0, 0.5], [0.25, 4.0, -3.0]])
BIAS = np.array([0.1, -0.2, 0.3])
FULL = np.array([[1.0, 2.0, -3.0], [0.5, -1.0, 4.0], [-2.0, 0.25, 1.5]])
E0 = np.array([[1.0, -2.0, 3.0], [0.5, 0.25, -1.0]])


def network(**changed) -> DCN:
    settings = {
        "cross_layers": 2, "cross_rank": 2, "deep_units": (), "activation": "relu", "prior": 0.5,
        "compute_dtype": "float32",
    }  # fmt: skip
    return DCN(**{**settings, **changed})


def run(model: DCN, e0=E0, linear=(0.0, 0.0), alpha2=1.0) -> np.ndarray:
    logit, _ = model(tf.constant(e0, tf.float32), tf.constant(linear, tf.float32), tf.constant(alpha2))
    return logit.numpy()


@pytest.mark.parametrize("alpha2", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("rank", [2, 0])
def test_crosses_follow_their_equation(alpha2, rank):
    model = network(cross_rank=rank)
    run(model)
    head = np.array([0.7, -1.1, 0.4])
    expected = E0
    for index, cross in enumerate(model.crosses):
        scale = 1.0 + index  # two different layers: their order matters
        if rank:
            cross.set_weights([U * scale, V, BIAS * scale])
            inner = expected @ (U * scale) @ V + BIAS * scale
        else:
            cross.set_weights([FULL * scale, BIAS * scale])
            inner = expected @ (FULL * scale) + BIAS * scale
        expected = alpha2 * E0 * inner + expected
    model.head.set_weights([head[:, np.newaxis]])
    found = run(model, linear=(0.25, -0.5), alpha2=alpha2)
    np.testing.assert_allclose(found, expected @ head + [0.25, -0.5], rtol=1e-5)
    if alpha2 == 0:
        np.testing.assert_allclose(found, E0 @ head + [0.25, -0.5], rtol=1e-6)


def test_deep_layers_and_head():
    model = network(cross_layers=0, deep_units=(2,), prior=0.2)
    run(model)
    kernel, bias, head = U, np.array([0.5, -0.25]), np.array([2.0, -3.0])
    model.deep[0].set_weights([kernel, bias])
    model.head.set_weights([head[:, np.newaxis]])
    expected = np.maximum(E0 @ kernel + bias, 0) @ head + math.log(0.2 / 0.8)
    np.testing.assert_allclose(run(model), expected, rtol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "gelu", "swish", "mish", "softplus", "tanh", "elu"])
def test_every_activation_that_is_allowed_exists(activation):
    assert np.isfinite(run(network(deep_units=(3,), activation=activation))).all()


def test_without_layers_it_is_a_logistic_regression_that_starts_at_the_prior():
    model = network(cross_layers=0, prior=0.05)
    logit = run(model, e0=np.zeros((2, 0)), linear=(0.0, 1.5))
    np.testing.assert_allclose(1 / (1 + np.exp(-logit[0])), 0.05, rtol=1e-6)
    assert logit[1] == pytest.approx(logit[0] + 1.5)
    assert len(model.trainable_variables) == 1


@pytest.mark.parametrize("rank", [2, 0])
def test_inner_layers_of_a_cross_multiply_in_bfloat16(rank):
    cross = LowRankCross(projection_dim=rank or None, dtype="mixed_bfloat16")
    function = tf.function(cross).get_concrete_function(
        tf.TensorSpec([None, 3], tf.bfloat16), tf.TensorSpec([None, 3], tf.bfloat16)
    )
    products = [operation for operation in function.graph.get_operations() if operation.type == "MatMul"]
    assert len(products) == (2 if rank else 1)
    for product in products:
        assert {tensor.dtype for tensor in (*product.inputs, *product.outputs)} == {tf.bfloat16}
    assert {variable.dtype for variable in cross.trainable_variables} == {tf.float32}
    assert function.output_dtypes == tf.bfloat16


def test_under_bfloat16_all_but_the_head_computes_in_it_on_float32_weights():
    model = network(deep_units=(4,), compute_dtype="bfloat16")
    run(model)
    function = tf.function(model).get_concrete_function(
        tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.float32)
    )
    dtypes = [op.inputs[0].dtype for op in function.graph.get_operations() if op.type == "MatMul"]
    # Two crosses of two factors, one deep layer; the head comes last.
    assert dtypes == [tf.bfloat16] * 5 + [tf.float32]
    assert {variable.dtype for variable in model.trainable_variables} == {tf.float32}
    assert set(function.output_dtypes) == {tf.float32}


def test_bfloat16_gives_the_numbers_of_float32_within_its_precision():
    models = [network(deep_units=(5,), compute_dtype=dtype) for dtype in ("float32", "bfloat16")]
    rng = np.random.default_rng(0)
    e0 = rng.normal(size=(50, 3))
    for model in models:
        run(model)
    models[1].set_weights(models[0].get_weights())
    exact, rounded = (run(model, e0=e0, linear=np.zeros(50), alpha2=0.5) for model in models)
    error = np.abs(rounded - exact)
    assert 0 < error.max() < 0.05 * np.abs(exact).max()


def test_gradients_reach_every_weight_once_the_crosses_are_on():
    model = network(deep_units=(4,))
    e0 = tf.constant(E0, tf.float32)
    run(model)
    for alpha2, reached in ((0.0, False), (1.0, True)):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(model(e0, tf.zeros(2), tf.constant(alpha2))[0])
        crosses = [variable for cross in model.crosses for variable in cross.trainable_variables]
        assert len(crosses) == 6
        gradients = tape.gradient(total, crosses)
        assert all(bool(tf.reduce_any(gradient != 0)) == reached for gradient in gradients)


def test_a_rank_head_is_an_output_of_its_own_on_the_same_hidden_layers():
    e0, linear = tf.constant(E0, tf.float32), tf.constant([0.25, -0.5])
    model = network(deep_units=(4,), rank_head=True)
    with tf.GradientTape() as tape:
        logit, score = model(e0, linear, tf.constant(1.0))
        total = tf.reduce_sum(score)
    reached = {
        variable.name: gradient is not None and bool(tf.reduce_any(tf.convert_to_tensor(gradient) != 0))
        for variable, gradient in zip(
            model.trainable_variables, tape.gradient(total, model.trainable_variables), strict=True
        )
    }
    # Everything that is shared, and not the click's own output.
    heads = {name: hit for name, hit in reached.items() if "head" in name or "output_bias" in name}
    assert [hit for name, hit in heads.items() if "rank_head" in name] == [True]
    assert not any(hit for name, hit in heads.items() if "rank_head" not in name)
    assert reached[next(name for name in reached if "cross_0" in name and "kernel" in name)]
    model.rank_head.set_weights([2 * model.head.get_weights()[0]])
    logit, score = model(e0, linear, tf.constant(1.0))
    np.testing.assert_allclose(score, 2 * (logit - linear - model.output_bias), rtol=1e-5)


def test_without_a_rank_head_the_logit_is_what_is_ranked_by():
    logit, score = network()(tf.constant(E0, tf.float32), tf.zeros(2), tf.constant(1.0))
    assert logit is score


def test_a_rank_head_needs_something_to_share():
    with pytest.raises(ValueError, match="needs crosses or deep layers"):
        network(cross_layers=0, rank_head=True)
