"""Query buckets: the units that intervals resample."""

import numpy as np
import numpy.typing as npt

from ctr.eval.arrays import IntArray

UintArray = npt.NDArray[np.uint64]

BUCKETS = 256
"""Number of query buckets: K, the leading axis of every state that has intervals."""

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR_2 = np.uint64(0x94D049BB133111EB)


def splitmix64(values: UintArray) -> UintArray:
    """The output function of splitmix64, uint64 [N], on a copy of ``values``.

    Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014. Neighboring values come out
    unrelated.
    """
    mixed = values + _INCREMENT
    mixed ^= mixed >> np.uint64(30)
    mixed *= _FACTOR_1
    mixed ^= mixed >> np.uint64(27)
    mixed *= _FACTOR_2
    mixed ^= mixed >> np.uint64(31)
    return mixed


def query_bucket(query_id: IntArray) -> IntArray:
    """The bucket of each query: the same in every run, process and machine.

    The upper 8 bits of `splitmix64`: neighboring ids fall into unrelated buckets, whatever scheme numbered the
    queries.

    Args:
        query_id: int64 [N].

    Returns:
        int64 [N], each 0..255.
    """
    return (splitmix64(query_id.astype(np.uint64)) >> np.uint64(56)).astype(np.int64)
