"""Shampoo inside `MultiOptimizer` of Keras 3: the steps of its parts, one by one, before and after saving."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ctr.optim.keras.keras3 import Adafactor, Shampoo, ShampooCallback, Soap
from keras_models import API, example, fit, make_model, quick

CASES = {
    # The default optimizer, and one by the path of its variable.
    "Shampoo beside AdaGrad for embeddings": lambda: (
        Shampoo(0.02, **quick()),
        {"words/embeddings": keras.optimizers.Adagrad(0.1)},
    ),
    "Soap beside Adafactor for embeddings": lambda: (
        Soap(0.02, **quick()),
        {"words/embeddings": Adafactor(0.05)},
    ),
}


def with_parts(default, by_path, **options):
    """A model that is compiled with these optimizers together."""
    model = make_model(API)
    optimizer = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(default, by_path))
    model.compile(optimizer=optimizer, loss="mse", **options)
    return model


def values(model):
    return {variable.path: variable.numpy() for variable in model.trainable_variables}


def shampoo_of(model):
    (found,) = [part for part in model.optimizer.optimizers if isinstance(part, Shampoo)]
    return found


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES)
def test_each_part_takes_its_own_steps(case):
    """Those of the same optimizers, each of them called in a loop with its own variables alone."""
    model, other = with_parts(*CASES[case]()), make_model(API)
    fit(model, 11)
    default, by_path = CASES[case]()
    variables = {variable.path: variable for variable in other.trainable_variables}
    parts = [(optimizer, [variables.pop(path)]) for path, optimizer in by_path.items()]
    parts.append((default, list(variables.values())))
    for optimizer, own in parts:
        optimizer.build(own)

    @tf.function
    def step(ids, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((other(ids, training=True) - labels) ** 2)
        gradients = tape.gradient(loss, [own for _, own in parts])
        for (optimizer, own), found in zip(parts, gradients, strict=True):
            optimizer.apply(found, own)

    for number in range(11):
        step(*map(tf.constant, example(number)))
    for path, value in values(other).items():
        np.testing.assert_allclose(values(model)[path], value, rtol=0, atol=1e-6, err_msg=path)
    shampoo = shampoo_of(model)
    assert shampoo.core.report()["layers_ready"] == shampoo.core.report()["layers"] == 1
    treated = [line.split()[0] for line in shampoo.describe().splitlines()[1:-1]]
    (expected,) = [own for optimizer, own in parts if isinstance(optimizer, Shampoo)]
    assert treated == [variable.path for variable in expected]


@pytest.mark.soak
@pytest.mark.parametrize("case", list(CASES)[::-1])
def test_saved_models_and_weights_go_on_to_the_bit(case, tmp_path):
    model, from_weights = (with_parts(*CASES[case]()) for _ in range(2))
    fit(model, 8)
    core = shampoo_of(model).core
    # A root is on its way.
    assert int(core.exchanged.exchanged_at) == 6
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    from_weights.optimizer.build(from_weights.trainable_variables)
    from_weights.load_weights(tmp_path / "model.weights.h5")
    fit(model, 6, start=8)
    for loaded in (keras.models.load_model(tmp_path / "model.keras"), from_weights):
        fit(loaded, 6, start=8)
        for path, value in values(model).items():
            np.testing.assert_array_equal(values(loaded)[path], value, err_msg=path)
        assert shampoo_of(loaded).core.report() == core.report()
        assert type(shampoo_of(loaded)) is type(shampoo_of(model))
        assert int(shampoo_of(loaded).iterations) == int(loaded.optimizer.iterations) == 14


@pytest.mark.soak
@pytest.mark.parametrize("options", [{"jit_compile": True}, {}])
def test_the_callback_finds_shampoo_among_the_parts(options):
    model = with_parts(*CASES["Soap beside Adafactor for embeddings"](), **options)
    history = fit(model, 12, [ShampooCallback()])
    assert history["shampoo/layers_ready"] == [1]
    # On the host in either way: XLA alone cannot compute eigenbases.
    assert history["shampoo/device"] == [0] != history["shampoo/refreshed"]


def test_the_callback_refuses_none_and_two():
    adam = keras.optimizers.Adam()
    for default, other, found in [
        (adam, Adafactor(), "Adafactor, Adam"),
        (Shampoo(), Soap(), "Soap, Shampoo"),
    ]:
        model = with_parts(default, {"hidden/kernel": other})
        with pytest.raises(ValueError, match=f"requires one optimizer Shampoo, not {found}$"):
            fit(model, 1, [ShampooCallback()])
    model = make_model(API)
    model.compile(optimizer=keras.optimizers.MultiOptimizer(lambda variable: adam), loss="mse")
    with pytest.raises(ValueError, match=r"before optimizer.build\(model.trainable_variables\)"):
        fit(model, 1, [ShampooCallback()])
