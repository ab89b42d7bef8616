"""Reports of a worker to the process that started it: lines of JSON through an inherited pipe."""

import contextlib
import json
import os
import select
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

VARIABLE = "CTR_REPORTS"


class Report(NamedTuple):
    """One report of a worker: its rank, kind, and content of JSON types."""

    rank: int
    kind: str
    content: dict[str, Any]


class Reporter:
    """Writes the reports of one worker to the process that started it."""

    def __init__(self, descriptor: int, rank: int) -> None:
        self._descriptor, self.rank = descriptor, rank
        os.set_blocking(descriptor, False)
        os.set_inheritable(descriptor, False)

    def report(self, kind: str, **content: Any) -> None:
        """Writes a report, with text cut to fit, without waiting: drops the report while the pipe is full or closed."""
        line = _line(self.rank, kind, content)
        if len(line) > select.PIPE_BUF:
            # A character takes up to 12 bytes in JSON.
            room = (select.PIPE_BUF - 200) // 12
            short = {key: value[:room] for key, value in content.items() if isinstance(value, str)}
            line = _line(self.rank, kind, {**content, **short})
        if len(line) <= select.PIPE_BUF:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self._descriptor, line)


def _line(rank: int, kind: str, content: Mapping[str, Any]) -> bytes:
    return json.dumps([rank, kind, content]).encode() + b"\n"


def reporter_of() -> Reporter | None:
    """Takes the pipe to the parent process from the environment, so that this process's children do not inherit it."""
    descriptor, _, rank = os.environ.pop(VARIABLE, "").partition(":")
    return Reporter(int(descriptor), int(rank)) if descriptor else None


class Reports:
    """Reading end of the pipe through which all workers report; workers inherit the writing end, ``descriptor``."""

    def __init__(self) -> None:
        self._reading, self.descriptor = os.pipe()
        os.set_blocking(self._reading, False)
        self._rest = b""

    def variable(self, rank: int) -> dict[str, str]:
        return {VARIABLE: f"{self.descriptor}:{rank}"}

    def read(self, timeout: float) -> Iterator[Report]:
        """Yields the reports received so far; waits up to ``timeout`` seconds for the first one."""
        if not select.select([self._reading], [], [], timeout)[0]:
            return
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._reading, 1 << 16):
                *lines, self._rest = (self._rest + part).split(b"\n")
                for line in lines:
                    yield Report(*json.loads(line))

    def close(self) -> None:
        os.close(self._reading)
        os.close(self.descriptor)
