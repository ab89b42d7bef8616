"""Workers of one machine, which exchange through memory (``ctr.workers.board``) and listen to nothing."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from ctr.workers.board import Board, LostError, add_up
from ctr.workers.cluster import WorkerLostError
from ctr.workers.collectives import Workers
from ctr.workers.seats import Seat

# An exchange in a step needs Python, which the thread that reads ahead gives away after so long.
_SWITCH_SECONDS = 0.0005


class LocalWorkers(Workers):
    """Workers of one machine, as one of them sees them."""

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
            # TensorFlow makes an error of its own of one in a step.
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
        def gather(arrays: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
            return np.concatenate(arrays).reshape(-1, *shape[1:])

        return self._exchanged(tensor, gather)

    def _swapped(self, tensor: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        def swap(arrays: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
            return np.stack([array.reshape(shape)[self.rank] for array in arrays])

        return self._exchanged(tensor, swap)

    def _exchanged(
        self, tensor: tf.Tensor, take: Callable[[Sequence[np.ndarray], tuple[int, ...]], np.ndarray]
    ) -> tf.Tensor:
        """A new array that ``take`` makes of the flat arrays of all workers, and of the shape of this one's."""
        number = self._calls

        def exchange(array: np.ndarray) -> np.ndarray:
            return take(self._board.exchange(number, array), array.shape)

        # A step keeps the order of what reads and writes a variable; that of other operations could differ in another
        # worker, and each of the two would wait for the other.
        with tf.device("CPU:0"):
            turn = self._turn.read_value()
            with tf.control_dependencies([turn]):
                found = tf.numpy_function(exchange, [tensor], tensor.dtype, name="exchange")
            with tf.control_dependencies([found]):
                self._turn.assign_add(1)
        return found
