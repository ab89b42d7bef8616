"""Weights of one run that another one begins with: rows of tables by feature, dense weights by name (``dense.py``)."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ctr.config import differing_keys
from ctr.data.schema import Schema, feature_meanings
from ctr.models.architecture import NETWORK
from ctr.models.embeddings import tower_columns
from ctr.models.rows import APART, STATISTICS, FeatureRows, TableLayout, all_numbers
from ctr.objective.config import SliceConfig
from ctr.training.config import TrainConfig
from ctr.training.ids.id_map import live_ids, restored_maps
from ctr.training.optimizers import table_optimizer
from ctr.training.state import TrainState

Status = Literal["taken", "partly", "fresh", "left"]
Arrays = Mapping[str, np.ndarray]
Slots = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""By feature, int32 [N] each: rows in the new table, and the rows of the same ids in the old one."""


class Entry(NamedTuple):
    """A line of the table of what a run begins with."""

    part: str  # ``feature``, ``weight``, ``slices``, ``ramp`` or ``schedule``
    name: str
    status: Status  # ``left``: the old run has it and the new one has not
    optimizer: Status | None  # the same of what the optimizer knew of it
    why: str  # why it was not just taken; empty if it was


@dataclass(frozen=True)
class Side:
    """What the arrays of a run are of."""

    config: TrainConfig
    schema: Schema
    layouts: tuple[TableLayout, ...]
    shapes: Mapping[str, tuple[int, ...]]  # of the dense weights by name, in the order of checkpoints

    def places(self) -> dict[str, tuple[TableLayout, int, FeatureRows]]:
        return {
            feature.name: (layout, layout.offsets()[feature.name], feature)
            for layout in self.layouts
            for feature in layout.features
        }

    def columns(self) -> dict[str, dict[str, slice]]:
        return tower_columns(self.layouts, self.config.model.factorized is not None)

    def keys(self) -> dict[str, int]:
        """Numbers of the dense weights by name; the network of a plain model counts as an ensemble's first."""
        prefix = "component_0/" if self.config.model.ensemble.components == 1 else ""
        return {f"{prefix}{name}": index for index, name in enumerate(self.shapes)}


# Rows of tables.


