"""A small synthetic log and small configurations, and runs in processes that can be killed."""

import multiprocessing
import runpy
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ctr.config import parse_model
from ctr.data.log import create_log, pack_ids, publish_partition
from ctr.data.schema import Category, Schema
from ctr.training.config import TrainConfig

SCHEMA = Schema(
    features=(
        Category(name="user", source="user", buckets=30, width=4),
        Category(name="item", source="item", buckets=50, width=4),
        Category(name="tags", source="tags", buckets=40, width=4, multivalent=True),
        Category(name="position", source="position", buckets=8, width=2, tower="ui"),
    )
)
GROWING = runpy.run_path(str(Path(__file__).with_name("growing_logs.py")))
# The log's intervals of query time, in microseconds: three, each in two shards or more.
INTERVALS = ((0, 80_000), (80_000, 160_000), (160_000, 240_000))


@dataclass(frozen=True)
class Examples:
    """The rows of a log, as plain arrays."""

    query: np.ndarray
    label: np.ndarray
    train_weight: np.ndarray
    metric_weight: np.ndarray
    ids: np.ndarray
    tags: list[list[int]]

    def __len__(self) -> int:
        return len(self.query)

    def table(self) -> pa.Table:
        row = np.arange(len(self))
        return pa.table(
            {
                "query_time": self.query * 1000,
                "timestamp": self.query * 1000 - 1,
                "query_id": self.query * 7 + 1,
                "example_id": row + 10_000,
                "label": self.label.astype(np.int8),
                "train_weight": self.train_weight.astype(np.float32),
                "metric_weight": self.metric_weight.astype(np.float32),
                "ids": pack_ids(self.ids.astype(np.int32)),
                "tags": pa.array(self.tags, pa.list_(pa.int32())),
            }
        )


def draw_examples(queries: int = 240, seed: int = 0) -> Examples:
    """Queries of 1 to 9 rows whose clicks depend on user, item and position; weights that differ."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 10, queries)
    query = np.repeat(np.arange(queries), sizes)
    count = len(query)
    ids = np.stack(
        [rng.integers(0, 30, queries)[query], rng.zipf(1.4, count) % 50, rng.integers(0, 8, count)], axis=1
    )
    effects = [rng.normal(size=buckets) for buckets in (30, 50, 8)]
    logit = sum(effect[column] for effect, column in zip(effects, ids.T, strict=True)) - 1
    return Examples(
        query=query,
        label=(rng.random(count) < 1 / (1 + np.exp(-logit))).astype(int),
        train_weight=rng.choice([0.0, 0.5, 1.0, 2.0], count, p=[0.1, 0.2, 0.5, 0.2]),
        metric_weight=rng.choice([0.0, 1.0, 1.5], count, p=[0.1, 0.6, 0.3]),
        ids=ids,
        tags=[rng.integers(0, 40, size).tolist() for size in rng.integers(0, 4, count)],
    )


def publish(folder: Path, table: pa.Table, intervals: tuple[tuple[int, int], ...] = INTERVALS) -> Path:
    create_log(folder, SCHEMA)
    times = table.column("query_time").to_numpy()
    for start, end in intervals:
        inside = np.flatnonzero((times >= start) & (times < end))
        publish_partition(folder, SCHEMA, start, end, table.take(pa.array(inside)), shard_rows=170)
    return folder


@pytest.fixture(scope="session")
def schema() -> Schema:
    """The features of every log here."""
    return SCHEMA


@pytest.fixture(scope="session")
def make_examples() -> Callable[..., Examples]:
    """Draws other rows than those of ``log``."""
    return draw_examples


@pytest.fixture(scope="session")
def examples() -> Examples:
    """The rows of ``log``."""
    return draw_examples()


@pytest.fixture(scope="session")
def log(examples, tmp_path_factory) -> Path:
    """A log of about 1,200 rows."""
    return publish(tmp_path_factory.mktemp("log") / "log", examples.table())


@pytest.fixture(scope="session")
def publish_log() -> Callable[..., Path]:
    """Publishes a table as a log, by default in the intervals of ``log``."""
    return publish


@pytest.fixture
def make_log(tmp_path) -> Callable[..., Path]:
    """Publishes a table of one's own as a log of one interval."""

    def make(table: pa.Table, name: str = "own-log") -> Path:
        return publish(tmp_path / name, table, ((0, 10**9),))

    return make


