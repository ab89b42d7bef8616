"""Runs one configuration over a simulated log, and keeps of it one line and one compact curve.

::

    OUT/convergence.jsonl   one line for each finished run, in the order of the work
    OUT/curves/KEY.npz      its excess by position and query bucket (convergence_curves.py)
    OUT/logs/NAME/          the simulated logs
    OUT/present/            the run directory of the run at work
"""

import gc
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import tensorflow as tf
from convergence_curves import BINS, expected_excess, sum_by_cell
from convergence_settings import run_key

from ctr.data.log import log_sha256, read_manifests
from ctr.data.sidecar import read_sidecar_partition
from ctr.eval.run_files import prediction_parts
from ctr.eval.states import BUCKETS, query_bucket
from ctr.io.files import write_atomic
from ctr.simulator.config import SimulatorConfig
from ctr.simulator.simulate import TRUTH, simulate
from ctr.training.config import TrainConfig
from ctr.training.loop import train

Record = dict[str, Any]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SimulatedLog:
    """A simulated log and its truth.

    Attributes:
        folder: where it lies.
        sha256: of its content.
        example_id: int64 [N].
        probability: float64 [N], the true click probability.
    """

    folder: Path
    sha256: str
    example_id: npt.NDArray[np.int64]
    probability: FloatArray


def read_log(folder: Path) -> SimulatedLog:
    """Reads the truth of a simulated log."""
    manifests = read_manifests(folder)
    truth = [read_sidecar_partition(folder, TRUTH, manifest) for manifest in manifests]
    return SimulatedLog(
        folder,
        log_sha256(manifests),
        np.concatenate([part.column("example_id").to_numpy() for part in truth]),
        np.concatenate([part.column("probability").to_numpy() for part in truth]).astype(np.float64),
    )


class Store:
    """The results in a folder.

    Args:
        folder: where they are.
        write: whether this process adds to them; others may read meanwhile.
    """

    def __init__(self, folder: Path, write: bool) -> None:
        self.folder = folder
        self.path = folder / "convergence.jsonl"
        self.records: dict[str, Record] = {}
        if self.path.exists():
            content = self.path.read_bytes()
            # An interrupted write leaves a last line without an end: the run is done again.
            whole = content[: content.rfind(b"\n") + 1]
            if write and whole != content:
                self.path.write_bytes(whole)
            for line in whole.splitlines():
                record = json.loads(line)
                self.records[record["key"]] = record

    def add(self, record: Record) -> None:
        """Keeps a record for good."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.records[record["key"]] = record

    def curve(self, key: str) -> FloatArray:
        """[BINS, K], sums of the excess of a run in nats."""
        with np.load(self.folder / "curves" / f"{key}.npz") as file:
            return file["excess"]

    def cells(self, log_hash: str) -> tuple[FloatArray, FloatArray]:
        """[BINS, K] each: the log's numbers of examples and sums of p (1 - p)."""
        with np.load(self.folder / "curves" / f"log-{log_hash[:20]}.npz") as file:
            return file["examples"], file["control"]


