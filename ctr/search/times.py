"""Cost of a configuration as the sum of measured times of its layers, and of a rest that all have in common.

A table of times is a JSON file::

   device, batch_rows                 where it was measured, and with how many rows
   rest          training, serving    milliseconds of a step of the baseline beside its layers
   layers        kind                 deep or cross
                 inputs, rank, outputs    its shape; rank 0: a full matrix
                 training, serving    milliseconds of a step of this layer alone: forward, backward and its optimizer;
                                      forward

Between the inputs of a kind, rank and width that were measured, times are interpolated, as the input of the
first layers is as wide as the embeddings together. Look-ups count as rest: embedding widths change the
layers alone.
"""

import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import tensorflow as tf
from pydantic import Field

from ctr.data.log import Manifest, read_manifests, read_schema
from ctr.data.schema import Schema
from ctr.experiments.measure import BATCHES, first_batches, with_late_roots
from ctr.experiments.plan import Record, read_record
from ctr.experiments.run import Progress
from ctr.io.errors import InputError
from ctr.io.files import make_folder
from ctr.models.architecture import Architecture
from ctr.models.dcn import hidden_layers
from ctr.models.embeddings import tower_widths
from ctr.models.initial_weights import init_weights
from ctr.models.rows import TableLayout
from ctr.search.space import Content, Space
from ctr.training.analysis.speed import TimedModel, take_turns
from ctr.training.config import TrainConfig
from ctr.training.device import resolve_compute_dtype, resolve_jit
from ctr.training.logs import resolve
from ctr.training.optimizers import dense_optimizer
from ctr.training.run.directory import write_json

_ROUNDS = 5
_PURPOSES = ("training", "serving")
_WIDTHS_MEASURED = 4  # of the range of what the embeddings together may have


class Layer(NamedTuple):
    """Shape of a layer; rank 0: a full matrix."""

    kind: Literal["cross", "deep"]
    inputs: int
    rank: int
    outputs: int


class StepTime(Record):
    """Milliseconds of a step: of ``training``, and of ``serving`` alone."""

    training: float = Field(ge=0)
    serving: float = Field(ge=0)


class LayerTime(StepTime):
    """Milliseconds of a layer; its shape as ``Layer``."""

    kind: Literal["cross", "deep"]
    inputs: int = Field(ge=1)
    rank: int = Field(ge=0)
    outputs: int = Field(ge=1)


class Times(Record):
    """Table of times; see this module."""

    device: str
    batch_rows: int
    rest: StepTime
    layers: list[LayerTime]


def timed(
    path: Path, purpose: str, schema: Schema, manifests: Sequence[Manifest]
) -> Callable[[TrainConfig], float]:
    """Sums times of a table to those of configurations' steps, in milliseconds.

    Raises InputError, then or later: the table is damaged, or lacks a layer.
    """
    times = read_record(path, Times)
    measured: dict[tuple[str, int, int], dict[int, float]] = {}
    for one in times.layers:
        row = _row(Layer(one.kind, one.inputs, one.rank, one.outputs))
        measured.setdefault(row, {})[one.inputs] = getattr(one, purpose)

    def time_of(layer: Layer) -> float:
        known = measured.get(_row(layer), {})
        inputs = sorted(known)
        if not inputs or not inputs[0] <= layer.inputs <= inputs[-1]:
            others = f"those with {inputs[0]} to {inputs[-1]} inputs are" if inputs else "none like it is"
            raise InputError(
                f"{path}: no time of a {layer.kind} layer from {layer.inputs} to {layer.outputs} numbers of rank "
                f"{layer.rank}; {others} in it; remove the file, so that it is measured"
            )
        return float(np.interp(layer.inputs, inputs, [known[one] for one in inputs]))

    def measure(config: TrainConfig) -> float:
        if config.batch.rows != times.batch_rows:
            raise InputError(
                f"{path}: its times are of batches of {times.batch_rows} rows, and batch.rows is {config.batch.rows}"
            )
        resolved = resolve(config, schema, manifests)
        layers = layers_of(resolved, resolved.table_layouts(schema))
        rest: float = getattr(times.rest, purpose)
        return rest + config.model.ensemble.components * sum(map(time_of, layers))

    return measure


def _row(layer: Layer) -> tuple[str, int, int]:
    """Key of layers between whose inputs times are interpolated; a cross gives what it takes."""
    return layer.kind, layer.rank, 0 if layer.kind == "cross" else layer.outputs


def layers_of(config: TrainConfig, layouts: tuple[TableLayout, ...]) -> list[Layer]:
    """Crosses and deep layers of a configuration's towers, of one component."""
    model, widths = config.model, tower_widths(layouts, config.model.factorized is not None)
    if not model.has_network:
        return []
    m = widths["quality"]
    layers = [Layer("cross", m, model.crosses.rank, m)] * model.crosses.layers
    layers += _chain(m, model.deep.units, model.deep.ranks)
    return layers + (
        _chain(widths["ui"], model.factorized.ui_units, ()) if model.factorized is not None else []
    )


def _chain(inputs: int, units: Sequence[int], ranks: Sequence[int]) -> list[Layer]:
    layers = []
    for width, rank in zip_longest(units, ranks, fillvalue=0):
        layers.append(Layer("deep", inputs, rank, width))
        inputs = width
    return layers


