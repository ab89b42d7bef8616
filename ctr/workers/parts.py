"""Arrays of which each worker holds a part: whose rows are whose, and how the parts make the whole again."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Part(NamedTuple):
    """The part of an array that a worker holds: whole slices of one axis.

    Attributes:
        axis: the axis that is divided.
        rows: int64 [n], the indices along it, in the order in which the worker has them; -1 for padding.
        total: how many there are in all parts together.
        shape: of the whole array, where parts are single elements of it, numbered in row-major order (``axis`` is 0).
    """

    axis: int
    rows: np.ndarray
    total: int
    shape: tuple[int, ...] | None = None

    def take(self, whole: np.ndarray) -> np.ndarray:
        """This worker's part of the whole array; padding repeats the first row."""
        rows = whole if self.shape is None else whole.reshape(-1)
        return np.take(rows, np.maximum(self.rows, 0), axis=self.axis)


def rows_of(rank: int, size: int, total: int) -> Part:
    """The rows of a table that a worker holds: every ``size``-th one, so that new rows spread evenly, too."""
    return Part(0, np.arange(rank, total, size, dtype=np.int64), total)


def merge(parts: Sequence[tuple[Part, np.ndarray]]) -> np.ndarray:
    """The whole array.

    Raises:
        ValueError: parts do not fit, or a row is in none of them or in two.
    """
    (first, array), *_ = parts
    shape = list(array.shape)
    shape[first.axis] = first.total
    whole = np.zeros(shape, array.dtype)
    along, seen = np.moveaxis(whole, first.axis, 0), np.zeros(first.total, np.int64)
    for part, values in parts:
        if (part.axis, part.total) != (first.axis, first.total) or values.shape[part.axis] != len(part.rows):
            raise ValueError(f"parts of different arrays: {part.axis, part.total} {values.shape}")
        own = part.rows >= 0
        along[part.rows[own]] = np.moveaxis(values, part.axis, 0)[own]
        np.add.at(seen, part.rows[own], 1)
    if (seen != 1).any():
        row = int(np.flatnonzero(seen != 1)[0])
        raise ValueError(f"row {row} is in {int(seen[row])} parts, must be in 1")
    return whole if first.shape is None else whole.reshape(first.shape)
