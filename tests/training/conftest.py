"""A small synthetic log."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctr.data.schema import Schema
from growing_logs import Growing
from small_runs import SCHEMA, Examples, draw_examples, publish


@pytest.fixture(scope="session")
def schema() -> Schema:
    """The features of every log here."""
    return SCHEMA


@pytest.fixture(scope="session")
def examples() -> Examples:
    """The rows of ``log``."""
    return draw_examples()


@pytest.fixture(scope="session")
def log(examples, tmp_path_factory) -> Path:
    """A log of about 1,200 rows."""
    return publish(tmp_path_factory.mktemp("log") / "log", examples.table())


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
    return Growing(tmp_path / "log", schema, replace(examples, label=label).table())


@pytest.fixture
def exposure(schema, tmp_path) -> Any:
    """A log to be constrained, of the same times, in which everything is clicked."""
    rows = draw_examples(queries=235, seed=9)
    rows = replace(rows, label=np.ones(len(rows), int))
    return Growing(tmp_path / "exposure", schema, rows.table())


@pytest.fixture(scope="session")
def copy_run(tmp_path_factory) -> Callable[[Path], Path]:
    """Copies a run directory, to be damaged or continued."""

    def copy(run: Path) -> Path:
        target = tmp_path_factory.mktemp("copy") / "run"
        shutil.copytree(run, target)
        return target

    return copy
