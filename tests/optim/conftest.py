"""What tests of several optimizers share."""

import keras
import pytest


@pytest.fixture
def float64():
    """Keras would round inputs to float32 on their way into a model."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
