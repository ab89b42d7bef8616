"""Seeded logs for the metric tests, and an experiment that was told."""

import runpy
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from ctr.experiments.report.write import write_experiment


@dataclass(frozen=True)
class Log:
    """Rows of whole queries, as columns [N]."""

    label: npt.NDArray[np.int64]
    logit: npt.NDArray[np.float64]
    weight: npt.NDArray[np.float64]
    query_id: npt.NDArray[np.int64]

    def __getitem__(self, rows: object) -> "Log":
        return replace(self, **{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def columns(self) -> tuple[npt.NDArray[np.generic], ...]:
        return self.label, self.logit, self.weight, self.query_id

    def batches(self, queries: int) -> Iterator["Log"]:
        """The log in batches of `queries` whole queries, by ascending query_id."""
        ids = np.unique(self.query_id)
        for start in range(0, len(ids), queries):
            yield self[np.isin(self.query_id, ids[start : start + queries])]


def make_log(seed: int, queries: int = 40) -> Log:
    """A log with ties, uneven weights (some 0), queries of one class, and rows of a query apart."""
    rng = np.random.default_rng(seed)
    size = rng.integers(1, 12, queries)
    ids = rng.choice(2**62, queries, replace=False) * rng.choice([-1, 1], queries)
    query_id = np.repeat(ids, size)
    logit = np.round(rng.normal(-1, 1.5, size.sum()), 1)
    label = (rng.random(size.sum()) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    weight = rng.exponential(2.0, size.sum()) * (rng.random(size.sum()) < 0.9)
    return Log(label, logit, weight, query_id)[rng.permutation(size.sum())]


@pytest.fixture(name="make_log", scope="session")
def _make_log() -> Callable[..., Log]:
    return make_log


@pytest.fixture(name="rows", scope="session")
def _rows() -> pd.DataFrame:
    """The log of `experiment`."""
    make = runpy.run_path(str(Path(__file__).with_name("run_directories.py")))
    return make["make_rows"](1, queries=250)


@pytest.fixture(name="experiment", scope="session")
def _experiment(rows: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole experiment, told. Tests that change it take `copy`."""
    make = runpy.run_path(str(Path(__file__).with_name("experiment_folders.py")))
    folder = make["write_whole"](tmp_path_factory.mktemp("experiment"), rows)
    write_experiment(folder)
    return folder


@pytest.fixture(name="copy")
def _copy(experiment: Path, tmp_path: Path) -> Path:
    return shutil.copytree(experiment, tmp_path / "copy")
