"""The files of a run that grow with it, and the thread that writes the large ones.

On a resume, and when a run goes back, they are cut back to where they were at the checkpoint.
"""

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from io import FileIO
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr.data.batches import Batch
from ctr.data.reader import FAULTS
from ctr.io.errors import InputError
from ctr.io.files import make_folder, naming, sync_folder, write_all, write_atomic
from ctr.training.config import TrainConfig
from ctr.training.run import checkpoint
from ctr.training.run.array_files import Share
from ctr.training.run.background import Background
from ctr.training.run.event_file import EventFiles

PREDICTION_COLUMNS = (
    "example_id", "query_id", "query_time", "label", "train_weight", "metric_weight", "logit",
)  # fmt: skip


class GrowingFile:
    """A file of JSON lines whose length at a checkpoint is known, so that a resume can cut it back."""

    def __init__(self, path: Path, file: FileIO) -> None:
        """Appends to an opened file."""
        self._path, self._file = path, file

    @classmethod
    def open(cls, path: Path, length: int) -> Self:
        """Opens a file, or creates it, and cuts off what lies behind ``length`` bytes.

        Raises:
            InputError: the file is shorter than it was at the checkpoint.
        """
        found = path.stat().st_size if path.exists() else 0
        if found < length:
            raise InputError(f"{path}: has {found} bytes, {length} at the checkpoint: lines were lost")
        # Unbuffered, so that nothing is left to be written when the disk was full once.
        file = path.open("ab", buffering=0)
        file.truncate(length)
        file.seek(0, os.SEEK_END)
        sync_folder(path.parent)
        return cls(path, file)

    def append(self, content: dict[str, Any]) -> None:
        """Adds one line."""
        with naming(self._path):
            write_all(self._file, (json.dumps(content, allow_nan=False) + "\n").encode())

    @property
    def length(self) -> int:
        """In bytes."""
        return self._file.tell()

    def sync(self) -> None:
        """Makes all lines durable."""
        with naming(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class PredictionWriter:
    """Collects progressive predictions and writes them in Parquet files, the last one before each checkpoint.

    Attributes:
        parts: names of the files written, in the log's order.
    """

    def __init__(
        self,
        folder: Path,
        kept_parts: Sequence[str],
        part_rows: int = 1_000_000,
        submit: Callable[[Callable[[], None]], None] = lambda job: job(),
    ) -> None:
        """Goes on after ``kept_parts``; ``submit`` has a file written, at once or later, in the order of the calls."""
        self._folder = folder
        self._submit = submit
        self._part_rows = part_rows
        self.parts = list(kept_parts)
        self._pending: list[dict[str, np.ndarray]] = []
        self._pending_rows = 0

    def open(self) -> Self:
        """Makes the folder, and deletes all files in it but ``parts``.

        Raises:
            InputError: one of these is missing.
        """
        make_folder(self._folder)
        for path in self._folder.iterdir():
            if path.name not in self.parts:
                path.unlink()
        missing = [part for part in self.parts if not (self._folder / part).exists()]
        if missing:
            raise InputError(f"{self._folder / missing[0]}: missing, though the checkpoint names it")
        return self

    def add(self, batch: Batch, logit: np.ndarray) -> None:
        """Takes the logits (float32 [N]) of a batch's good rows."""
        columns = {name: getattr(batch.rows, name) for name in PREDICTION_COLUMNS[:-1]}
        self._pending.append({**columns, "logit": logit})
        self._pending_rows += len(logit)
        if self._pending_rows >= self._part_rows:
            self.flush(batch.end)

    def flush(self, end: int) -> None:
        """Has what was collected up to position ``end`` of the log written."""
        if not self._pending:
            return
        path, parts = self._folder / f"{end:020d}.parquet", self._pending
        self._submit(lambda: _write_predictions(path, parts))
        self.parts.append(path.name)
        self._pending = []
        self._pending_rows = 0


def _write_predictions(path: Path, parts: Sequence[Mapping[str, np.ndarray]]) -> None:
    table = pa.table({name: np.concatenate([part[name] for part in parts]) for name in PREDICTION_COLUMNS})
    write_atomic(path, lambda file: pq.write_table(table, file, compression="zstd", write_page_checksum=True))


def describe_rejects(batch: Batch, log: str | None = None) -> list[dict[str, Any]]:
    """One entry for each faulty row of a batch; ``log`` names the constraint log that it is from, if any."""
    rejects = batch.rejects
    origin = {} if log is None else {"log": log}
    return [
        {
            **origin,
            "reason": FAULTS[rejects.fault[index]],
            "example_id": int(rejects.example_id[index]),
            "query_id": int(rejects.query_id[index]),
            "query_time": int(rejects.query_time[index]),
            "between_log_rows": [batch.begin, batch.end],
        }
        for index in range(len(rejects))
    ]


class Unwritten:
    """A growing file that another worker writes."""

    length = 0

    def append(self, *content: object) -> None:
        """Writes nothing."""

    def sync(self) -> None:
        """Does nothing."""

    def end(self, succeeded: bool) -> None:
        """Writes nothing."""


class RunFiles:
    """The growing files of a run; of several workers the first one writes them.

    Attributes:
        background: what is written while the run goes on; what fails there is raised by its next call.
        metrics: one line a window.
        events: the same for TensorBoard.
        rejects: rows that could not be used.
        predictions: None where the run does not record them.
    """

    metrics: GrowingFile | Unwritten
    events: EventFiles | Unwritten
    rejects: GrowingFile | Unwritten
    predictions: PredictionWriter | None = None

    def __init__(self, run_dir: Path, config: TrainConfig, written: bool = True) -> None:
        """Touches nothing yet. ``written``: whether this process writes them."""
        self._run_dir, self._config, self._written = run_dir, config, written
        self.background = Background("run-files")
        self._opened = ExitStack()
        self._closing = threading.Event()

    def open(self, lengths: Mapping[str, int], prediction_parts: Sequence[str]) -> None:
        """Opens the files where they stood at a checkpoint, and deletes what was written after it.

        Args:
            lengths: of ``metrics`` and ``rejects``, in bytes.
            prediction_parts: names of the files with predictions.

        Raises:
            InputError: files are missing or shorter.
        """
        if not self._written:
            self.metrics, self.events, self.rejects = Unwritten(), Unwritten(), Unwritten()
            return
        run_dir, keep_open = self._run_dir, self._opened.enter_context
        if self._config.record_predictions:
            writer = PredictionWriter(
                run_dir / "predictions", prediction_parts, submit=self.background.submit
            )
            self.predictions = writer.open()
        lines = run_dir / "metrics.jsonl"
        self.metrics = keep_open(closing(GrowingFile.open(lines, lengths["metrics"])))
        self.rejects = keep_open(closing(GrowingFile.open(run_dir / "rejects.jsonl", lengths["rejects"])))
        self.events = keep_open(closing(EventFiles.open(run_dir / "tensorboard", lines, self._config)))

    def flush(self, examples: int) -> dict[str, Any]:
        """Has all predictions up to a position written; returns what a checkpoint keeps for ``open``."""
        if self.predictions is not None:
            self.predictions.flush(examples)
        return {
            "lengths": {"metrics": self.metrics.length, "rejects": self.rejects.length},
            "prediction_parts": list(self.predictions.parts) if self.predictions is not None else [],
        }

    def write_checkpoint(
        self,
        examples: int,
        arrays: Mapping[str, np.ndarray],
        state: Mapping[str, Any],
        sound: tuple[int, int],
        share: Share | None = None,
    ) -> None:
        """Has a checkpoint of position ``examples`` written; for the arguments see ``checkpoint.save``."""

        def write() -> None:
            self.metrics.sync()
            self.rejects.sync()
            folder, kept = self._run_dir / "checkpoints", self._config.checkpoint
            shared = None if share is None else share._replace(is_leaving=self._closing.is_set)
            checkpoint.save(folder, examples, arrays, state, kept.keep, kept.disk_limit, sound, shared)

        self.background.submit(write)

    def close(self) -> None:
        """Closes the files, once what was given to ``background`` is done."""
        self._closing.set()
        self.background.close()
        self._opened.close()