def layers_to_measure(
    space: Space, base: TrainConfig | Content, schema: Schema, manifests: Sequence[Manifest]
) -> list[Layer]:
    """Shapes from which the times of all candidates of a space can be put together, the base's among them."""

    def resolved(values: dict[str, object]) -> tuple[TrainConfig, tuple[TableLayout, ...]]:
        config = resolve(space.apply_values(base, values), schema, manifests)
        return config, config.table_layouts(schema)

    config, layouts = resolved({})
    layers = set(layers_of(config, layouts))
    for decision in space.decisions:
        if decision.part is None:
            for value in decision.choices:
                layers |= set(layers_of(*resolved({decision.name: value})))
    choices: dict[tuple[str, int], tuple[int, ...]] = {}
    embeddings: list[dict[str, object]] = [{}, {}]
    for decision in space.decisions:
        if decision.part is not None and decision.part.features:
            for values, end in zip(embeddings, (min, max), strict=True):
                values[decision.name] = end(decision.choices)
        elif decision.part is not None:
            choices[decision.part.kind, decision.part.layer] = decision.choices
    least, most = (
        tower_widths(resolved(values)[1], config.model.factorized is not None) for values in embeddings
    )
    inputs = {
        tower: {round(width) for width in np.linspace(least[tower], most[tower], _WIDTHS_MEASURED)}
        for tower in most
    }
    model, factors = config.model, config.model.factorized
    if max(choices.get(("crosses", 0), (model.crosses.layers,))):
        ranks = choices.get(("cross_rank", 0), (model.crosses.rank,))
        layers |= {Layer("cross", m, rank, m) for m in inputs["quality"] for rank in ranks}
    towers = [("quality", "units", "ranks", model.deep.units, model.deep.ranks)]
    if factors is not None:
        towers.append(("ui", "ui_units", "", factors.ui_units, ()))
    for tower, kind, rank_kind, units, ranks in towers:
        before: set[int] = inputs[tower]
        count = max([len(units), *(layer + 1 for name, layer in choices if name == kind)])
        for layer in range(count):
            widths = choices.get((kind, layer), units[layer : layer + 1])
            own = choices.get((rank_kind, layer), ranks[layer : layer + 1] or (0,))
            present = {width for width in widths if width}
            layers |= {Layer("deep", m, rank, width) for m in before for rank in own for width in present}
            before = present | (before if 0 in widths else set())
    return sorted(layers)


def write_times(path: Path, log: Path, space: Space, base: Content, progress: Progress | None) -> None:
    """Measures on this machine what all candidates of a space need, and writes the table.

    The baseline is timed with the first batches of ``log``, and all by turns, so that a slow minute is slow for
    all of them. Raises InputError: the optimizer needs more than one layer, or the log is damaged or empty.
    """
    schema, manifests = read_schema(log), read_manifests(log)
    config = with_late_roots(resolve(space.apply_values(base, {}), schema, manifests))
    layers = layers_to_measure(space, base, schema, manifests)
    if progress is not None:
        progress(f"measuring the times of {len(layers)} layers")
    model = TimedModel(config, schema, first_batches(log, schema, config))
    whole = "the baseline's step"
    timers: dict[str, Callable[[], float]] = {
        f"training {whole}": model.seconds,
        f"serving {whole}": model.scoring_seconds,
    }
    for layer in layers:
        timers |= {f"{purpose} {layer}": timer for purpose, timer in _timers(layer, config).items()}
    seconds = take_turns(timers, _ROUNDS)
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


def _timers(layer: Layer, config: TrainConfig) -> dict[str, Callable[[], float]]:
    """Functions that take a turn of steps of a layer alone, and return the seconds of one, by purpose."""
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
    optimizer = dense_optimizer(config.optimizer.dense)
    initial = init_weights(shape, {"quality": layer.inputs}, seed=0)
    weights = {name: tf.Variable(one) for name, one in initial.items() if name.startswith("quality/")}
    run = partial(hidden_layers, shape, [weights], "quality", compiled=True)
    optimizer.build(weights)
    rows = config.batch.rows
    inputs = tf.random.stateless_normal([1, rows, layer.inputs], [1, layer.inputs])
    upstream = tf.random.stateless_normal([1, rows, layer.outputs], [2, layer.outputs]) / rows
    rate, one = tf.constant(config.optimizer.dense.learning_rate), tf.constant(1.0)

    @tf.function(jit_compile=jit)
    def learn() -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            hidden = run(inputs, one)[-1]
        gradients = tape.gradient(hidden, [inputs, *weights.values()], output_gradients=upstream)
        optimizer.update(gradients[1:], rate, jit)
        return tf.reduce_sum(gradients[0])

    @tf.function(jit_compile=jit)
    def score() -> tf.Tensor:
        return tf.reduce_sum(run(inputs, one)[-1])

    def timer(step: Callable[[], tf.Tensor], exchanges: bool) -> float:
        begun = time.perf_counter()
        for _ in range(BATCHES):
            step().numpy()
            if exchanges:
                optimizer.exchange()
        return (time.perf_counter() - begun) / BATCHES

    return {"training": partial(timer, learn, jit), "serving": partial(timer, score, False)}
