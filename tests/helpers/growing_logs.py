"""Logs that grow while runs read them, and what such runs have to end in."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ctr.data.schema import Schema
from ctr.eval.windows import IMPORTANCE, TIME
from ctr.training.config import TrainConfig
from ctr.training.run import checkpoint
from ctr.training.run.summary import TIMING
from ctr.training.session import open_session, train
from small_runs import publish

ENDS = (0, 80_000, 160_000, 240_000)
# Without Shampoo, whose graph takes longer to build than all of a pass over so few rows.
ADAGRAD: dict[str, Any] = {
    "optimizer": {"dense": {"shampoo": {"start_preconditioning_step": None, "momentum": 0}}}
}
# So that roots are in flight wherever a partition ends.
ROOTS = {
    "optimizer": {"dense": {"shampoo": {"start_preconditioning_step": 2, "precondition_frequency": 4}}},
    "max_rejected_share": 0.01,
}


def constrained(path: Path, learning_rate: float = 0.5, own_loss: bool = True) -> dict[str, Any]:
    constraints = {
        "learning_rate": learning_rate,
        "families": [{"name": "random", "log": "exposure"}],
        "logs": [{"name": "exposure", "path": str(path), "own_loss": own_loss}],
    }
    return {"objective": {"bias_constraints": constraints}}


class Growing:
    """A log that is published partition by partition."""

    def __init__(self, folder: Path, schema: Schema, table: pa.Table, ends: Sequence[int] = ENDS) -> None:
        self.folder, self.schema, self.table, self.ends, self.partitions = folder, schema, table, ends, 0

    def grow(self, partitions: int = 1) -> Path:
        ends = self.ends[self.partitions : self.partitions + partitions + 1]
        self.partitions += partitions
        return publish(self.folder, self.table, tuple(pairwise(ends)), self.schema)


# What depends on where a run stood still, if it followed its log or was stopped, or only on the latter.
STANDS = ("arrays", "newest", "timeline", "prediction files")
FILES = ("arrays", "prediction files")


def without_timings(content: dict) -> dict:
    return {key: value for key, value in content.items() if key not in TIMING}


def lines_of(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def read_predictions(run: Path) -> pd.DataFrame:
    """In the order of the log."""
    parts = [pd.read_parquet(path) for path in sorted((run / "predictions").glob("*"))]
    return pd.concat(parts, ignore_index=True)


def outcome(run: Path) -> dict[str, Any]:
    """All that a run computed."""
    sums = pd.read_parquet(run / "windows.parquet")
    is_time, is_importance = (sums["part"] == part for part in (TIME, IMPORTANCE))
    newest = newest_checkpoint(run)
    parts = [pq.read_table(path) for path in sorted(run.glob("predictions/*"))]
    return {
        "arrays": {path.parent.name: path.read_bytes() for path in run.glob("checkpoints/*/arrays.npz")},
        "newest": (newest.name, _arrays(newest)),
        "weights": last_weights(run),
        "summary": without_timings(json.loads((run / "summary.json").read_text())),
        "metrics": [without_timings(line) for line in lines_of(run)],
        "rejects": (run / "rejects.jsonl").read_text(),
        "sums": sums[~is_time & ~is_importance].to_csv(index=False),
        "timeline": sums[is_time].to_csv(index=False),
        "prediction files": {path.name: path.read_bytes() for path in run.glob("predictions/*")},
        "predictions": pa.concat_tables(parts).combine_chunks().to_pydict() if parts else {},
    }


def assert_same(run: Path, other: Path, *left_out: str) -> None:
    found, expected = outcome(run), outcome(other)
    for name in expected.keys() - set(left_out):
        assert found[name] == expected[name], name


def _arrays(folder: Path) -> dict[str, bytes]:
    """The arrays of a checkpoint but those of importance, which is not measured while a log is followed."""
    with np.load(folder / "arrays.npz") as arrays:
        return {name: arrays[name].tobytes() for name in arrays.files if not name.startswith("importance|")}


def weights_of(run: Path) -> dict[str, np.ndarray]:
    """The weights of the newest checkpoint, by their names in it."""
    arrays, _ = checkpoint.read(run / "checkpoints")
    return {name: array for name, array in arrays.items() if name.startswith("weights|")}


def newest_checkpoint(run: Path) -> Path:
    return max(path for path in (run / "checkpoints").iterdir() if path.name.isdecimal())


def last_weights(run: Path) -> dict[str, bytes]:
    with np.load(newest_checkpoint(run) / "arrays.npz") as arrays:
        return {name: arrays[name].tobytes() for name in arrays if name.startswith("weights|")}


def train_part(log: Path, config: TrainConfig, run: Path, examples: int) -> int:
    """Trains on so many examples and saves, as a process does that is stopped; returns where it stands."""
    with open_session(log, config, run) as session:
        session.advance(stop=lambda: session.run.position.examples >= examples)
        session.save()
        return session.run.position.examples


def whole_and_in_parts(log: Path, config: TrainConfig, folder: Path, examples: int = 350) -> dict[str, Any]:
    """The summary of a run, ``whole``, which one that is broken off ends like, ``parts``."""
    summary = train(log, config, folder / "whole")
    assert 0 < train_part(log, config, folder / "parts", examples) < summary["examples"]
    train(log, config, folder / "parts")
    assert_same(folder / "parts", folder / "whole", *FILES)
    return summary
