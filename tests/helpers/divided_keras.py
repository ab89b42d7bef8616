"""Shampoo in Keras on several replicas that divide its blocks: made gradients, in float64, whose sums are exact."""

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from replicated_keras import all_variables, plain
from shampoo_options import tree

STEPS, SAVED_AT, NOT_FINITE, PARTS, RATE = 14, 7, 4, 12, 0.05
QUICK: dict[str, Any] = {"block_size": 4, "start_preconditioning_step": 2, "precondition_frequency": 3} | {
    "statistics_frequency": 1,
    "early_growth": 0.0,
    "drift_bound": 0.0,
    "epsilon": 1e-3,
}
CASES: dict[str, dict[str, Any]] = {
    "averages": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "beta1": 0.5, "beta2": 0.9}
    | {"grafting": "adam", "global_clipnorm": 3.0, "sparse": "one_sided", "use_ema": True},
    "bases": {"eigenvalue_correction": True, "beta1": 0.5, "beta2": 0.9, "asynchronous": False},
    "diagonals": {"large_dimensions": "diagonal", "max_dimension": 9, "update_clipping": 1.0},
}


def devices(count: int) -> list[str]:
    """Logical devices of the processor; before TensorFlow looks at them."""
    (processor,) = tf.config.list_physical_devices("CPU")
    if len(tf.config.get_logical_device_configuration(processor) or ()) != 4:
        tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 4)
    return [f"CPU:{number}" for number in range(count)]


def mirrored(count: int) -> tf.distribute.Strategy:
    """The strategy of so many replicas in one process; of one, TensorFlow's default."""
    names = devices(count)
    return tf.distribute.get_strategy() if count == 1 else tf.distribute.MirroredStrategy(names)


def make(strategy: tf.distribute.Strategy, case: str, per_group: int | None = None) -> Any:
    """A model of float64, with its optimizer built."""
    from ctr.optim import Shampoo

    keras = tf.keras
    keras.backend.set_floatx("float64")
    keras.utils.set_random_seed(1)
    with strategy.scope():
        ids = keras.Input((2,), dtype="int32")
        hidden = keras.layers.Flatten()(keras.layers.Embedding(7, 3, name="words")(ids))
        hidden = keras.layers.Dense(10, activation="tanh")(keras.layers.Dense(12, activation="tanh")(hidden))
        model = keras.Model(ids, keras.layers.Dense(1)(hidden))
        model.compile(
            optimizer=Shampoo(RATE, num_replicas_per_group=per_group, **tree(**QUICK | CASES[case]))
        )
        model.optimizer.build(model.trainable_variables)
    return model


def advance(strategy: tf.distribute.Strategy, model: Any, begin: int, end: int, eager: bool = False) -> None:
    """Takes the steps from ``begin`` to ``end``; in each, a replica gives its share of the parts of a gradient."""
    variables, optimizer = model.trainable_variables, model.optimizer
    shapes = [(3,), *(tuple(variable.shape) for variable in variables[1:])]

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

    run = step if eager else tf.function(step, autograph=False)
    for number in range(begin, end):
        made = np.random.default_rng(number)
        parts = [made.integers(-99, 99, (PARTS, *shape)).astype(np.float64) for shape in shapes]
        if number == NOT_FINITE:
            parts[1][-1] = np.nan
        rows = tf.constant(made.integers(0, 7, PARTS).astype(np.int32))
        run(rows, [tf.constant(part) for part in parts], number % 5 == 2)


def state(strategy: tf.distribute.Strategy, model: Any) -> dict[str, np.ndarray]:
    """The weights and whole state, the report, and whether all replicas here have the same bits of weights."""
    optimizer = model.optimizer
    held = [plain(variable) for variable in model.trainable_variables]
    components = [strategy.experimental_local_results(variable) for variable in held]
    same = [one.numpy().tobytes() == other.numpy().tobytes() for one, *rest in components for other in rest]
    found = {f"weight{i}": variable.numpy() for i, variable in enumerate(held)}
    found |= {f"state{i}": np.asarray(one.numpy()) for i, one in enumerate(all_variables(optimizer))}
    found |= {f"report|{name}": np.array(value) for name, value in optimizer.core.report().items()}
    return found | {"same": np.array(all(same))}


