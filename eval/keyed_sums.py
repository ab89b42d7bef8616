"""Sums per int64 key, for keys that are not known in advance."""

from collections.abc import Sequence

import numpy as np

from ctr.eval.arrays import BoolArray, FloatArray, IntArray

_SMALLEST_MERGE = 1024


class KeyedSums:
    """A growing table: key -> `width` sums of float64.

    Each key has its sums in exactly one place, so they depend on the values added and their order alone.
    Sorted arrays hold them: a large one, and a small one of keys first seen lately, which moves into the
    large one when it has grown to an eighth of it; inserting straight into the large one would copy it with
    every batch that brings a new key.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._main = _empty(width)
        self._recent = _empty(width)

    def add(self, keys: IntArray, values: Sequence[FloatArray] | FloatArray) -> None:
        """Adds `values` [width, N] to the sums of `keys` [N], which may repeat."""
        # Loaded here: commands that need no tables start sooner.
        import pandas as pd

        place, distinct = pd.factorize(keys)
        added = np.array([np.bincount(place, column, len(distinct)) for column in values])
        # Ascending, because a sorted search goes through a large table several times faster.
        order = np.argsort(distinct)
        keys, added = distinct[order], added[:, order]
        for known_keys, known_sums in (self._main, self._recent):
            where, known = _find(known_keys, keys)
            for known_column, column in zip(known_sums, added, strict=True):
                known_column[where[known]] += column[known]
            keys, added = keys[~known], added[:, ~known]
        if len(keys):
            self._recent = _inserted(self._recent, keys, added)
            if len(self._recent[0]) > max(_SMALLEST_MERGE, len(self._main[0]) // 8):
                self._main = _inserted(self._main, *self._recent)
                self._recent = _empty(self._width)

    def items(self) -> tuple[IntArray, FloatArray]:
        """All keys [C], ascending, and their sums [width, C], as copies."""
        return _inserted(self._main, *self._recent)


def _empty(width: int) -> tuple[IntArray, FloatArray]:
    return np.empty(0, np.int64), np.empty((width, 0))


def _find(known: IntArray, keys: IntArray) -> tuple[IntArray, BoolArray]:
    """Places where `keys` [N] stand, or would stand, in the sorted `known`; and whether they do."""
    place = np.searchsorted(known, keys)
    inside = place < len(known)
    found = np.zeros(len(keys), dtype=np.bool_)
    found[inside] = known[place[inside]] == keys[inside]
    return place, found


def _inserted(
    table: tuple[IntArray, FloatArray], keys: IntArray, sums: FloatArray
) -> tuple[IntArray, FloatArray]:
    place = np.searchsorted(table[0], keys)
    return np.insert(table[0], place, keys), np.insert(table[1], place, sums, axis=1)
