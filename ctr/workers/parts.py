"""Arrays of which each worker holds a part: whose rows are whose, and how the parts make the whole again."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

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

    def as_json(self) -> dict[str, Any]:
        """Its rows in runs, by the first one and their number, all with the same step."""
        steps = np.diff(self.rows)
        step = int(steps[0]) if len(steps) else 1
        begins = np.flatnonzero(np.concatenate([[True], steps != step]))[: len(self.rows)]
        counts = np.diff(begins, append=len(self.rows))
        runs = np.stack([self.rows[begins], counts], axis=1).tolist()
        shape = {} if self.shape is None else {"shape": list(self.shape)}
        return {"axis": self.axis, "total": self.total, "step": step, "runs": runs, **shape}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Returns the part of which ``as_json`` returned the content."""
        step, shape = content["step"], content.get("shape")
        runs = [begin + step * np.arange(count) for begin, count in content["runs"]]
        rows = np.concatenate([np.zeros(0, np.int64), *runs]).astype(np.int64)
        return cls(int(content["axis"]), rows, int(content["total"]), None if shape is None else tuple(shape))


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


def take_from(
    wanted: Part, parts: Sequence[tuple[Part, np.ndarray]], array: np.ndarray | None = None
) -> np.ndarray:
    """One worker's part of an array that others had in other parts.

    Args:
        wanted: the part.
        parts: some of the parts; those of others may come in a later call.
        array: what an earlier call returned.

    Returns:
        The part; padding and rows of parts that are yet to come are zero.

    Raises:
        ValueError: parts are of different arrays.
    """
    order = np.argsort(wanted.rows, kind="stable")
    rows = wanted.rows[order]
    for part, values in parts:
        if (part.axis, part.total) != (wanted.axis, wanted.total) or values.shape[part.axis] != len(
            part.rows
        ):
            raise ValueError(f"parts of different arrays: {part.axis, part.total} {values.shape}")
        if array is None:
            shape = list(values.shape)
            shape[part.axis] = len(rows)
            array = np.zeros(shape, values.dtype)
        if not len(rows):
            continue
        places = np.minimum(np.searchsorted(rows, part.rows), len(rows) - 1)
        known = np.flatnonzero((part.rows >= 0) & (rows[places] == part.rows))
        np.moveaxis(array, wanted.axis, 0)[order[places[known]]] = np.moveaxis(values, wanted.axis, 0)[known]
    assert array is not None
    return array
