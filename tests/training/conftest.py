"""A small synthetic log."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ctr.config import parse_model
from ctr.data.schema import Schema
from ctr.training.config import TrainConfig
from growing_logs import Growing
from small_runs import LOGISTIC, SCHEMA, SMALL, Examples, draw_examples, merged, publish


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
    """Publishes a table as a log, by default in the partitions of ``log``."""
    return publish


@pytest.fixture
def make_log(tmp_path) -> Callable[..., Path]:
    """Publishes a table of one's own as a log of one partition."""

    def make(table: pa.Table, name: str = "own-log") -> Path:
        return publish(tmp_path / name, table, ((0, 10**9),))

    return make


@pytest.fixture
def growing(examples, schema, tmp_path) -> Any:
    """``log`` with a few faulty rows, so far without a partition."""
    label = examples.label.copy()
    label[[3, 400, 900]] = 5
    return Growing(tmp_path / "log", schema, type(examples)(**{**vars(examples), "label": label}).table())


@pytest.fixture
def exposure(make_examples, schema, tmp_path) -> Any:
    """A log to be constrained, of the same times, in which everything is clicked."""
    rows = make_examples(queries=235, seed=9)
    rows = type(rows)(**{**vars(rows), "label": np.ones(len(rows), int)})
    return Growing(tmp_path / "exposure", schema, rows.table())


@pytest.fixture(scope="session")
def make_config() -> Callable[..., TrainConfig]:
    """``SMALL``, or ``LOGISTIC``, with changes."""

    def make(changes: dict[str, Any] | None = None, logistic: bool = False) -> TrainConfig:
        return parse_model(TrainConfig, merged(LOGISTIC if logistic else SMALL, changes or {}), "test")

    return make


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
