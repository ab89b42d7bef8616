"""Ids that a pass has met: what a report says of the health of the data.

The reading thread finds a batch's distinct ids anyway; here it is only noted, table by table, which of them are new.
How often each occurs is counted in every eighth batch, which is enough for the most frequent ones. Rows of constraint
logs that a batch was learned with count too. The shards of a log say no more, and would have to be read again.

Of ids that grow the maps say more: new ones are those that were admitted, and each one's uses are counted.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ctr.data.kept_values import has_raw_values, name_ids
from ctr.data.schema import MISSING_ID, Schema
from ctr.eval.timeline import SLOT_COUNTS, Timeline
from ctr.models.rows import TableLayout
from ctr.training.feed import Feed
from ctr.training.ids.id_map import IdMap
from ctr.training.run.directory import write_json
from ctr.training.run.id_slots import TOP_IDS, IdSlots, UsedIds
from ctr.training.tables.plan import TablePlan

_ROWS, _MISSING, _VALUES, _NEW = range(4)
_COUNTED_EVERY = 8
_ADMITTED = SLOT_COUNTS.index("admitted")


class IdCounts:
    """The ids of each feature that occurred, and how often."""

    def __init__(
        self, layouts: Sequence[TableLayout], schema: Schema, id_maps: Mapping[int, IdMap] | None = None
    ) -> None:
        self.layouts = tuple(layouts)
        self.slots = IdSlots(self.layouts, id_maps or {}, schema.growing)  # of the features whose ids grow
        there = {feature.name for layout in self.layouts for feature in layout.features}
        self.features = tuple(feature.name for feature in schema.features if feature.name in there)
        # By table, bool [rows].
        self.seen = {layout.name: np.zeros(layout.rows, np.bool_) for layout in self.layouts}
        # By table, uint32 [rows]: occurrences in every eighth batch.
        self.counted = {layout.name: np.zeros(layout.rows, np.uint32) for layout in self.layouts}
        self.window = np.zeros((len(self.features), 4), np.int64)
        self.batches = np.zeros(1, np.int64)  # so far
        # Of each table: where the rows of its features begin and, as the last one, end; and which features they are.
        self._bounds = [np.cumsum([0, *(f.buckets for f in layout.features)]) for layout in self.layouts]
        self._places = [
            np.array([self.features.index(f.name) for f in layout.features]) for layout in self.layouts
        ]
        # Where a missing value of each single-valued feature is counted, and which features these are.
        is_single = [np.array([f.single is not None for f in layout.features]) for layout in self.layouts]
        self._zeros = [
            (bounds[:-1][single] + MISSING_ID, places[single])
            for bounds, places, single in zip(self._bounds, self._places, is_single, strict=True)
        ]
        self._single = np.array(
            [self.features.index(f) for f in schema.single_valued if f in there], np.int64
        )
        self._multivalent = [(self.features.index(f), f) for f in schema.multivalent if f in there]

    def update(self, feed: Feed) -> None:
        """Adds a batch that was read."""
        parts = [feed.batch.rows, *(one.rows for one in feed.constraint_batches if one is not None)]
        rows = sum(map(len, parts))
        if not rows:
            return
        is_counted = self.batches[0] % _COUNTED_EVERY == 0
        self.batches += 1
        self.window[:, _ROWS] += rows
        self.window[self._single, _VALUES] += rows
        for layout, bounds, places, zeros, plan in zip(
            self.layouts, self._bounds, self._places, self._zeros, feed.plans, strict=True
        ):
            ids, counts = _fixed_rows(layout, plan)
            seen = self.seen[layout.name]
            if not len(ids):
                continue
            # A missing value is in no way new. Features with several values a row have none in its place.
            ids_missing, features = zeros
            at = np.minimum(np.searchsorted(ids, ids_missing), len(ids) - 1)
            is_there = ids[at] == ids_missing
            if is_there.any():
                without = np.where(is_there, counts[at], 0)
                self.window[features, _MISSING] += without
                self.window[features, _VALUES] -= without
                seen[ids[at[is_there]]] = True
            new = np.flatnonzero(~seen[ids])
            if len(new):
                seen[ids[new]] = True
                feature = np.searchsorted(bounds, ids[new], side="right") - 1
                added = np.bincount(feature, counts[new], len(places))
                self.window[places, _NEW] += added.astype(np.int64)
            if is_counted:
                self.counted[layout.name][ids] += counts.astype(np.uint32)
        for place, name in self._multivalent:
            for part in parts:
                values, offsets = part.multivalent[name]
                self.window[place, _MISSING] += np.count_nonzero(offsets[1:] == offsets[:-1])
                self.window[place, _VALUES] += len(values)

    def close_window(self) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """Returns the counts of the window that ends here, by feature, and those of slots; begins the next one."""
        slots = self.slots.close_window()
        for name, counts in slots.items():
            self.window[self.features.index(name), _NEW] = counts[_ADMITTED]
        ids = dict(zip(self.features, self.window.tolist(), strict=True))
        self.window[:] = 0
        return ids, slots

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Returns the state as plain arrays, not copied."""
        return {
            "window": self.window,
            "batches": self.batches,
            **({"slots": self.slots.before} if self.slots.features else {}),
            **{f"seen/{name}": seen for name, seen in self.seen.items()},
            **{f"counted/{name}": counted for name, counted in self.counted.items()},
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Goes on from what ``to_arrays`` gave. Raises KeyError: an array is missing."""
        for name, own in self.to_arrays().items():
            own[...] = arrays[name]

    def occurrences(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns which ids of a feature occurred, bool [buckets], and how often in every eighth batch, uint32."""
        place = self.features.index(name)
        for layout, bounds, places in zip(self.layouts, self._bounds, self._places, strict=True):
            if place in places:
                index = int(np.flatnonzero(places == place)[0])
                rows = slice(int(bounds[index]), int(bounds[index + 1]))
                return self.seen[layout.name][rows], self.counted[layout.name][rows]
        raise KeyError(name)


def _fixed_rows(layout: TableLayout, plan: TablePlan) -> tuple[np.ndarray, np.ndarray]:
    """Returns the fixed rows of a table that a batch needs, sorted, and how often it refers to each of them."""
    ids, counts = plan.distinct[: plan.distinct_count], plan.counts
    if layout.growing:
        fixed = np.flatnonzero((ids >= 0) & (ids < layout.rows))
        fixed = fixed[np.argsort(ids[fixed])]
        ids, counts = ids[fixed], counts[fixed]
    return ids, counts


def write_data_health(
    run_dir: Path,
    counts: IdCounts,
    timeline: Timeline,
    schema: Schema,
    slices: Mapping[str, Mapping[str, Any]],
    families: Mapping[str, Sequence[str]],
    log: Path,
    grown: Mapping[str, UsedIds],
) -> None:
    """Writes data_health.json: what a report says of the features' ids.

    Args:
        slices: ``calibration_slices`` of summary.json, whose ids are named.
        families: by name what the slices of each family of bias constraints hold.
        log: where the values of ids are, if they were kept.
        grown: by feature whose ids grow the most used of them.
    """
    features = [
        _grown(feature.name, grown[feature.name], timeline)
        if feature.name in grown
        else _counted(counts, feature.name, schema, timeline)
        for feature in schema.features
        if feature.name in counts.features
    ]
    shown = {
        name: [row["id"] for row in part["heaviest"]]
        for name, part in slices.items()
        if name in schema.by_name
    }
    wanted = {entry["name"]: {one["id"] for one in entry["top"]} for entry in features}
    for name, ids in shown.items():
        # Slices may be of a feature that the model does not have.
        wanted.setdefault(name, set()).update(ids)
    name_id = name_ids(schema, log, wanted)
    content = []
    for entry in features:
        name, feature = entry["name"], schema.by_name[entry["name"]]
        top = [
            {"id": one["id"], "value": name_id(name, one["id"]), "count": one["count"]}
            for one in entry["top"]
        ]
        about = {
            "name": name,
            "kind": feature.kind,
            "hashed": has_raw_values(feature),
            "buckets": feature.buckets,
        }
        content.append({**about, **entry, "top": top})
    values = {name: {str(one): name_id(name, one) for one in ids} for name, ids in shown.items()}
    for name, words in families.items():
        numbers = (row["id"] for row in slices[name]["heaviest"])
        values[name] = {str(one): words[one] if one >= 0 else "no slice" for one in numbers}
    write_json(run_dir / "data_health.json", {"features": content, "slice_values": values})


def _counted(counts: IdCounts, name: str, schema: Schema, timeline: Timeline) -> dict[str, Any]:
    seen, counted = (array.copy() for array in counts.occurrences(name))
    if name in schema.single_valued:
        seen[MISSING_ID], counted[MISSING_ID] = False, 0
    top = np.lexsort((np.arange(len(counted)), -counted.astype(np.int64)))[:TOP_IDS]
    return {
        "name": name,
        "distinct_ids": int(np.count_nonzero(seen)),
        **timeline.total(name),
        "counted": int(counted.sum()),
        "top": [{"id": int(one), "count": int(counted[one])} for one in top if counted[one]],
    }


def _grown(name: str, ids: UsedIds, timeline: Timeline) -> dict[str, Any]:
    slots = timeline.slot_total(name)
    top = zip(ids.fingerprints.tolist(), ids.uses.tolist(), strict=True)
    return {
        "name": name,
        "distinct_ids": ids.count,
        **timeline.total(name),
        "counted": slots["occurrences"],
        "slots": slots,
        "top": [{"id": one, "count": count} for one, count in top],
    }
