"""The table of pairs: linear weights of all features of a model, and of all pairs of single-valued ones.

Its features have width 0, and use the ids of a feature of the log or combine the ids of two. Loads no TensorFlow.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ctr.io.errors import InputError
from ctr.models.rows import FeatureRows, TableLayout, lay_out_tables
from ctr.training.experts.names import PAIRS, expert_names
from ctr.training.ids.config import EvictionConfig, IdsConfig

if TYPE_CHECKING:
    from ctr.training.model_config import ModelConfig

_MOST_ROWS, _LEAST_ROWS = 2**20, 2**10
"""Rows of all pairs together, divided evenly among them, and the minimum for each pair."""


def with_pair_table(
    layouts: tuple[TableLayout, ...], model: "ModelConfig", columns: int, shared_rows: int
) -> tuple[TableLayout, ...]:
    """Adds the table of pairs to a model's tables, if it has a pairs expert.

    Args:
        columns: columns of the log's id matrix; the ids of pairs follow them (``with_pair_ids``).
        shared_rows: number of rows shared by all ids of a feature without an individual row.

    Raises:
        InputError: the log has fewer than two features to pair.
    """
    if PAIRS not in expert_names(model):
        return layouts
    log_features = [feature for layout in layouts for feature in layout.features]
    if sum(feature.single is not None for feature in log_features) < 2:
        raise InputError("config: model.experts names pairs, which need two single-valued features with ids")
    features = [
        replace(f, name=f"{PAIRS}/{f.name}", width=0, tower=PAIRS, pooled=None, of=(f.name,))
        for f in log_features
    ]
    for number, of in enumerate(zip(*_sides(log_features), strict=True)):
        name = f"{PAIRS}/{of[0].name} x {of[1].name}"
        pair = FeatureRows(name, 1 + shared_rows, 0, PAIRS, columns + number, growing=True)
        features.append(replace(pair, of=(of[0].name, of[1].name)))
    return *layouts, *lay_out_tables(features, layouts[0].copies)


def _sides(features: Sequence[FeatureRows]) -> tuple[list[FeatureRows], list[FeatureRows]]:
    """Returns the left and the right features of all pairs, two lists, in the order of the log's columns."""
    singles = sorted((f for f in features if f.single is not None), key=lambda f: f.single or 0)
    left, right = np.triu_indices(len(singles), 1)
    return [singles[at] for at in left], [singles[at] for at in right]


def with_pair_ids(ids: np.ndarray, layouts: Sequence[TableLayout]) -> np.ndarray:
    """Appends the ids of all pairs of a model to the ids of N rows: int64 [N, F + P]; unchanged without pairs."""
    table = next((layout for layout in layouts if layout.tower == PAIRS), None)
    if table is None:
        return ids
    # Loaded here: a configuration is read without Arrow.
    from ctr.data.ids import arrow
    from ctr.data.ids.rules import pair_ids

    columns = {feature.source: feature.single or 0 for feature in table.single if len(feature.of) == 1}
    pairs = [[columns[name] for name in feature.of] for feature in table.single if len(feature.of) == 2]
    ids = ids.astype(np.int64, copy=False)
    # ``take`` lays the rows out one after the other, as ``ravel`` needs them; an index would not.
    left, right = (ids.take(columns, axis=1).view(np.uint64) for columns in zip(*pairs, strict=True))
    paired = pair_ids(arrow, left.ravel(), right.ravel()).reshape(left.shape)
    return np.concatenate([ids, paired], axis=1)


def ids_of(ids: IdsConfig, layout: TableLayout) -> IdsConfig:
    """Returns the id settings of a table; the table of pairs has a limited capacity and no eviction."""
    if layout.tower != PAIRS:
        return ids
    pairs = sum(len(f.of) == 2 for f in layout.features)
    capacities = {f.name: ids.capacity_of(f.source) for f in layout.growing if len(f.of) == 1}
    return IdsConfig(shared_rows=ids.shared_rows, eviction=EvictionConfig(policy="none")).model_copy(
        update={"capacity": max(_LEAST_ROWS, _MOST_ROWS // max(1, pairs)), "capacities": capacities}
    )
