"""Files of a run that grow with it, and the background thread that writes large files."""

import contextlib
import json
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from typing import Any, Self

import numpy as np

from ctr.data.batches import Batch
from ctr.data.reader import FAULTS, QUERY_TOO_LARGE
from ctr.io.errors import InputError
from ctr.io.files import naming, sync_folder, write_all

_WAITING_JOBS = 2
_PRIORITY = 19


def _give_way() -> None:
    # Linux has a priority for each thread: writing takes only the time that training leaves.
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _PRIORITY)


class Background:
    """Runs jobs in a background thread. After a failed job no other starts, and every call raises its error."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name, initializer=_give_way)
        self._jobs: deque[Future[None]] = deque()
        self._error: BaseException | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Runs ``job`` after all earlier ones; waits while many are queued."""
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
        """Raises the error of a failed job, if any."""
        while self._jobs and self._jobs[0].done():
            self._jobs.popleft()
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        """Waits for all jobs; raises the error of a failed one."""
        self._wait(0)

    def _wait(self, limit: int) -> None:
        while len(self._jobs) > limit:
            self._jobs.popleft().exception()
        self.check()

    def close(self) -> None:
        """Ends the thread after all submitted jobs; raises nothing."""
        self._pool.shutdown()


class GrowingFile:
    """A file of JSON lines whose length is stored in checkpoints, so that a resume can truncate it."""

    def __init__(self, path: Path, file: FileIO) -> None:
        self._path, self._file = path, file

    @classmethod
    def open(cls, path: Path, length: int) -> Self:
        """Opens or creates a file, and truncates it to ``length`` bytes. Raises InputError if it is shorter."""
        size = path.stat().st_size if path.exists() else 0
        if size < length:
            raise InputError(f"{path}: has {size} bytes, {length} at the checkpoint: lines were lost")
        # Unbuffered, so that a full disk leaves nothing in a buffer to be written later.
        file = path.open("ab", buffering=0)
        file.truncate(length)
        file.seek(0, os.SEEK_END)
        sync_folder(path.parent)
        return cls(path, file)

    def append(self, content: dict[str, Any]) -> None:
        with naming(self._path):
            write_all(self._file, (json.dumps(content, allow_nan=False) + "\n").encode())

    @property
    def length(self) -> int:
        return self._file.tell()

    def sync(self) -> None:
        with naming(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def describe_rejects(batch: Batch, log: str = "") -> list[dict[str, Any]]:
    """Describes each query of a batch that is too large, then each faulty row, in lines of rejects.jsonl.

    ``log`` names the constraint log of the rows, if any.
    """
    rejects = batch.rejects
    origin = {"log": log} if log else {}
    large = [
        {
            **origin,
            "reason": FAULTS[QUERY_TOO_LARGE],
            "query_id": query.query_id,
            "rows": query.rows,
            "between_log_rows": [query.begin, query.end],
        }
        for query in batch.large_queries
    ]
    return large + [
        {
            **origin,
            "reason": FAULTS[rejects.fault[index]],
            "example_id": int(rejects.example_id[index]),
            "query_id": int(rejects.query_id[index]),
            "query_time": int(rejects.query_time[index]),
            "between_log_rows": [batch.begin, batch.end],
        }
        for index in np.flatnonzero(rejects.fault != QUERY_TOO_LARGE)
    ]


class Unwritten:
    """Stand-in for a ``GrowingFile`` that another process writes; does nothing."""

    length = 0

    def append(self, *content: object) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...
