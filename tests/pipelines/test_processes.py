"""Processes that commands start import nothing from the folder that a user happens to be in."""

import re

import pytest

from ctr.cli import main
from ctr.experiments.jobs import Job, Outcome, run_here
from ctr.pipelines.processes import safe_environment

TRAP = "from pathlib import Path\nPath({seen!r}).touch()\nraise ImportError('the folder of a user was looked in')\n"
NAMES = ("json", "typing", "ctr", "numpy", "pandas", "tensorflow", "yaml", "apache_beam", "dill", "site")


@pytest.fixture
def trapped(tmp_path, monkeypatch):
    """A folder to work in whose Python files say when they are imported; returns whether any was."""
    seen = tmp_path / "seen"
    work = tmp_path / "work"
    work.mkdir()
    for name in NAMES:
        (work / f"{name}.py").write_text(TRAP.format(seen=str(seen)))
    monkeypatch.chdir(work)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    return seen.exists


# Where the package starts a process; each has a test below.
STARTS = {"ctr/experiments/jobs.py", "ctr/workers/launch.py"}
STARTING = re.compile(
    r"^ *(import|from) (subprocess|multiprocessing|pty)\b|ProcessPool|\bos\.(fork|system|popen|posix_spawn|spawn)",
    re.MULTILINE,
)


def test_nothing_else_starts_a_process(root):
    rooms = ("ctr", "eval", "models", "optim", "pipelines")
    paths = (path for room in rooms for path in (root / room).rglob("*.py"))
    found = {path.relative_to(root).as_posix() for path in paths if STARTING.search(path.read_text())}
    assert found == STARTS


def test_jobs_of_an_experiment_import_nothing_from_the_folder(trapped):
    """What ``ctr replay`` trains, samples and serves with."""
    outcomes: list[Outcome | None] = []
    run_here([Job("one", ("train", "nolog", "--out", "run"))], 1, lambda _, outcome: outcomes.append(outcome))
    ended = outcomes[-1]
    assert ended is not None
    assert ended.error == "nolog is not an example log: it has no schema.json", ended.end
    assert not trapped()


def test_workers_that_train_start_in_the_same_environment(tmp_path, monkeypatch):
    plans = []
    monkeypatch.setattr("ctr.workers.launch.launch", lambda plan: plans.append(plan) or 0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    assert main(["simulate", "--examples", "400", "--out", "log", "-q"]) == 0
    assert main(["train", "log", "--out", "run", "--workers", "2", "-q"]) == 0
    assert [plan.environment["PYTHONSAFEPATH"] for plan in plans] == ["1"]


def test_the_checkout_itself_stays_on_the_path(root, tmp_path, monkeypatch):
    """``python -m ctr`` in it works without an installation, and so must what it starts."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.chdir(root)
    assert "PYTHONSAFEPATH" not in safe_environment()
    monkeypatch.chdir(tmp_path)
    assert safe_environment()["PYTHONSAFEPATH"] == "1"
    monkeypatch.setenv("PYTHONSAFEPATH", "0")
    assert safe_environment()["PYTHONSAFEPATH"] == "1"
