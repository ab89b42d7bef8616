"""Pairs of single-valued features: their ids, their rows, and the model of linear weights that has them."""

from dataclasses import replace
from functools import cache

import numpy as np

from ctr.data.ids import arrow
from ctr.data.ids.rules import pair_ids
from ctr.data.reader import Rows
from ctr.data.schema import Schema
from ctr.models.rows import FeatureRows, TableLayout, lay_out_tables
from ctr.training.config import TrainConfig
from ctr.training.ids.config import EvictionConfig, IdsConfig
from ctr.training.model_config import CrossConfig, DeepConfig

_MOST_ROWS, _LEAST_ROWS = 2**20, 2**10
"""Rows of all pairs together, divided among them evenly, and those that each has at least."""


def pair_config(config: TrainConfig, schema: Schema) -> TrainConfig:
    """Makes the configuration of the expert: the run's own without a network, and its ids with room for pairs."""
    model = config.model.model_copy(
        update={"crosses": CrossConfig(layers=0), "deep": DeepConfig(units=()), "network": {}, "pairs": False}
    )
    pairs = max(1, len(_pairs(len(_paired(config, schema)))[0]))
    capacities = {name: config.ids.capacity_of(name) for name in schema.growing}
    capacity = max(_LEAST_ROWS, _MOST_ROWS // pairs)
    # Ids of pairs come and go in such numbers that to let them go would cost more than all the rest.
    ids = IdsConfig(
        capacity=capacity,
        capacities=capacities,
        shared_rows=config.ids.shared_rows,
        eviction=EvictionConfig(policy="none"),
    )
    return config.model_copy(update={"model": model, "ids": ids})


def pair_layouts(config: TrainConfig, schema: Schema) -> tuple[TableLayout, ...]:
    """Lays out the table of the expert: a row for each id of the model's features, and for each pair of ids."""
    features = [
        replace(feature, width=0, tower="quality", pooled=None)
        for layout in config.table_layouts(schema)
        for feature in layout.features
    ]
    paired, singles = _paired(config, schema), len(schema.single_valued)
    for number, (left, right) in enumerate(zip(*_pairs(len(paired)), strict=True)):
        of = paired[left], paired[right]
        name, rows = " x ".join(of), 1 + config.ids.shared_rows
        features.append(FeatureRows(name, rows, 0, "quality", singles + number, growing=True, of=of))
    return lay_out_tables(features)


def with_pairs(rows: Rows, config: TrainConfig, schema: Schema) -> Rows:
    """Adds the ids of all pairs to those of rows: int64 [N, F + P]."""
    ids = rows.ids.astype(np.int64, copy=False)
    places = np.array([schema.single_valued.index(name) for name in _paired(config, schema)], np.int64)
    unsigned = ids[:, places].view(np.uint64)
    parts = _pairs(len(places))
    left, right = (unsigned[:, part].ravel() for part in parts)
    pairs = pair_ids(arrow, left, right).reshape(len(ids), len(parts[0]))
    return replace(rows, ids=np.concatenate([ids, pairs], axis=1))


def _paired(config: TrainConfig, schema: Schema) -> list[str]:
    return [name for name in schema.single_ids if name not in config.model.without]


@cache
def _pairs(features: int) -> tuple[np.ndarray, np.ndarray]:
    """The places of the left and of the right feature of each pair."""
    return np.triu_indices(features, 1)
