"""Workers of one machine: they exchange arrays in shared memory, announce them by messages, and open no port.

A worker has two areas of memory, used in turn: a worker that has the messages of an exchange knows that all others
have read the arrays of the previous one. ``join`` joins a process to such workers, or to the workers of a cluster.
"""

import contextlib
import logging
import math
import mmap
import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import numpy as np
import tensorflow as tf

from ctr.workers.cluster import Cluster, WorkerLostError
from ctr.workers.collectives import ALONE, Workers
from ctr.workers.seats import AREAS, Seat

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
_LEAST_BYTES = 1 << 16
_CHUNK_BYTES = 4 << 20
_ALIGNED_BYTES = 64
# Notes: an exchange's index, the number of its call, and its bytes; of a loss -1, the lost worker, and 0.
_NOTE = struct.Struct("<qqq")
_LOSS = -1
# An exchange in a step needs Python, which the thread that reads ahead releases after this time.
_SWITCH_SECONDS = 0.0005

_JOIN_SECONDS = 3600.0
"""Wait for the first worker, which a scheduler may start later; TensorFlow's default for the others."""

_HEARTBEAT_SECONDS = 20.0
"""Without a sign of life for this long, a worker's process is lost: its machine, the network, or it is stopped."""


class LostError(Exception):
    """An exchange failed: other workers are gone, or did not take part in time."""


class Board:
    """Exchanges arrays with the other workers; all workers make the same calls in the same order.

    An exchange waits for the others until ``until``, by ``time.monotonic``. ``lost`` has the ranks of lost workers.
    """

    def __init__(self, seat: Seat) -> None:
        self.until = math.inf
        self.lost: tuple[int, ...] | None = None
        self._rank, self._turn = seat.rank, 0
        others = ((rank, fileno) for rank, fileno in enumerate(seat.sockets) if rank != seat.rank)
        self._sockets = {rank: socket.socket(fileno=fileno) for rank, fileno in others}
        self._areas = [[_Area(descriptor) for descriptor in areas] for areas in seat.areas]
        self._lock = threading.Lock()

    def exchange(self, number: int, array: np.ndarray) -> list[np.ndarray]:
        """Returns the flat arrays of all workers, by rank; the next exchange may overwrite them.

        All workers must pass the same dtype, size and ``number`` of the call. Raises RuntimeError if a number or size
        differs. Raises LostError if a worker is lost, and in every later call.
        """
        with self._lock:
            if self.lost is not None:
                raise LostError
            area, count = self._turn % AREAS, array.nbytes
            flat = np.ascontiguousarray(array).reshape(-1)
            self._areas[self._rank][area].of(count)[:] = flat.view(np.uint8)
            note = (self._turn, number, count)
            self._tell(note)
            self._wait_for(note)
            self._turn += 1
            return [areas[area].of(count).view(array.dtype) for areas in self._areas]

    def close(self) -> None:
        for connection in self._sockets.values():
            connection.close()

    def _tell(self, note: tuple[int, int, int]) -> None:
        for connection in self._sockets.values():
            # A lost worker is noticed where its notes are read, which say more.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.send(_NOTE.pack(*note))

    def _wait_for(self, note: tuple[int, int, int]) -> None:
        missing = set(self._sockets)
        while missing:
            for rank in self._ready(missing):
                other = self._next(rank)
                if other is None:
                    self._fail([rank])
                if other[0] == _LOSS:
                    # They may have given up this one, which hung.
                    self._fail([other[1] if other[1] != self._rank else rank])
                if other != note:
                    raise RuntimeError(f"worker {rank} exchanges {other}, this one, {self._rank}, {note}")
                missing.remove(rank)
            if missing and time.monotonic() > self.until:
                self._fail(sorted(missing))

    def _ready(self, ranks: Iterable[int]) -> list[int]:
        poll, by_descriptor = select.poll(), {self._sockets[rank].fileno(): rank for rank in ranks}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        seconds = max(0.0, min(_POLL_SECONDS, self.until - time.monotonic()))
        return sorted(by_descriptor[descriptor] for descriptor, _ in poll.poll(1000 * seconds + 1))

    def _next(self, rank: int) -> tuple[int, int, int] | None:
        while True:
            try:
                content = self._sockets[rank].recv(_NOTE.size)
            except ConnectionResetError:
                # It ended without having read all; its earlier notes come now.
                continue
            return _NOTE.unpack(content) if content else None

    def _fail(self, lost: Sequence[int]) -> NoReturn:
        self.lost = tuple(lost)
        # All are told, so that they name the same worker, and not one that ends only because of it.
        for rank in lost:
            self._tell((_LOSS, rank, 0))
        raise LostError


class _Area:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._bytes = np.zeros(0, np.uint8)

    def of(self, count: int) -> np.ndarray:
        """Returns the first bytes, uint8 [count]; grows the area if it has fewer."""
        if count > len(self._bytes):
            size = os.fstat(self._descriptor).st_size
            if count > size:
                size = max(_LEAST_BYTES, 1 << (count - 1).bit_length())
                os.ftruncate(self._descriptor, size)
            self._bytes = np.frombuffer(mmap.mmap(self._descriptor, size), np.uint8)
        return self._bytes[:count]


