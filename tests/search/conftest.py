"""The log of all tests of searches."""

from pathlib import Path

import pytest

from small_runs import draw_examples, publish


@pytest.fixture(scope="session")
def log(tmp_path_factory) -> Path:
    return publish(tmp_path_factory.mktemp("search") / "log", draw_examples().table())