def take_rows(
    arrays: dict[str, np.ndarray],
    old_arrays: Arrays,
    new: Side,
    old: Side,
    slots: Mapping[str, tuple[np.ndarray, np.ndarray]],
) -> tuple[list[Entry], frozenset[str]]:
    """Puts the rows of the features that both runs have into the new run's tables.

    Returns a line for each feature, and the features whose embeddings were taken.
    """
    places, meanings, old_meanings = old.places(), feature_meanings(new.schema), feature_meanings(old.schema)
    # The sum over a batch and its mean are gradients of different scales, and rules have state of their own.
    mine, theirs = (side.config.optimizer.embeddings for side in (new, old))
    differs = [
        key for key in ("rule", "gradient", "linear_rule") if getattr(mine, key) != getattr(theirs, key)
    ]
    scaled, optimizer = not differs, table_optimizer(mine, new.layouts)
    row_state = optimizer.row_state if scaled else ()
    feature_state = optimizer.feature_state if mine.linear_rule == theirs.linear_rule else ()
    entries, kept = [], set()
    for name, (layout, begin, feature) in new.places().items():
        changed = (
            differing_keys(old_meanings[name], meanings[name]) if name in places else ["the old run has none"]
        )
        if changed:
            entries.append(Entry("feature", name, "fresh", "fresh", "; ".join(changed)))
            continue
        old_layout, old_begin, old_feature = places[name]
        same_width = feature.width == old_feature.width
        columns = slice(None) if same_width else slice(-1, None)
        # Components that shared their rows each go on with a copy of them.
        sources = [0 if old_layout.copies == 1 else copy for copy in range(layout.copies)]
        taken = [copy for copy in range(layout.copies) if sources[copy] < old_layout.copies]
        moments = [
            group
            for group in optimizer.table_state
            if same_width and scaled and f"{group}/{layout.name}" in arrays
        ]
        for group, copy in itertools.product(moments, taken):
            source = old_arrays[f"{group}/{old_layout.name}"][sources[copy]]
            arrays[f"{group}/{layout.name}"][copy] = source
        for group in feature_state if layout.copies == old_layout.copies else ():
            number, old_number = layout.features.index(feature), old_layout.features.index(old_feature)
            arrays[f"{group}/{layout.name}"][number] = old_arrays[f"{group}/{old_layout.name}"][old_number]
        for group in ("rows", *row_state):
            if group in optimizer.embedding_state and not same_width:
                # They are of embeddings, which begin fresh.
                continue
            target = _by_copy(arrays[f"{group}/{layout.name}"], layout)
            source = _by_copy(old_arrays[f"{group}/{old_layout.name}"], old_layout)
            # Where ids grow, a missing value and, if there are as many, the rows that ids without a slot share.
            fixed = feature.buckets if feature.buckets == old_feature.buckets else 1
            rows: list[tuple[Any, Any]] = [(slice(begin, begin + fixed), slice(old_begin, old_begin + fixed))]
            for own, theirs in [*rows, slots[name]] if name in slots else rows:
                for copy in taken:
                    target[own, copy, columns] = source[theirs, sources[copy], columns]
        why = []
        if not same_width:
            why.append(f"the linear weights alone: the width was {old_feature.width}, is {feature.width}")
        if len(taken) < layout.copies:
            why.append(f"of {len(taken)} of {layout.copies} components")
        if same_width:
            kept.add(name)
        status: Status = "partly" if why else "taken"
        if not scaled:
            why += [f"optimizer.embeddings.{key} differs" for key in differs]
        entries.append(Entry("feature", name, status, status if scaled else "fresh", "; ".join(why)))
    gone = [name for name in places if name not in meanings]
    entries += [Entry("feature", name, "left", None, "the new run has none") for name in gone]
    return entries, frozenset(kept)


def take_numbers(
    arrays: dict[str, np.ndarray], old_arrays: Arrays, new: Side, old: Side
) -> tuple[list[Entry], frozenset[str]]:
    """Puts in the statistics of numbers that both runs read alike; returns lines, and the features that these are."""
    before, entries, kept = {one.name: one for one in all_numbers(old.layouts)}, [], set()
    meanings, old_meanings = feature_meanings(new.schema), feature_meanings(old.schema)
    for one in all_numbers(new.layouts):
        changed = ["the old run has none"]
        if one.name in before:
            changed = differing_keys(old_meanings[one.name], meanings[one.name])
        if not changed:
            own, theirs = (slice(each.first, each.first + one.size) for each in (one, before[one.name]))
            for name in (STATISTICS, APART):
                arrays[name][:, own] = old_arrays[name][:, theirs]
            kept.add(one.name)
        entries.append(Entry("feature", one.name, "fresh" if changed else "taken", None, "; ".join(changed)))
    gone = [name for name in before if name not in meanings]
    entries += [Entry("feature", name, "left", None, "the new run has none") for name in gone]
    return entries, frozenset(kept)


def _by_copy(table: np.ndarray, layout: TableLayout) -> np.ndarray:
    return table.reshape(len(table), layout.copies, -1)


# Dual variables.


def take_slices(arrays: dict[str, np.ndarray], old_arrays: Arrays, new: Side, old: Side) -> list[Entry]:
    """Puts in the dual variables, and what is remembered of the slices, of families that are defined as they were."""
    families, old_families = _families(new), _families(old)
    entries = []
    for name, family in families.items():
        if name not in old_families:
            entries.append(Entry("slices", name, "fresh", None, "the old run has none"))
        elif changed := differing_keys(old_families[name], family):
            entries.append(Entry("slices", name, "fresh", None, "; ".join(changed)))
        else:
            for group in ("duals", "slices_seen"):
                arrays[f"{group}/{name}"][...] = old_arrays[f"{group}/{name}"]
            entries.append(Entry("slices", name, "taken", None, ""))
    gone = [name for name in old_families if name not in families]
    return entries + [Entry("slices", name, "left", None, "the new run has none") for name in gone]


