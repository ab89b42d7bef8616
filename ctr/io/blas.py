"""Limits NumPy's matrix products to one thread in a process with other parallel work."""

import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from typing import Any

from threadpoolctl import OpenBLASController, ThreadpoolController

_lock = threading.Lock()
_users = 0
_limit: Any = None


def _reset_after_fork() -> None:
    # The threads that held the limit and the lock do not exist in the child.
    global _lock, _users
    _lock, _users = threading.Lock(), 0


os.register_at_fork(after_in_child=_reset_after_fork)


@functools.cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limits BLAS to one thread in the whole process: the first user sets the limit, the last one lifts it.

    Results have the same bits under any load, since sums by BLAS depend on its number of threads, and nothing waits
    for a thread that has no processor.
    """
    global _users, _limit
    with _lock:
        # Every user sets the limit, since some builds of BLAS keep one for each calling thread.
        # threadpoolctl does nothing, and says nothing, unless called by the thread that was first to set a limit.
        OpenBLASController.clear_controlling_thread(force=True)
        limit = _controller().limit(limits=1, user_api="blas")
        if not _users:
            _limit = limit
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                OpenBLASController.clear_controlling_thread(force=True)
                _limit.restore_original_limits()
                OpenBLASController.clear_controlling_thread(force=True)
