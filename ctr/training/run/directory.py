"""The files of a run: what was configured, what was measured, what was predicted.

::

    RUN/config.yaml            the whole configuration
    RUN/environment.json       versions, devices, threads
    RUN/schema.json            the features of the log
    RUN/metrics.jsonl          one line a window
    RUN/tensorboard/           the same for TensorBoard (event_file.py)
    RUN/checkpoints/           checkpoint.py
    RUN/exports/               servable models, where the configuration asks for them
    RUN/predictions/           one Parquet file for each stretch between checkpoints
    RUN/quarantine.json        rollback.py: rows that are scored, but not learned from
    RUN/rejects.jsonl          rows that could not be used, with reason and position
    RUN/metric_states.npz      the metrics' states by query bucket, for intervals and paired comparisons
    RUN/constraint_states/     the same of each constraint log, NAME.npz
    RUN/timeline.npz           sums over time by group of queries, and of each feature missing and new ids
    RUN/data_health.json       of each feature the ids that the pass met (id_counts.py)
    RUN/summary.json           the results
    RUN/init_from.json         of a run that was begun from another one: which, where, and what it took (launch.py)
    RUN/follow.jsonl           how far a run that follows a live log was behind it (lag_report.py)
    RUN/.lock                  held by the process that trains

What grows during a run is cut back, on a resume, to where it was at the checkpoint.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr.config import differing_keys, dump_yaml, load_record
from ctr.data.batches import Batch
from ctr.data.log import read_schema_file, schema_bytes
from ctr.data.reader import FAULTS
from ctr.data.schema import Schema, differing_features
from ctr.io.documents import read_json_object
from ctr.io.errors import InputError
from ctr.io.files import (
    check_output_folder,
    create_exclusively,
    make_folder,
    naming,
    sync_folder,
    write_all,
    write_atomic,
    write_atomic_bytes,
)
from ctr.io.locks import hold
from ctr.training.config import TrainConfig

PREDICTION_COLUMNS = (
    "example_id", "query_id", "query_time", "label", "train_weight", "metric_weight", "logit",
)  # fmt: skip


INIT_FROM = "init_from.json"


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes JSON atomically, keys in their order."""
    write_atomic_bytes(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


class GrowingFile:
    """A file of JSON lines whose length at a checkpoint is known, so that a resume can cut it back.

    Raises:
        InputError: the file is shorter than it was at the checkpoint.
    """

    def __init__(self, path: Path, length: int) -> None:
        found = path.stat().st_size if path.exists() else 0
        if found < length:
            raise InputError(f"{path}: has {found} bytes, {length} at the checkpoint: lines were lost")
        self._path = path
        # Unbuffered, so that nothing is left to be written when the disk was full once.
        self._file = path.open("ab", buffering=0)
        self._file.truncate(length)
        self._file.seek(0, os.SEEK_END)
        sync_folder(path.parent)

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


@contextmanager
def only_process(run: Path) -> Iterator[None]:
    """Holds the run directory for this process, until the block ends or the process dies.

    Raises:
        InputError: another process is training in it.
    """
    (run / ".lock").touch()
    with hold(run / ".lock", f"{run}: another process is training in this run directory"):
        yield


def adopt_config(run: Path, config: TrainConfig) -> None:
    """Writes config.yaml, or checks that the run was begun under the same configuration.

    Raises:
        InputError: it was begun under another one (the keys that differ are named), or ``run`` is
            something else than a run directory.
    """
    check_config(run, config)
    path = run / "config.yaml"
    if not path.exists() and not create_exclusively(path, dump_yaml(config).encode()):
        check_config(run, config)


def check_config(run: Path, config: TrainConfig) -> None:
    """Checks that ``run`` can be, or is, the directory of a run under a configuration; changes nothing.

    Raises:
        InputError: see ``adopt_config``.
    """
    check_run_folder(run)
    path = run / "config.yaml"
    if not path.exists():
        return
    before = load_record(TrainConfig, path, "config").model_dump(mode="json")
    differences = differing_keys(before, config.model_dump(mode="json"))
    if differences:
        raise InputError(
            f"{run} was started with another configuration ({'; '.join(differences)}): "
            "use that one to resume it, or another output directory"
        )


def check_run_folder(run: Path) -> None:
    """Raises InputError where ``run`` is something else than a run directory, an empty one, or none."""
    check_output_folder(run, "a run directory", lambda folder: (folder / "config.yaml").is_file())


def adopt_environment(run: Path, environment: dict[str, Any]) -> None:
    """Writes environment.json, or refuses to resume a run where its bits would come out otherwise.

    The key ``platform`` is there to be read only: a new kernel computes no other bits.
    """
    path = run / "environment.json"
    if not path.exists():
        write_json(path, environment)
        return
    before = read_json_object(path, f"{path}: no such file")
    # Recorded by earlier versions, in which the model consisted of these packages' layers.
    for unused in ("tf-keras", "tensorflow-recommenders"):
        if isinstance(versions := before.get("versions"), dict):
            versions.pop(unused, None)
    now = json.loads(json.dumps(environment))
    differences = differing_keys({**before, "platform": None}, {**now, "platform": None})
    if differences:
        raise InputError(
            f"{run} was started in another environment ({'; '.join(differences)}), "
            "in which the same computation gives other bits: use another output directory to start again"
        )


def adopt_schema(run: Path, schema: Schema) -> None:
    """Writes schema.json, or refuses to go on with a log of other features."""
    check_schema(run, schema)
    path = run / "schema.json"
    if not path.exists():
        write_atomic_bytes(path, schema_bytes(schema))


def check_schema(run: Path, schema: Schema) -> None:
    """Raises InputError where a run was begun on a log of other features; changes nothing."""
    if (run / "schema.json").exists() and (before := read_run_schema(run)).version != schema.version:
        raise InputError(
            f"{run} was started on a log with other features ({'; '.join(differing_features(before, schema))}): "
            "use another output directory to start again, or --init-from to take its weights there"
        )


def refuse_without_checkpoint(run: Path) -> None:
    """Raises InputError when a run was begun from another one: it has lost what it began with."""
    if (run / INIT_FROM).exists():
        raise InputError(
            f"{run}: was started from another run ({INIT_FROM}) and has no checkpoint left, so it would start from "
            "scratch: use another output directory with --init-from"
        )


def read_run_schema(run: Path) -> Schema:
    """The features of a run's log. Raises InputError when the file is missing, malformed or changed by hand."""
    path = run / "schema.json"
    return read_schema_file(
        path, f"{path}: no such file; the run was trained before runs kept it, or is no run"
    )


def read_run_model(run: Path) -> tuple[TrainConfig, Schema]:
    """The configuration and the features of a run. Raises InputError where ``run`` is no run directory."""
    if not run.is_dir():
        raise InputError(f"{run}: no such run directory")
    return load_record(TrainConfig, run / "config.yaml", "config"), read_run_schema(run)


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
        make_folder(folder)
        for path in folder.iterdir():
            if path.name not in self.parts:
                path.unlink()
        missing = [part for part in self.parts if not (folder / part).exists()]
        if missing:
            raise InputError(f"{folder / missing[0]}: missing, though the checkpoint names it")

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
    of = {} if log is None else {"log": log}
    return [
        {
            **of,
            "reason": FAULTS[rejects.fault[index]],
            "example_id": int(rejects.example_id[index]),
            "query_id": int(rejects.query_id[index]),
            "query_time": int(rejects.query_time[index]),
            "between_log_rows": [batch.begin, batch.end],
        }
        for index in range(len(rejects))
    ]


def write_metric_states(run: Path, arrays: dict[str, np.ndarray], constraint_log: str | None = None) -> None:
    """Writes the states of the metrics over the whole run, of its log or of a constraint log."""
    name = "metric_states.npz" if constraint_log is None else f"constraint_states/{constraint_log}.npz"
    make_folder((run / name).parent)
    write_atomic(run / name, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays))


def write_timeline(run: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes the windows of the pass (``ctr.eval.timeline``)."""
    write_atomic(run / "timeline.npz", lambda file: np.savez_compressed(file, allow_pickle=False, **arrays))
