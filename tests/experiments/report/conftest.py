"""An experiment with its report."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

import experiment_folders
import run_directories
from ctr.experiments.report.write import write_experiment


@pytest.fixture(scope="session")
def rows() -> pd.DataFrame:
    """The log of `experiment`."""
    return run_directories.make_rows(1, queries=250)


@pytest.fixture(scope="session")
def experiment(rows: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole experiment and its report. Tests that change it take `copy`."""
    folder = experiment_folders.write_whole(tmp_path_factory.mktemp("experiment"), rows)
    write_experiment(folder)
    return folder


@pytest.fixture
def copy(experiment: Path, tmp_path: Path) -> Path:
    return shutil.copytree(experiment, tmp_path / "copy")
