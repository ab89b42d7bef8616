"""Which ids get a slot: all, those that occurred often enough, or those of a drawn example."""

from collections.abc import Mapping

import numpy as np

from ctr.io.hashing import uniform_hash
from ctr.training.ids.config import AdmissionConfig
from ctr.training.ids.id_table import IdTable, extended, mix
from ctr.training.ids.sketch import CountMinSketch


def drawn(example_ids: np.ndarray, probability: float, salt: str) -> np.ndarray:
    """Draws examples, each by a hash of its id: the same ones in every run, order and log.

    Args:
        example_ids: int64 [N].
        probability: that an example is drawn.
        salt: another one gives an independent draw; so does the salt of a sample, which has another prefix.

    Returns:
        Bool [N].
    """
    return uniform_hash(example_ids, f"admission {salt}") < probability


class WaitingIds:
    """Counts the occurrences of ids that wait for admission: exactly for some, the others in a sketch.

    An id that comes is counted exactly, beginning with what the sketch has for it. When more than ``exact_ids`` would
    be counted, all of their counts go into the sketch, whose docstring states its error, and the next ones are counted
    from then on. Until that happens for the first time, all counts are exact.
    """

    def __init__(self, config: AdmissionConfig) -> None:
        self._max_count = config.count
        self._exact_ids = config.exact_ids
        self._table = IdTable()
        self._counts = np.zeros(0, np.int64)
        self._sketch = CountMinSketch(config.exact_ids, config.count)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self._table.nbytes + self._counts.nbytes + self._sketch.nbytes

    def count(self, features: np.ndarray, fingerprints: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Counts occurrences of different ids.

        Args:
            features: int16 [N].
            fingerprints: int64 [N].
            counts: int64 [N].

        Returns:
            Bool [N]: which of them have occurred often enough.
        """
        places = self._table.find(features, fingerprints)
        new = np.flatnonzero(places < 0)
        if self._table.count + len(new) > self._exact_ids:
            self._flush()
            new = np.arange(len(places))
        if len(new):
            own = features[new], fingerprints[new]
            before = self._sketch.estimates(mix(*own))
            places[new] = self._table.add(*own)
            if len(self._counts) < len(self._table.features):
                self._counts = extended(self._counts, len(self._table.features))
            self._counts[places[new]] = before
        totals = np.minimum(self._counts[places] + counts, self._max_count)
        self._counts[places] = totals
        return totals >= self._max_count

    def _flush(self) -> None:
        taken = self._table.taken()
        hashes = mix(self._table.features[taken], self._table.fingerprints[taken])
        self._sketch.raise_to(hashes, self._counts[taken])
        self._table.clear()

    def forget(self, features: np.ndarray, fingerprints: np.ndarray) -> None:
        """Removes ids that were admitted; a count in the sketch stays."""
        places = self._table.find(features, fingerprints)
        self._table.remove(places[places >= 0])

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Copies of what ``restore`` needs."""
        return {
            **self._table.to_arrays(),
            "count": self._counts[: self._table.places].copy(),
            **self._sketch.to_arrays(),
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Brings the counts to where they were at ``to_arrays``."""
        self._table.restore(arrays)
        self._counts = arrays["count"].copy()
        self._sketch.restore(arrays)