def _families(side: Side) -> dict[str, dict[str, Any]]:
    """Returns by name what decides which slice an example is in; not how fast its dual variable learns."""
    constraints = side.config.objective.bias_constraints
    meanings = feature_meanings(side.schema)
    families: tuple[SliceConfig, ...] = () if constraints is None else constraints.families
    return {
        family.name: {
            "log": family.log,
            "estimated_ctr": family.estimated_ctr,
            "features": {
                name: {"values": values, "meaning": meanings[name]}
                for name, values in family.features.items()
            },
        }
        for family in families
    }


# Ramps.


def take_ramps(
    new: Side, old: Side, trained: int, before: Mapping[str, int], entries: Sequence[Entry]
) -> tuple[list[Entry], dict[str, int]]:
    """Decides which ramps go on where they stood; returns lines, and how many examples each has had that goes on.

    ``trained`` and ``before``: examples that the old run trained on, and before it for each ramp.
    """
    used = [entry for entry in entries if entry.status in ("taken", "partly")]
    terms, old_terms = new.config.objective.terms, old.config.objective.terms
    # For each that the new run has, whether it is what the old one had.
    ramps = {name: name in old_terms for name in terms}
    if new.config.model.crosses.layers or new.config.model.network:
        crosses = any(
            entry.part == "weight" and ("/cross_" in entry.name or NETWORK in entry.name) for entry in used
        )
        ramps = {"alpha2": crosses, **ramps}
    ranking, old_ranking = new.config.objective.ranking, old.config.objective.ranking
    if ranking is not None and old_ranking is not None:
        ramps["ranking"] = ranking.setup == old_ranking.setup
    if "bias_constraints" in ramps:
        ramps["bias_constraints"] = any(entry.part == "slices" for entry in used)
    return _continued("ramp", ramps, trained, before)


def _continued(
    part: str, goes_on: Mapping[str, bool], trained: int, before: Mapping[str, int]
) -> tuple[list[Entry], dict[str, int]]:
    offsets = {name: trained + before.get(name, 0) for name, continues in goes_on.items() if continues}
    lines = [
        Entry(part, name, "taken", None, f"continues at {offsets[name]} examples")
        if name in offsets
        else Entry(part, name, "fresh", None, "begins here")
        for name in goes_on
    ]
    return lines, offsets


def take_schedules(
    new: Side, old: Side, trained: int, before: Mapping[str, int], entries: Sequence[Entry]
) -> tuple[list[Entry], dict[str, int]]:
    """Decides which schedules continue: those of the same variables, some of which were taken; see ``take_ramps``."""
    used = {entry.part for entry in entries if entry.status in ("taken", "partly")}
    parts = {"embeddings": "feature", "dense": "weight", "duals": "slices"}
    goes_on = {
        f"rate_{group}": group in old.config.schedules and parts[group] in used
        for group in new.config.schedules
    }
    return _continued("schedule", goes_on, trained, before)


def take_ids(state: TrainState, new: Side, old: Side, old_arrays: Arrays) -> Slots:
    """Gives ids of the features that both runs have slots in the new run's maps, with what is known of their use."""
    old_ids = live_ids(old.layouts, restored_maps(old.layouts, old.config.ids, old_arrays))
    meanings, old_meanings = feature_meanings(new.schema), feature_meanings(old.schema)
    slots = {}
    for number, layout in enumerate(new.layouts):
        for index, feature in enumerate(layout.growing):
            name = feature.name
            if name in old_ids and meanings[name] == old_meanings[name]:
                rows = state.tables.adopt(number, index, old_ids[name])
                fits = rows >= 0
                slots[name] = rows[fits], old_ids[name].rows[fits]
    return slots
