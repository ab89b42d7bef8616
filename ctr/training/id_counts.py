"""Which ids a pass has met, and how often: what a report says of the health of the data.

The reading thread finds a batch's distinct ids anyway; here they are only added up, table by table. Rows of constraint
logs that a batch was learned with count too. The log has no other record of these: its shards hold ids, and to count
them apart from the pass would read it twice.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ctr.data.schema import MISSING_ID, Category, Number, Schema
from ctr.eval.timeline import Timeline
from ctr.models.rows import TableLayout
from ctr.training.feed import Feed
from ctr.training.run_directory import write_json

TOP_IDS = 10

_MOST = np.iinfo(np.uint32).max
_ROWS, _MISSING, _VALUES, _NEW = range(4)


class IdCounts:
    """How often each id of each feature occurred.

    Attributes:
        seen: for each table uint32 [rows]: occurrences, at most 2^32 - 1.
        window: for each feature, in the order of the schema, int64 [F, 4] since the window began: rows, rows without a
            value, values, and values whose id was in no batch before.
    """

    def __init__(self, layouts: Sequence[TableLayout], schema: Schema) -> None:
        """Start empty."""
        self.layouts = tuple(layouts)
        self.features = tuple(feature.name for feature in schema.features)
        self.seen = {layout.name: np.zeros(layout.rows, np.uint32) for layout in self.layouts}
        self.window = np.zeros((len(self.features), 4), np.int64)
        # Of each table: where the rows of its features begin and, as the last one, end; and which features they are.
        self._bounds = [np.cumsum([0, *(f.buckets for f in layout.features)]) for layout in self.layouts]
        self._places = [[self.features.index(f.name) for f in layout.features] for layout in self.layouts]

    def update(self, feed: Feed) -> None:
        """Add a batch that was read."""
        parts = [feed.batch.rows, *(other.rows for other in feed.others if other is not None)]
        rows = sum(map(len, parts))
        if not rows:
            return
        self.window[:, _ROWS] += rows
        tables = zip(self.layouts, self._bounds, self._places, feed.plans, strict=True)
        for layout, bounds, places, plan in tables:
            ids, counts = plan.distinct[: plan.distinct_count], plan.counts
            seen = self.seen[layout.name]
            before = seen[ids]
            seen[ids] = before + np.minimum(counts, _MOST - before)
            new = np.where(before == 0, counts, 0)
            cuts = np.searchsorted(ids, bounds)
            for place, feature, low, high, start in zip(
                places, layout.features, cuts[:-1], cuts[1:], bounds[:-1], strict=True
            ):
                without = 0
                if feature.single is None:
                    lengths = (np.diff(part.multivalent[feature.name][1]) for part in parts)
                    without = sum(int(np.count_nonzero(length == 0)) for length in lengths)
                elif low < high and ids[low] == start + MISSING_ID:
                    without, low = int(counts[low]), low + 1
                values = int(counts[low:high].sum())
                self.window[place, _MISSING:] += (without, values, int(new[low:high].sum()))

    def close_window(self) -> dict[str, list[int]]:
        """The counts of the window that ends here, by feature; the next one begins."""
        counts = dict(zip(self.features, self.window.tolist(), strict=True))
        self.window[:] = 0
        return counts

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The state as plain arrays, not copied."""
        return {"window": self.window, **{f"seen/{name}": seen for name, seen in self.seen.items()}}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from what ``to_arrays`` gave."""
        self.window[:] = arrays["window"]
        for name, seen in self.seen.items():
            seen[:] = arrays[f"seen/{name}"]

    def of(self, name: str) -> np.ndarray:
        """Occurrences of each id of a feature, uint32 [buckets]."""
        for layout, bounds, places in zip(self.layouts, self._bounds, self._places, strict=True):
            place = self.features.index(name)
            if place in places:
                begin, end = bounds[places.index(place)], bounds[places.index(place) + 1]
                return self.seen[layout.name][begin:end]
        raise KeyError(name)


def write_data_health(
    run: Path, counts: IdCounts, timeline: Timeline, schema: Schema, slices: Mapping[str, Mapping[str, Any]]
) -> None:
    """Writes data_health.json: what a report says of the features' ids.

    Args:
        slices: ``calibration_slices`` of summary.json, whose ids are named where they are a feature's.
    """
    features = []
    for feature in schema.features:
        occurrences = counts.of(feature.name).copy()
        occurrences[MISSING_ID] = 0
        top = np.lexsort((np.arange(len(occurrences)), -occurrences.astype(np.int64)))[:TOP_IDS]
        features.append(
            {
                "name": feature.name,
                "kind": feature.kind,
                "hashed": not isinstance(feature, Number) and not _vocabulary(feature),
                "buckets": feature.buckets,
                "distinct_ids": int(np.count_nonzero(occurrences)),
                **timeline.total(feature.name),
                "top": [
                    {"id": int(one), "value": value_of_id(feature, int(one)), "count": int(occurrences[one])}
                    for one in top
                    if occurrences[one]
                ],
            }
        )
    known = schema.by_name
    values = {
        name: {str(row["id"]): value_of_id(known[name], row["id"]) for row in part["heaviest"]}
        for name, part in slices.items()
        if name in known
    }
    write_json(run / "data_health.json", {"features": features, "slice_values": values})


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