def add_up(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Sums piece p of W arrays in the order p, p + 1, ..., W - 1, 0, ..., p - 1, as TensorFlow's ring does."""
    workers, total = len(arrays), np.empty_like(arrays[0])
    piece = _piece(total.size, total.itemsize, workers)
    with np.errstate(all="ignore"):
        for first in range(workers):
            at = slice(first * piece, (first + 1) * piece)
            np.add(arrays[first][at], arrays[(first + 1) % workers][at], out=total[at])
            for further in range(2, workers):
                total[at] += arrays[(first + further) % workers][at]
    return total


def _piece(count: int, itemsize: int, workers: int) -> int:
    chunks = workers * (1 if count * itemsize // workers <= _CHUNK_BYTES else 2)
    elements = -(-count // chunks)
    # Up to the next multiple, even from an exact one.
    elements += (_ALIGNED_BYTES - elements * itemsize % _ALIGNED_BYTES) // itemsize
    return elements * chunks // workers


class LocalWorkers(Workers):
    """Workers of one machine, as seen by one of them."""

    lost_errors = (LostError,)

    def __init__(self, seat: Seat, timeout: float) -> None:
        super().__init__(timeout=timeout)
        self.rank, self.size = seat.rank, seat.size
        self.names = tuple(f"worker {rank}" for rank in range(seat.size))
        self._board = Board(seat)
        sys.setswitchinterval(_SWITCH_SECONDS)
        # Exchanges use it one after the other, also those in branches.
        self._turn = tf.Variable(0, dtype=tf.int64, trainable=False, name="exchanges")

    @contextmanager
    def timeout(self, is_patient: bool) -> Iterator[None]:
        seconds, before = self.patience if is_patient else self.timeout_seconds, self._board.until
        if seconds:
            self._board.until = min(before, time.monotonic() + seconds)
        try:
            yield
        finally:
            self._board.until = before

    @contextmanager
    def noticing_losses(self) -> Iterator[None]:
        try:
            yield
        except (LostError, tf.errors.OpError):
            # TensorFlow replaces an error in a step by another one.
            if self._board.lost is None:
                raise
            raise WorkerLostError(self._loss(self._board.lost, "which died or hangs")) from None

    def _gather_now(self, numbers: np.ndarray) -> np.ndarray:
        return np.stack(self._board.exchange(0, numbers))

    def _sum_now(self, numbers: np.ndarray) -> np.ndarray:
        return add_up(self._board.exchange(0, numbers))

    def _summed(self, flat: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(self._exchanged(flat, lambda arrays, shape: add_up(arrays)), flat.shape)

    def _gathered(self, tensor: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        return self._exchanged(tensor, lambda arrays, shape: np.concatenate(arrays).reshape(-1, *shape[1:]))

    def _swapped(self, tensor: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        return self._exchanged(
            tensor, lambda arrays, shape: np.stack([array.reshape(shape)[self.rank] for array in arrays])
        )

    def _exchanged(
        self, tensor: tf.Tensor, take: Callable[[Sequence[np.ndarray], tuple[int, ...]], np.ndarray]
    ) -> tf.Tensor:
        """Returns the array that ``take`` computes from the flat arrays of all workers and this worker's shape."""
        number = self._calls

        def exchange(array: np.ndarray) -> np.ndarray:
            return take(self._board.exchange(number, array), array.shape)

        # A step keeps the order of reads and writes of a variable; the order of other operations could differ between
        # workers, and each of the two would wait for the other.
        with tf.device("CPU:0"):
            turn = self._turn.read_value()
            with tf.control_dependencies([turn]):
                result = tf.numpy_function(exchange, [tensor], tensor.dtype, name="exchange")
            with tf.control_dependencies([result]):
                self._turn.assign_add(1)
        return result


def join(member: Seat | Cluster | None, timeout: float) -> Workers:
    """Connects to the other workers, before TensorFlow computes anything. Raises WorkerLostError if one is missing."""
    if member is None or member.size == 1:
        return ALONE
    log.info("worker %d of %d: joining", member.rank, member.size)
    workers = LocalWorkers(member, timeout) if isinstance(member, Seat) else Workers(member, timeout)
    with workers.noticing_losses():
        if isinstance(member, Cluster):
            _start_server(member)
        workers.wait_for_all()
    return workers


def _start_server(cluster: Cluster) -> None:
    # Private parts of TensorFlow, which a process alone does not need.
    from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
    from tensorflow.python.eager import context

    log.info("cluster: %s", ", ".join(cluster.addresses))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
        task_type="worker",
        task_id=cluster.rank,
        rpc_layer="grpc",
    )
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    # Before the strategy is created, which would otherwise configure it.
    job = coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=cluster.size)
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        coordinated_jobs=[job],
        cluster_register_timeout_in_ms=round(1000 * _JOIN_SECONDS),
        heartbeat_timeout_in_ms=round(1000 * _HEARTBEAT_SECONDS),
    )
    tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
