"""Counts the occurrences of a feature's ids in bounded memory: exactly while all ids fit, estimated beyond."""

import numpy as np
import pandas as pd

from ctr.io.hashing import splitmix64

MOST_IDS = 2**18  # number of the most frequent ids that stay in memory

_SMALLEST_HASHES = 2**14


class IdCounts:
    """Counters for the most frequent ids, and the smallest hashes of all ids.

    Whenever there are more than ``most`` ids the rarest ones are dropped. A drop reduces an id's count by at most the
    largest dropped count; ``shortfall`` is the sum of these maxima. The number of distinct ids is estimated from the
    k-th smallest of their hashes, which is about k / distinct of the range; the standard error is 1 / sqrt(k), 0.8%.
    """

    def __init__(self, most: int = MOST_IDS) -> None:
        self.shortfall = 0  # maximum undercount of an id
        self._most = most
        self._counts = pd.DataFrame({"all": [], "clicked": []}, np.zeros(0, np.int64), dtype=np.int64)
        self._hashes = np.zeros(0, np.uint64)

    @property
    def exact(self) -> bool:
        """Returns whether no id was dropped; else ``distinct`` is an estimate."""
        return not self.shortfall

    def add(self, ids: np.ndarray, clicked: np.ndarray) -> None:
        """Counts N ids, and their occurrences in clicked rows, bool [N]."""
        more = pd.DataFrame({"all": 1, "clicked": clicked.astype(np.int64)}, ids.astype(np.int64))
        counts = pd.concat([self._counts, more.groupby(level=0).sum()]).groupby(level=0).sum()
        hashes = splitmix64(counts.index.to_numpy().astype(np.uint64))
        self._hashes = np.union1d(self._hashes, hashes)[:_SMALLEST_HASHES]
        if len(counts) > self._most:
            ordered = counts.sort_values("all", ascending=False, kind="stable")
            self.shortfall += int(ordered["all"].iloc[self._most])
            counts = ordered.iloc[: self._most].sort_index()
        self._counts = counts

    def distinct(self) -> int:
        """Returns the number of distinct ids, or an estimate unless ``exact``."""
        if self.exact or len(self._hashes) < _SMALLEST_HASHES:
            return len(self._counts) if self.exact else len(self._hashes)
        return round((_SMALLEST_HASHES - 1) / (float(self._hashes[-1]) / 2.0**64))

    def top(self, count: int) -> list[tuple[int, int, int]]:
        """Lists the most frequent ids, occurrences, and occurrences in clicked rows; smaller ids first among ties."""
        largest = self._counts.sort_values("all", ascending=False, kind="stable")[:count]
        return [(int(number), int(every), int(clicks)) for number, every, clicks in largest.itertuples()]