def run(
    count: int, runs: list[tuple[str, int | None]], save: str | None = None, load: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Trains each case on replicas in groups of some size; by case and size ``state`` after the last step.

    Args:
        count: the replicas, in one process; 0: those of the cluster in TF_CONFIG.
        runs: cases, and numbers of replicas in a group.
        save: a folder to save to on the way.
        load: folders that others have saved to, from which training goes on instead; the results have their names.
    """
    strategy = mirrored(count) if count else tf.distribute.MultiWorkerMirroredStrategy()
    if save and not count:
        save += str(strategy.cluster_resolver.task_id)
    found = {}
    for case, per_group in runs:
        made: dict[str, Any] = {}
        for folder in load:
            for way, (_, read) in WAYS.items():
                with strategy.scope():
                    model = read(Path(folder, case, way), functools.partial(make, strategy, case, per_group))
                advance(strategy, model, SAVED_AT, STEPS)
                made[f"{Path(folder).parent.name}|{way}"] = model
        if not load:
            model = made["whole"] = make(strategy, case, per_group)
            advance(strategy, model, 0, SAVED_AT)
            for way, (write, _) in WAYS.items() if save else ():
                Path(save or "", case).mkdir(parents=True, exist_ok=True)
                write(Path(save or "", case, way), model)
            advance(strategy, model, SAVED_AT, STEPS)
        for name, model in made.items():
            key = f"{case}|{per_group}|{name}"
            found |= {f"{key}|{part}": value for part, value in state(strategy, model).items()}
    return found


def _checkpoint(model: Any) -> tf.train.Checkpoint:
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


def _restored(path: Path, make_model: Callable[[], Any]) -> Any:
    model = make_model()
    _checkpoint(model).read(str(path)).assert_existing_objects_matched()
    return model


def _with_weights(path: Path, make_model: Callable[[], Any]) -> Any:
    model = make_model()
    model.load_weights(f"{path}.weights.h5")
    return model


WAYS: dict[str, tuple[Callable[[Path, Any], Any], Callable[[Path, Callable[[], Any]], Any]]] = {
    "checkpoint": (lambda path, model: _checkpoint(model).write(str(path)), _restored),
    "keras": (
        lambda path, model: model.save(f"{path}.keras"),
        lambda path, _: tf.keras.models.load_model(f"{path}.keras"),
    ),
    "weights": (lambda path, model: model.save_weights(f"{path}.weights.h5"), _with_weights),
}
"""How training is saved, and gone on with."""


def bytes_of_state(counts: Sequence[int]) -> dict[str, np.ndarray]:
    """By the number of replicas the bytes of what each keeps of a model's blocks, and of all else."""
    strategy, found = mirrored(max(counts)), {}
    from ctr.optim import Shampoo

    for count in counts:
        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.layers.Dense(width) for width in (1024, 512, 256)])
            model.build([None, 416])
            optimizer = Shampoo(num_replicas_per_group=count)
            optimizer.build(model.trainable_variables)
        sizes = np.zeros((len(optimizer.cores), 2), np.int64)
        for replica, core in enumerate(optimizer.cores):
            for name, variable in core.variables.items():
                in_blocks = name.startswith("stack") or name in {
                    f"tensor{index}/accumulator" for index in (0, 2, 4)
                }
                sizes[replica, 0 if in_blocks else 1] += (
                    np.prod(variable.shape, dtype=np.int64) * variable.dtype.size
                )
        found[str(count)] = sizes
    return found


def eager_and_refused(count: int) -> dict[str, np.ndarray]:
    """State after eager steps, and the line with which a size of groups is refused that does not fit.

    In Keras 2 a SavedModel is written and read, too.
    """
    strategy = mirrored(count)
    found = {}
    for eager in (False, True):
        model = make(strategy, "averages")
        advance(strategy, model, 0, SAVED_AT, eager)
        found |= {f"{eager}|{name}": value for name, value in state(strategy, model).items()}
    if not tf.keras.Model.__module__.startswith("keras."):
        with tempfile.TemporaryDirectory() as folder:
            model.save(folder)
            tf.keras.models.load_model(folder)
    try:
        make(strategy, "averages", count + 1)
    except ValueError as error:
        found["refused"] = np.array(str(error))
    return found
