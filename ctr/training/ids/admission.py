"""Admission of growing ids to slots: of all ids, of frequent ones, or of the ids of randomly drawn examples."""

from collections.abc import Mapping

import numpy as np

from ctr.io.hashing import splitmix64, uniform_hash
from ctr.training.ids.config import AdmissionConfig
from ctr.training.ids.id_table import IdTable, extended, mix
from ctr.workers.collectives import ALONE, Workers

DEPTH = 4
WIDTH_PER_ID = 8


class CountMinSketch:
    """Count-min sketch of hashes: ``DEPTH`` rows of ``width`` counters, with conservative update.

    A count is the minimum of the id's counters, one in each row; an update raises only counters below the new count.

    With total count N, an estimate is too high by more than epsilon N with a probability of at most delta, where
    epsilon = e / width and delta = e^-DEPTH = 1.8%; conservative update makes the error smaller still. Here width is
    at least 8 ``ids``, and all counters are halved whenever N is above ``ids`` times 2 or a quarter of ``max_count``,
    whichever is more. So epsilon N is at most 0.68 (no error at all) or 0.085 ``max_count``, where counters saturate.
    A halving rounds down: so old ids are forgotten, and an endless stream does not fill the sketch.

    Cormode, Muthukrishnan, "An improved data stream summary: the count-min sketch and its applications", 2005; Estan,
    Varghese, "New directions in traffic measurement and accounting", 2002 (conservative update); Einziger, Friedman,
    Manes, "TinyLFU", 2017 (halving).
    """

    def __init__(self, ids: int, max_count: int) -> None:
        self._ids = ids
        self._max_count = max_count
        self._bits = (WIDTH_PER_ID * ids - 1).bit_length()
        self._seeds = splitmix64(np.arange(DEPTH, dtype=np.uint64))
        self.clear()

    def clear(self) -> None:
        """Resets all counts, and frees the memory until something is counted again."""
        self._counters: np.ndarray | None = None
        self._total = 0

    @property
    def nbytes(self) -> int:
        return 0 if self._counters is None else self._counters.nbytes

    def _positions(self, hashes: np.ndarray) -> np.ndarray:
        mixed = splitmix64(hashes ^ self._seeds[:, np.newaxis])
        return (mixed >> np.uint64(64 - self._bits)).view(np.int64)

    def estimates(self, hashes: np.ndarray) -> np.ndarray:
        if self._counters is None:
            return np.zeros(len(hashes), np.int64)
        positions = self._positions(hashes)
        counts = [row[at] for row, at in zip(self._counters, positions, strict=True)]
        return np.minimum.reduce(counts).astype(np.int64)

    def raise_to(self, hashes: np.ndarray, counts: np.ndarray) -> None:
        """Raises the estimates of ``hashes`` to at least their counts, int64 [N], capped at ``max_count``."""
        if self._counters is None:
            kind = np.uint8 if self._max_count < 2**8 else np.uint16
            self._counters = np.zeros((DEPTH, 2**self._bits), kind)
        capped = np.minimum(counts, self._max_count)
        for row, at in zip(self._counters, self._positions(hashes), strict=True):
            np.maximum.at(row, at, capped.astype(row.dtype))
        self._total += int(capped.sum())
        while self._total > self._ids * max(2, self._max_count / 4):
            self._counters >>= 1
            self._total //= 2

    def to_arrays(self) -> dict[str, np.ndarray]:
        empty = np.zeros((0, 0), np.uint8)
        return {
            "counters": empty if self._counters is None else self._counters.copy(),
            "total": np.array(self._total, np.int64),
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.clear()
        if arrays["counters"].size:
            self._counters = arrays["counters"].copy()
        self._total = int(arrays["total"])


def drawn(example_ids: np.ndarray, probability: float, salt: str) -> np.ndarray:
    """Draws examples by a hash of their ids, bool [N]; independent of the run, the order, the log and sampling."""
    return uniform_hash(example_ids, f"admission {salt}") < probability


class WaitingIds:
    """Counts the occurrences of ids that wait for admission: a limited number exactly, the others in a sketch.

    An id is counted exactly from its first occurrence on, starting from the sketch's count. If more than ``exact_ids``
    ids would be counted, all exact counts move to the sketch (see ``CountMinSketch`` for its error), and exact counting
    starts again. Until that happens for the first time, all counts are exact.

    The members of a group make the same calls. Each keeps a part of the exact counts; all have the whole sketch.
    """

    def __init__(self, config: AdmissionConfig, group: Workers = ALONE) -> None:
        self._max_count = config.count
        self._exact_ids = config.exact_ids
        self._group = group
        self._table = IdTable(group=group)
        self._counts = np.zeros(0, np.int64)
        self._sketch = CountMinSketch(config.exact_ids, config.count)

    @property
    def places(self) -> int:
        """Length of the arrays of exact counts, over all members of the group."""
        return self._table.places

    @property
    def nbytes(self) -> int:
        return self._table.nbytes + self._counts.nbytes + self._sketch.nbytes

    def count(self, features: np.ndarray, fingerprints: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Adds ``counts``, int64 [N], of N distinct ids; returns which ids reached the admission count, bool [N]."""
        indices = self._table.find(features, fingerprints)
        held = np.flatnonzero(indices >= 0)
        # Indices plus one; 0 for an id that is not counted yet.
        before = np.zeros(len(indices), np.int32)
        before[held] = self._counts[indices[held]] + 1
        before = self._group.sum_numbers(before).astype(np.int64)
        new = np.flatnonzero(before == 0)
        if self._table.count + len(new) > self._exact_ids:
            self._flush()
            held, new = held[:0], np.arange(len(indices))
        totals = before - 1
        if len(new):
            new_ids = features[new], fingerprints[new]
            totals[new] = self._sketch.estimates(mix(*new_ids))
            which, added = self._table.deal.here(self._table.add(*new_ids))
            if len(self._counts) < len(self._table.features):
                self._counts = extended(self._counts, len(self._table.features))
            indices[new[which]] = added
            held = np.concatenate([held, new[which]])
        totals = np.minimum(totals + counts, self._max_count)
        self._counts[indices[held]] = totals[held]
        return totals >= self._max_count

    def _flush(self) -> None:
        taken = self._table.taken()
        hashes = mix(self._table.features[taken], self._table.fingerprints[taken])
        hashes, counts = map(
            np.concatenate, map(self._group.gather_uneven, (hashes.view(np.int64), self._counts[taken]))
        )
        self._sketch.raise_to(hashes.view(np.uint64), counts)
        self._table.clear()

    def forget(self, features: np.ndarray, fingerprints: np.ndarray) -> None:
        """Removes ids that the last call of ``count`` admitted from the exact counts; the sketch does not change."""
        indices = self._table.find(features, fingerprints)
        self._table.remove(indices[indices >= 0], len(indices))

    def to_arrays(self) -> dict[str, np.ndarray]:
        return {
            **self._table.to_arrays(),
            "count": self._counts[: self._table.held].copy(),
            **self._sketch.to_arrays(),
        }

    def restore(self, arrays: Mapping[str, np.ndarray], places: int | None = None) -> None:
        self._table.restore(arrays, places)
        self._counts = arrays["count"].copy()
        self._sketch.restore(arrays)
