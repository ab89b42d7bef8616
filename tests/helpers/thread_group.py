"""Workers that are threads of one process, which exchange tensors as processes do."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from ctr.workers.cluster import Cluster
from ctr.workers.collectives import Workers


def together(size: int, call: Callable[[Workers], Any]) -> list[Any]:
    """What ``call(workers)`` returns on each of several workers, in eager mode."""
    barrier, given_by = threading.Barrier(size), [tf.zeros([])] * size

    def member(rank: int) -> Any:
        workers = Workers(Cluster(rank, tuple(f"h:{i}" for i in range(size))))

        def all_gather(tensor: tf.Tensor) -> tf.Tensor:
            given_by[rank] = tensor
            barrier.wait(900)
            found = tf.concat(given_by, axis=0)
            # Nobody gives the next tensor before all have these.
            barrier.wait(900)
            return found

        workers.all_gather = all_gather
        workers._summed = lambda flat, key: tf.reduce_sum(tf.reshape(all_gather(flat), [size, -1]), axis=0)
        try:
            return call(workers)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(member, range(size)))
