"""A terminal that tests look at."""

import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios
import threading
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def standard_error_shown(columns: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Make standard error a terminal; afterwards the list holds the states of its line, one after the other."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    parts: list[bytes] = []
    states: list[str] = []

    def read() -> None:
        # Linux reports the end as an error.
        with contextlib.suppress(OSError):
            while part := os.read(leader, 4096):
                parts.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(follower, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        yield states
    reader.join()
    os.close(leader)
    states += [state.strip("\r\n") for state in b"".join(parts).decode().split("\r")]