class Runner:
    """Trains, measures, stores; what is stored already is not done again."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._logs: dict[str, SimulatedLog] = {}

    def log(self, name: str, config: SimulatorConfig, compute: bool) -> SimulatedLog | None:
        """The log of a name; made when it is not there, if ``compute``."""
        folder = self.store.folder / "logs" / name
        done, settings = folder.with_suffix(".json"), config.model_dump_json()
        if done.exists() and done.read_text() != settings:
            raise SystemExit(f"{folder}: a log of other settings; use another --out")
        if not done.exists():
            if not compute:
                return None
            simulate(config, folder)
            done.write_text(settings)
        if name not in self._logs:
            self._logs[name] = read_log(folder)
        return self._logs[name]

    def run(
        self, log: SimulatedLog, config: TrainConfig, facts: Record, compute: bool
    ) -> tuple[Record | None, bool]:
        """The record of a configuration on a log, and whether it was computed just now.

        Args:
            log: what to train on.
            config: what to train.
            facts: what the record shall tell besides: stage, optimizer, batch, values, ...
            compute: whether a run that is missing is made; if not, its record is None.
        """
        key = run_key(config, log.sha256)
        if key in self.store.records or not compute:
            return self.store.records.get(key), False
        folder = self.store.folder / "present"
        summary, seconds = train_fresh(log.folder, config, folder, len(log.example_id))
        excess = 1000 * self._measure(log, folder, key)
        half, tenth = len(excess) // 2, max(len(excess) // 10, 1)
        record = {
            "key": key,
            **facts,
            "seed": config.seed,
            "log": log.sha256,
            "excess": round(float(excess.mean()), 5),
            "excess_half": round(float(excess[half:].mean()), 5),
            "excess_tenth": round(float(excess[-tenth:].mean()), 5),
            "seconds": round(seconds, 2),
            **summary,
            "config": config.model_dump(mode="json"),
        }
        shutil.rmtree(folder)
        self.store.add(record)
        return record, True

    def _measure(self, log: SimulatedLog, folder: Path, key: str) -> FloatArray:
        parts = [
            pq.read_table(path, columns=["example_id", "query_id", "logit"])
            for path in prediction_parts(folder)
        ]
        columns = {
            name: np.concatenate([part.column(name).to_numpy() for part in parts])
            for name in parts[0].column_names
        }
        if not np.array_equal(columns["example_id"], log.example_id):
            raise SystemExit(f"{folder}: the predictions are not of the examples of {log.folder}")
        excess = expected_excess(log.probability, columns["logit"].astype(np.float64))
        place = np.arange(len(excess), dtype=np.int64) * BINS // len(excess)
        cell = place * BUCKETS + query_bucket(columns["query_id"])
        curves = self.store.folder / "curves"
        facts = curves / f"log-{log.sha256[:20]}.npz"
        if not facts.exists():
            examples = sum_by_cell(cell, np.ones(len(excess)))
            control = sum_by_cell(cell, log.probability * (1 - log.probability))
            write_atomic(facts, lambda file: np.savez_compressed(file, examples=examples, control=control))
        sums = sum_by_cell(cell, excess)
        write_atomic(curves / f"{key}.npz", lambda file: np.savez_compressed(file, excess=sums))
        return excess


class Stopwatch:
    """Times the steps of a run from a tenth of the log on: compiling is not what a step costs."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._steps = 0
        self._begun: tuple[int, float] | None = None
        self._last = 0.0

    def __call__(self, position: int, _: dict[str, Any]) -> None:
        """A batch is done."""
        self._steps += 1
        self._last = time.perf_counter()
        if self._begun is None and 10 * position >= self._rows:
            self._begun = self._steps, self._last

    @property
    def ms_per_step(self) -> float | None:
        """The mean, computing roots and reading included; None for a run of one step."""
        if self._begun is None or self._steps == self._begun[0]:
            return None
        return round(1000 * (self._last - self._begun[1]) / (self._steps - self._begun[0]), 3)


def train_fresh(
    log: Path, config: TrainConfig, folder: Path, rows: int, progress: Callable[[int], None] | None = None
) -> tuple[Record, float]:
    """Trains in a run directory made anew; returns what a record keeps of it, and the seconds it took.

    Args:
        log: what to train on.
        config: what to train.
        folder: the run directory.
        rows: of the log.
        progress: called with the position after every batch.
    """
    shutil.rmtree(folder, ignore_errors=True)
    watch = Stopwatch(rows)

    def note(position: int, metrics: dict[str, Any]) -> None:
        watch(position, metrics)
        if progress is not None:
            progress(position)

    begun = time.perf_counter()
    try:
        summary = train(log, config, folder, note)
        seconds = time.perf_counter() - begun
    finally:
        # Keras and its graphs live in cycles; without this the memory of hundreds of runs adds up.
        tf.keras.backend.clear_session()
        gc.collect()
    numbers = {name: value for name, value in summary.items() if isinstance(value, int | float)}
    return {**numbers, "steps": numbers.pop("batches"), "ms_per_step": watch.ms_per_step}, seconds
