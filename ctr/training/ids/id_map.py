"""Map of growing ids to the slots of a table.

A table starts with ``first_slot`` fixed rows, among them a few shared rows of each feature; slots follow. An id
is a pair of a feature and a fingerprint of 64 bits. It uses one of its feature's shared rows until it is admitted, then
an exclusive slot until it is evicted. All features of a table share its slots, and each may have up to its capacity.
The map is a function of the trained batches, in their order, and their event times.

The members of a group see the same batches and share one map. The slots are dealt to them: each keeps the ids of its
slots and counts their uses; all know the number of slots of each feature and the totals. For each batch they exchange
the slots of its ids, their free slots, and, before an eviction, histograms of the policy's values. So the map equals
the map of a single process.

Memory: an id with a slot takes 42 bytes (up to 53 while arrays grow, which they do by a quarter) and 16 to 43 more for
the index.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from ctr.data.value_arrays import first_positions
from ctr.io.errors import InputError
from ctr.io.hashing import splitmix64
from ctr.models.rows import TableLayout
from ctr.training.experts.pairs import ids_of
from ctr.training.ids.admission import WaitingIds
from ctr.training.ids.config import AdmissionConfig, EvictionConfig, IdsConfig
from ctr.training.ids.eviction import DecayClock, evicted_first, lowest_of_all, microseconds
from ctr.training.ids.id_table import FREE, MAX_PLACES, IdTable, extended
from ctr.workers.collectives import ALONE, Workers, gather_dealt


@dataclass(frozen=True)
class GrowingFeature:
    """A feature whose ids get slots."""

    name: str
    shared_row: int  # the first of the ``shared_rows`` rows of its ids without a slot
    shared_rows: int
    capacity: int  # maximum number of its ids with a slot


class Learned(NamedTuple):
    """Table rows of the ids of a batch that is about to be learned from."""

    rows: np.ndarray  # int32 [U], the table row of each id
    fresh: np.ndarray  # int64, ascending positions of ids with a new slot, whose rows must be initialized


@dataclass(frozen=True)
class Occupants:
    """The ids that have a slot on this worker, in the order of slots."""

    rows: np.ndarray  # int32 [N], table rows, ascending
    features: np.ndarray  # int16 [N], indices of features
    fingerprints: np.ndarray  # int64 [N]
    first_seen: np.ndarray  # int64 [N], event time in microseconds at which the id got its slot
    last_seen: np.ndarray  # int64 [N], event time of its last occurrence
    uses: np.ndarray  # int64 [N], occurrences since ``first_seen``
    frequency: np.ndarray  # float64 [N], the same, but each occurrence counts half after each half-life
    time_us: int  # event time for which the frequencies hold

    def of_feature(self, feature: int) -> "Occupants":
        selected, arrays = self.features == feature, {**vars(self)}
        del arrays["time_us"]
        return replace(self, **{name: array[selected] for name, array in arrays.items()})


@dataclass(frozen=True)
class FeatureCounters:
    """Counters of one feature's ids since the map began."""

    occupancy: int  # ids that have a slot now
    capacity: int  # maximum number of ids with a slot
    admitted: int  # how often an id got a slot, except by a warm start
    evicted: int  # how often an id lost its slot
    refused: int  # occurrences of ids that stayed on a shared row because the feature was full
    shared: int  # occurrences that were learned on a shared row, ``refused`` included
    occurrences: int  # all occurrences that were learned


ValueT = TypeVar("ValueT")

_TOTALS = ("admitted", "evicted", "refused", "shared", "occurrences")
_NEVER = np.iinfo(np.int64).min
_OF_IDS = {"first_seen": np.int64, "last_seen": np.int64, "uses": np.int64, "frequency": np.float64}
"""Data stored for each id that has a slot; see ``Occupants``."""
_OF_SLOTS = tuple(f"slots/{name}" for name in ("feature", "fingerprint", *_OF_IDS))
_OF_WAITING = tuple(f"waiting/{name}" for name in ("feature", "fingerprint", "count"))
DEALT_ARRAYS = (*_OF_SLOTS, *_OF_WAITING)
"""The arrays of ``IdMap.to_arrays`` whose entries are dealt to the members of a group; all have the other arrays."""


