"""Trains a small convolutional network on scikit-learn's digits with Adam and Shampoo, with and without merged kernels.

    python benchmarks/study.py digits [--seeds 3] [--epochs 3]

Each seed determines a split of the 1,797 images and initial values. Results are means on 297 test images, and
half-widths of their 95% intervals.
"""

from typing import Any

import numpy as np
import tensorflow as tf
from runner import main
from scipy.stats import t
from sklearn.datasets import load_digits

from ctr.optim import Shampoo

OPTIMIZERS = {
    "Adam": lambda rate: tf.keras.optimizers.Adam(rate / 4),
    "Shampoo": Shampoo,
    "Shampoo, merged": lambda rate: Shampoo(rate, blocking={"merge": 144}),
}


def outcome(optimizer: Any, seed: int, epochs: int) -> list[float]:
    """Trains the network with an optimizer; returns loss and accuracy on the test images."""
    images, classes = load_digits(return_X_y=True)
    images = (images / 16).reshape(-1, 8, 8, 1).astype("float32")
    tf.keras.utils.set_random_seed(seed)
    order = np.random.default_rng(seed).permutation(len(images))
    train, test = order[:1500], order[1500:]
    layers = [tf.keras.layers.Conv2D(size, 3, activation="relu") for size in (16, 32)]
    model = tf.keras.Sequential([*layers, tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, metrics=["accuracy"])
    model.fit(images[train], classes[train], batch_size=32, epochs=epochs, verbose=0)
    return model.evaluate(images[test], classes[test], verbose=0)


def measure(seeds: int = 3, epochs: int = 3, rates: tuple[float, ...] = (0.02, 0.04, 0.08)) -> dict[str, Any]:
    """Returns means and margins of test loss and accuracy, by optimizer and rate."""
    results: dict[str, Any] = {}
    for name, make in OPTIMIZERS.items():
        for rate in rates:
            outcomes = np.array([outcome(make(rate), seed, epochs) for seed in range(seeds)])
            margin = t.ppf(0.975, seeds - 1) * outcomes.std(axis=0, ddof=1) / np.sqrt(seeds)
            numbers = zip(("loss", "accuracy"), outcomes.mean(axis=0), margin, strict=True)
            results.setdefault(name, {})[str(rate)] = {
                f"{what}{kind}": float(value)
                for what, mean, half in numbers
                for kind, value in (("", mean), ("_margin", half))
            }
    return results


if __name__ == "__main__":
    main(measure, {"seeds": 2, "epochs": 1, "rates": (0.02,)})
