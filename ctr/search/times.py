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

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field

from ctr.data.log import Manifest
from ctr.data.schema import Schema
from ctr.experiments.plan import Record, read_record
from ctr.io.errors import InputError
from ctr.models.embeddings import tower_widths
from ctr.models.rows import TableLayout
from ctr.search.space import Content, Space
from ctr.training.config import TrainConfig
from ctr.training.logs import resolve

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


class LayerTimes:
    """Time of a configuration's step, in milliseconds; raises InputError where the table is damaged."""

    def __init__(self, path: Path, purpose: str, schema: Schema, manifests: Sequence[Manifest]) -> None:
        times = read_record(path, Times)
        self._path = path
        self._schema = schema
        self._manifests = manifests
        self._batch_rows = times.batch_rows
        self._rest: float = getattr(times.rest, purpose)
        self._known: dict[tuple[str, int, int], dict[int, float]] = {}
        for one in times.layers:
            key = _row(Layer(one.kind, one.inputs, one.rank, one.outputs))
            self._known.setdefault(key, {})[one.inputs] = getattr(one, purpose)

    def __call__(self, config: TrainConfig) -> float:
        if config.batch.rows != self._batch_rows:
            raise InputError(
                f"{self._path}: its times are of batches of {self._batch_rows} rows, and batch.rows is "
                f"{config.batch.rows}"
            )
        resolved = resolve(config, self._schema, self._manifests)
        layers = layers_of(resolved, resolved.table_layouts(self._schema))
        return self._rest + config.model.ensemble.components * sum(map(self._time, layers))

    def _time(self, layer: Layer) -> float:
        known = self._known.get(_row(layer), {})
        inputs = sorted(known)
        if not inputs or not inputs[0] <= layer.inputs <= inputs[-1]:
            measured = f"those with {inputs[0]} to {inputs[-1]} inputs are" if inputs else "none like it is"
            raise InputError(
                f"{self._path}: no time of a {layer.kind} layer from {layer.inputs} to {layer.outputs} numbers of rank "
                f"{layer.rank}; {measured} in it; remove the file, so that it is measured"
            )
        return float(np.interp(layer.inputs, inputs, [known[one] for one in inputs]))


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
