"""A log, the first half of it, and a run over that half from which all runs here begin."""

from pathlib import Path

import pytest

from ctr.training.session import train
from warm_starts import HALF, config_of, publish


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> Path:
    return publish(tmp_path_factory.mktemp("whole") / "log")


@pytest.fixture(scope="session")
def half(tmp_path_factory) -> Path:
    return publish(tmp_path_factory.mktemp("half") / "log", ends=(0, 80_000, HALF))


@pytest.fixture(scope="session")
def old(half, tmp_path_factory) -> Path:
    """The run that all begin from: it has passed the first half of the log."""
    run = tmp_path_factory.mktemp("old") / "run"
    train(half, config_of(), run)
    return run