@pytest.fixture
def growing(examples, schema, tmp_path) -> Any:
    """``log`` with a few faulty rows, so far without an interval."""
    label = examples.label.copy()
    label[[3, 400, 900]] = 5
    return GROWING["Growing"](
        tmp_path / "log", schema, type(examples)(**{**vars(examples), "label": label}).table()
    )


@pytest.fixture
def exposure(make_examples, schema, tmp_path) -> Any:
    """A log to be constrained, likewise: of the same times, in which everything is clicked."""
    rows = make_examples(queries=235, seed=9)
    rows = type(rows)(**{**vars(rows), "label": np.ones(len(rows), int)})
    return GROWING["Growing"](tmp_path / "exposure", schema, rows.table())


# Nothing divides anything else: windows, checkpoints, batches, shards and intervals end at different rows.
SMALL: dict[str, Any] = {
    "batch": {"rows": 50, "max_query_rows": 64},
    "model": {
        "crosses": {"layers": 2, "rank": 3, "ramp": {"start": 100, "length": 500}},
        "deep": {"units": [8]},
        "prior": 0.3,
    },
    "optimizer": {"embeddings": {"initial_accumulator": 0.01, "linear_initial_accumulator": 0.02}},
    "metrics": {"window_examples": 230, "slices": ["position"]},
    "checkpoint": {"every_examples": 310, "keep": 2},
    "compute_dtype": "float32",
}
LOGISTIC = {
    **SMALL,
    "model": {"crosses": {"layers": 0}, "deep": {"units": []}, "prior": 0.3},
    "optimizer": {**SMALL["optimizer"], "dense": {"shampoo": {"momentum": 0}}},
}


def merged(content: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    out = dict(content)
    for key, value in changes.items():
        out[key] = (
            merged(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
        )
    return out


@pytest.fixture(scope="session")
def make_config() -> Callable[..., TrainConfig]:
    """``SMALL``, or ``LOGISTIC``, with changes."""

    def make(changes: dict[str, Any] | None = None, logistic: bool = False) -> TrainConfig:
        return parse_model(TrainConfig, merged(LOGISTIC if logistic else SMALL, changes or {}), "test")

    return make


@pytest.fixture(scope="session")
def run_killed() -> Callable[..., int]:
    """Trains in a process that is killed; returns its exit status.

    ``kill_after`` is a number of batches, ``kill_at_sync`` a number of times that something is made durable,
    ``kill_at`` a point of ``fault_points.py`` and a number, ``kill_within`` a number of seconds; 0 for never.
    ``follow``: it goes on until nothing new comes for ``idle`` seconds. The processes are forked from one that has
    loaded TensorFlow and computed nothing.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ctr.training.loop", "ctr.training.follow.watch"])
    script = str(Path(__file__).with_name("killed_run.py"))

    def run(
        log: Path,
        config: TrainConfig,
        folder: Path,
        kill_after: int = 0,
        kill_at_sync: int = 0,
        kill_at: tuple[str, int] = ("", 0),
        kill_within: float = 0,
        follow: bool = False,
        idle: float = 0.2,
    ) -> int:
        given = {
            "log": str(log),
            "config": config.model_dump(mode="json"),
            "run": str(folder),
            "kill_after": kill_after,
            "kill_at": ("fsync.before", kill_at_sync) if kill_at_sync else kill_at,
            "kill_within": kill_within,
            "live": follow,
            "idle": idle,
        }
        process = context.Process(target=runpy.run_path, args=(script,), kwargs={"init_globals": given})
        process.start()
        process.join(300)
        if process.exitcode is None:
            process.kill()
            pytest.fail("the run did not end")
        return process.exitcode

    return run


@pytest.fixture(scope="session")
def copy_run(tmp_path_factory) -> Callable[[Path], Path]:
    """Copies a run directory, to be damaged or continued."""

    def copy(run: Path) -> Path:
        target = tmp_path_factory.mktemp("copy") / "run"
        shutil.copytree(run, target)
        return target

    return copy


@pytest.fixture(scope="session")
def read_predictions() -> Callable[[Path], pd.DataFrame]:
    """A run's predictions in the order of the log."""

    def read(run: Path) -> pd.DataFrame:
        return pd.concat(
            [pd.read_parquet(path) for path in sorted((run / "predictions").glob("*"))], ignore_index=True
        )

    return read
