"""Time limits of exchanges, and the workers that TensorFlow's coordination service reports as lost."""

import math
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

# Time for the others, which wait for the same worker, to reach the barrier.
_ANSWER_SECONDS = 5.0
_POLL_SECONDS = 0.2
_TIMED_OUT = "timed out"
_SERVICE = "/tensorflow.CoordinationService/"
_TASK = re.compile(r"/task:(\d+)")


class TimeLimit:
    """Aborts the exchanges of this process when they take too long.

    TensorFlow's timeout keeps two threads asleep for each exchange until it has passed, even if the exchange has
    finished: a minute of fast steps is thousands of threads.
    """

    def __init__(self) -> None:
        self._until = math.inf
        self._thread: threading.Thread | None = None

    @contextmanager
    def of(self, seconds: float) -> Iterator[None]:
        """Aborts this and all later exchanges if the block lasts longer; with 0 seconds, only outer limits hold."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="exchange_limit", daemon=True)
            self._thread.start()
        before = self._until
        self._until = min(before, time.monotonic() + seconds if seconds else math.inf)
        try:
            yield
        finally:
            self._until = before

    def _watch(self) -> None:
        from tensorflow.python.eager import context

        while time.monotonic() < self._until:
            time.sleep(_POLL_SECONDS)
        context.context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, f"an exchange {_TIMED_OUT}")


def find_lost(message: str, rank: int, size: int) -> list[int]:
    """Identifies the workers that made an exchange fail, by TensorFlow's error message; empty if none is identified."""
    if _SERVICE in message:
        # It runs in the first worker.
        return [0] if rank else []
    if _TIMED_OUT not in message:
        # Workers named after the first have only passed the error on.
        named = [int(task) for task in _TASK.findall(message)]
        return [other for other in named if other != rank and other < size][:1]
    from tensorflow.python.eager import context

    # A process that hangs is alive. The workers that wait for it meet; the service names the missing ones.
    try:
        context.context().wait_at_barrier("ctr/lost", round(1000 * _ANSWER_SECONDS))
    except tf.errors.OpError as error:
        _, _, missing = str(error).partition("timed out task names")
        return sorted({int(task) for task in _TASK.findall(missing)} - {rank})
    return []
