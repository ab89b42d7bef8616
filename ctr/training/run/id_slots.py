"""What becomes of the ids that grow: how many have a row of their own, which came and went, and who shares rows."""

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
    """How many ids of a feature have a slot, and the most used of them.

    Attributes:
        count: how many there are.
        fingerprints: int64 [at most ``TOP_IDS``], the most used one first.
        uses: int64, their occurrences since they got their slot.
    """

    count: int
    fingerprints: np.ndarray
    uses: np.ndarray


class IdSlots:
    """The slots of the features whose ids grow, window by window.

    Attributes:
        features: their names, in the order of the schema.
        before: int64 [F, 7], `SLOT_COUNTS` of each since the maps began, as of the last window that ended.
    """

    def __init__(
        self, layouts: Sequence[TableLayout], id_maps: Mapping[int, IdMap], growing: Sequence[str]
    ) -> None:
        """Begin with what the maps hold. ``growing``: the names of the features, of which some may have no table."""
        self._layouts, self._maps = tuple(layouts), id_maps
        placed = {feature.name for number in id_maps for feature in self._layouts[number].growing}
        self.features = tuple(name for name in growing if name in placed)
        self.before = self._counts()

    def _counts(self) -> np.ndarray:
        counters = {
            name: counts for id_map in self._maps.values() for name, counts in id_map.counters().items()
        }
        rows = [[getattr(counters[name], count) for count in SLOT_COUNTS] for name in self.features]
        return np.array(rows, np.int64).reshape(-1, len(SLOT_COUNTS))

    def close_window(self) -> dict[str, list[int]]:
        """`SLOT_COUNTS` by feature: the first two at the end of the window, the others in it. The next one begins."""
        now = self._counts()
        window = now - self.before
        window[:, :_LEVELS] = now[:, :_LEVELS]
        self.before = now
        return dict(zip(self.features, window.tolist(), strict=True))

    def most_used(self) -> dict[str, UsedIds]:
        """Of each feature how many ids have a slot, and its most used ones; all workers have to ask for them."""
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
    """The positions of the most used ids; of equal ones those with the lowest fingerprints."""
    return np.lexsort((fingerprints, -uses))[:TOP_IDS]


def by_count(slots: Mapping[str, Sequence[int]]) -> dict[str, dict[str, int]]:
    """The numbers of each feature by their names in `SLOT_COUNTS`."""
    return {feature: dict(zip(SLOT_COUNTS, counts, strict=True)) for feature, counts in slots.items()}


def slots_content(slots: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """What a line of metrics and a summary say of the slots: of all features together, and by feature.

    Args:
        slots: by feature its `SLOT_COUNTS`.
    """
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
    """What to say where features were full and had to leave ids on shared rows; None where none was."""
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
