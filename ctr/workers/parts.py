"""Assigns the rows of arrays to workers, and joins the parts that the workers hold."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Self

import numpy as np


class Part(NamedTuple):
    """Part of an array that a worker holds: some of its rows."""

    rows: np.ndarray  # int64 [n], in the order in which the worker has them
    total: int  # number of rows in all parts together
    # The whole array's shape if rows are its single elements, numbered in row-major order; else None.
    shape: tuple[int, ...] | None = None

    def as_json(self) -> dict[str, Any]:
        steps = np.diff(self.rows)
        step = int(steps[0]) if len(steps) else 1
        begins = np.flatnonzero(np.concatenate([[True], steps != step]))[: len(self.rows)]
        counts = np.diff(begins, append=len(self.rows))
        runs = np.stack([self.rows[begins], counts], axis=1).tolist()
        shape = {} if self.shape is None else {"shape": list(self.shape)}
        return {"total": self.total, "step": step, "runs": runs, **shape}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        step, shape = content["step"], content.get("shape")
        runs = [begin + step * np.arange(count) for begin, count in content["runs"]]
        rows = np.concatenate([np.zeros(0, np.int64), *runs]).astype(np.int64)
        return cls(rows, int(content["total"]), None if shape is None else tuple(shape))


class Deal(NamedTuple):
    """Deals rows in turn, so that new rows spread evenly: each of W workers has every W-th row, from ``rank`` on."""

    rank: int = 0
    size: int = 1

    def count(self, total: int) -> int:
        """Returns how many of the first ``total`` rows this worker has."""
        return len(range(self.rank, total, self.size))

    def here(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Selects this worker's rows among [N] (below 0: no row): their positions, and their local indices."""
        if self.size == 1:
            positions = np.flatnonzero(rows >= 0)
            return positions, rows[positions]
        positions = np.flatnonzero((rows >= 0) & (rows % self.size == self.rank))
        return positions, rows[positions] // self.size

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Returns the rows with these local indices."""
        return indices * self.size + self.rank

    def part(self, total: int) -> Part:
        return Part(np.arange(self.rank, total, self.size, dtype=np.int64), total)


class Sharding:
    """Names of the arrays that workers divide, with this worker's share; other arrays are whole on every worker."""

    def __init__(self, deal: Deal, dealt: Mapping[str, int] = {}, parts: Mapping[str, Part] = {}) -> None:
        """Deals the rows of ``dealt`` (numbers of rows by name) in turn; ``parts`` are divided otherwise."""
        self._dealt, self._parts = dict(dealt) if deal.size > 1 else {}, dict(parts)
        # Once for all arrays of one length: a part takes 8 bytes for each of its rows.
        self._of_length = cache(deal.part)

    def __contains__(self, name: str) -> bool:
        return name in self._dealt or name in self._parts

    def part(self, name: str, rows: int) -> Part | None:
        """Returns the worker's part of an array with ``rows`` rows, or None if the worker holds all of it."""
        return self._of_length(rows) if name in self._dealt else self._parts.get(name)

    def parts(self) -> dict[str, Part]:
        return self._parts | {name: self._of_length(rows) for name, rows in self._dealt.items()}


def shard(array: np.ndarray, part: Part) -> np.ndarray:
    """Returns a part of a whole array. Raises ValueError if the part is of an array with another number of rows."""
    flat = array if part.shape is None else array.reshape(-1)
    if len(flat) != part.total:
        raise ValueError(f"a part of {part.total} rows is not one of an array {array.shape}")
    rows: np.ndarray = flat[part.rows]
    return rows


def reshard(parts: Sequence[tuple[Part, np.ndarray]]) -> np.ndarray:
    """Joins parts into the whole array. Raises ValueError if parts do not fit, or a row is in none or in several."""
    (first, array), *_ = parts
    whole, seen = np.zeros((first.total, *array.shape[1:]), array.dtype), np.zeros(first.total, np.int64)
    for part, values in parts:
        _check_fits(part, first, values)
        whole[part.rows] = values
        np.add.at(seen, part.rows, 1)
    if (seen != 1).any():
        row = int(np.flatnonzero(seen != 1)[0])
        raise ValueError(f"row {row} is in {int(seen[row])} parts, must be in 1")
    return whole if first.shape is None else whole.reshape(first.shape)


def reshard_to(
    wanted: Part, parts: Sequence[tuple[Part, np.ndarray]], array: np.ndarray | None = None
) -> np.ndarray:
    """Assembles the part ``wanted`` from other parts; pass the result as ``array`` to add more parts to it.

    Missing rows are zero. Raises ValueError if parts are of arrays with different numbers of rows, or lack rows.
    """
    order = np.argsort(wanted.rows, kind="stable")
    rows = wanted.rows[order]
    for part, values in parts:
        _check_fits(part, wanted, values)
        if array is None:
            array = np.zeros((len(rows), *values.shape[1:]), values.dtype)
        if not len(rows):
            continue
        positions = np.minimum(np.searchsorted(rows, part.rows), len(rows) - 1)
        matching = np.flatnonzero(rows[positions] == part.rows)
        array[order[positions[matching]]] = values[matching]
    assert array is not None
    return array


def _check_fits(part: Part, other: Part, values: np.ndarray) -> None:
    if part.total != other.total or len(values) != len(part.rows):
        raise ValueError(f"parts of different arrays: {len(part.rows)} of {part.total} rows {values.shape}")
