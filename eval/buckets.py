"""Query buckets: the units that intervals resample."""

import numpy as np

from ctr.eval.arrays import IntArray

BUCKETS = 256
"""Number of query buckets: K, the leading axis of every state that has intervals."""

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR_2 = np.uint64(0x94D049BB133111EB)


def query_bucket(query_id: IntArray) -> IntArray:
    """The bucket of each query: the same in every run, process and machine.

    The hash is the output function of splitmix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number
    Generators", OOPSLA 2014) on the 64 bits of `query_id`; the bucket is its upper 8 bits. Neighbouring ids
    therefore fall into unrelated buckets, whatever scheme numbered the queries.

    Args:
        query_id: int64 [N].

    Returns:
        int64 [N], each 0..255.
    """
    mixed = query_id.astype(np.uint64)
    mixed += _INCREMENT
    mixed ^= mixed >> np.uint64(30)
    mixed *= _FACTOR_1
    mixed ^= mixed >> np.uint64(27)
    mixed *= _FACTOR_2
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(56)).astype(np.int64)
