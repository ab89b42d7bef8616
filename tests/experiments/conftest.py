"""A small log, and a stand-in for training on it."""

import shutil
import stat
import sys
from pathlib import Path

import pytest

from ctr.data.log import log_sha256, read_manifests
from ctr.simulator.config import SimulatorConfig
from ctr.simulator.simulate import simulate
from stand_in_runs import STAND_IN


@pytest.fixture(scope="session")
def made_log(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("replay") / "log"
    simulate(SimulatorConfig(examples=3000), folder)
    return folder


@pytest.fixture
def place(made_log, tmp_path, monkeypatch) -> Path:
    """A folder with a log of one's own."""
    shutil.copytree(made_log, tmp_path / "log")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def stand_in(place, monkeypatch) -> Path:
    """Training in a second; what was called is in the file that is returned."""
    calls = place / "calls"
    calls.touch()
    script = place / "python"
    (place / "sha").write_text(log_sha256(read_manifests(place / "log")))
    paths = {"calls": str(calls), "healed": str(place / "healed"), "sha": str(place / "sha")}
    text = STAND_IN.format(python=sys.executable, **paths)
    script.write_text(text)
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(script))
    return calls
