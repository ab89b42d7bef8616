"""Shampoo, SOAP and Adafactor in either Keras: steps, options and tables, with gradients that are made up."""

import dataclasses
import unittest.mock

import numpy as np
import pytest
import tensorflow as tf

from ctr.optim import ShampooOptions
from keras_models import (
    API,
    IS_KERAS_3,
    ROWS,
    ByHand,
    advance,
    assert_same,
    differ,
    gradients,
    make_model,
    quick,
    trained,
    values,
)

AVERAGES = quick(
    **{"beta1": 0.9, "beta2": 0.99, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    **{"rows": "one_sided", "grafting": {"kind": "adam"}, "block_size": 3},
)


@pytest.mark.slow
def test_steps_are_those_of_the_core_to_the_bit(api):
    optimizer, by_hand = api.optim.Shampoo(0.02, **AVERAGES), ByHand(api, **AVERAGES)
    assert_same(values(trained(api, optimizer, 11)), by_hand.steps(11))
    assert optimizer.core.report() == by_hand.core.report()
    assert optimizer.core.report()["layers_ready"] == optimizer.core.report()["layers"] > 0
    assert int(optimizer.iterations) == 11


CLIPS = {
    "clipnorm": lambda found: [tf.clip_by_norm(g, 0.5) for g in found],
    "global_clipnorm": lambda found: tf.clip_by_global_norm(found, 0.5)[0],
    "clipvalue": lambda found: [tf.clip_by_value(g, -0.5, 0.5) for g in found],
}


@pytest.mark.parametrize("option", CLIPS)
def test_clipping_comes_before_the_step(api, option):
    descent = {"start_preconditioning_step": None, "grafting": {"kind": "sgd"}, "tables": None}
    before = values(make_model(api))
    model = trained(api, api.optim.Shampoo(0.02, **descent, **{option: 0.5}), 1)
    # Rows that are repeated count by themselves.
    clipped = CLIPS[option](gradients(model.trainable_variables, 0))
    for now, was, gradient in zip(values(model), before, clipped, strict=True):
        expected = was - 0.02 * tf.convert_to_tensor(gradient).numpy()
        np.testing.assert_allclose(now, expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_variables_without_a_gradient_stay_as_they_are(api):
    optimizer, model, by_hand = api.optim.Shampoo(0.02, **quick()), make_model(api), ByHand(api, **quick())
    variables, before = model.trainable_variables, values(model)
    optimizer.build(variables)
    for step in range(8):
        found = gradients(variables, step)
        found[1] = None
        pairs = list(zip(found, variables, strict=True))
        # Given without a gradient, or not given at all.
        optimizer.apply_gradients(pairs if step % 2 else [pair for pair in pairs if pair[0] is not None])
        by_hand.step(found)
    assert_same(values(model), by_hand.values())
    assert differ(values(model), before) == [True, False, True, True, True]


@pytest.mark.slow
def test_learning_rates_may_be_schedules_and_may_be_set(api):
    schedule = api.keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.05, 0.01])
    optimizer, by_hand = api.optim.Shampoo(schedule, **quick()), ByHand(api, **quick())
    model = trained(api, optimizer, 5)
    for step in range(5):
        by_hand.step(gradients(by_hand.weights, step), 0.05 if step <= 2 else 0.01)
    assert_same(values(model), by_hand.values())
    optimizer = api.optim.Shampoo(0.05, start_preconditioning_step=None)
    model = trained(api, optimizer, 1)
    before, optimizer.learning_rate = values(model), 0.0
    advance(model, optimizer, 1, start=1)
    assert_same(values(model), before)


def test_weights_decay_beside_the_step_unless_excluded(api):
    optimizer = api.optim.Shampoo(0.1, weight_decay=0.5, grafting={"initial_accumulator": 0.0})
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    model = make_model(api)
    variables = model.trainable_variables
    for index in (2, 4):
        variables[index].assign(tf.ones(variables[index].shape))
    before = values(model)
    optimizer.apply_gradients([(tf.zeros(v.shape), v) for v in variables])
    # Were the decay a part of the gradient, AdaGrad would make a whole step of it. Tables have none.
    for factor, value, was in zip([1.0, 0.95, 1.0, 0.95, 1.0], values(model), before, strict=True):
        np.testing.assert_allclose(value, factor * was, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [None, 3])
