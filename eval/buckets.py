"""Query buckets: the units that intervals resample."""

import numpy as np

from ctr.eval.arrays import IntArray
from ctr.io.hashing import splitmix64

BUCKETS = 256
"""K, the leading axis of every state that has intervals."""


def query_bucket(query_id: IntArray) -> IntArray:
    """Bucket of each query, int64 [N] in 0..255: the same in every run, process and machine.

    The upper 8 bits of `splitmix64`: neighboring ids fall into unrelated buckets, whatever scheme numbered
    the queries.
    """
    return (splitmix64(query_id.astype(np.uint64)) >> np.uint64(56)).astype(np.int64)
