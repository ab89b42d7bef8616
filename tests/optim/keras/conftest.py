"""What tests of the optimizers in Keras share."""

from collections.abc import Iterator

import pytest
from tensorflow.python.framework import config

from keras_models import API, Api


@pytest.fixture(autouse=True)
def _deterministic_operations_are_not_asked_for() -> Iterator[None]:
    """Keras 3 compiles nothing by XLA in a process that asked for them, as training with ctr does."""
    asked = config.is_op_determinism_enabled()
    config.disable_op_determinism()
    yield
    if asked:
        config.enable_op_determinism()


@pytest.fixture
def api() -> Api:
    """The Keras of this process, and the optimizers for it."""
    return API