def test_averaged_weights_are_kept_and_put_in_place(api, overwrite):
    plain, optimizer = make_model(api), api.optim.Shampoo(0.05, **quick())
    history = [values(plain)]
    for step in range(3):
        advance(plain, optimizer, 1, start=step)
        history.append(values(plain))
    # Keras 2 starts the average at the weights before the first step, Keras 3 at those after it.
    first = [(a + b) / 2 for a, b in zip(*history[:2], strict=True)]
    average = history[1] if api.is_keras3 else first
    for weights in history[2:]:
        average = [(a + b) / 2 for a, b in zip(average, weights, strict=True)]
    given = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": overwrite}
    averaged = api.optim.Shampoo(0.05, **quick(**given))
    model = trained(api, averaged, 3)
    if not overwrite:
        assert_same(values(model), history[-1])
        averaged.finalize_variable_values(model.trainable_variables)
    for one, other in zip(values(model), average, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


# Tables and sparse gradients.


def test_tables_are_found_by_name(api):
    variables = make_model(api).trainable_variables
    for tables, rows, vectors in (("words", 1, 3), ("nowhere", 0, 3), (None, 0, 3), ("", 3, 2)):
        optimizer = api.optim.Shampoo(tables=tables)
        optimizer.build(variables)
        # A pattern that fits everything chooses the matrices.
        treatments = optimizer.describe()
        found = treatments.count("rows: AdaGrad"), treatments.count(" adagrad ")
        assert found == (rows, vectors), treatments
        assert "words/embeddings" in treatments and ("Shampoo, 1 block of 6x4" in treatments) == (rows < 3)


@pytest.mark.slow
@pytest.mark.parametrize("tables", ["embeddings", None])
def test_sparse_gradients_are_never_dropped(api, tables):
    first_order = {"start_preconditioning_step": None}
    options = [
        first_order | {"rows": "adagrad_row"},
        {"rows": "one_sided", "momentum": 0.5},
        *(first_order | {name: 0.1} for name in ("clipnorm", "global_clipnorm")),
        first_order | {"use_ema": True},
        *([first_order | {"gradient_accumulation_steps": 2}] if api.is_keras3 else []),
    ]
    optimizers = [api.optim.Shampoo(0.1, tables=tables, **given) for given in options]
    before = values(make_model(api))[0]
    for optimizer in (*optimizers, api.optim.Adafactor(0.1, tables=tables)):
        steps = getattr(optimizer, "gradient_accumulation_steps", None) or 1
        moved = (values(trained(api, optimizer, steps))[0] != before).any(axis=1)
        assert moved[[0, 1, 5]].all(), optimizer.get_config()
    # Of a table Adafactor moves no other row.
    assert moved.sum() == 3 or tables is None


def test_soap_is_shampoo_with_options(api):
    soap = api.optim.Soap(0.02, beta1=0.5, beta2=0.9, epsilon=1e-4, block_size=3)
    same = api.optim.Shampoo(
        method="eigenvalue_corrected",
        grafting={"kind": "adam", "beta2": 0.9, "epsilon": 1e-4, "norm": "none"},
        beta1=0.5,
        roots={"damping": "absolute"},
        beta2=0.9,
        epsilon=1e-4,
        block_size=3,
    )
    assert soap.options == same.options and float(soap.learning_rate) == np.float32(0.02)
    assert float(api.optim.Soap().learning_rate) == np.float32(3e-3)


# Options and configurations.


def test_configurations_make_the_same_optimizer(api):
    schedule = api.keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.5)
    options = quick(
        momentum=0.9, nesterov=True, blocking={"merge": 64}, exponent_override=2, weight_decay=0.1
    )
    for rate in (0.05, schedule):
        first = api.optim.Shampoo(rate, tables="words", clipnorm=1.0, name="mine", **options)
        second = api.optim.Shampoo.from_config(first.get_config())
        config = second.get_config()
        assert config == first.get_config()
        assert second.options == first.options == ShampooOptions(**options)
        assert (config["tables"], config["clipnorm"], config["name"]) == ("words", 1.0, "mine")
        assert config.keys() >= {field.name for field in dataclasses.fields(ShampooOptions)}
    given = {"tables": "words", "clipnorm": 1.0, "name": "mine"}
    for other in (api.optim.Soap(0.02, beta2=0.9, **given), api.optim.Adafactor(0.02, beta1=0.5, **given)):
        config = other.get_config()
        assert type(other).from_config(config).get_config() == config
        assert given.items() <= config.items()
        assert config["grafting"]["beta2"] == 0.9 if "grafting" in config else config["beta1"] == 0.5


