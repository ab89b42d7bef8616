"""A small model in the Keras of this process with the optimizers for it, and the same steps of Shampoo's core by hand.

That is Keras 3, or Keras 2 where ``TF_USE_LEGACY_KERAS`` is 1 (tests/optim/contrib/test_tf_keras.py).
"""

import os
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ctr.optim import ShampooOptions
from ctr.optim.shampoo.optimizer import ShampooCore

IS_KERAS_3 = os.environ.get("TF_USE_LEGACY_KERAS") != "1"
if IS_KERAS_3:
    import keras

    from ctr.optim.keras import keras3 as optim
else:
    import tf_keras as keras

    from ctr.optim.contrib import tf_keras as optim


class Api(NamedTuple):
    """A Keras, and the module with the optimizers for it."""

    keras: ModuleType
    optim: ModuleType
    is_keras3: bool

    def __str__(self) -> str:
        return "keras3" if self.is_keras3 else "keras2"


API = Api(keras, optim, IS_KERAS_3)

ROWS, WIDTH = 7, 3

# Roots of step 2 are waited for; later ones are sent at 6, 10, ... and taken in four steps on.
QUICK: dict[str, Any] = {
    "start_preconditioning_step": 2,
    "precondition_frequency": 4,
    "statistics": {"frequency": 1},
    "roots": {"early_growth": 0.0, "drift_bound": 0.0},
}


def quick(**changes: Any) -> dict[str, Any]:
    """QUICK with other options; those of a group stand beside its own."""
    groups = {name: QUICK[name] | own for name, own in changes.items() if isinstance(QUICK.get(name), dict)}
    return QUICK | changes | groups


def make_model(api: Api) -> Any:
    """Variables: embeddings [7, 3], kernel [6, 4], bias [4], kernel [4, 1] (a vector to Shampoo), bias [1]."""
    layers = api.keras.layers
    api.keras.utils.set_random_seed(1)
    ids = api.keras.Input((2,), dtype="int32")
    hidden = layers.Flatten()(layers.Embedding(ROWS, WIDTH, name="words")(ids))
    hidden = layers.Dense(4, activation="tanh", name="hidden")(hidden)
    return api.keras.Model(ids, layers.Dense(1, dtype="float32", name="output")(hidden))


def compiled(api: Api, optimizer: Any, **options: Any) -> Any:
    model = make_model(api)
    model.compile(optimizer=optimizer, loss="mse", **options)
    return model


def example(step: int) -> tuple[np.ndarray, np.ndarray]:
    """The ids and labels of a batch."""
    ids = np.random.default_rng(step).integers(0, ROWS, (16, 2)).astype(np.int32)
    return ids, (np.sin(ids.sum(axis=1, keepdims=True)) + 0.5).astype(np.float32)


def fit(model: Any, batches: int, callbacks: Any = (), start: int = 0) -> dict[str, list[float]]:
    """Trains on batches from ``start`` on; returns the history."""
    parts = zip(*(example(step) for step in range(start, start + batches)), strict=True)
    ids, labels = (np.concatenate(part) for part in parts)
    given = {"batch_size": 16, "shuffle": False, "verbose": 0, "callbacks": list(callbacks)}
    return model.fit(ids, labels, **given).history


def gradients(variables: Any, step: int, sparse: bool = True) -> list[Any]:
    """Made up; of the embeddings by rows, one of which is repeated."""
    made = np.random.default_rng([step, 2])
    found = [tf.constant(made.standard_normal(tuple(v.shape)).astype(np.float32)) for v in variables]
    values = np.random.default_rng([step, 1]).standard_normal((4, WIDTH)).astype(np.float32)
    rows = tf.constant([1, step % ROWS, 1, 5])
    found[0] = tf.IndexedSlices(tf.constant(values), rows, tf.constant([ROWS, WIDTH]))
    if not sparse:
        found[0] = tf.convert_to_tensor(found[0])
    return found


def advance(model: Any, optimizer: Any, steps: int, start: int = 0, sparse: bool = True) -> None:
    """Takes steps with made-up gradients, eagerly."""
    variables = model.trainable_variables
    for step in range(start, start + steps):
        found = gradients(variables, step, sparse)
        optimizer.apply_gradients(list(zip(found, variables, strict=True)))


def trained(api: Api, optimizer: Any, steps: int, sparse: bool = True) -> Any:
    model = make_model(api)
    advance(model, optimizer, steps, sparse=sparse)
    return model


def values(model: Any) -> list[np.ndarray]:
    return [tf.convert_to_tensor(variable).numpy() for variable in model.trainable_variables]


def assert_same(first: Any, second: Any) -> None:
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def differ(first: Any, second: Any) -> list[bool]:
    return [not np.array_equal(one, other) for one, other in zip(first, second, strict=True)]


class ByHand:
    """Shampoo's core driven over copies of the model's variables, of which the first is a table."""

    def __init__(self, api: Api, **options: Any) -> None:
        self.weights = [tf.Variable(value) for value in values(make_model(api))]
        self.core = ShampooCore(ShampooOptions(**options), self.weights, (0,))

    def step(self, found: list[Any], rate: float = 0.02) -> None:
        self.core.update_if_finite(found, rate)

    def steps(self, count: int) -> list[np.ndarray]:
        for step in range(count):
            self.step(gradients(self.weights, step))
        return self.values()

    def values(self) -> list[np.ndarray]:
        return [weight.numpy() for weight in self.weights]
