"""Locks between processes: whoever holds one loses it when it dies, however it dies."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from ctr.io.errors import PassingError


@contextlib.contextmanager
def hold(path: Path, busy: str = "") -> Iterator[None]:
    """Holds a lock on a folder or a file for this process until the block ends.

    Raises:
        PassingError: another process holds it, with ``busy`` as the message. Without a message: waits for it.
        FileNotFoundError: there is no such path.
    """
    lock = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except BlockingIOError:
            raise PassingError(busy) from None
        yield
    finally:
        os.close(lock)
