"""Pairs of features: an expert beside the model, of linear weights for all features and for all pairs of them.

It learns by itself, as a model of linear weights does; ``pair_combination.py`` moves the model's predictions towards
its own as far as that has paid, and lets it sleep where it has not. Begin with ``PairTrainer``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeVar

import numpy as np
import tensorflow as tf

from ctr.data.ids import arrow
from ctr.data.ids.rules import pair_ids
from ctr.data.reader import Rows
from ctr.data.schema import Schema
from ctr.models.rows import FeatureRows, TableLayout, lay_out_tables
from ctr.objective.bias_constraints import Family
from ctr.training.config import TrainConfig
from ctr.training.device import has_few_shapes, resolve_compute_dtype
from ctr.training.feed import Feed, make_feed
from ctr.training.ids.config import EvictionConfig, IdsConfig
from ctr.training.model_config import CrossConfig, DeepConfig
from ctr.training.pair_combination import Combination
from ctr.training.shapes import FewShapes, few_shapes
from ctr.training.state import TrainState
from ctr.training.trainer import Phase, Ramps, Rates, Scores, Trainer
from ctr.workers.collectives import Workers
from ctr.workers.parts import Part, Sharding

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


PREFIX = "pairs/"
"""Prefix of the names of the expert's arrays in checkpoints."""
_COMBINATION = f"{PREFIX}combination"

ValueT = TypeVar("ValueT")


class PairState(TrainState):
    """Variables of a model, those of the expert beside it, ``pairs``, and what combines the two."""

    def __init__(
        self, config: TrainConfig, schema: Schema, families: Sequence[Family], workers: Workers
    ) -> None:
        dtype = resolve_compute_dtype(config)
        super().__init__(config.table_layouts(schema), config, dtype, families, workers)
        self.schema, self.pair_config = schema, pair_config(config, schema)
        layouts = pair_layouts(config, schema)
        self.pairs = TrainState(layouts, self.pair_config, dtype, (), workers)
        self.combination = Combination()

    def leaves(self) -> dict[str, tf.Variable | np.ndarray]:
        own = {f"{PREFIX}{name}": leaf for name, leaf in self.pairs.leaves().items()}
        return super().leaves() | own | {_COMBINATION: self.combination.to_array()}

    @property
    def sharding(self) -> Sharding:
        return super().sharding.joined(self.pairs.sharding, PREFIX)

    def restore(self, arrays: Mapping[str, np.ndarray], parts: Mapping[str, Part] | None = None) -> None:
        own = {name: array for name, array in arrays.items() if not name.startswith(PREFIX)}
        super().restore(own, parts)
        self.pairs.restore(of_pairs(arrays), of_pairs(parts or {}))
        self.combination.restore(arrays[_COMBINATION])

    def expert_report(self) -> dict[str, float]:
        gate, _ = self.combination.served
        return {"pairs_gate": round(gate, 6) if self.combination.is_awake else 0.0}

    def parameter_counts(self) -> dict[str, int]:
        of_pairs = self.pairs.parameter_counts()
        return {name: count + of_pairs[name] for name, count in super().parameter_counts().items()}


def of_pairs(arrays: Mapping[str, ValueT]) -> dict[str, ValueT]:
    """Selects what the expert restores itself from, of all arrays of a state, or of something for each of them."""
    names = (name for name in arrays if name.startswith(PREFIX) and name != _COMBINATION)
    return {name.removeprefix(PREFIX): arrays[name] for name in names}


def combination_of(arrays: Mapping[str, np.ndarray]) -> Combination:
    """Reads the combination among all arrays of a state."""
    found = Combination()
    found.restore(arrays[_COMBINATION])
    return found


class PairTrainer(Trainer):
    """Trains the model as if it were alone, and the expert in the same way; predicts by both together."""

    state: PairState

    def __init__(self, state: PairState, config: TrainConfig, phase: Phase | None = None) -> None:
        super().__init__(state, config, phase)
        self._pairs = Trainer(state.pairs, state.pair_config, phase)
        self._shapes: FewShapes | None = None
        if has_few_shapes(config):
            self._shapes = few_shapes(state.pair_config, state.schema, state.pairs.layouts)

    def beside(self, feed: Feed) -> Feed | None:
        """Makes the feed of the expert, of the same batch; None: it sleeps."""
        return self._feed_of_pairs(feed) if self.state.combination.is_awake else None

    def _feed_of_pairs(self, feed: Feed) -> Feed:
        if feed.beside is not None:
            return feed.beside
        rows = with_pairs(feed.batch.rows, self._config, self.state.schema)
        pairs, config = self.state.pairs, self.state.pair_config
        made = make_feed(
            replace(feed.batch, rows=rows),
            pairs.layouts,
            feed.batch_rows,
            ids=config.ids,
            seat=pairs.seat,
            shapes=self._shapes,
            fused=self._pairs.fused_shapes if feed.is_fused else (),
        )
        made.prepare()
        return made

    def learn(self, feed: Feed, ramps: Ramps, rates: Rates) -> Scores:
        plain, pairs = super().learn(feed, ramps, rates), None
        if self.state.combination.is_awake:
            pairs = self._pairs.learn(self._feed_of_pairs(feed), ramps, rates)
        return self._combine(feed, plain, pairs)

    def learn_fused(
        self, feeds: Sequence[Feed], ramps: Sequence[Ramps], rates: Sequence[Rates]
    ) -> list[Scores]:
        plain = super().learn_fused(feeds, ramps, rates)
        if not self.state.combination.is_awake:
            return [self._combine(*both, None) for both in zip(feeds, plain, strict=True)]
        beside = [self._feed_of_pairs(feed) for feed in feeds]
        if all(feed.is_fused and feed.shape is beside[0].shape for feed in beside):
            pairs = self._pairs.learn_fused(beside, ramps, rates)
        else:
            given = zip(beside, ramps, rates, strict=True)
            pairs = [self._pairs.learn(*one) for one in given]
        return [self._combine(*each) for each in zip(feeds, plain, pairs, strict=True)]

    def score(self, feed: Feed, ramps: Ramps) -> Scores:
        plain = super().score(feed, ramps)
        if not self.state.combination.is_awake or not feed.rows:
            return plain
        pairs = self._pairs.score(self._feed_of_pairs(feed), ramps)
        return plain._replace(logit=self.state.combination.combine(plain.logit, pairs.logit))

    def is_due_after(self, rows: int) -> bool:
        return self.state.combination.is_due_after(rows)

    def _combine(self, feed: Feed, plain: Scores, pairs: Scores | None) -> Scores:
        """Combines what was learned from, and learns how."""
        combination, rows = self.state.combination, feed.batch.rows
        if pairs is not None and len(rows):
            logit = combination.combine(plain.logit, pairs.logit)
            combination.learn(plain.logit, pairs.logit, rows.label, rows.train_weight)
            plain = plain._replace(logit=logit)
        combination.count(len(rows))
        return plain
