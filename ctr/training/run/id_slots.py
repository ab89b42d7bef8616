"""Slots of ids that grow: how many have a row of their own, which came and went, and who shares rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctr.eval.timeline import SLOT_COUNTS, Timeline
from ctr.models.rows import TableLayout
from ctr.training.ids.id_map import IdMap
from ctr.training.ids.of_tables import live_ids
from ctr.workers.group import gather_uneven

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


def by_count(slots: Mapping[str, Sequence[int]]) -> dict[str, dict[str, int]]:
    """Names the numbers of each feature as in `SLOT_COUNTS`."""
    return {feature: dict(zip(SLOT_COUNTS, counts, strict=True)) for feature, counts in slots.items()}


def slots_content(slots: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """What a line of metrics and a summary say of the slots: of all features together, and of each."""
    total = {name: sum(counts[name] for counts in slots.values()) for name in SLOT_COUNTS}
    return {**_shown(total), "features": {feature: _shown(counts) for feature, counts in slots.items()}}


def _shown(counts: Mapping[str, int]) -> dict[str, int | float | None]:
    shown: dict[str, int | float | None] = {
        name: counts[name] for name in ("occupancy", "capacity", "admitted", "evicted", "refused")
    }
    occurrences = counts["occurrences"]
    shown["shared_share"] = counts["shared"] / occurrences if occurrences else None
    return shown


def slots_of_pass(timeline: Timeline) -> dict[str, Any]:
    """What a summary says of the slots, ``ids``; empty where no ids grow."""
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
