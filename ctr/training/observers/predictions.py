"""Progressive predictions of a run, in Parquet files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr.io.errors import InputError
from ctr.io.files import make_folder, write_atomic
from ctr.training.observers.observer import Arrays, Observer, Turn, WatchedRun

PREDICTION_COLUMNS = (
    "example_id", "query_id", "query_time", "label", "train_weight", "metric_weight", "logit",
)  # fmt: skip


class Predictions(Observer):
    """Writes the predictions of the log; a file ends at a checkpoint, or once it has ``part_rows`` rows."""

    name = "predictions"

    def __init__(self, part_rows: int = 1_000_000) -> None:
        self._part_rows = part_rows

    def begin(self, run: WatchedRun, state: Mapping[str, np.ndarray]) -> None:
        self._run, self._folder = run, run.run_dir / "predictions"
        self._pending: list[dict[str, np.ndarray]] = []
        # Counts of rows in files, and of pending rows.
        self._rows, self._pending_rows = int(state["rows"]) if state else 0, 0
        if not run.config.record_predictions:
            return
        make_folder(self._folder)
        # A file is named by the position where it ends.
        end = f"{run.position.examples:020d}.parquet"
        recorded = {path for path in self._folder.glob("*.parquet") if path.name <= end}
        rows = sum(pq.read_metadata(path).num_rows for path in recorded)
        if rows != self._rows:
            raise InputError(
                f"{self._folder}: has {rows} rows, {self._rows} at the checkpoint: files were lost"
            )
        for path in {*self._folder.iterdir()} - recorded:
            path.unlink()

    def batch(self, turn: Turn) -> None:
        if not self._run.config.record_predictions:
            return
        for _, batch, logit, _, labels in (scored for scored in turn.scored if not scored.source):
            columns = {name: getattr(batch.rows, name) for name in PREDICTION_COLUMNS[:-1]}
            columns["logit"] = logit
            for name, (outcome, label_logit) in labels.items():
                columns |= {f"logit_{name}": label_logit, f"label_{name}": outcome}
            self._pending.append(columns)
            self._pending_rows += len(logit)
            if self._pending_rows >= self._part_rows:
                self._write(batch.end)

    def checkpoint(self) -> Arrays:
        self._write(self._run.position.examples)
        return {"rows": np.array(self._rows)}

    def _write(self, end: int) -> None:
        """Writes all pending predictions in the background, before the checkpoint that counts them."""
        if self._pending:
            path, parts, self._pending = self._folder / f"{end:020d}.parquet", self._pending, []
            self._rows, self._pending_rows = self._rows + self._pending_rows, 0
            self._run.background.submit(lambda: _write_predictions(path, parts))


def _write_predictions(path: Path, parts: Sequence[Mapping[str, np.ndarray]]) -> None:
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    # For unknown labels.
    nulls = {name: np.isnan(column) for name, column in columns.items() if name.startswith("label_")}
    table = pa.table({name: pa.array(column, mask=nulls.get(name)) for name, column in columns.items()})
    write_atomic(path, lambda file: pq.write_table(table, file, compression="zstd", write_page_checksum=True))