class IdMap:
    """Slots of the growing features of one table; all members of the ``group`` make the same calls."""

    def __init__(
        self,
        features: Sequence[GrowingFeature],
        first_slot: int,
        admission: AdmissionConfig,
        eviction: EvictionConfig,
        group: Workers = ALONE,
    ) -> None:
        self.features = tuple(features)
        self._first_slot = first_slot
        self._admission, self._eviction = admission, eviction
        self._capacity = np.array([feature.capacity for feature in features], np.int64)
        self._shared_row = np.array([feature.shared_row for feature in features], np.int64)
        self._shared_rows = np.array([feature.shared_rows for feature in features], np.uint64)
        self._max_slots = min(int(self._capacity.sum()), MAX_PLACES - first_slot)
        self.group = group
        self._slots = IdTable(self._max_slots, group)
        self._of_ids = {name: np.zeros(0, dtype) for name, dtype in _OF_IDS.items()}
        self._occupancy = np.zeros(len(self.features), np.int64)
        self._totals = {name: np.zeros(len(self.features), np.int64) for name in _TOTALS}
        self._time: int | None = None
        self._searched: int | None = None
        self._clock = DecayClock(eviction.half_life)
        self._waiting = WaitingIds(admission, group) if admission.rule == "count" else None

    @property
    def rows(self) -> int:
        """Returns the number of table rows in use: fixed rows, and all slots that were ever used."""
        return self._first_slot + self._slots.places

    @property
    def nbytes(self) -> int:
        waiting = self._waiting.nbytes if self._waiting else 0
        return self._slots.nbytes + waiting + sum(array.nbytes for array in self._of_ids.values())

    def look_up(
        self, features: np.ndarray, fingerprints: np.ndarray, slots: np.ndarray | None = None
    ) -> np.ndarray:
        """Returns the rows of U distinct ids (int16 and int64 [U]), int32 [U], without counting them.

        An id without a slot has the shared row of its feature that its fingerprint selects. ``slots``: the result of
        ``find_slots``, if known.
        """
        if slots is None:
            (slots,) = find_slots([self], [(features, fingerprints)])
        return self._rows_at(slots, features, fingerprints)

    def _rows_at(self, slots: np.ndarray, features: np.ndarray, fingerprints: np.ndarray) -> np.ndarray:
        rows = (slots + self._first_slot).astype(np.int32)
        without = np.flatnonzero(slots < 0)
        if len(without):
            kinds = features[without]
            mixed = splitmix64(fingerprints[without].view(np.uint64))
            rows[without] = self._shared_row[kinds] + (mixed % self._shared_rows[kinds]).astype(np.int64)
        return rows

    def learn(
        self,
        features: np.ndarray,
        fingerprints: np.ndarray,
        counts: np.ndarray,
        time_us: int,
        admit: np.ndarray | None = None,
        slots: np.ndarray | None = None,
    ) -> Learned:
        """Counts the ids (see ``look_up``) of a batch that is about to be learned from; evicts and admits ids.

        No id of the batch is evicted for it. If there is no room for all of its new ids, the first ones get slots.

        Args:
            counts: int64 [U], occurrences in the batch.
            time_us: the query time of the batch's last row; if an earlier batch was later, its time is used.
            admit: bool [U], for admission by probability: whether one of the id's occurrences was drawn.

        Raises InputError if the table would have more rows than int32 can number.
        """
        now = self._advance(time_us)
        if slots is None:
            (slots,) = find_slots([self], [(features, fingerprints)])
        held, seen = self._slots.deal.here(slots)
        self._of_ids["last_seen"][seen] = now
        # Half the time of indexing, which reads and writes in two passes.
        np.add.at(self._of_ids["uses"], seen, counts[held])
        np.add.at(self._of_ids["frequency"], seen, counts[held] * self._clock.weight(now))
        # Only now: ids of this batch are not idle.
        self._evict_idle(now)
        eligible = self._eligible(features, fingerprints, counts, slots < 0, admit)
        room = self._make_room(features[eligible], seen, now)
        chosen = eligible[_first_of_each(features[eligible], room)]
        weight = self._clock.weight(now)
        slots[chosen] = self._occupy(features[chosen], fingerprints[chosen], counts[chosen], now, weight)
        if self._waiting is not None:
            self._waiting.forget(features[chosen], fingerprints[chosen])
        refused = np.setdiff1d(eligible, chosen, assume_unique=True)
        shared = np.flatnonzero(slots < 0)
        for name, which in (("refused", refused), ("shared", shared)):
            self._totals[name] += self._by_feature(features[which], counts[which])
        self._totals["occurrences"] += self._by_feature(features, counts)
        self._totals["admitted"] += self._by_feature(features[chosen])
        return Learned(self._rows_at(slots, features, fingerprints), chosen)

    def learn_batches(
        self,
        features: np.ndarray,
        fingerprints: np.ndarray,
        counts: np.ndarray,
        codes: np.ndarray,
        lengths: np.ndarray,
        times_us: Sequence[int],
    ) -> Learned | None:
        """Counts and admits the ids of several batches at once, with the same result as ``learn`` batch by batch.

        ``codes``: int64 [U], from 0, equal for equal ids; ``lengths``: int64 [K], the number of ids in each batch.
        Returns the rows of all ids, batch after batch, and the positions where ids got a slot; or None, with no change,
        if an id might wait or be evicted, or would reuse a slot. Without eviction, ids that get no free slot use shared
        rows.
        """
        if (
            self.group.size > 1
            or self._admission.rule != "always"
            or self._eviction.max_idle is not None
            or self._slots.count < self._slots.places
        ):
            return None
        # Each id is looked up once.
        distinct = first_positions(codes)
        slot_of = np.empty(codes.max(initial=-1) + 1, np.int64)
        slot_of[codes[distinct]] = self._slots.find(features[distinct], fingerprints[distinct])
        first = distinct[slot_of[codes[distinct]] < 0]
        begin = self._advance(times_us[0])
        times = np.maximum(np.maximum.accumulate(times_us), begin)
        room = self._capacity - self._occupancy
        is_full = bool((self._by_feature(features[first]) > room).any())
        if self._clock.is_far(int(times[-1])) or (is_full and self._eviction.policy != "none"):
            return None
        self._time = int(times[-1])
        now = np.repeat(times, lengths)
        weight = np.repeat([self._clock.weight(int(time)) for time in times], lengths)
        first = first[_first_of_each(features[first], room)]
        slot_of[codes[first]] = self._occupy(
            features[first], fingerprints[first], counts[first], now[first], weight[first]
        )
        slots = slot_of[codes]
        shared = np.flatnonzero(slots < 0)
        for name in ("refused", "shared"):
            self._totals[name] += self._by_feature(features[shared], counts[shared])
        again = slots >= 0
        again[first] = False
        seen = slots[again]
        np.maximum.at(self._of_ids["last_seen"], seen, now[again])
        np.add.at(self._of_ids["uses"], seen, counts[again])
        np.add.at(self._of_ids["frequency"], seen, counts[again] * weight[again])
        self._totals["occurrences"] += self._by_feature(features, counts)
        self._totals["admitted"] += self._by_feature(features[first])
        return Learned(self._rows_at(slots, features, fingerprints), first)

    def _advance(self, time_us: int) -> int:
        self._time = time_us if self._time is None else max(self._time, time_us)
        self._clock.move(self._time, self._of_ids["frequency"])
        return self._time

    def _by_feature(self, features: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
        """Counts ids, or sums ``counts``, by feature: int64 [features]. Sums are exact up to 2^53."""
        return np.bincount(features, counts, len(self.features)).astype(np.int64)

    def _evict_idle(self, now: int) -> None:
        if self._eviction.max_idle is None:
            return
        interval = now // microseconds(self._eviction.every)
        if interval == self._searched:
            return
        self._searched = interval
        idle = self._of_ids["last_seen"][: self._slots.held] < now - microseconds(self._eviction.max_idle)
        self._evict(np.flatnonzero(idle & (self._slots.features[: self._slots.held] != FREE)))

    def _evict(self, indices: np.ndarray) -> None:
        """Evicts the ids at these local indices; all members of the group must call this together."""
        gone = self._sum_by_feature(self._slots.features[indices])
        self._occupancy -= gone
        self._totals["evicted"] += gone
        self._slots.remove(indices, int(gone.sum()))

    def _sum_by_feature(self, features: np.ndarray) -> np.ndarray:
        """Counts the ids of each feature over all members, each of which passes its own ids: int64 [features]."""
        counts = np.bincount(features, minlength=len(self.features)).astype(np.int32)
        return self.group.sum_numbers(counts).astype(np.int64)

    def _eligible(
        self,
        features: np.ndarray,
        fingerprints: np.ndarray,
        counts: np.ndarray,
        without: np.ndarray,
        admit: np.ndarray | None,
    ) -> np.ndarray:
        if self._admission.rule == "probability":
            if admit is None:
                raise ValueError("admission by probability requires admit")
            return np.flatnonzero(without & admit)
        positions = np.flatnonzero(without)
        if self._waiting is None:
            return positions
        enough = self._waiting.count(features[positions], fingerprints[positions], counts[positions])
        return positions[enough]

    def _make_room(self, new: np.ndarray, seen: np.ndarray, now: int) -> np.ndarray:
        """Evicts ids, except at ``seen``, of features without room for ids in ``new``; returns the room by feature."""
        needed = self._by_feature(new)
        room = self._capacity - self._occupancy
        if self._eviction.policy != "none":
            for feature in np.flatnonzero(needed > room):
                share = int(self._eviction.share * self._capacity[feature])
                self._evict_some(int(feature), max(share, int(needed[feature] - room[feature])), seen, now)
            room = self._capacity - self._occupancy
        return room

    def _evict_some(self, feature: int, count: int, seen: np.ndarray, now: int) -> None:
        may_go = self._slots.features[: self._slots.held] == feature
        may_go[seen] = False
        indices = np.flatnonzero(may_go)
        of_ids = self._of_ids["last_seen"][indices], self._of_ids["frequency"][indices]
        # Among ids with equal values, those with the lowest slots are evicted.
        choose = partial(lowest_of_all, places=self._slots.deal.rows(indices), group=self.group)
        self._evict(indices[evicted_first(self._eviction, now, *of_ids, count, choose)])

    def _occupy(
        self,
        features: np.ndarray,
        fingerprints: np.ndarray,
        counts: np.ndarray,
        now: np.ndarray | int,
        weight: np.ndarray | float,
    ) -> np.ndarray:
        slots = self._slots.add(features, fingerprints)
        if self._slots.places > self._max_slots:
            raise InputError(
                f"ids: the table would have {self.rows} rows; allowed: {MAX_PLACES}, by smaller capacities"
            )
        size = len(self._slots.features)
        if size > len(self._of_ids["uses"]):
            self._of_ids = {name: extended(array, size) for name, array in self._of_ids.items()}
        which, indices = self._slots.deal.here(slots)
        now = np.broadcast_to(now, len(slots))[which]
        self._of_ids["first_seen"][indices] = self._of_ids["last_seen"][indices] = now
        self._of_ids["uses"][indices] = counts[which]
        self._of_ids["frequency"][indices] = (counts * weight)[which]
        self._occupancy += self._by_feature(features)
        return slots

    def counters(self) -> dict[str, FeatureCounters]:
        return {
            feature.name: FeatureCounters(
                occupancy=int(self._occupancy[index]),
                capacity=feature.capacity,
                **{name: int(total[index]) for name, total in self._totals.items()},
            )
            for index, feature in enumerate(self.features)
        }

    def occupants(self) -> Occupants:
        indices = self._slots.taken()
        now = 0 if self._time is None else self._time
        of_ids = {name: array[indices] for name, array in self._of_ids.items()}
        of_ids["frequency"] = of_ids["frequency"] / self._clock.weight(now)
        rows = (self._slots.deal.rows(indices) + self._first_slot).astype(np.int32)
        return Occupants(
            rows, self._slots.features[indices], self._slots.fingerprints[indices], **of_ids, time_us=now
        )

    def ids_by_row(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the rows (ascending), features and fingerprints of all ids on the first member; all must call it."""
        table = self._slots
        features, fingerprints = (
            gather_dealt(self.group, array.__getitem__, table.places)
            for array in (table.features, table.fingerprints)
        )
        taken = np.flatnonzero(features != FREE)
        return (taken + self._first_slot).astype(np.int32), features[taken], fingerprints[taken]

    def adopt(self, features: np.ndarray, ids: Occupants) -> np.ndarray:
        """Assigns slots to the ids of another map, without admission.

        Returns their rows, int32 [N]. If a feature lacks room for all of them, the ids that its policy would evict
        first are left out, with row -1. ``features``: int16 [N], the indices of their features in this map.
        """
        now = self._advance(ids.time_us)
        fits = np.ones(len(features), np.bool_)
        excess = self._by_feature(features) - (self._capacity - self._occupancy)
        for feature in np.flatnonzero(excess > 0):
            members = np.flatnonzero(features == feature)
            use = ids.last_seen[members], ids.frequency[members]
            fits[members[evicted_first(self._eviction, now, *use, excess[feature])]] = False
        chosen = np.flatnonzero(fits)
        weight = self._clock.weight(now)
        slots = self._occupy(features[chosen], ids.fingerprints[chosen], ids.uses[chosen], now, weight)
        which, indices = self._slots.deal.here(slots)
        local = chosen[which]
        for name in ("first_seen", "last_seen"):
            self._of_ids[name][indices] = getattr(ids, name)[local]
        self._of_ids["frequency"][indices] = ids.frequency[local] * self._clock.weight(ids.time_us)
        rows = np.full(len(features), -1, np.int32)
        rows[chosen] = slots + self._first_slot
        return rows

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Returns copies of all arrays that ``restore`` needs; of ``DEALT_ARRAYS`` only this worker's entries."""
        held = self._slots.held
        times = (self._time, self._searched, self._clock.landmark)
        arrays = {
            **{f"slots/{name}": array for name, array in self._slots.to_arrays().items()},
            **{f"slots/{name}": array[:held].copy() for name, array in self._of_ids.items()},
            "totals": np.stack([self._totals[name] for name in _TOTALS]),
            "times": np.array([_NEVER if time is None else time for time in times], np.int64),
        }
        if self._waiting is not None:
            arrays |= {f"waiting/{name}": array for name, array in self._waiting.to_arrays().items()}
        return arrays

    def entries(self) -> dict[str, int]:
        """Returns the total length, over all members, of each of ``DEALT_ARRAYS`` that the map has."""
        waiting = {} if self._waiting is None else dict.fromkeys(_OF_WAITING, self._waiting.places)
        return dict.fromkeys(_OF_SLOTS, self._slots.places) | waiting

    def restore(self, arrays: Mapping[str, np.ndarray], entries: Mapping[str, int] | None = None) -> None:
        """Restores the state that ``to_arrays`` returned for a map created with the same arguments.

        All members call it together. ``entries``: what the saved map's ``entries`` returned, if members have parts of
        the arrays; None: they are whole. Raises ValueError if the number of features or the array names differ.
        """
        expected = self.to_arrays()
        if set(arrays) != set(expected) or arrays["totals"].shape != expected["totals"].shape:
            raise ValueError(f"the arrays are not those of a map with {len(self.features)} features")
        entries = entries or {}
        self._slots.restore(_without_prefix(arrays, "slots/"), entries.get("slots/feature"))
        self._of_ids = {name: arrays[f"slots/{name}"].copy() for name in _OF_IDS}
        self._occupancy = self._sum_by_feature(self._slots.features[self._slots.taken()])
        self._totals = {name: row.copy() for name, row in zip(_TOTALS, arrays["totals"], strict=True)}
        times = [None if time == _NEVER else int(time) for time in arrays["times"]]
        self._time, self._searched, self._clock.landmark = times
        if self._waiting is not None:
            self._waiting.restore(_without_prefix(arrays, "waiting/"), entries.get("waiting/feature"))


def _without_prefix(arrays: Mapping[str, ValueT], prefix: str) -> dict[str, ValueT]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _first_of_each(features: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Returns the positions, ascending, of the first ids of each feature, up to the ``room`` of the feature."""
    if (np.bincount(features, minlength=len(room)) <= room).all():
        return np.arange(len(features))
    order = np.argsort(features, kind="stable")
    starts = np.searchsorted(features[order], np.arange(len(room)))
    rank = np.arange(len(features)) - starts[features[order]]
    return np.sort(order[rank < room[features[order]]])


def make_id_maps(
    layouts: Sequence[TableLayout], config: IdsConfig, group: Workers = ALONE
) -> dict[int, IdMap]:
    """Makes an empty map for each table with growing ids, by table index."""
    maps = {}
    for number, layout in enumerate(layouts):
        ids, offsets = ids_of(config, layout), layout.offsets()
        features = [
            GrowingFeature(f.name, offsets[f.name] + 1, ids.shared_rows, ids.capacity_of(f.name))
            for f in layout.growing
        ]
        if features:
            maps[number] = IdMap(features, layout.rows, ids.admission, ids.eviction, group)
    return maps


def id_arrays(layout: TableLayout, arrays: Mapping[str, ValueT]) -> dict[str, ValueT]:
    """Selects the entries of a table's id map from a mapping by the names of a state's arrays."""
    return _without_prefix(arrays, f"ids/{layout.name}/")


def restored_maps(
    layouts: Sequence[TableLayout], ids: IdsConfig, arrays: Mapping[str, np.ndarray]
) -> dict[int, IdMap]:
    """Restores the maps of tables from a state's arrays, by table index, for a single process."""
    maps = make_id_maps(layouts, ids)
    for number, id_map in maps.items():
        id_map.restore(id_arrays(layouts[number], arrays))
    return maps


def find_slots(id_maps: Sequence[IdMap], ids: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """Finds the slots of ids in several maps of one group, in one exchange: int64 [U] for each map, -1 for no slot."""
    if not ids:
        return []
    held = [id_map._slots.held_places(*pair) for id_map, pair in zip(id_maps, ids, strict=True)]
    slots = id_maps[0].group.sum_numbers(np.concatenate(held)).astype(np.int64) - 1
    return np.split(slots, np.cumsum([len(part) for part in held])[:-1])


def named_arrays(
    layouts: Sequence[TableLayout], of_maps: Mapping[int, Mapping[str, ValueT]]
) -> dict[str, ValueT]:
    """Returns the values of ``of_maps``, given by table index and array, under the arrays' names in checkpoints."""
    return {
        f"ids/{layouts[number].name}/{name}": value
        for number, of_map in of_maps.items()
        for name, value in of_map.items()
    }
