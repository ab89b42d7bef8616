"""Measures the times of layers on this machine, by turns, so that a slow minute is slow for all of them."""

import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf

from ctr.data.log import read_manifests, read_schema
from ctr.experiments.measure import BATCHES, first_batches, with_late_roots
from ctr.experiments.run import Progress
from ctr.io.errors import InputError
from ctr.io.files import make_folder
from ctr.models.architecture import Architecture
from ctr.models.dcn import hidden_layers
from ctr.models.initial_weights import init_weights
from ctr.search.space import Content, Space
from ctr.search.times import Layer, LayerTime, StepTime, Times, layers_of, layers_to_measure
from ctr.training.analysis.speed import TimedModel, take_turns
from ctr.training.config import TrainConfig
from ctr.training.device import resolve_compute_dtype, resolve_jit
from ctr.training.logs import resolve
from ctr.training.optimizers import dense_optimizer
from ctr.training.run.directory import write_json

_ROUNDS = 5
_PURPOSES = ("training", "serving")


def write_times(path: Path, log: Path, space: Space, base: Content, progress: Progress | None) -> None:
    """Measures what ``ctr.search.times`` needs for all candidates of a space, and writes the table.

    The baseline is timed with the first batches of ``log``. Raises InputError: the optimizer needs more than
    one layer, or the log is damaged or empty.
    """
    schema, manifests = read_schema(log), read_manifests(log)
    config = with_late_roots(resolve(space.apply_values(base, {}), schema, manifests))
    if config.optimizer.dense.rule == "kfac":
        raise InputError(
            "search: cost.measure times needs optimizer.dense.rule shampoo or adafactor; allowed with kfac: flops"
        )
    layers = layers_to_measure(space, base, schema, manifests)
    if progress is not None:
        progress(f"measuring the times of {len(layers)} layers")
    model = TimedModel(config, schema, first_batches(log, schema, config))
    whole = "the baseline's step"
    turns: dict[str, Callable[[], float]] = {
        f"training {whole}": model.seconds,
        f"serving {whole}": model.scoring_seconds,
    }
    for layer in layers:
        one = _TimedLayer(layer, config)
        turns |= {f"training {layer}": one.seconds, f"serving {layer}": one.scoring_seconds}
    seconds = take_turns(turns, _ROUNDS)
    found = {name: 1000 * float(np.median(own)) for name, own in seconds.items()}
    own, components = layers_of(config, config.table_layouts(schema)), config.model.ensemble.components
    rest = {
        purpose: max(
            0.0,
            found[f"{purpose} {whole}"] - components * sum(found[f"{purpose} {layer}"] for layer in own),
        )
        for purpose in _PURPOSES
    }
    times = Times(
        device=platform.processor() or platform.machine(),
        batch_rows=config.batch.rows,
        rest=StepTime(**rest),
        layers=[
            LayerTime(
                **layer._asdict(), training=found[f"training {layer}"], serving=found[f"serving {layer}"]
            )
            for layer in layers
        ],
    )
    make_folder(path.parent)
    write_json(path, times.model_dump())


class _TimedLayer:
    def __init__(self, layer: Layer, config: TrainConfig) -> None:
        model, is_cross = config.model, layer.kind == "cross"
        dtype, jit = resolve_compute_dtype(config), resolve_jit(config)
        shape = Architecture(
            cross_layers=int(is_cross),
            cross_rank=layer.rank,
            deep_units=() if is_cross else (layer.outputs,),
            deep_ranks=() if is_cross else (layer.rank,),
            activation=model.deep.activation,
            smelu_beta=model.deep.smelu_beta,
            compute_dtype=dtype,
        )
        self._optimizer = dense_optimizer(config.optimizer.dense)
        initial = init_weights(shape, {"quality": layer.inputs}, seed=0)
        weights = {name: tf.Variable(one) for name, one in initial.items() if name.startswith("quality/")}
        run = partial(hidden_layers, shape, [weights], "quality", compiled=True)
        self._optimizer.build(weights)
        rows = config.batch.rows
        inputs = tf.random.stateless_normal([1, rows, layer.inputs], [1, layer.inputs])
        upstream = tf.random.stateless_normal([1, rows, layer.outputs], [2, layer.outputs]) / rows
        rate, one = tf.constant(config.optimizer.dense.learning_rate), tf.constant(1.0)

        def learn() -> tf.Tensor:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                hidden = run(inputs, one)[-1]
            gradients = tape.gradient(hidden, [inputs, *weights.values()], output_gradients=upstream)
            self._optimizer.update(gradients[1:], rate, jit)
            return tf.reduce_sum(gradients[0])

        def score() -> tf.Tensor:
            return tf.reduce_sum(run(inputs, one)[-1])

        self._learn = tf.function(learn, jit_compile=jit)
        self._score = tf.function(score, jit_compile=jit)
        self._exchanges = jit

    def seconds(self) -> float:
        begun = time.perf_counter()
        for _ in range(BATCHES):
            self._learn().numpy()
            if self._exchanges:
                self._optimizer.exchange()
        return (time.perf_counter() - begun) / BATCHES

    def scoring_seconds(self) -> float:
        begun = time.perf_counter()
        for _ in range(BATCHES):
            self._score().numpy()
        return (time.perf_counter() - begun) / BATCHES
