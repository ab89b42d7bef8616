"""The files of a run that grow with it, and the thread that writes the large ones.

On a resume, and when a run goes back, they are cut back to where they were at the checkpoint.
"""

import json
import os
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
        part_rows: int,
        submit: Callable[[Callable[[], None]], None],
    ) -> None:
        """Goes on after ``kept_parts``; ``submit`` has a file written, at once or later, in the order of the calls."""
        self._folder = folder
        self._submit = submit
        self._part_rows = part_rows
        self.parts = list(kept_parts)
        self._pending: list[dict[str, np.ndarray]] = []
        self._pending_rows = 0

    @classmethod
    def open(
        cls,
        folder: Path,
        kept_parts: Sequence[str],
        part_rows: int = 1_000_000,
        submit: Callable[[Callable[[], None]], None] = lambda job: job(),
    ) -> Self:
        """Makes the folder, and deletes all files in it but ``kept_parts``. For the arguments see ``__init__``.

        Raises:
            InputError: one of these is missing.
        """
        make_folder(folder)
        for path in folder.iterdir():
            if path.name not in kept_parts:
                path.unlink()
        missing = [part for part in kept_parts if not (folder / part).exists()]
        if missing:
            raise InputError(f"{folder / missing[0]}: missing, though the checkpoint names it")
        return cls(folder, kept_parts, part_rows, submit)

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


class RunFiles:
    """The growing files of a run.

    Attributes:
        background: what is written while the run goes on; what fails there is raised by its next call.
    """

    def __init__(self, run_dir: Path, config: TrainConfig) -> None:
        """Touches nothing yet."""
        self._run_dir, self._config = run_dir, config
        self.background = Background("run-files")
        self._opened = ExitStack()
        self._predictions: PredictionWriter | None = None

    def open(self, lengths: Mapping[str, int], prediction_parts: Sequence[str]) -> None:
        """Opens the files where they stood at a checkpoint: deletes what was written after it.

        Args:
            lengths: of ``metrics`` and ``rejects``, in bytes.
            prediction_parts: names of the files with predictions.

        Raises:
            InputError: files are missing or shorter.
        """
        run_dir = self._run_dir
        if self._config.record_predictions:
            submit = self.background.submit
            folder = run_dir / "predictions"
            self._predictions = PredictionWriter.open(folder, prediction_parts, submit=submit)
        opened = self._opened
        lines = run_dir / "metrics.jsonl"
        self._metrics = opened.enter_context(closing(GrowingFile.open(lines, lengths["metrics"])))
        rejects = run_dir / "rejects.jsonl"
        self._rejects = opened.enter_context(closing(GrowingFile.open(rejects, lengths["rejects"])))
        events = EventFiles.open(run_dir / "tensorboard", lines, self._config)
        self._events = opened.enter_context(closing(events))

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps of the files; ``open`` takes its values."""
        return {
            "lengths": {"metrics": self._metrics.length, "rejects": self._rejects.length},
            "prediction_parts": list(self._predictions.parts) if self._predictions is not None else [],
        }

    def add_window(self, line: dict[str, Any], histograms: Mapping[str, np.ndarray] | None = None) -> None:
        """Writes the line of a window, and for TensorBoard its events and histograms of arrays by their tags."""
        self._metrics.append(line)
        self._events.append(line, histograms)

    def add_rejects(self, batch: Batch, log: str | None = None) -> None:
        """Writes the faulty rows of a batch; ``log`` names the constraint log that it is from, if any."""
        for reject in describe_rejects(batch, log):
            self._rejects.append(reject)

    def add_predictions(self, batch: Batch, logit: np.ndarray) -> None:
        """Takes the logits (float32 [N]) of a batch's good rows, if the run records them."""
        if self._predictions is not None:
            self._predictions.add(batch, logit)

    def flush_predictions(self, end: int) -> None:
        """Has all predictions up to position ``end`` of the log written."""
        if self._predictions is not None:
            self._predictions.flush(end)

    def write_checkpoint(
        self,
        examples: int,
        arrays: Mapping[str, np.ndarray],
        state: Mapping[str, Any],
        sound: tuple[int, int],
    ) -> None:
        """Has a checkpoint of position ``examples`` written; for the arguments see ``checkpoint.save``."""
        kept = self._config.checkpoint

        def write() -> None:
            self._metrics.sync()
            self._rejects.sync()
            folder = self._run_dir / "checkpoints"
            checkpoint.save(folder, examples, arrays, state, kept.keep, kept.disk_limit, sound)

        self.background.submit(write)

    def end(self, learned: bool) -> None:
        """Notes for TensorBoard that the run has passed its log, and whether it succeeded."""
        self._events.end(learned)

    def close(self) -> None:
        """Closes the files, once what was given to ``background`` is done."""
        self.background.close()
        self._opened.close()
