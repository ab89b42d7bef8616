"""Embedding tables of an exported model for a few rows, in NumPy: what ``ctr.serving.signatures`` looks up."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ctr.data.row_ids import Ids
from ctr.data.schema import MISSING_ID
from ctr.io.hashing import splitmix64

_LAST_KEY = np.iinfo(np.int64).max


class RowTable:
    """One table, described as in ``ctr.serving.saved_model``; else KeyError or ValueError.

    Args:
        rows: float32 [R, columns]: the fixed rows, and behind them those of ids that grow.
        keys: of the latter and one more, int64 [R - fixed + 1], rising; None where no ids grow.
    """

    def __init__(self, described: Mapping[str, Any], rows: np.ndarray, keys: np.ndarray | None) -> None:
        self.tower: str = described["tower"]
        self._rows, self._keys = rows, keys
        self._width, self._copies = described["width"], described["copies"]
        features: list[dict[str, Any]] = described["features"]
        starts = np.cumsum([0, *(feature["buckets"] for feature in features)]).tolist()
        self._fixed: int = starts[-1]
        grown = 0 if keys is None else len(keys) - 1
        growing = any(feature["growing"] for feature in features)
        fits = rows.shape == (self._fixed + grown, self._copies * (self._width + 1))
        if not fits or growing != (keys is not None):
            raise ValueError(f"table {described['name']} has the shape {list(rows.shape)}")
        placed = [{**one, "start": start} for one, start in zip(features, starts, strict=False)]
        self._single = [feature for feature in placed if feature["single"]]
        self._multivalent = [feature for feature in placed if not feature["single"]]
        self._starts = np.array([feature["start"] for feature in self._single], np.int64)
        self._sizes = np.array([feature["buckets"] for feature in self._single], np.int64)
        self.features = [feature["name"] for feature in placed]

    def look_up(self, ids: Mapping[str, Ids], rows: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Looks up N rows: for each copy embeddings [N, features * width], and sums of linear weights [N].

        Raises ValueError: an id is none of its feature's.
        """
        parts = []
        if self._single:
            parts.append(self._rows[self._single_rows(ids, rows)])
        if self._multivalent:
            means = [
                self._mean(feature, row) for feature in self._multivalent for row in ids[feature["name"]]
            ]
            shape = (len(self._multivalent), rows, self._rows.shape[1])
            parts.append(np.array(means, np.float32).reshape(shape).swapaxes(0, 1))
        found = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        size = self._width + 1
        columns = (found[:, :, begin : begin + size] for begin in range(0, self._copies * size, size))
        return [
            (own[:, :, : self._width].reshape(rows, -1), own[:, :, self._width].sum(axis=1))
            for own in columns
        ]

    def _single_rows(self, ids: Mapping[str, Ids], rows: int) -> np.ndarray:
        """Rows of the single-valued features, int64 [N, S]."""
        given = np.array([ids[feature["name"]] for feature in self._single], np.int64).reshape(-1, rows).T
        if self._keys is None:
            if (given < 0).any() or (given >= self._sizes).any():
                raise ValueError("an id is none of its feature's")
            return given + self._starts
        columns = [
            self._rows_of(feature, np.ascontiguousarray(given[:, at]))
            for at, feature in enumerate(self._single)
        ]
        return np.stack(columns, axis=1)

    def _rows_of(self, feature: Mapping[str, Any], ids: np.ndarray) -> np.ndarray:
        start, size = feature["start"], feature["buckets"]
        if not feature["growing"]:
            if (ids < 0).any() or (ids >= size).any():
                raise ValueError("an id is none of its feature's")
            return ids + start
        assert self._keys is not None
        sought = ids ^ np.int64(feature["salt"])
        places = np.searchsorted(self._keys, sought)
        found = (self._keys[places] == sought) & (sought != _LAST_KEY)
        shared = (splitmix64(ids.view(np.uint64)) % np.uint64(size - 1)).astype(np.int64)
        rows = np.where(found, self._fixed + places, start + 1 + shared)
        return np.where(ids == MISSING_ID, start, rows)

    def _mean(self, feature: Mapping[str, Any], ids: Sequence[int] | int) -> np.ndarray:
        values = np.array(ids, np.int64)
        if not values.size:
            return np.zeros(self._rows.shape[1], np.float32)
        mean: np.ndarray = self._rows[self._rows_of(feature, values)].sum(axis=0) / np.float32(values.size)
        return mean
