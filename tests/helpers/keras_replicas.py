"""Shampoo in Keras on several replicas, which divide its blocks: trainings in float64, in processes of their own.

``one_process`` and ``processes`` return arrays by names such as ``averages|3|weight0``: case, how, and what.
"""

import functools
import json
import sys
import unittest.mock
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ctr.optim.shampoo.host import HostPipeline
from ctr.workers.seats import read_place

STEPS, SAVED_AT, NOT_FINITE, PARTS, BATCH = 14, 7, 4, 12, 16
SOME_MISSING = (2, 5)
QUICK: dict[str, Any] = {"block_size": 4, "start_preconditioning_step": 2, "precondition_frequency": 3}
QUICK |= {"statistics": {"frequency": 1}, "epsilon": 1e-3}
AVERAGES: dict[str, Any] = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "beta2": 0.9}
AVERAGES |= {"beta1": 0.5, "grafting": {"kind": "adam"}}
CASES: dict[str, dict[str, Any]] = {
    "averages": AVERAGES | {"global_clipnorm": 3.0, "rows": "one_sided", "use_ema": True},
    "clipped": AVERAGES | {"global_clipnorm": 0.05},
    "averages in place": {"rows": "one_sided", "use_ema": True, "ema_overwrite_frequency": 3},
    "accumulation": {"gradient_accumulation_steps": 2},
}
IS_KERAS_3 = tf.keras.Model.__module__.startswith("keras.")


def mirrored(count: int) -> tf.distribute.Strategy:
    """The strategy of so many replicas, on logical devices; of one, TensorFlow's default."""
    (processor,) = tf.config.list_physical_devices("CPU")
    if len(tf.config.get_logical_device_configuration(processor) or ()) != 4:
        tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 4)
    if count == 1:
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(count)])


def make(strategy: tf.distribute.Strategy, case: str, per_group: int | None = None, **compiling: Any) -> Any:
    """A model with its optimizer built."""
    from ctr.optim import Shampoo

    layers = tf.keras.layers
    tf.keras.backend.set_floatx("float64")
    tf.keras.utils.set_random_seed(1)
    options = QUICK | CASES[case]
    options["roots"] = {"early_growth": 0.0, "drift_bound": 0.0} | options.get("roots", {})
    with strategy.scope():
        ids = tf.keras.Input((2,), dtype="int32")
        hidden = layers.Flatten()(layers.Embedding(7, 3, name="words")(ids))
        hidden = layers.Dense(10, activation="tanh")(layers.Dense(12, activation="tanh")(hidden))
        model = tf.keras.Model(ids, layers.Dense(1)(hidden))
        optimizer = Shampoo(0.05, num_replicas_per_group=per_group, **options)
        model.compile(optimizer=optimizer, loss="mse", **compiling)
        model.optimizer.build(model.trainable_variables)
    return model


@functools.cache
def step_of(strategy: tf.distribute.Strategy, model: Any, eager: bool) -> Callable[..., None]:
    """A model's step with gradients in parts, of each of which a replica gives its share."""
    variables, optimizer = model.trainable_variables, model.optimizer

    def on_replica(rows: tf.Tensor, parts: list[tf.Tensor], some_missing: bool) -> None:
        context = tf.distribute.get_replica_context()
        share = tf.range(PARTS) % context.num_replicas_in_sync == context.replica_id_in_sync_group
        mask = tf.cast(share, tf.float64)
        # Rows stay apart, as clipping takes the norm of all that are given.
        given: list[Any] = [tf.IndexedSlices(mask[:, tf.newaxis] * parts[0], rows, tf.constant([7, 3]))]
        for index, part in enumerate(parts[1:], start=1):
            given.append(None if index > 2 and some_missing else tf.tensordot(mask, part, 1))
        optimizer.apply_gradients(list(zip(given, variables, strict=True)))

    def step(*arguments: Any) -> None:
        strategy.run(on_replica, args=arguments)

    return step if eager else tf.function(step, autograph=False)


