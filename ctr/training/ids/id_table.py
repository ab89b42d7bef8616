"""Hash table in NumPy from (feature, fingerprint) to a place: a small number that stays while the pair is in it.

Why none of a library: ``benchmarks/bench_ids.py`` measures this one beside those of pandas and TensorFlow. With 2.6
million pairs known, it finds 35,000 in 50 to 60% of their processor time, and adds 2,000 in no more. pandas'
Int64HashTable is private and cannot remove; TensorFlow's DenseHashTable gets slower with what was removed; their keys
are single numbers, some of which must not occur, and an entry has 16 bytes instead of 8.

It is open addressing with linear probing: a table of int64 entries, each 32 bits of a pair's hash and, in the low 31
bits, its place. Other bits of the hash give its first position. All pairs of a call are probed together, one step of
all that are not yet done at a time. An entry whose pair has left its place stays behind and is passed over. At most
half of the table is filled, such entries included, so that few pairs need a second step; then it is rebuilt, with 3/16
to 3/8 filled.
"""

import math
from collections.abc import Mapping

import numpy as np

from ctr.io.hashing import splitmix64

FREE = np.int16(-1)
"""The feature of a place that no pair has."""

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
    """Pairs and their places, which are numbered from 0; a new pair gets the lowest free place."""

    def __init__(self, max_places: int = MAX_PLACES) -> None:
        self._max_places = max_places
        self.clear()

    def clear(self) -> None:
        self.features = np.zeros(0, np.int16)  # int16 [>= places]; ``FREE``: no pair is there
        self.fingerprints = np.zeros(0, np.int64)  # int64 [>= places]
        # Numbers of places that were ever used, and of pairs.
        self.places = self.count = 0
        self._free = np.zeros(0, np.int64)
        self._allocate(_SMALLEST_BITS)

    def _allocate(self, bits: int) -> None:
        self._shift = np.uint64(64 - bits)
        self._wrap = np.int64(2**bits - 1)
        self._table = np.full(2**bits, _EMPTY)
        self._filled = 0

    @property
    def nbytes(self) -> int:
        return self._table.nbytes + self.features.nbytes + self.fingerprints.nbytes + self._free.nbytes

    def find(self, features: np.ndarray, fingerprints: np.ndarray) -> np.ndarray:
        """Finds the place of each pair, int64 [N]; -1 where it is not in the table."""
        positions, tags = self._hash(features, fingerprints)
        found = np.full(len(positions), -1, np.int64)
        entries = self._table.take(positions)
        pending = entries != _EMPTY
        hits, places = self._compare(entries, tags, features, fingerprints)
        found[hits] = places
        pending[hits] = False
        rest = np.flatnonzero(pending)
        positions, tags, features, fingerprints = (
            part[rest] for part in (positions, tags, features, fingerprints)
        )
        while len(rest):
            positions = (positions + 1) & self._wrap
            entries = self._table.take(positions)
            pending = entries != _EMPTY
            hits, places = self._compare(entries, tags, features, fingerprints)
            found[rest[hits]] = places
            pending[hits] = False
            remaining = np.flatnonzero(pending)
            rest, positions, tags = rest[remaining], positions[remaining], tags[remaining]
            features, fingerprints = features[remaining], fingerprints[remaining]
        return found

    def _hash(self, features: np.ndarray, fingerprints: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first position of each pair, and its hash's part of an entry, both int64."""
        hashes = mix(features, fingerprints)
        tags = (hashes & _TAG_MASK).view(np.int64)
        return (hashes >> self._shift).view(np.int64), tags

    def _compare(
        self, entries: np.ndarray, tags: np.ndarray, features: np.ndarray, fingerprints: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the positions and places of entries that match their pairs. Different pairs may share a tag."""
        hits = np.flatnonzero((entries >> _INDEX_BITS) == tags)
        places = entries[hits] & _INDEX_MASK
        same = (self.fingerprints.take(places) == fingerprints[hits]) & (
            self.features.take(places) == features[hits]
        )
        return (hits, places) if same.all() else (hits[same], places[same])

    def add(self, features: np.ndarray, fingerprints: np.ndarray) -> np.ndarray:
        """Gives places, int64 [N], to new pairs: the lowest free ones, in order."""
        reused, count = self._free[: len(features)], len(features)
        self._free = self._free[len(reused) :]
        end = self.places + count - len(reused)
        places = np.concatenate([reused, np.arange(self.places, end)])
        self.places = end
        self._grow()
        if self._filled + count > _MAX_LOAD * len(self._table):
            self._rebuild(count)
        self.features[places], self.fingerprints[places] = features, fingerprints
        self.count += count
        self._filled += count
        self._insert(features, fingerprints, places)
        return places

    def _grow(self) -> None:
        size = len(self.features)
        if self.places > size:
            size = max(self.places, min(max(size + size // 4, 1024), self._max_places))
            self.features = extended(self.features, size, FREE)
            self.fingerprints = extended(self.fingerprints, size)

    def _insert(self, features: np.ndarray, fingerprints: np.ndarray, places: np.ndarray) -> None:
        positions, tags = self._hash(features, fingerprints)
        entries = (tags << _INDEX_BITS) | places
        while len(entries):
            open_ = np.flatnonzero(self._table.take(positions) == _EMPTY)
            # Of several entries for one position, one stays there.
            self._table[positions[open_]] = entries[open_]
            rest = np.flatnonzero(self._table.take(positions) != entries)
            positions, entries = (positions[rest] + 1) & self._wrap, entries[rest]

    def _rebuild(self, more: int) -> None:
        """Makes the table anew, without the entries of pairs that left, and with room for ``more`` pairs."""
        needed = math.ceil((self.count + more) / _MAX_REBUILT_LOAD)
        self._allocate(max(_SMALLEST_BITS, (needed - 1).bit_length()))
        places = self.taken()
        self._filled = self.count
        self._insert(self.features[places], self.fingerprints[places], places)

    def taken(self) -> np.ndarray:
        return np.flatnonzero(self.features[: self.places] != FREE)

    def remove(self, places: np.ndarray) -> None:
        """Removes the pairs at some places, int64 [N], each once."""
        self.features[places] = FREE
        self.fingerprints[places] = 0
        self.count -= len(places)
        self._free = np.sort(np.concatenate([self._free, places]))

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Copies the arrays for ``restore``: ``feature`` int16 and ``fingerprint`` int64, by place."""
        return {
            "feature": self.features[: self.places].copy(),
            "fingerprint": self.fingerprints[: self.places].copy(),
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Goes back to where a table was at ``to_arrays``."""
        self.clear()
        self.features, self.fingerprints = arrays["feature"].copy(), arrays["fingerprint"].copy()
        self.places = len(self.features)
        taken = self.features != FREE
        self.count = int(np.count_nonzero(taken))
        self._free = np.flatnonzero(~taken)
        self._rebuild(0)


def extended(array: np.ndarray, size: int, fill: np.generic | int = 0) -> np.ndarray:
    """Copies ``array`` to ``size`` entries, ``fill`` beyond those it had."""
    larger = np.full(size, fill, array.dtype) if fill else np.zeros(size, array.dtype)
    larger[: len(array)] = array
    return larger
