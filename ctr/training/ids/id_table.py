"""Hash table in NumPy from (feature, fingerprint) to a place: a small number that is fixed while the pair is present.

``benchmarks/bench_ids.py`` compares it with the tables of pandas and TensorFlow. With 2.6 million pairs, it looks up
35,000 in 50 to 60% of their processor time, and adds 2,000 in no more. pandas' Int64HashTable is private and cannot
remove; TensorFlow's DenseHashTable slows down with removals; their keys are single numbers, some of which are reserved,
and an entry has 16 bytes instead of 8.

It uses open addressing with linear probing: a table of int64 entries, each 32 bits of a pair's hash and, in the low 31
bits, its index. Other bits of the hash give its first position. All pairs of a call are probed together: the
unfinished ones advance by one step at a time. The entry of a removed pair remains and is skipped. At most
half of the table is filled, such entries included, so that few pairs need a second step; then it is rebuilt, with 3/16
to 3/8 filled.

The members of a group share one table: the places are dealt to them, and each keeps only the pairs at its places. A
pair gets the same place as in a single process.
"""

import math
from collections.abc import Mapping

import numpy as np

from ctr.io.hashing import splitmix64
from ctr.workers.collectives import ALONE, Workers

FREE = np.int16(-1)
"""The feature of a free place."""

MAX_PLACES = 2**31 - 1

_EMPTY = np.int64(-1)
_INDEX_BITS = 31
_INDEX_MASK = np.int64(2**_INDEX_BITS - 1)
_TAG_MASK = np.uint64(2**32 - 1)
_SMALLEST_BITS = 10
_MAX_LOAD, _MAX_REBUILT_LOAD = 0.5, 0.375


def mix(features: np.ndarray, fingerprints: np.ndarray) -> np.ndarray:
    """Hashes pairs of a feature (int [N]) and a fingerprint (int64 [N]) to uint64 [N]."""
    return splitmix64(fingerprints.view(np.uint64) ^ splitmix64(features.astype(np.uint64)))


