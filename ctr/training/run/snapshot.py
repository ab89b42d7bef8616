"""Snapshot of a model between two batches: the weights needed to predict, without the state for training.

A snapshot has no duals, optimizer state or metrics; exports are written from it. A table with growing ids
has the fixed rows, followed by the rows of ids that have slots, in the order of their keys. A key is an id's
fingerprint XORed with its feature's salt, as in ``ctr.models.rows``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ctr.data.schema import Schema
from ctr.io.documents import read_json_object
from ctr.io.errors import InputError
from ctr.models.architecture import Architecture
from ctr.models.click_model import rounded_weights
from ctr.models.embeddings import tower_widths
from ctr.models.initial_weights import weight_shapes
from ctr.models.rows import STATISTICS, TableLayout, number_count
from ctr.training.config import TrainConfig
from ctr.training.device import resolve_compute_dtype
from ctr.training.experts.forward import Experts, make_experts, tables_of
from ctr.training.experts.state import active_experts
from ctr.training.ids.id_map import restored_maps
from ctr.training.run import checkpoint
from ctr.training.run.directory import read_run_model
from ctr.training.run.position import Position
from ctr.training.run.run import Run
from ctr.training.state import check_shapes, dense_weights

LAST_KEY = np.int64(np.iinfo(np.int64).max)
"""The largest key, which no id has; at the end of the keys it ensures that a search returns a valid index."""


@dataclass(frozen=True)
class Snapshot:
    """The weights of a run at one position."""

    run_dir: Path
    config: TrainConfig
    schema: Schema
    compute_dtype: str  # ``float32`` or ``bfloat16``
    layouts: tuple[TableLayout, ...]
    # For each layout, float32 [rows, columns]: the run's variable, or a copy if its ids grow.
    tables: Sequence[tf.Variable]
    # By index of a layout with growing ids: keys of the rows after the fixed ones, ascending, then ``LAST_KEY``.
    keys: Mapping[int, tf.Variable]
    ids: Mapping[str, int]  # number of ids with a row, by feature with growing ids
    experts: Experts
    # By name, float32: the weights of ``ctr.models.initial_weights`` and ``Experts.initial`` that predictions need, and
    # the statistics of numbers.
    weights: Mapping[str, tf.Variable]
    progress: Mapping[str, Any]  # ``Run.progress``

    @property
    def architecture(self) -> Architecture:
        """Returns the architecture of the network expert."""
        return self.experts.network

    @cached_property
    def position(self) -> Position:
        return Position.from_json(self.progress["position"])

    @property
    def examples(self) -> int:
        return self.position.examples

    @cached_property
    def served_weights(self) -> Mapping[str, tf.Variable]:
        """Returns the weights for an export, with the layers' weights rounded to the compute dtype."""
        rounded = rounded_weights(self.architecture, self.weights)
        return {
            name: weight
            if rounded[name].dtype == weight.dtype
            else tf.Variable(rounded[name], trainable=False, name=name)
            for name, weight in self.weights.items()
        }

    @property
    def alpha2(self) -> float:
        position = self.position
        return self.config.ramps_at(position.trained_examples, position.trained_before)["alpha2"]


Exporter = Callable[[Snapshot], object]
"""Function that the training loop calls for each export that the configuration requires."""


def take_snapshot(run: Run) -> Snapshot:
    """Returns a snapshot of a run in training, valid until its next step.

    All workers must call this; the first one gets the rows of all.
    """
    state, config, compute_dtype = run.state, run.config, resolve_compute_dtype(run.config.compute_dtype)
    layouts, names = state.active_layouts, state.experts.active.names
    variables = {**dense_weights(state.weights), **state.experts.weights}
    if state.statistics is not None:
        variables[STATISTICS] = state.statistics
    arrays = {name: variable.numpy() for name, variable in variables.items()}
    experts, weights = _served_weights(layouts, config, compute_dtype, names, arrays)
    whole = state.tables.whole()
    map_ids = {number: id_map.ids_by_row() for number, id_map in state.tables.id_maps.items()}
    served = _served_tables(layouts, whole, map_ids if state.group.is_chief else {})
    return Snapshot(
        run.run_dir, config, run.schema, compute_dtype, layouts, *served, experts, weights, run.progress()
    )


