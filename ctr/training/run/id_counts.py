"""Which ids a pass has met: what a report says of the health of the data.

The reading thread finds a batch's distinct ids anyway; here it is only noted, table by table, which of them are new.
How often each occurs is counted in every eighth batch, which is enough for the most frequent ones. Rows of constraint
logs that a batch was learned with count too. The shards of a log say no more, and would have to be read again.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ctr.data.schema import MISSING_ID, Category, Number, Schema
from ctr.eval.timeline import Timeline
from ctr.models.rows import TableLayout, TablePlan
from ctr.training.feed import Feed
from ctr.training.run.directory import write_json

TOP_IDS = 10

_ROWS, _MISSING, _VALUES, _NEW = range(4)
_COUNTED_EVERY = 8


class IdCounts:
    """The ids of each feature that occurred, and how often.

    Attributes:
        seen: for each table bool [rows]: whether the id occurred.
        counted: for each table uint32 [rows]: how often it did in every eighth batch.
        window: for each feature, in the order of the schema, int64 [F, 4] since the window began: rows, rows without a
            value, values, and values whose id was in no batch before.
        batches: int64 [1], batches so far.
    """

    def __init__(self, layouts: Sequence[TableLayout], schema: Schema) -> None:
        """Start empty."""
        self.layouts = tuple(layouts)
        self.features = tuple(feature.name for feature in schema.features)
        self.seen = {layout.name: np.zeros(layout.rows, np.bool_) for layout in self.layouts}
        self.counted = {layout.name: np.zeros(layout.rows, np.uint32) for layout in self.layouts}
        self.window = np.zeros((len(self.features), 4), np.int64)
        self.batches = np.zeros(1, np.int64)
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
        self._single = np.array([self.features.index(name) for name in schema.single_valued], np.int64)
        self._multivalent = [(self.features.index(name), name) for name in schema.multivalent]

    def update(self, feed: Feed) -> None:
        """Add a batch that was read."""
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

    def close_window(self) -> dict[str, list[int]]:
        """The counts of the window that ends here, by feature; the next one begins."""
        counts = dict(zip(self.features, self.window.tolist(), strict=True))
        self.window[:] = 0
        return counts

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The state as plain arrays, not copied; ``restore`` takes it back."""
        return {
            "window": self.window,
            "batches": self.batches,
            **{f"seen/{name}": seen for name, seen in self.seen.items()},
            **{f"counted/{name}": counted for name, counted in self.counted.items()},
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from what ``to_arrays`` gave.

        Raises:
            KeyError: an array is missing.
        """
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
    """The fixed rows of a table that a batch needs, sorted, and how often it refers to each of them."""
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
) -> None:
    """Writes data_health.json: what a report says of the features' ids.

    Args:
        slices: ``calibration_slices`` of summary.json, whose ids are named where they are a feature's.
    """
    features = []
    for feature in schema.features:
        seen, counted = (array.copy() for array in counts.occurrences(feature.name))
        if feature.name in schema.single_valued:
            seen[MISSING_ID], counted[MISSING_ID] = False, 0
        top = np.lexsort((np.arange(len(counted)), -counted.astype(np.int64)))[:TOP_IDS]
        features.append(
            {
                "name": feature.name,
                "kind": feature.kind,
                "hashed": not isinstance(feature, Number) and not _vocabulary(feature),
                "buckets": feature.buckets,
                "distinct_ids": int(np.count_nonzero(seen)),
                **timeline.total(feature.name),
                "counted": int(counted.sum()),
                "top": [
                    {"id": int(one), "value": value_of_id(feature, int(one)), "count": int(counted[one])}
                    for one in top
                    if counted[one]
                ],
            }
        )
    known = schema.by_name
    values = {
        name: {str(row["id"]): value_of_id(known[name], row["id"]) for row in part["heaviest"]}
        for name, part in slices.items()
        if name in known
    }
    write_json(run_dir / "data_health.json", {"features": features, "slice_values": values})


def value_of_id(feature: Any, one: int) -> str | None:
    """What an id of a feature stands for; None for a hash, which does not say."""
    if one == MISSING_ID:
        return "missing"
    vocabulary = _vocabulary(feature)
    if vocabulary:
        return vocabulary[one - 1] if one <= len(vocabulary) else "other"
    if isinstance(feature, Number):
        edges = [f"{edge:.6g}" for edge in feature.edges()]
        if one == 1:
            return f"below {edges[0]}"
        return f"{edges[-1]} and more" if one > len(edges) else f"{edges[one - 2]} to {edges[one - 1]}"
    return None


def _vocabulary(feature: Any) -> tuple[str, ...]:
    return (feature.vocabulary or ()) if isinstance(feature, Category) else ()
