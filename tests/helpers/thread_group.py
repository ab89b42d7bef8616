"""Workers that are threads of one process, which exchange numbers as processes do."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from ctr.workers.cluster import Cluster
from ctr.workers.collectives import Workers


class ThreadGroup(Workers):
    """One of several workers, as the maps of ids need them (``ctr.workers.collectives.Workers``)."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, given: list[np.ndarray]) -> None:
        super().__init__()
        self.rank, self.size = rank, size
        self._barrier, self._given = barrier, given

    def gather_numbers(self, numbers: np.ndarray) -> np.ndarray:
        assert numbers.dtype in (np.int16, np.int32, np.int64) and numbers.ndim == 1
        self._given[self.rank] = numbers
        self._barrier.wait(60)
        found = np.stack(self._given)
        # Nobody gives the next numbers before all have these.
        self._barrier.wait(60)
        return found

    def sum_numbers(self, numbers: np.ndarray) -> np.ndarray:
        assert numbers.dtype == np.int32
        found = self.gather_numbers(numbers).sum(0)
        assert np.abs(found).max(initial=0) < 2**31
        return found.astype(np.int32)


class Threads:
    """A group of which each worker has something of its own, with which all do the same.

    Args:
        make: makes that of a worker.
    """

    def __init__(self, size: int, make: Callable[[ThreadGroup], Any]) -> None:
        barrier, given = threading.Barrier(size), [np.zeros(0)] * size
        self._barrier, self._pool = barrier, ThreadPoolExecutor(size)
        self.groups = [ThreadGroup(rank, size, barrier, given) for rank in range(size)]
        self.own = [make(group) for group in self.groups]

    def all(self, call: Callable[[Any], Any]) -> list[Any]:
        """What ``call`` returns of that of each worker."""

        def checked(one: Any) -> Any:
            try:
                return call(one)
            except BaseException:
                self._barrier.abort()
                raise

        futures = [self._pool.submit(checked, one) for one in self.own]
        failed = [error for future in futures if (error := future.exception()) is not None]
        if failed:
            raise next(
                (one for one in failed if not isinstance(one, threading.BrokenBarrierError)), failed[0]
            )
        return [future.result() for future in futures]

    def close(self) -> None:
        self._pool.shutdown()


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
