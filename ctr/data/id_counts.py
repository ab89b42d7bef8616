"""Counts of each id of a feature, in bounded memory: exact as long as that fits, an estimate beyond."""

from collections.abc import Sequence

import numpy as np

from ctr.io.hashing import splitmix64

DENSE_IDS = 2**24  # ids of all features together of which every one has a counter: 256 MiB

KEPT_IDS = 2**18  # ids of a feature with more ids than that stay in memory, those that occur most often

_PENDING = 2**20
_SMALLEST_HASHES = 2**14


class DenseCounts:
    """A counter for every id in ``[0, buckets)``: occurrences, and how many of them are in clicked rows."""

    def __init__(self, buckets: int) -> None:
        self.exact = True
        self.shortfall = 0
        self._all = np.zeros(buckets, np.int64)
        self._clicked = np.zeros(buckets, np.int64)

    def add(self, ids: np.ndarray, clicked: np.ndarray) -> None:
        for counts, counted in ((self._all, ids), (self._clicked, ids[clicked])):
            if not len(counted):
                continue
            if len(counts) <= 4 * len(counted):
                counts += np.bincount(counted, minlength=len(counts))
            else:
                # A sum over all of the table would cost more than the few ids do.
                np.add.at(counts, counted, 1)

    def distinct(self) -> int:
        return int(np.count_nonzero(self._all))

    def top(self, count: int) -> list[tuple[int, int, int]]:
        seen = np.flatnonzero(self._all)
        return _top(seen, self._all[seen], self._clicked[seen], count)


class BoundedCounts:
    """Counters for the most frequent ids, and the smallest hashes of all of them.

    Whenever there are more than ``kept`` ids the rarest ones are dropped. An id then lacks at most what it had each
    time, which is no more than the most frequent of those dropped with it had: ``shortfall`` is the sum of these. The
    number of different ids follows from the k-th smallest of their hashes, about k / distinct of the range; its
    standard error is 1 / sqrt(k), 0.8%.
    """

    def __init__(self, kept: int = KEPT_IDS) -> None:
        self._kept = kept
        self._pending: list[tuple[np.ndarray, np.ndarray]] = []
        self._ids = self._all = self._clicked = np.zeros(0, np.int64)
        self._hashes = np.zeros(0, np.uint64)
        self._exact, self._shortfall, self._waiting = True, 0, 0

    @property
    def exact(self) -> bool:
        """Returns whether no id was dropped; else ``distinct`` is an estimate."""
        self._flush()
        return self._exact

    @property
    def shortfall(self) -> int:
        """By how much the count of an id may be too small."""
        self._flush()
        return self._shortfall

    def add(self, ids: np.ndarray, clicked: np.ndarray) -> None:
        self._pending.append((ids.astype(np.int64), clicked))
        self._waiting += len(ids)
        if self._waiting >= _PENDING:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        fresh = np.concatenate([ids for ids, _ in self._pending])
        clicked = np.concatenate([clicked for _, clicked in self._pending])
        self._pending, self._waiting = [], 0
        new, place = np.unique(fresh, return_inverse=True)
        counts = [np.bincount(counted, minlength=len(new)) for counted in (place, place[clicked])]
        self._hashes = np.union1d(self._hashes, splitmix64(new.astype(np.uint64)))[:_SMALLEST_HASHES]
        ids, place = np.unique(np.concatenate([self._ids, new]), return_inverse=True)
        occurrences, in_clicks = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64)
        np.add.at(occurrences, place, np.concatenate([self._all, counts[0]]))
        np.add.at(in_clicks, place, np.concatenate([self._clicked, counts[1]]))
        if len(ids) > self._kept:
            order = np.lexsort((ids, -occurrences))
            self._shortfall += int(occurrences[order[self._kept]])
            self._exact = False
            stay = np.sort(order[: self._kept])
            ids, occurrences, in_clicks = ids[stay], occurrences[stay], in_clicks[stay]
        self._ids, self._all, self._clicked = ids, occurrences, in_clicks

    def distinct(self) -> int:
        self._flush()
        if self._exact or len(self._hashes) < _SMALLEST_HASHES:
            return len(self._ids) if self._exact else len(self._hashes)
        return round((_SMALLEST_HASHES - 1) / (float(self._hashes[-1]) / 2.0**64))

    def top(self, count: int) -> list[tuple[int, int, int]]:
        self._flush()
        return _top(self._ids, self._all, self._clicked, count)


IdCounts = DenseCounts | BoundedCounts
"""Occurrences by id (``add``), how many ids there are (``distinct``), and the most frequent (``top``).

Those are (id, occurrences, occurrences in clicked rows), ties by the smaller id.
"""


def make_counts(buckets: Sequence[int | None], dense_ids: int = DENSE_IDS) -> list[IdCounts]:
    """Makes counters for features with so many ids each, None where they grow: exact ones while there is room."""
    counts: list[IdCounts] = [BoundedCounts() for _ in buckets]
    bounded = [(number, index) for index, number in enumerate(buckets) if number is not None]
    for number, index in sorted(bounded):
        if number > dense_ids:
            break
        dense_ids -= number
        counts[index] = DenseCounts(number)
    return counts


def _top(ids: np.ndarray, counts: np.ndarray, clicked: np.ndarray, most: int) -> list[tuple[int, int, int]]:
    order = np.lexsort((ids, -counts))[:most]
    return [(int(ids[at]), int(counts[at]), int(clicked[at])) for at in order]
