"""Admission of growing ids to slots: all, those that occurred often enough, or those of a drawn example."""

from collections.abc import Mapping

import numpy as np

from ctr.io.hashing import uniform_hash
from ctr.training.ids.config import AdmissionConfig
from ctr.training.ids.id_table import IdTable, extended, mix
from ctr.training.ids.sketch import CountMinSketch
from ctr.workers.group import ONE, Group, gather_uneven


def drawn(example_ids: np.ndarray, probability: float, salt: str) -> np.ndarray:
    """Draws examples (int64 [N]), each by a hash of its id: the same ones, bool [N], in every run, order and log.

    Another salt gives an independent draw; so does the salt of a sample, which has another prefix.
    """
    return uniform_hash(example_ids, f"admission {salt}") < probability


class WaitingIds:
    """Counts the occurrences of ids that wait for admission: exactly for some, the others in a sketch.

    An id that comes is counted exactly, beginning with what the sketch has for it. When more than ``exact_ids`` would
    be counted, all of their counts go into the sketch, whose docstring states its error, and the next ones are counted
    from then on. Until that happens for the first time, all counts are exact.

    Of several workers, which make the same calls, each keeps its part of the exact counts; all have the sketch.
    """

    def __init__(self, config: AdmissionConfig, group: Group = ONE) -> None:
        self._max_count = config.count
        self._exact_ids = config.exact_ids
        self._group = group
        self._table = IdTable(group=group)
        self._counts = np.zeros(0, np.int64)
        self._sketch = CountMinSketch(config.exact_ids, config.count)

    @property
    def places(self) -> int:
        """Length of the arrays of exact counts, those of all workers together."""
        return self._table.places

    @property
    def nbytes(self) -> int:
        return self._table.nbytes + self._counts.nbytes + self._sketch.nbytes

    def count(self, features: np.ndarray, fingerprints: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Counts occurrences of different ids; returns which of them have occurred often enough, bool [N]."""
        indices = self._table.find(features, fingerprints)
        held = np.flatnonzero(indices >= 0)
        # By one higher, so that 0 is that of an id which is not counted yet.
        before = np.zeros(len(indices), np.int32)
        before[held] = self._counts[indices[held]] + 1
        before = self._group.sum_numbers(before).astype(np.int64)
        new = np.flatnonzero(before == 0)
        if self._table.count + len(new) > self._exact_ids:
            self._flush()
            held, new = held[:0], np.arange(len(indices))
        totals = before - 1
        if len(new):
            own = features[new], fingerprints[new]
            totals[new] = self._sketch.estimates(mix(*own))
            which, added = self._table.indices_of(self._table.add(*own))
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
        counts = self._counts[taken]
        if self._group.size > 1:
            hashes = gather_uneven(self._group, hashes.view(np.int64)).view(np.uint64)
            counts = gather_uneven(self._group, counts)
        self._sketch.raise_to(hashes, counts)
        self._table.clear()

    def forget(self, features: np.ndarray, fingerprints: np.ndarray) -> None:
        """Removes ids that were counted last and are admitted; a count in the sketch stays."""
        indices = self._table.find(features, fingerprints)
        self._table.remove(indices[indices >= 0], len(indices))

    def to_arrays(self) -> dict[str, np.ndarray]:
        return {
            **self._table.to_arrays(),
            "count": self._counts[: self._table.held].copy(),
            **self._sketch.to_arrays(),
        }

    def restore(self, arrays: Mapping[str, np.ndarray], places: int | None = None) -> None:
        """Goes back to where the counts were at ``to_arrays``. ``places``: of all workers; None: all are here."""
        self._table.restore(arrays, places)
        self._counts = arrays["count"].copy()
        self._sketch.restore(arrays)