@pytest.mark.parametrize("kind", ["Shampoo", "Adafactor"])
def test_what_no_step_can_be_taken_with_is_refused(api, kind):
    make = getattr(api.optim, kind)
    allowed = "; allowed: a finite number from 0 up, or a schedule"
    for rate in (np.nan, np.inf, -0.1, 1e300, "0.1", None, True, [0.1], tf.constant(-1.0)):
        with pytest.raises(ValueError, match=f"learning_rate is .*{allowed}"):
            make(rate)
    optimizer = make(0.5)
    with pytest.raises(ValueError, match=f"learning_rate is -1{allowed}"):
        optimizer.learning_rate = -1
    assert float(optimizer.learning_rate) == 0.5
    for rate in (0, 1, np.float32(0.25), tf.constant(0.25), tf.Variable(0.25)):
        assert float(make(rate).learning_rate) == float(rate)
    counts = (api.keras if api.is_keras3 else tf).Variable([1, 0], dtype="int32", name="counts")
    with pytest.raises(ValueError, match=r"variable counts.* is of dtype int32; allowed: "):
        make().build([counts])
    for tables in ("(", 3):
        with pytest.raises(ValueError, match=r"tables is .*: .*; allowed: a regular expression"):
            make(tables=tables)


class Product(tf.Module):
    """A linear model of an embedding, in TensorFlow alone."""

    def __init__(self):
        super().__init__("product")
        with self.name_scope:
            self.embeddings = tf.Variable(tf.ones([ROWS, 4]), name="embeddings")
            self.kernel = tf.Variable(tf.eye(4, 3), name="kernel")

    def loss(self, ids):
        return tf.reduce_sum(tf.square(tf.gather(self.embeddings, ids) @ self.kernel - 0.5))


def test_plain_variables_of_a_module_learn_in_a_loop_of_ones_own(api):
    module = Product()
    optimizer = api.optim.Shampoo(0.05, use_ema=True, global_clipnorm=1.0, **quick())

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = module.loss(ids)
        variables = module.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    losses = [float(step(tf.constant([1, 2, 1]))) for _ in range(12)]
    assert losses[-1] < 0.7 * losses[0]
    assert optimizer.core.tables == (0,) and optimizer.core.report()["layers_ready"] == 1
    assert (module.embeddings.numpy()[[0, 3]] == 1).all()


def test_options_and_variables_that_are_refused(api):
    shampoo = api.optim.Shampoo
    of_the_other = "jit_compile" if api.is_keras3 else "gradient_accumulation_steps"
    for make, given, words in (
        (shampoo, {"learningrate": 0.1}, "Shampoo has no option 'learningrate'; did you mean learning_rate"),
        (shampoo, {of_the_other: 2}, of_the_other),
        (api.optim.Soap, {"beta_2": 0.9}, "Soap has no option 'beta_2'; did you mean beta2"),
        (api.optim.Adafactor, {"block_size": 4}, "Adafactor has no option 'block_size'; allowed: beta1, "),
    ):
        with pytest.raises(TypeError, match=words):
            make(**given)
    for make, given, words in (
        (shampoo, {"block_size": 0}, "block_size is 0; allowed: greater than or equal to 1"),
        (shampoo, {"grafting": {"kind": "lion"}}, "'lion'.*adagrad.*sgd"),
        (shampoo, {"nesterov": True}, "nesterov requires a momentum"),
        (lambda: shampoo().describe(), {}, "no variables yet"),
    ):
        with pytest.raises(ValueError, match=words):
            make(**given)
    optimizer, variables = shampoo(), make_model(api).trainable_variables
    optimizer.build(variables[:2])
    with pytest.raises(ValueError, match="nknown variable"):
        optimizer.apply_gradients([(tf.zeros(variables[2].shape), variables[2])])


# What only Keras 3 has.

of_keras_3 = pytest.mark.skipif(not IS_KERAS_3, reason="Keras 3 alone has it")


@of_keras_3
@pytest.mark.slow
def test_accumulated_gradients_are_one_step():
    optimizer = API.optim.Shampoo(0.02, gradient_accumulation_steps=2, **quick())
    model, by_hand = trained(API, optimizer, 8, sparse=False), ByHand(API, **quick())
    for step in range(0, 8, 2):
        pair = [gradients(by_hand.weights, step + i, sparse=False) for i in (0, 1)]
        by_hand.step([(a + b) / 2 for a, b in zip(*pair, strict=True)])
    for one, other in zip(values(model), by_hand.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert int(optimizer.core.step) == int(optimizer.iterations) == 4
    assert optimizer.core.report()["layers_ready"] == 1


@of_keras_3
def test_other_backends_are_refused():
    jax = unittest.mock.patch("keras.backend.backend", return_value="jax")
    with jax, pytest.raises(RuntimeError, match="requires Keras' backend tensorflow, not jax"):
        API.optim.Shampoo()
