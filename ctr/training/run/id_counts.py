"""Ids that a pass has met: what a report says of the health of the data.

The reading thread finds a batch's distinct ids anyway; here it is only noted, table by table, which of them are new.
How often each occurs is counted in every eighth batch, which is enough for the most frequent ones. Rows of constraint
logs that a batch was learned with count too. The shards of a log say no more, and would have to be read again.

Of ids that grow the maps say more: new ones are those that were admitted, and each one's uses are counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctr.data.kept_values import has_raw_values, name_ids
from ctr.data.schema import MISSING_ID, Schema
from ctr.eval.timeline import SLOT_COUNTS, Timeline
from ctr.models.rows import TableLayout
from ctr.training.feed import Feed
from ctr.training.ids.id_map import IdMap, live_ids
from ctr.training.run.directory import write_json
from ctr.training.tables.plan import TablePlan
from ctr.workers.group import gather_uneven

_ROWS, _MISSING, _VALUES, _NEW = range(4)
_COUNTED_EVERY = 8

TOP_IDS = 10

_NAMED = 3
_LEVELS = 2


@dataclass(frozen=True)
class UsedIds:
    """How many ids of a feature have a slot, and the most used of them."""

    count: int
    fingerprints: np.ndarray  # int64 [at most ``TOP_IDS``], the most used one first
    uses: np.ndarray  # int64, their occurrences since they got their slot


class IdSlots:
    """The slots of the features whose ids grow, window by window."""

    def __init__(
        self, layouts: Sequence[TableLayout], id_maps: Mapping[int, IdMap], growing: Sequence[str]
    ) -> None:
        self._layouts, self._maps = tuple(layouts), id_maps
        placed = {feature.name for number in id_maps for feature in self._layouts[number].growing}
        # Of ``growing`` those that have a table.
        self.features = tuple(name for name in growing if name in placed)
        self.before = self._counts()  # int64 [F, 7], `SLOT_COUNTS` until the last window ended

    def _counts(self) -> np.ndarray:
        counters = {
            name: counts for id_map in self._maps.values() for name, counts in id_map.counters().items()
        }
        rows = [[getattr(counters[name], count) for count in SLOT_COUNTS] for name in self.features]
        return np.array(rows, np.int64).reshape(-1, len(SLOT_COUNTS))

    def close_window(self) -> dict[str, list[int]]:
        """Returns `SLOT_COUNTS` by feature: the first two at its end, the others in the window; begins the next one."""
        now = self._counts()
        window = now - self.before
        window[:, :_LEVELS] = now[:, :_LEVELS]
        self.before = now
        return dict(zip(self.features, window.tolist(), strict=True))

    def most_used(self) -> dict[str, UsedIds]:
        """Returns by feature its number of ids with a slot and the most used ones; all workers have to call it."""
        found = {}
        for number, id_map in self._maps.items():
            counters = id_map.counters()
            for name, ids in live_ids(self._layouts, {number: id_map}).items():
                own = _most_used(ids.fingerprints, ids.uses)
                prints, uses = (
                    gather_uneven(id_map.group, part[own]) for part in (ids.fingerprints, ids.uses)
                )
                order = _most_used(prints, uses)
                found[name] = UsedIds(counters[name].occupancy, prints[order], uses[order])
        return found


def _most_used(fingerprints: np.ndarray, uses: np.ndarray) -> np.ndarray:
    """Returns the positions of the most used ids; of equal ones those with the lowest fingerprints."""
    return np.lexsort((fingerprints, -uses))[:TOP_IDS]


def slots_content(slots: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """Returns what a line of metrics and a summary say of the slots: of all features together, and of each."""
    total = {name: sum(counts[name] for counts in slots.values()) for name in SLOT_COUNTS}
    return {
        **_slot_numbers(total),
        "features": {feature: _slot_numbers(counts) for feature, counts in slots.items()},
    }


def _slot_numbers(counts: Mapping[str, int]) -> dict[str, int | float | None]:
    shown: dict[str, int | float | None] = {
        name: counts[name] for name in ("occupancy", "capacity", "admitted", "evicted", "refused")
    }
    occurrences = counts["occurrences"]
    shown["shared_share"] = counts["shared"] / occurrences if occurrences else None
    return shown


def slots_of_pass(timeline: Timeline) -> dict[str, Any]:
    """Returns what a summary says of the slots, ``ids``; empty where no ids grow."""
    slots = {feature: timeline.slot_total(feature) for feature in timeline.slots}
    return {"ids": slots_content(slots)} if slots else {}


def refusal_text(timeline: Timeline) -> str | None:
    """A warning where features were full and had to leave ids on shared rows; None where none was."""
    totals = {feature: timeline.slot_total(feature) for feature in timeline.slots}
    full = {feature: counts for feature, counts in totals.items() if counts["refused"]}
    if not full:
        return None
    worst = sorted(full, key=lambda feature: (-full[feature]["refused"], feature))
    parts = [
        f"{feature} ({full[feature]['capacity']:,} ids; "
        f"{full[feature]['refused'] / full[feature]['occurrences']:.1%} of its occurrences were of others)"
        for feature in worst[:_NAMED]
    ]
    more = f" and {len(worst) - _NAMED} more" if len(worst) > _NAMED else ""
    return (
        f"no room was left for ids of {', '.join(parts)}{more}, which then shared rows: raise ids.capacity, or "
        f"ids.capacities.{worst[0]}, or let old ids go with ids.eviction.policy"
    )


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
            self.window[self.features.index(name), _NEW] = counts[SLOT_COUNTS.index("admitted")]
        ids = dict(zip(self.features, self.window.tolist(), strict=True))
        self.window[:] = 0
        return ids, slots

    def to_arrays(self) -> dict[str, np.ndarray]:
        return {
            "window": self.window,
            "batches": self.batches,
            **({"slots": self.slots.before} if self.slots.features else {}),
            **{f"seen/{name}": seen for name, seen in self.seen.items()},
            **{f"counted/{name}": counted for name, counted in self.counted.items()},
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
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
    """Writes data_health.json: what a report says of the features' ids, and of those that ``slices`` show.

    ``families``: by name what the slices of each family of bias constraints hold; ``log``: where values may be.
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
