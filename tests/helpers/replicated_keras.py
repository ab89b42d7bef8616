"""Shampoo in Keras under tf.distribute, in float64: what ``fit`` and a custom loop make of a model on some batches."""

import unittest.mock
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ctr.optim.shampoo.host import HostPipeline
from shampoo_options import tree

STEPS, EPOCHS, BATCH, ROWS = 10, 2, 16, 7
QUICK = {
    "start_preconditioning_step": 2,
    "precondition_frequency": 4,
    "statistics_frequency": 1,
    "early_growth": 0.0,
    "drift_bound": 0.0,
}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "averages": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "beta1": 0.5, "beta2": 0.9},
    "clipped": {"global_clipnorm": 0.05, "grafting": "adam"},
    "one-sided tables": {"sparse": "one_sided"},
    "moving averages": {"use_ema": True, "ema_momentum": 0.9},
    "moving averages in place": {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 3},
}


def two_devices() -> tf.distribute.Strategy:
    """A strategy of two replicas in one process; before TensorFlow looks at its devices."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def one_device() -> tf.distribute.Strategy:
    """The strategy of a single replica."""
    return tf.distribute.get_strategy()


def several_processes() -> tf.distribute.Strategy:
    """The strategy of the cluster in TF_CONFIG."""
    return tf.distribute.MultiWorkerMirroredStrategy()


def run(kind: str, runs: Sequence[tuple[str, str]]) -> dict[str, np.ndarray]:
    """Trains.

    Args:
        kind: the function of this module that makes the strategy.
        runs: cases, each with a way, ``fit`` or ``loop``.

    Returns:
        by case and way: the weights; whether all components of each variable have the same bits, and how many these
        are; the report; and how many roots were computed.
    """
    return train(globals()[kind](), runs)


def run_both(kind: str, runs: Sequence[tuple[str, str]]) -> dict[str, np.ndarray]:
    """``run``, and before that the same on one replica, its names after ``one|``."""
    strategy = globals()[kind]()
    one = train(tf.distribute.get_strategy(), runs)
    return {f"one|{name}": value for name, value in one.items()} | train(strategy, runs)


def refusals(kind: str, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """The message with which each kind of training ends that several replicas do not have; by name."""
    strategy = globals()[kind]()
    tf.keras.backend.set_floatx("float64")
    trials: dict[str, Callable[[], Any]] = {
        "fit": lambda: fit(strategy, {}),
        "jit_compile": lambda: fit(strategy, {}, jit_compile=True),
        "elsewhere": lambda: loop(strategy, {}, tf.distribute.get_strategy()),
    }
    if tf.keras.Model.__module__.startswith("keras."):
        trials["accumulation"] = lambda: loop(strategy, {"gradient_accumulation_steps": 2})
        trials["overwriting"] = lambda: loop(strategy, {"use_ema": True, "ema_overwrite_frequency": 3})
    found = {}
    for name in names or trials:
        try:
            trials[name]()
        except Exception as error:
            found[name] = np.array(f"{type(error).__name__}: {error}")
        else:
            found[name] = np.array("")
    return found


def train(strategy: tf.distribute.Strategy, runs: Sequence[tuple[str, str]]) -> dict[str, np.ndarray]:
    tf.keras.backend.set_floatx("float64")
    found: dict[str, np.ndarray] = {}
    for case, way in runs:
        solve, computed = HostPipeline.__init__.__defaults__[-1], []

        def counted(
            *arguments: Any, solve: Any = solve, computed: list[int] = computed, **keywords: Any
        ) -> Any:
            computed.append(1)
            return solve(*arguments, **keywords)

        with unittest.mock.patch.object(HostPipeline.__init__, "__defaults__", (None, 300.0, counted)):
            model, optimizer = {"fit": fit, "loop": loop}[way](strategy, CASES[case])
        held = [plain(variable) for variable in [*model.trainable_variables, *all_variables(optimizer)]]
        components = [
            strategy.experimental_local_results(one) for one in held if isinstance(one, tf.Variable)
        ]
        same = [
            one.numpy().tobytes() == other.numpy().tobytes() for one, *rest in components for other in rest
        ]
        for i, weight in enumerate(model.trainable_variables):
            found[f"{case}|{way}|weight|{i}"] = plain(weight).numpy()
        found |= {f"{case}|{way}|report|{n}": np.array(v) for n, v in optimizer.core.report().items()}
        found[f"{case}|{way}|same"] = np.array(all(same))
        found[f"{case}|{way}|components"] = np.array(sorted({len(found) for found in components}))
        found[f"{case}|{way}|computed"] = np.array(len(computed))
    return found


def all_variables(optimizer: Any) -> list[Any]:
    """All variables of an optimizer, in either Keras."""
    return list(optimizer.variables() if callable(optimizer.variables) else optimizer.variables)


def plain(variable: Any) -> Any:
    """TensorFlow's variable of Keras'."""
    return getattr(variable, "value", variable) if not isinstance(variable, tf.Variable) else variable


def make_model() -> Any:
    keras = tf.keras
    keras.utils.set_random_seed(1)
    ids = keras.Input((2,), dtype="int32")
    hidden = keras.layers.Embedding(ROWS, 3, name="words")(ids)
    hidden = keras.layers.Dense(4, activation="tanh")(keras.layers.Flatten()(hidden))
    return keras.Model(ids, keras.layers.Dense(1)(hidden))


def batches() -> tf.data.Dataset:
    """The batches of all replicas together."""
    ids = np.random.default_rng(0).integers(0, ROWS, (STEPS * BATCH, 2)).astype(np.int32)
    labels = np.sin(ids.sum(axis=1, keepdims=True)) + 0.5
    dataset = tf.data.Dataset.from_tensor_slices((ids, labels)).batch(BATCH, drop_remainder=True)
    sharding = tf.data.Options()
    sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(sharding)


def make_optimizer(options: dict[str, Any]) -> Any:
    from ctr.optim import Shampoo

    return Shampoo(0.05, **tree(**QUICK | options))


def fit(strategy: tf.distribute.Strategy, options: dict[str, Any], **compiling: Any) -> tuple[Any, Any]:
    """Trains by ``fit``; returns the model and its optimizer."""
    with strategy.scope():
        model = make_model()
        model.compile(optimizer=make_optimizer(options), loss="mse", **compiling)
    model.fit(batches(), epochs=EPOCHS, shuffle=False, verbose=0)
    return model, model.optimizer


def loop(
    strategy: tf.distribute.Strategy, options: dict[str, Any], scope: tf.distribute.Strategy | None = None
) -> tuple[Any, Any]:
    """Trains by a loop of one's own; each replica's loss is its share of that of the batch."""
    with (scope or strategy).scope():
        model = make_model()
        optimizer = make_optimizer(options)
        optimizer.build(model.trainable_variables)

    def on_replica(ids: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(ids, training=True) - labels)) / BATCH
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(list(zip(gradients, model.trainable_variables, strict=True)))

    step = tf.function(lambda ids, labels: strategy.run(on_replica, args=(ids, labels)))
    for _ in range(EPOCHS):
        for ids, labels in strategy.experimental_distribute_dataset(batches()):
            step(ids, labels)
    return model, optimizer
