"""Shampoo inside `MultiOptimizer` of Keras 3, as the callback finds it."""

import keras
import pytest

from ctr.optim.keras.keras3 import Adafactor, Shampoo, ShampooCallback, Soap
from keras_models import API, fit, make_model, quick


def with_parts(default, by_path, **options):
    """A model that is compiled with these optimizers together."""
    model = make_model(API)
    optimizer = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(default, by_path))
    model.compile(optimizer=optimizer, loss="mse", **options)
    return model


@pytest.mark.soak
@pytest.mark.parametrize("options", [{"jit_compile": True}, {}])
def test_the_callback_finds_shampoo_among_the_parts(options):
    model = with_parts(Soap(0.02, **quick()), {"words/embeddings": Adafactor(0.05)}, **options)
    history = fit(model, 12, [ShampooCallback()])
    assert history["shampoo/layers_ready"] == [1]
    # On the host in either way: XLA alone cannot compute eigenbases.
    assert history["shampoo/device"] == [0] != history["shampoo/refreshed"]


def test_the_callback_refuses_none_and_two():
    adam = keras.optimizers.Adam()
    for default, other, found in (
        (adam, Adafactor(), "Adafactor, Adam"),
        (Shampoo(), Soap(), "Soap, Shampoo"),
    ):
        model = with_parts(default, {"hidden/kernel": other})
        with pytest.raises(ValueError, match=f"requires one optimizer Shampoo, not {found}$"):
            fit(model, 1, [ShampooCallback()])
    model = make_model(API)
    model.compile(optimizer=keras.optimizers.MultiOptimizer(lambda variable: adam), loss="mse")
    with pytest.raises(ValueError, match=r"before optimizer.build\(model.trainable_variables\)"):
        fit(model, 1, [ShampooCallback()])