def advance(strategy: tf.distribute.Strategy, model: Any, begin: int, end: int, eager: bool = False) -> None:
    """Takes steps with made gradients, whose sums are exact."""
    shapes = [(3,), *(tuple(variable.shape) for variable in model.trainable_variables[1:])]
    run = step_of(strategy, model, eager)
    for number in range(begin, end):
        made = np.random.default_rng(number)
        parts = [made.integers(-99, 99, (PARTS, *shape)).astype(np.float64) for shape in shapes]
        if number == NOT_FINITE:
            parts[1][-1] = np.nan
        rows = tf.constant(made.integers(0, 7, PARTS).astype(np.int32))
        run(rows, [tf.constant(part) for part in parts], number in SOME_MISSING)


def state(strategy: tf.distribute.Strategy, model: Any) -> dict[str, np.ndarray]:
    """The weights and whole state, the report, and whether all replicas here have the same bits of weights."""
    optimizer = model.optimizer
    held = [getattr(one, "value", one) if IS_KERAS_3 else one for one in model.trainable_variables]
    kept = optimizer.variables if IS_KERAS_3 else optimizer.variables()
    components = [strategy.experimental_local_results(variable) for variable in held]
    same = [one.numpy().tobytes() == other.numpy().tobytes() for one, *rest in components for other in rest]
    found = {f"weight{i}": variable.numpy() for i, variable in enumerate(held)}
    found |= {f"state{i}": np.asarray(one.numpy()) for i, one in enumerate(kept)}
    found |= {f"report|{name}": np.array(value) for name, value in optimizer.core.report().items()}
    return found | {"same": np.array(all(same))}


def fitted(strategy: tf.distribute.Strategy, case: str, **compiling: Any) -> dict[str, np.ndarray]:
    """``state`` after ``fit`` on batches of all replicas together, and how many roots were computed here."""
    ids = np.random.default_rng(0).integers(0, 7, (10 * BATCH, 2)).astype(np.int32)
    labels = np.sin(ids.sum(axis=1, keepdims=True)) + 0.5
    sharding = tf.data.Options()
    sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    batches = tf.data.Dataset.from_tensor_slices((ids, labels)).batch(BATCH, drop_remainder=True)
    *rest, solve = HostPipeline.__init__.__defaults__ or ()
    computed: list[int] = []

    def counted(*arguments: Any, **keywords: Any) -> Any:
        computed.append(1)
        return solve(*arguments, **keywords)

    with unittest.mock.patch.object(HostPipeline.__init__, "__defaults__", (*rest, counted)):
        model = make(strategy, case, **compiling)
        model.fit(batches.with_options(sharding), epochs=2, shuffle=False, verbose=0)
    return state(strategy, model) | {"computed": np.array(len(computed))}


def _checkpoint(model: Any) -> tf.train.Checkpoint:
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


def _restored(path: Path, fresh: Callable[[], Any]) -> Any:
    model = fresh()
    _checkpoint(model).read(str(path)).assert_existing_objects_matched()
    return model


WAYS: dict[str, tuple[Callable[[Path, Any], Any], Callable[[Path, Callable[[], Any]], Any]]] = {
    "checkpoint": (lambda path, model: _checkpoint(model).write(str(path)), _restored),
    "keras": (
        lambda path, model: model.save(f"{path}.keras"),
        lambda path, _: tf.keras.models.load_model(f"{path}.keras"),
    ),
}
"""How training is saved, and gone on with."""


def trained(
    strategy: tf.distribute.Strategy, case: str, per_group: int | None = None, save: Path | None = None
) -> dict[str, np.ndarray]:
    """``state`` after all steps; saved on the way in all ways, where a folder is given."""
    model = make(strategy, case, per_group)
    advance(strategy, model, 0, SAVED_AT)
    if save:
        save.mkdir(parents=True)
        for way, (write, _) in WAYS.items():
            write(save / way, model)
    advance(strategy, model, SAVED_AT, STEPS)
    return state(strategy, model)


