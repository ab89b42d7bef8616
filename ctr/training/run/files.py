"""Files of a run that grow with it, and the thread that writes the large ones; of several workers the first writes."""

import contextlib
import json
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from io import FileIO
from pathlib import Path
from typing import Any, Self

import numpy as np

from ctr.data.batches import Batch
from ctr.data.reader import FAULTS, QUERY_TOO_LARGE
from ctr.io.errors import InputError
from ctr.io.files import naming, sync_folder, write_all
from ctr.training.config import CheckpointConfig
from ctr.training.run import checkpoint
from ctr.training.run.checkpoint import Share, Wanted
from ctr.training.run.directory import refuse_without_checkpoint
from ctr.workers.collectives import ALONE, Workers
from ctr.workers.parts import Part

Checkpoint = tuple[dict[str, np.ndarray], dict[str, Any], dict[str, Part]]
"""Arrays, state, and which parts of arrays these are."""

_WAITING_JOBS = 2
_PRIORITY = 19


def _give_way() -> None:
    # Linux has a priority for each thread: what is written takes the time that training leaves.
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _PRIORITY)


class Background:
    """Jobs in a background thread. After a failed job none is begun, and every call raises its error."""

    def __init__(self, name: str) -> None:
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
        """Raises the error of a job that has ended."""
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
    """A file of JSON lines whose length at a checkpoint is known, so that a resume can cut it back."""

    def __init__(self, path: Path, file: FileIO) -> None:
        self._path, self._file = path, file

    @classmethod
    def open(cls, path: Path, length: int) -> Self:
        """Opens or creates a file, and cuts off what lies behind ``length`` bytes. Raises InputError: it is shorter."""
        size = path.stat().st_size if path.exists() else 0
        if size < length:
            raise InputError(f"{path}: has {size} bytes, {length} at the checkpoint: lines were lost")
        # Unbuffered, so that nothing is left to be written when the disk was full once.
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
    """Describes each faulty row of a batch, and each query that is too large, in the order of the log.

    ``log`` names the constraint log that they are from, if any.
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
    """A growing file that another worker writes."""

    length = 0

    def append(self, *content: object) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class RunFiles:
    """The growing files of a run; of several workers the first one writes them."""

    metrics: GrowingFile | Unwritten  # one line a window
    rejects: GrowingFile | Unwritten  # rows that could not be used

    def __init__(self, run_dir: Path, config: CheckpointConfig, workers: Workers = ALONE) -> None:
        self._run_dir, self._config, self._workers = run_dir, config, workers
        self._checkpoints = run_dir / "checkpoints"
        self.background = Background("run-files")  # what fails there is raised by its next call
        self._opened = ExitStack()
        self._closing = threading.Event()

    def newest_checkpoint(self, wanted: Wanted) -> Checkpoint | None:
        """Reads the newest sound checkpoint. Raises InputError where all are damaged, or there must be one."""
        if self._workers.size == 1:
            saved = checkpoint.restore_newest(self._checkpoints)
            if saved is not None:
                return *saved, {}
        elif (newest := self._workers.once(lambda: checkpoint.newest_sound(self._checkpoints))) is not None:
            with self._workers.raise_if_any_failed():
                return checkpoint.read_share(self._checkpoints, newest, wanted)
        self._workers.once(lambda: refuse_without_checkpoint(self._run_dir))
        return None

    def open(self, lengths: Mapping[str, int]) -> None:
        """Opens files where they stood at a checkpoint, and cuts off the rest. Raises InputError: one is shorter."""
        if not self._workers.is_chief:
            self.metrics, self.rejects = Unwritten(), Unwritten()
        self._workers.once(lambda: self._open(lengths))

    def _open(self, lengths: Mapping[str, int]) -> None:
        checkpoint.clean_up(self._checkpoints, self._config.keep)
        run_dir, keep_open = self._run_dir, self._opened.enter_context
        self.metrics = keep_open(closing(GrowingFile.open(run_dir / "metrics.jsonl", lengths["metrics"])))
        self.rejects = keep_open(closing(GrowingFile.open(run_dir / "rejects.jsonl", lengths["rejects"])))

    @property
    def lengths(self) -> dict[str, int]:
        """Returns the lengths of the files, which a checkpoint keeps for ``open``."""
        return {"metrics": self.metrics.length, "rejects": self.rejects.length}

    def write_checkpoint(
        self,
        examples: int,
        arrays: Mapping[str, np.ndarray],
        state: Mapping[str, Any],
        share: Share | None = None,
    ) -> None:
        def write() -> None:
            self.metrics.sync()
            self.rejects.sync()
            folder, config = self._checkpoints, self._config
            shared = None if share is None else share._replace(is_leaving=self._closing.is_set)
            checkpoint.save(folder, examples, arrays, state, config.keep, shared)

        self.background.submit(write)

    def close(self) -> None:
        """Closes the files, once the jobs of ``background`` are done."""
        self._closing.set()
        self.background.close()
        self._opened.close()
