"""Shampoo in a model of tensorflow-recommenders: DCNv2 on made-up impressions, trained by `fit`.

pip install "path/to/checkout[tfrs]"
python examples/recommenders.py
"""

import os

# Before TensorFlow is loaded: tensorflow-recommenders works with Keras 2 alone.
os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs

from ctr.optim import Shampoo

IDS, FEATURES, WIDTH = 50, 3, 8


class ClickModel(tfrs.Model):
    """DCNv2: embeddings, two low-rank crosses, and a deep layer on top."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = [
            tf.keras.layers.Embedding(IDS, WIDTH, name=f"feature_{i}") for i in range(FEATURES)
        ]
        self.crosses = [tfrs.layers.dcn.Cross(projection_dim=4) for _ in range(2)]
        self.deep = tf.keras.Sequential([tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(1)])
        self.task = tfrs.tasks.Ranking(tf.keras.losses.BinaryCrossentropy(from_logits=True))

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        e0 = tf.concat([embed(ids[:, i]) for i, embed in enumerate(self.embeddings)], axis=1)
        e = e0
        for cross in self.crosses:
            e = cross(e0, e)
        return self.deep(e)

    def compute_loss(self, inputs: tuple[tf.Tensor, tf.Tensor], training: bool = False) -> tf.Tensor:
        ids, clicks = inputs
        return self.task(labels=clicks, predictions=self(ids, training=training))


def main() -> None:
    """Trains for three epochs and prints their losses."""
    rng = np.random.default_rng(0)
    ids = rng.integers(IDS, size=(4096, FEATURES)).astype(np.int32)
    logits = rng.normal(size=(FEATURES, IDS))[np.arange(FEATURES), ids].sum(axis=1) - 1
    clicks = (rng.random(len(ids)) < 1 / (1 + np.exp(-logits))).astype(np.float32)[:, np.newaxis]
    tf.keras.utils.set_random_seed(1)
    model = ClickModel()
    model.compile(optimizer=Shampoo(learning_rate=0.05, momentum=0.9, nesterov=True))
    history = model.fit(
        tf.data.Dataset.from_tensor_slices((ids, clicks)).batch(256), epochs=3, verbose=0
    ).history
    print("loss of the last batch of each epoch:", *(f"{loss:.4f}" for loss in history["loss"]))


if __name__ == "__main__":
    main()
