"""Repeats BACKPACK's comparison at small scale: five damped curvatures, momentum and Adam on scikit-learn's digits.

    python benchmarks/study.py curvatures [--networks logistic convolutions] [--seeds 5] [--epochs 5]

Settings are chosen as in appendix C.1, by the validation accuracy of a run with one seed, over a grid in powers of 10.
The numbers are medians over other seeds, whose splits and initial values differ: loss and accuracy on 297 test
images, and the loss on the training set after the first and the last pass. KFRA, which averages matrices of all
values between two modules, is measured on the logistic regression alone. ``convolutions`` takes ten times as long.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from runner import main
from sklearn.datasets import load_digits

from ctr.optim.contrib.gauss_newton import GaussNewtonTrainer
from ctr.optim.kfac.output_losses import LOSSES

LOSS = "categorical_crossentropy"
CURVATURES = ("ggn", "ggn_mc", "kfac", "kflr", "kfra")
FIRST_ORDER = ("momentum", "adam")
BATCH = 128
TRAIN, VALIDATION = 1200, 300  # of 1797; the others are the test set
CHOSEN_ON = 100  # the seed of the choice


def network(name: str) -> Any:
    layers = [tf.keras.Input([8, 8, 1])]
    if name == "convolutions":
        for filters in (8, 16):
            layers.append(tf.keras.layers.Conv2D(filters, 3, padding="same", activation="relu"))
            layers.append(tf.keras.layers.MaxPooling2D(2))
    return tf.keras.Sequential([*layers, tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)])


def first_order(model: Any, name: str, rate: float) -> Callable[[Any, Any], Any]:
    """Returns a training step of SGD with momentum 0.9, or of Adam."""
    kinds = {
        "momentum": lambda: tf.keras.optimizers.SGD(rate, 0.9),
        "adam": lambda: tf.keras.optimizers.Adam(rate),
    }
    optimizer = kinds[name]()
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(images: tf.Tensor, classes: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(LOSSES[LOSS].values(classes, model(images)))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    return step


def run(net: str, name: str, rate: float, damping: float, seed: int, epochs: int) -> dict[str, float]:
    """Trains one network; returns its losses and accuracies."""
    images, classes = load_digits(return_X_y=True)
    images = (images / 16).reshape(-1, 8, 8, 1).astype(np.float32)
    tf.keras.utils.set_random_seed(seed)
    rng = np.random.default_rng(seed)
    train, validation, test = np.split(rng.permutation(len(images)), [TRAIN, TRAIN + VALIDATION])
    model = network(net)
    if name in FIRST_ORDER:
        step = first_order(model, name, rate)
    else:
        step = GaussNewtonTrainer(model, LOSS, name, rate, damping, seed=1000 * seed).step  # type: ignore[arg-type]

    def outcome(rows: np.ndarray) -> tuple[float, float]:
        logits = model(images[rows])
        value = float(tf.reduce_mean(LOSSES[LOSS].values(tf.constant(classes[rows]), logits)))
        return value, float(np.mean(np.argmax(logits, 1) == classes[rows]))

    first = 0.0
    for epoch in range(epochs):
        for rows in np.array_split(rng.permutation(train), TRAIN // BATCH):
            step(images[rows], classes[rows])
        first = first if epoch else outcome(train)[0]
        if not np.isfinite(first):
            break
    results = {"train_loss_first": first, "train_loss": outcome(train)[0]}
    results["validation_accuracy"] = outcome(validation)[1]
    results["test_loss"], results["test_accuracy"] = outcome(test)
    return results


def of_optimizer(
    net: str, name: str, seeds: int, epochs: int, settings: Sequence[tuple[float, float]]
) -> dict[str, float]:
    """Chooses a setting on one seed; returns medians and quartiles over ``seeds`` other seeds."""
    tried = {setting: run(net, name, *setting, CHOSEN_ON, epochs) for setting in settings}
    # Equal accuracies are ordered by the training loss.
    best = max(
        (setting for setting in settings if np.isfinite(tried[setting]["train_loss"])),
        key=lambda setting: (tried[setting]["validation_accuracy"], -tried[setting]["train_loss"]),
    )
    runs = [run(net, name, *best, seed, epochs) for seed in range(seeds)]
    results = {"rate": best[0], "damping": best[1]}
    for number in runs[0]:
        values = [outcome[number] for outcome in runs]
        results[number] = float(np.median(values))
        if number.startswith("test"):
            low, high = np.quantile(values, (0.25, 0.75))
            results |= {f"{number}_low": float(low), f"{number}_high": float(high)}
    return results


def measure(
    networks: tuple[str, ...] = ("logistic",),
    seeds: int = 5,
    epochs: int = 5,
    rates: tuple[float, ...] = (0.01, 0.1, 1.0),
    dampings: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0),
    first_order_rates: tuple[float, ...] = (0.001, 0.01, 0.1, 1.0),
) -> dict[str, Any]:
    """Returns the results by network and optimizer."""
    # For small products, more threads cost more than they save.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    results: dict[str, Any] = {}
    for net in networks:
        names = [*FIRST_ORDER, *(name for name in CURVATURES if net != "convolutions" or name != "kfra")]
        results[net] = {}
        for name in names:
            plain = name in FIRST_ORDER
            settings = list(
                itertools.product(first_order_rates if plain else rates, (0.0,) if plain else dampings)
            )
            results[net][name] = of_optimizer(net, name, seeds, epochs, settings)
            numbers = {key: float(f"{value:.4g}") for key, value in results[net][name].items()}
            print(net, name, numbers, flush=True)
    return results


if __name__ == "__main__":
    main(
        measure,
        {"seeds": 1, "epochs": 1, "rates": (0.1,), "dampings": (0.1,), "first_order_rates": (0.01,)},
    )
