"""Sidecar of a run's progressive predictions, each made before learning from the example (FF 4.1.2)."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from ctr.data.log import RECORD, read_manifests, read_schema
from ctr.data.shards import read_shard
from ctr.data.sidecar import new_sidecar_folder, write_sidecar_partition
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig


def record_predictions(log: Path, run_dir: Path, name: str, log_rows: int) -> dict[str, Any]:
    """Publishes a run's logits, float32, as the sidecar ``name`` of the partitions in the first ``log_rows`` rows.

    Rows that the run did not score have NaN. Raises InputError if there are no predictions, or the name is taken.
    """
    parts = [str(path) for path in sorted((run_dir / "predictions").glob("*.parquet"))]
    if not parts:
        raise InputError(f"{run_dir}: has no predictions to record: the run scored no row")
    schema = read_schema(log)
    predictions = ds.dataset(parts)
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
        times = ds.field("query_time")
        is_own = (times >= manifest.start) & (times < manifest.end)
        part = predictions.to_table(["example_id", "logit"], filter=is_own)
        logit, order = np.full(len(ids), np.nan, np.float32), np.argsort(ids, kind="stable")
        logit[order[np.searchsorted(ids[order], part["example_id"].to_numpy())]] = part["logit"].to_numpy()
        rows += len(ids)
        missing += int(np.isnan(logit).sum())
        write_sidecar_partition(log, name, manifest, pa.table({"example_id": ids, "logit": logit}))
    return {"sidecar": name, "rows": rows, "without_prediction": missing}


def check_record(log: Path, config: TrainConfig, run_dir: Path, name: str) -> None:
    """Raises InputError if the predictions of a pass could not be published after it."""
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