def resumed(
    strategy: tf.distribute.Strategy, folder: Path, ways: Sequence[str] = ("checkpoint", "keras")
) -> dict[str, dict[str, np.ndarray]]:
    """By the way ``state`` after the steps that follow those before a save of "averages"."""
    found = {}
    for way in ways:
        _, read = WAYS[way]
        with strategy.scope():
            model = read(folder / way, lambda: make(strategy, "averages"))
        advance(strategy, model, SAVED_AT, STEPS)
        found[way] = state(strategy, model)
    return found


def refused(take: Callable[[], Any]) -> np.ndarray:
    """The message with which something ends."""
    try:
        take()
    except Exception as error:
        return np.array(f"{type(error).__name__}: {error}")
    return np.array("")


def one_process(saves: str, count: int) -> dict[str, np.ndarray]:
    """What so many replicas of one process come to; 2 of them, which save, before others.

    Strategies of several sizes would wait for each other in one process.
    """
    strategy, saved, made = mirrored(count), Path(saves, "of2"), {}
    if count == 4:
        made["averages|4 by 2"] = trained(strategy, "averages", 2)
    else:
        made[f"averages|{count}"] = trained(strategy, "averages", save=saved if count == 2 else None)
    for way, own in resumed(strategy, saved, {1: ["checkpoint"], 2: list(WAYS)}.get(count, [])).items():
        made[f"averages|{count} from 2 by {way}"] = own
    # Keras 3 replaces weights by their averages inside a condition, in which replicas cannot wait for each other.
    for case in ["clipped"] if IS_KERAS_3 else ["clipped", "averages in place"]:
        if count in (1, 2):
            made[f"{case}|fit {count}"] = fitted(strategy, case)
    found: dict[str, np.ndarray] = {}
    if count == 2:
        model = make(strategy, "averages")
        advance(strategy, model, 0, STEPS, eager=True)
        made["averages|eager"] = state(strategy, model)
        trials: dict[str, Callable[[], Any]] = {
            "jit_compile": lambda: fitted(strategy, "clipped", jit_compile=True),
            "elsewhere": lambda: advance(strategy, make(tf.distribute.get_strategy(), "clipped"), 0, 1),
            "groups": lambda: make(strategy, "averages", 3),
        }
        for name in ("accumulation", "averages in place") if IS_KERAS_3 else ():
            trials[name] = lambda name=name: advance(strategy, make(strategy, name), 0, 3)
        found = {f"refused|{name}": refused(take) for name, take in trials.items()}
    return found | {f"{name}|{part}": value for name, own in made.items() for part, value in own.items()}


def processes(saves: str) -> dict[str, np.ndarray]:
    """In each process of a cluster: trained, saved to a folder of its own, gone on with, and ``fit``."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    own = Path(saves, str(strategy.cluster_resolver.task_id))
    made = {"whole": trained(strategy, "averages", save=own)}
    made |= {f"by {way}": own for way, own in resumed(strategy, Path(saves, "0")).items()}
    found: dict[str, np.ndarray] = {}
    if IS_KERAS_3:
        found["refused|fit"] = refused(lambda: fitted(strategy, "clipped"))
    else:
        made["fit"] = fitted(strategy, "clipped")
    return found | {f"{name}|{part}": value for name, own in made.items() for part, value in own.items()}


def alone(saves: str) -> dict[str, np.ndarray]:
    """The same on one replica: from the beginning, and from what the second process saved."""
    strategy = mirrored(1)
    made = {"whole": trained(strategy, "averages"), "fit": fitted(strategy, "clipped")}
    made |= {f"by {way}": own for way, own in resumed(strategy, Path(saves, "1")).items()}
    return {f"{name}|{part}": value for name, own in made.items() for part, value in own.items()}


def _run(call: str, folder: str) -> None:
    """What each process does."""
    wanted, place = json.loads(call), read_place()
    arrays = globals()[wanted.pop("function")](**wanted)
    np.savez(Path(folder) / f"{0 if place is None else place.rank}.npz", **arrays)


if __name__ == "__main__":
    _run(*sys.argv[1:])
