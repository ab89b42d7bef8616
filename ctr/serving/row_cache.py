"""Bounded cache of the rows of a function's output, which drops the least recently used."""

import threading
from collections.abc import Callable, Hashable, Sequence

import numpy as np

ComputeRows = Callable[[list[int]], np.ndarray]


class RowCache:
    """Rows of float32 by key, at most ``capacity`` of them. Threads may share it.

    Keys are looked up one by one in a dictionary; everything else is done for all rows of a call at once.
    """

    def __init__(self, capacity: int, shape: Sequence[int]) -> None:
        if capacity < 1:
            raise ValueError(f"capacity: {capacity} is not allowed; allowed: at least 1")
        self._capacity = capacity
        self._rows = np.empty((capacity, *shape), np.float32)
        self._used = np.full(capacity, -1, np.int64)
        self._places: dict[Hashable, int] = {}
        self._keys: list[Hashable] = []
        self._calls = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._places)

    def get(self, keys: Sequence[Hashable], compute: ComputeRows) -> np.ndarray:
        """Returns the rows of N keys, [N, ...].

        ``compute`` makes the rows of the keys at some positions, each a key that is not known, and none twice.
        """
        with self._lock:
            self._calls += 1
            find = self._places.get
            places = np.array([find(key, -1) for key in keys], np.int64)
            known = places >= 0
            self._used[places[known]] = self._calls
            if known.all():
                return self._rows[places]
            rows = np.empty((len(keys), *self._rows.shape[1:]), np.float32)
            rows[known] = self._rows[places[known]]
        numbers: dict[Hashable, int] = {}
        begins: list[int] = []
        missing = np.flatnonzero(~known).tolist()
        for position in missing:
            if numbers.setdefault(keys[position], len(begins)) == len(begins):
                begins.append(position)
        computed = compute(begins)
        rows[missing] = computed[[numbers[keys[position]] for position in missing]]
        with self._lock:
            self._store(list(numbers), computed)
        return rows

    def _store(self, keys: list[Hashable], rows: np.ndarray) -> None:
        fresh = [number for number, key in enumerate(keys) if key not in self._places][-self._capacity :]
        if not fresh:
            return
        unused = range(len(self._keys), min(len(self._keys) + len(fresh), self._capacity))
        places = list(unused)
        self._keys.extend(None for _ in unused)
        if lacking := len(fresh) - len(places):
            oldest = np.argsort(self._used[: len(self._keys) - len(places)], kind="stable")[:lacking].tolist()
            for place in oldest:
                del self._places[self._keys[place]]
            places += oldest
        for place, number in zip(places, fresh, strict=True):
            self._keys[place] = keys[number]
            self._places[keys[number]] = place
        self._rows[places] = rows[fresh]
        self._used[places] = self._calls
