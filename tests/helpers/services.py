"""Programs that serve on the loopback device while a block runs, each a process of its own.

A process ends with its block, and on Linux also when the process that started it is killed.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

START_SECONDS = 60
START_ATTEMPTS = 3


class ServiceError(Exception):
    """A service that did not start; the message ends with its log."""


@contextlib.contextmanager
def service(
    name: str, command: Sequence[str | Path], log: Path, ready: Callable[[Path], str | None]
) -> Iterator[str]:
    """Runs a command until the block ends; yields what `ready` makes of its log, once that is something."""
    # Dies with the thread that starts it, however that ends.
    guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*guard, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while (found := ready(log)) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                end = log.read_text(errors="replace")[-2000:]
                raise ServiceError(f"{name} did not start (status {process.poll()})\n{end}")
            time.sleep(0.1)
        yield found
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def on_free_ports(start: Callable[[int, int], contextlib.AbstractContextManager[str]]) -> Iterator[str]:
    """Runs what needs two ports, again on others when somebody took one meanwhile; yields HOST:PORT, the first."""
    for attempt in range(START_ATTEMPTS):
        ports = free_ports(2)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(start(*ports))
            except ServiceError:
                if attempt == START_ATTEMPTS - 1:
                    raise
                continue
            yield f"127.0.0.1:{ports[0]}"
            return


def free_ports(count: int) -> list[int]:
    """Ports of the loopback device that nobody has at this moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def said(pattern: re.Pattern[str], log: Path) -> str | None:
    """What the log has of a pattern, its last group if there is one."""
    found = pattern.search(log.read_text(errors="replace"))
    return found and found.group(found.lastindex or 0)


def listening(port: int, _log: Path) -> str | None:
    """The port, once somebody listens on it."""
    with socket.socket() as probe:
        return str(port) if probe.connect_ex(("127.0.0.1", port)) == 0 else None
