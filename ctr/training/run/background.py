"""What a run writes while it goes on: one thread does one job after the other, in the order they were given."""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

_WAITING_JOBS = 2
_PRIORITY = 19


def _give_way() -> None:
    # Linux has a priority for each thread: what is written takes the time that training leaves.
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _PRIORITY)


class Background:
    """Jobs in a thread of their own.

    A job that fails fails the run: nothing that was given later is begun, and every call from then on raises what it
    raised.
    """

    def __init__(self, name: str) -> None:
        """Starts no thread yet. ``name``: the thread's."""
        self._pool = ThreadPoolExecutor(1, name, initializer=_give_way)
        self._jobs: deque[Future[None]] = deque()
        self._error: BaseException | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Has ``job`` done after those before it; waits when many are not begun, so that they do not pile up."""
        self._wait(_WAITING_JOBS)
        self._jobs.append(self._pool.submit(self._run, job))

    def _run(self, job: Callable[[], None]) -> None:
        if self._error is not None:
            return
        try:
            job()
        except BaseException as error:
            self._error = error
            raise

    def check(self) -> None:
        """Raises what a job raised that ended since."""
        while self._jobs and self._jobs[0].done():
            self._jobs.popleft()
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        """Returns when all is done; raises what a job raised."""
        self._wait(0)

    def _wait(self, limit: int) -> None:
        while len(self._jobs) > limit:
            self._jobs.popleft().exception()
        self.check()

    def close(self) -> None:
        """Ends the thread after what was given to it; raises nothing."""
        self._pool.shutdown()