def read_snapshot(run_dir: Path, examples: int | None = None) -> Snapshot:
    """Reads a snapshot from a run's checkpoint, by default the newest. Raises InputError if missing or damaged."""
    config, schema = read_run_model(run_dir)
    path = run_dir / "environment.json"
    compute_dtype = read_json_object(path, f"{path}: no such file").get("compute_dtype")
    if compute_dtype not in ("float32", "bfloat16"):
        raise InputError(f"{path}: compute_dtype is {compute_dtype!r}; allowed: float32, bfloat16")
    arrays, progress = checkpoint.read(run_dir / "checkpoints", examples)
    weights = checkpoint.weights_of(arrays)
    try:
        layouts = config.table_layouts(schema)
        names = active_experts(
            make_experts(config.model, config.objective, compute_dtype, layouts), weights
        ).names
        check_shapes(weights, config, layouts)
        tables = [tf.Variable(weights[f"rows/{layout.name}"]) for layout in layouts]
        map_ids = {}
        for number, id_map in restored_maps(layouts, config.ids, weights).items():
            if tables[number].shape[0] < id_map.rows:
                raise ValueError(
                    f"table {layouts[number].name} has the shape {tables[number].shape.as_list()}"
                )
            map_ids[number] = id_map.ids_by_row()
        experts, variables = _served_weights(layouts, config, compute_dtype, names, weights)
    except (KeyError, ValueError) as error:
        raise InputError(f"{run_dir}: the checkpoint is of another model than config.yaml: {error}") from None
    layouts = tables_of(experts, layouts)
    served = _served_tables(layouts, tables, map_ids)
    return Snapshot(run_dir, config, schema, compute_dtype, layouts, *served, experts, variables, progress)


def _served_tables(
    layouts: Sequence[TableLayout],
    tables: Sequence[tf.Variable],
    map_ids: Mapping[int, tuple[np.ndarray, np.ndarray, np.ndarray]],
) -> tuple[list[tf.Variable], dict[int, tf.Variable], dict[str, int]]:
    """Returns ``tables``, ``keys`` and ``ids`` of a ``Snapshot``. ``map_ids``: the maps' ``ids_by_row``."""
    served, keys, ids = list(tables[: len(layouts)]), dict[int, tf.Variable](), dict[str, int]()
    for number, (places, features, fingerprints) in map_ids.items():
        if number >= len(layouts):
            continue
        layout = layouts[number]
        salts = np.array([feature.salt for feature in layout.growing], np.int64)
        # Two features' ids with the same key (one pair in 2^64) cannot be distinguished: only one of them has its row.
        unique, first = np.unique(fingerprints ^ salts[features], return_index=True)
        first = first[unique != LAST_KEY]
        rows = np.concatenate([np.arange(layout.rows, dtype=np.int32), places[first]])
        served[number] = tf.Variable(tf.gather(tables[number], rows))
        keys[number] = tf.Variable(np.append(unique[: len(first)], LAST_KEY), trainable=False)
        counts = np.bincount(features[first], minlength=len(layout.growing))
        counted = zip(layout.growing, counts, strict=True)
        ids |= {feature.name: int(count) for feature, count in counted if not feature.of}
    return served, keys, ids


def _served_weights(
    layouts: tuple[TableLayout, ...],
    config: TrainConfig,
    compute_dtype: str,
    names: tuple[str, ...],
    weights: Mapping[str, np.ndarray],
) -> tuple[Experts, dict[str, tf.Variable]]:
    """Returns ``experts`` and ``weights`` of a ``Snapshot``. Raises KeyError or ValueError if ``weights`` do not fit.

    ``names``: the experts that predict.
    """
    experts = replace(make_experts(config.model, config.objective, compute_dtype, layouts), names=names)
    shapes = weight_shapes(experts.network, tower_widths(layouts, config.model.factorized is not None))
    served = {name: tf.Variable(weights[name], name=name) for name in experts.served}
    for key, name in dense_weights({name: name for name in shapes}).items():
        if not name.endswith("rank_head"):
            served[name] = tf.Variable(weights[key], name=name)
    if count := number_count(layouts):
        if weights[STATISTICS].shape != (3, count):
            raise ValueError(f"{STATISTICS} has the shape {list(weights[STATISTICS].shape)}")
        served[STATISTICS] = tf.Variable(weights[STATISTICS], trainable=False, name=STATISTICS)
    return experts, served