class IdTable:
    """Hash table of pairs and their places, numbered from 0; a new pair gets the lowest free place.

    The member that keeps a place stores it at an index, by ``deal``; in a single process, index and place are equal.
    All members make the same calls, in the same order; only the pairs to find or remove may differ.
    """

    def __init__(self, max_places: int = MAX_PLACES, group: Workers = ALONE) -> None:
        self._group, self.deal = group, group.deal
        self._max_held = self.deal.count(max_places)
        self.clear()

    def clear(self) -> None:
        self.features = np.zeros(0, np.int16)  # int16 [>= held], by index; ``FREE``: no pair is there
        self.fingerprints = np.zeros(0, np.int64)  # int64 [>= held]
        self.places = self.count = self._pairs = 0
        self._free = np.zeros(0, np.int64)
        self._allocate(_SMALLEST_BITS)

    def _allocate(self, bits: int) -> None:
        self._shift = np.uint64(64 - bits)
        self._wrap = np.int64(2**bits - 1)
        self._table = np.full(2**bits, _EMPTY)
        self._filled = 0

    @property
    def held(self) -> int:
        """Number of this member's places that were ever used."""
        return self.deal.count(self.places)

    @property
    def nbytes(self) -> int:
        return self._table.nbytes + self.features.nbytes + self.fingerprints.nbytes + self._free.nbytes

    def find(self, features: np.ndarray, fingerprints: np.ndarray) -> np.ndarray:
        """Returns the index of each pair, int64 [N], or -1 if this member does not keep it."""
        positions, tags = self._hash(features, fingerprints)
        index = np.full(len(positions), -1, np.int64)
        entries = self._table.take(positions)
        pending = entries != _EMPTY
        hits, indices = self._compare(entries, tags, features, fingerprints)
        index[hits] = indices
        pending[hits] = False
        rest = np.flatnonzero(pending)
        positions, tags, features, fingerprints = (
            part[rest] for part in (positions, tags, features, fingerprints)
        )
        while len(rest):
            positions = (positions + 1) & self._wrap
            entries = self._table.take(positions)
            pending = entries != _EMPTY
            hits, indices = self._compare(entries, tags, features, fingerprints)
            index[rest[hits]] = indices
            pending[hits] = False
            remaining = np.flatnonzero(pending)
            rest, positions, tags = rest[remaining], positions[remaining], tags[remaining]
            features, fingerprints = features[remaining], fingerprints[remaining]
        return index

    def held_places(self, features: np.ndarray, fingerprints: np.ndarray) -> np.ndarray:
        """Returns place + 1 for pairs that this member keeps, 0 for others: int32 [N], to be summed over the group."""
        indices = self.find(features, fingerprints)
        return np.where(indices < 0, 0, self.deal.rows(indices) + 1).astype(np.int32)

    def _hash(self, features: np.ndarray, fingerprints: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns, for each pair, the first position to probe and the part of its hash in an entry, both int64 [N]."""
        hashes = mix(features, fingerprints)
        tags = (hashes & _TAG_MASK).view(np.int64)
        return (hashes >> self._shift).view(np.int64), tags

    def _compare(
        self, entries: np.ndarray, tags: np.ndarray, features: np.ndarray, fingerprints: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the positions and indices of entries that match their pairs. Different pairs may share a tag."""
        hits = np.flatnonzero((entries >> _INDEX_BITS) == tags)
        indices = entries[hits] & _INDEX_MASK
        same = (self.fingerprints.take(indices) == fingerprints[hits]) & (
            self.features.take(indices) == features[hits]
        )
        return (hits, indices) if same.all() else (hits[same], indices[same])

    def add(self, features: np.ndarray, fingerprints: np.ndarray) -> np.ndarray:
        """Assigns places, int64 [N], to new pairs: the lowest free ones, in order."""
        places = self._lowest_free(len(features))
        self.count += len(places)
        self._grow()
        which, indices = self.deal.here(places)
        if self._filled + len(which) > _MAX_LOAD * len(self._table):
            self._rebuild(len(which))
        pairs = features[which], fingerprints[which]
        self.features[indices], self.fingerprints[indices] = pairs
        self._pairs += len(which)
        self._filled += len(which)
        self._insert(*pairs, indices)
        return places

    def _lowest_free(self, count: int) -> np.ndarray:
        reused = min(count, self.places - self.count)
        new = np.arange(self.places, self.places + count - reused)
        self.places += len(new)
        if not reused:
            return new
        free, offered = self._free[:reused], np.full(reused, MAX_PLACES, np.int64)
        offered[: len(free)] = self.deal.rows(free)
        lowest = np.sort(self._group.gather_numbers(offered), axis=None)[:reused]
        self._free = self._free[len(self.deal.here(lowest)[0]) :]
        return np.concatenate([lowest, new])

    def _grow(self) -> None:
        size = len(self.features)
        if self.held > size:
            size = max(self.held, min(max(size + size // 4, 1024), self._max_held))
            self.features = extended(self.features, size, FREE)
            self.fingerprints = extended(self.fingerprints, size)

    def _insert(self, features: np.ndarray, fingerprints: np.ndarray, indices: np.ndarray) -> None:
        positions, tags = self._hash(features, fingerprints)
        entries = (tags << _INDEX_BITS) | indices
        while len(entries):
            open_ = np.flatnonzero(self._table.take(positions) == _EMPTY)
            # If several entries want one position, one of them stays there.
            self._table[positions[open_]] = entries[open_]
            rest = np.flatnonzero(self._table.take(positions) != entries)
            positions, entries = (positions[rest] + 1) & self._wrap, entries[rest]

    def _rebuild(self, more: int) -> None:
        """Rebuilds the table without the entries of removed pairs, and with room for ``more`` pairs."""
        needed = math.ceil((self._pairs + more) / _MAX_REBUILT_LOAD)
        self._allocate(max(_SMALLEST_BITS, (needed - 1).bit_length()))
        indices = self.taken()
        self._filled = self._pairs
        self._insert(self.features[indices], self.fingerprints[indices], indices)

    def taken(self) -> np.ndarray:
        return np.flatnonzero(self.features[: self.held] != FREE)

    def remove(self, indices: np.ndarray, count: int | None = None) -> None:
        """Removes the pairs at distinct indices, int64 [N]. ``count``: number of pairs that all members remove."""
        self.features[indices] = FREE
        self.fingerprints[indices] = 0
        self.count -= len(indices) if count is None else count
        self._pairs -= len(indices)
        self._free = np.sort(np.concatenate([self._free, indices]))

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Copies the arrays for ``restore``: ``feature`` int16 and ``fingerprint`` int64, by index."""
        return {
            "feature": self.features[: self.held].copy(),
            "fingerprint": self.fingerprints[: self.held].copy(),
        }

    def restore(self, arrays: Mapping[str, np.ndarray], places: int | None = None) -> None:
        """Restores the result of ``to_arrays``; ``places``: the number in the whole table, if the arrays are a part."""
        self.clear()
        self.features, self.fingerprints = arrays["feature"].copy(), arrays["fingerprint"].copy()
        self.places = len(self.features) if places is None else places
        taken = self.features != FREE
        self._pairs = int(np.count_nonzero(taken))
        self.count = int(self._group.sum_numbers(np.array([self._pairs], np.int32))[0])
        self._free = np.flatnonzero(~taken)
        self._rebuild(0)


def extended(array: np.ndarray, size: int, fill: np.generic | int = 0) -> np.ndarray:
    """Copies ``array`` to ``size`` entries, with ``fill`` beyond its entries."""
    larger = np.full(size, fill, array.dtype) if fill else np.zeros(size, array.dtype)
    larger[: len(array)] = array
    return larger
