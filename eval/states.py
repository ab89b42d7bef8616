"""States that merge by addition, and their serialized form."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from ctr.eval.arrays import IntArray
from ctr.io.hashing import splitmix64

BUCKETS = 256  # K, the leading axis of every state that has intervals


def query_bucket(query_id: IntArray) -> IntArray:
    """Returns the bucket of each query, int64 [N] in 0..255, by its hash: equal in all runs, processes and machines."""
    return (splitmix64(query_id.astype(np.uint64)) >> np.uint64(56)).astype(np.int64)


Arrays = Mapping[str, npt.NDArray[Any]]  # serialized state: plain arrays by name. Names may contain ``/``


class SumState:
    """Named arrays of sums and counts, initially zero; merging adds them.

    A subclass declares its arrays in `LAYOUT` (name -> shape, dtype) and as annotated attributes. Addition
    makes `merge` commutative, and associative to rounding: a log may be cut into shards anywhere between two
    queries.
    """

    LAYOUT: ClassVar[Mapping[str, tuple[tuple[int, ...], type[np.generic]]]]

    def __init__(self) -> None:
        for name, (shape, dtype) in self.LAYOUT.items():
            setattr(self, name, np.zeros(shape, dtype))

    def merge(self, other: Self) -> None:
        """Adds the sums of `other`, which is unchanged."""
        for name in self.LAYOUT:
            array = getattr(self, name)
            array += getattr(other, name)

    def clear(self) -> None:
        """Resets the state to zero, in the same memory."""
        for name in self.LAYOUT:
            getattr(self, name)[...] = 0

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Copies the state as plain arrays; `from_arrays` restores it bit for bit."""
        return {name: getattr(self, name).copy() for name in self.LAYOUT}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Inverts `to_arrays`; raises ValueError for anything else, and for NaN and infinity."""
        if set(arrays) != set(cls.LAYOUT):
            raise ValueError(f"{cls.__name__} has arrays {sorted(cls.LAYOUT)}, got {sorted(arrays)}")
        state = cls()
        for name, (shape, dtype) in cls.LAYOUT.items():
            array = arrays[name]
            if array.shape != shape or array.dtype != dtype:
                allowed = f"{np.dtype(dtype)} {shape}"
                raise ValueError(f"{cls.__name__}.{name} must be {allowed}, got {array.dtype} {array.shape}")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ValueError(f"{cls.__name__}.{name} must hold finite numbers")
            setattr(state, name, array.copy())
        return state
