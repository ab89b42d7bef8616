"""Sidecar of a run's progressive predictions, made before the model learned from an example (FF 4.1.2)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr.data.log import Manifest, read_manifests, read_schema
from ctr.data.sample_log import RECORD
from ctr.data.shards import read_shard
from ctr.data.sidecar import new_sidecar_folder, write_sidecar_partition
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig


def record_predictions(log: Path, run_dir: Path, name: str, log_rows: int) -> dict[str, Any]:
    """Publishes the sidecar ``name``, with ``logit``, float32, for the partitions within the first ``log_rows`` rows.

    Rows that the run did not score have NaN. Raises InputError: no predictions, or others of this name.
    """
    parts = sorted((run_dir / "predictions").glob("*.parquet"))
    if not parts:
        raise InputError(f"{run_dir}: has no predictions to record: the run scored no row")
    schema = read_schema(log)
    predictions = _Predictions(parts)
    rows = missing = 0
    for manifest in read_manifests(log):
        if rows + manifest.rows > log_rows:
            break
        tables = [
            read_shard(log, entry, schema).select(["query_time", "example_id"]) for entry in manifest.shards
        ]
        ids = np.concatenate(
            [np.zeros(0, np.int64), *(table.column("example_id").to_numpy() for table in tables)]
        )
        logit = predictions.read_logits(manifest, ids)
        rows += len(ids)
        missing += int(np.isnan(logit).sum())
        write_sidecar_partition(log, name, manifest, pa.table({"example_id": ids, "logit": logit}))
    return {"sidecar": name, "rows": rows, "without_prediction": missing}


def check_record(log: Path, config: TrainConfig, run_dir: Path, name: str) -> None:
    """Raises InputError before the pass for what could not be published after it."""
    folder = new_sidecar_folder(log, name)
    if not config.record_predictions:
        raise InputError(f"--record {name} needs the run's predictions: record_predictions is false")
    distillation = config.objective.distillation
    if distillation is not None and distillation.teacher == name:
        teacher_log = log if distillation.log is None else Path(distillation.log)
        if teacher_log.resolve() == log.resolve():
            raise InputError(f"--record {name}: the run's own teacher has this name; use another one")
    is_there = folder.exists() and any(folder.iterdir())
    # A finished run may have recorded before.
    is_sampling = (folder / RECORD).exists()
    if is_there and (is_sampling or not (run_dir / "summary.json").exists()):
        origin = "from a sampling" if is_sampling else "from another run"
        raise InputError(f"--record {name}: {folder} already exists, {origin}; use another name")


class _Predictions:
    def __init__(self, parts: list[Path]) -> None:
        self._blocks = self._read(parts)
        self._block = next(self._blocks, None)

    @staticmethod
    def _read(parts: list[Path]) -> Iterator[dict[str, np.ndarray]]:
        for part in parts:
            table = pq.read_table(part, columns=["query_time", "example_id", "logit"])
            yield {column: table.column(column).to_numpy() for column in table.column_names}

    def read_logits(self, partition: Manifest, example_id: np.ndarray) -> np.ndarray:
        """Returns the logits, float32 [N], of a partition's examples; NaN for those without. To be called in order."""
        logit = np.full(len(example_id), np.nan, np.float32)
        order = np.argsort(example_id, kind="stable")
        known = example_id[order]
        while self._block is not None:
            times = self._block["query_time"]
            begin, end = np.searchsorted(times, [partition.start, partition.end])
            own = self._block["example_id"][begin:end]
            logit[order[np.searchsorted(known, own)]] = self._block["logit"][begin:end]
            if end < len(times):
                break
            self._block = next(self._blocks, None)
        return logit
