"""Workers as the state outside the steps needs them: numbers of all of them. NumPy alone."""

from typing import Final, Protocol

import numpy as np


class Group(Protocol):
    """Workers that make the same calls in the same order: sums of int32 [N], and int64 [N] gathered as [W, N]."""

    rank: int
    size: int

    def sum_numbers(self, numbers: np.ndarray) -> np.ndarray: ...

    def gather_numbers(self, numbers: np.ndarray) -> np.ndarray: ...


class _One:
    rank = 0
    size = 1

    def sum_numbers(self, numbers: np.ndarray) -> np.ndarray:
        return numbers

    def gather_numbers(self, numbers: np.ndarray) -> np.ndarray:
        return numbers[np.newaxis]


ONE: Final[Group] = _One()  # a process alone, without TensorFlow


def total(group: Group, number: int) -> int:
    """Sums a number over all workers, below 2^31."""
    return int(group.sum_numbers(np.array([number], np.int32))[0])


def gather_uneven(group: Group, numbers: np.ndarray) -> np.ndarray:
    """Concatenates int64 [N] of all workers, N being another one in each."""
    (lengths,) = group.gather_numbers(np.array([len(numbers)], np.int64)).T
    padded = np.pad(numbers.astype(np.int64, copy=False), (0, int(lengths.max()) - len(numbers)))
    gathered = group.gather_numbers(padded)
    return np.concatenate([row[:length] for row, length in zip(gathered, lengths, strict=True)])


def gather_divided(group: Group, own: np.ndarray, length: int, piece: int = 1 << 16) -> np.ndarray:
    """Gathers in the first worker an array of which each has every W-th entry, from its rank on; empty in others.

    ``own`` is int16 or int64, ``length`` that of the whole array; ``piece`` entries of each worker are sent at once.
    """
    if group.size == 1:
        return own
    whole = np.zeros(length if group.rank == 0 else 0, own.dtype)
    for begin in range(0, -(-length // group.size), piece):
        # The last entry is not there in all workers.
        part = np.zeros(min(piece, -(-length // group.size) - begin), np.int64)
        found = own[begin : begin + len(part)]
        part[: len(found)] = found
        together = group.gather_numbers(part)
        if group.rank == 0:
            at = whole[begin * group.size : (begin + len(part)) * group.size]
            at[:] = together.T.reshape(-1)[: len(at)]
    return whole
