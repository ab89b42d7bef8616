"""The reference model in plain Keras ``fit``, of Keras 2 (tf_keras) or Keras 3: for ``framework_processes``.

It has one fused table for all features, with their linear weights, an in-memory ``tf.data`` that is cached and
prefetched, the loss from logits, and no metrics.
"""

import time
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf
from framework_processes import Turn, serve
from reference import INITIAL_ACCUMULATOR, RATE, SCALE, Size, reference_examples


def make_model(keras: ModuleType, size: Size, policy: str) -> Any:
    """Returns the compiled model under a mixed-precision policy."""
    keras.mixed_precision.set_global_policy(policy)
    layers, width = keras.layers, size.features * size.width
    normal = keras.initializers.RandomNormal(stddev=SCALE)
    ids = layers.Input((size.features,), dtype="int32")
    rows = layers.Embedding(size.features * size.buckets, size.width + 1, embeddings_initializer=normal)(ids)
    e0 = layers.Flatten()(rows[:, :, : size.width])
    linear = layers.Flatten()(rows[:, :, size.width :])
    hidden = e0
    for _ in range(3):
        product = layers.Dense(width)(layers.Dense(64, use_bias=False)(hidden))
        hidden = layers.Add()([layers.Multiply()([e0, product]), hidden])
    for units in (1024, 512, 256):
        hidden = layers.Dense(units, activation="relu", kernel_initializer="he_normal")(hidden)
    # Their sum, as a layer that both Kerases have.
    total = layers.Dense(
        1, use_bias=False, trainable=False, kernel_initializer="ones", dtype="float32", name="linear_sum"
    )
    logit = layers.Add(dtype="float32")([layers.Dense(1, dtype="float32")(hidden), total(linear)])
    model = keras.Model(ids, logit)
    optimizer = keras.optimizers.Adagrad(RATE, initial_accumulator_value=INITIAL_ACCUMULATOR, epsilon=1e-12)
    model.compile(optimizer, loss=keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def make_turn(keras: ModuleType, size: Size, policy: str) -> Turn:
    model = make_model(keras, size, policy)
    offsets = np.arange(size.features, dtype=np.int32) * size.buckets
    examples = reference_examples(size)
    ids = np.concatenate([batch_ids + offsets for batch_ids, _ in examples])
    labels = np.concatenate([label for _, label in examples])[:, np.newaxis]
    data = tf.data.Dataset.from_tensor_slices((ids, labels)).batch(size.batch).cache().prefetch(2)
    times: list[float] = []

    class Clock(keras.callbacks.Callback):
        """Records the times of the first step's start and the last one's end, without the start of ``fit``."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            times.append(time.perf_counter())

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            times.append(time.perf_counter())

    clock = Clock()
    # Before anything is learned; `fit` returns the mean over a turn.
    losses = [float(model.evaluate(ids[: size.batch], labels[: size.batch], size.batch, verbose=0))]

    def turn() -> tuple[float, list[float]]:
        history = model.fit(data, epochs=1, verbose=0, callbacks=[clock]).history
        losses_after = [*losses, float(history["loss"][0])]
        losses.clear()
        return (times[-1] - times[-2]) / size.feeds, losses_after

    return turn


def make(size: Size, keras: str) -> dict[str, Turn]:
    if keras == "2":
        import tf_keras as module
    else:
        import keras as module
    assert module.__version__.startswith(f"{keras}."), module.__version__
    policies = {"float32": "float32", "mixed_bfloat16": "mixed_bfloat16"}
    return {f"Keras {keras} {name}": make_turn(module, size, policy) for name, policy in policies.items()}


if __name__ == "__main__":
    serve(make)
