"""What every test may rely on."""

import logging
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# No test is to depend on what another one compiled.
os.environ["CTR_CACHE"] = ""

# Logs and runs are synchronized file by file, for which a disk makes the tests wait, and memory does not.
if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free >= 2**33:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")
# A loaded machine is slow, not wrong. Every run draws the same examples; `make soak` draws others each night.
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("random"), derandomize=True)
# The first failing example is enough where one only asks whether there is one.
settings.register_profile("any", settings.get_profile("same"), phases=[Phase.explicit, Phase.generate])
settings.load_profile("same")

ROOT = Path(__file__).resolve().parent.parent

# The files that take longest, with slow tests or without. They go first, so that at the end no process is left alone
# with one of them.
LONG_FILES = (
    "optim/contrib/test_tf_keras.py",
    "optim/keras/test_replicas.py",
    "training/test_workers.py",
    "pipelines/events/test_stream_kafka.py",
    "search/test_run.py",
    "serving/test_continuous.py",
    "training/test_numerical_faults.py",
    "optim/keras/test_training.py",
    "optim/shampoo/test_reference.py",
    "experiments/test_run.py",
    "test_demo.py",
    "training/test_loop.py",
    "workers/test_launch.py",
    "training/run/test_resume.py",
    "serving/test_export.py",
    "pipelines/events/test_watch.py",
    "pipelines/evaluate/test_evaluate.py",
    "experiments/report/test_faults.py",
    "test_packaging.py",
    "optim/shampoo/test_division.py",
    "training/warm_start/test_warm_start.py",
    "training/warm_start/test_continued_runs.py",
    "experiments/report/test_write.py",
)

FreshPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests of ``LONG_FILES`` first, file by file; cases beyond those of ``slow(first=)`` are soak."""
    cases: Counter[str] = Counter()
    for item in items:
        first = [marker.kwargs["first"] for marker in item.iter_markers("slow") if "first" in marker.kwargs]
        if first and item.get_closest_marker("soak") is None:
            name = item.nodeid.partition("[")[0]
            cases[name] += 1
            if cases[name] > first[0]:
                item.add_marker("soak")
    ranks = {ROOT / "tests" / name: rank for rank, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


@pytest.fixture(autouse=True)
def _level_of_a_new_process() -> None:
    """Undoes the verbosity of a command that ran before in this process: records of it are held as memory."""
    logging.getLogger("ctr").setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def fresh_python() -> FreshPython:
    """Runs Python in a new process whose environment has nothing of the tests' own; returns it completed."""

    def run(
        *arguments: str | Path,
        cwd: Path,
        python: str | Path = sys.executable,
        path: Path | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        env = {k: v for k, v in os.environ.items() if k not in ("TF_USE_LEGACY_KERAS", "PYTHONPATH")}
        if path is not None:
            env["PYTHONPATH"] = str(path)
        done = subprocess.run(
            [str(python), *map(str, arguments)],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if check and done.returncode != 0:
            pytest.fail(f"{done.args} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    return run


@pytest.fixture(scope="session")
def copy_checkout() -> Callable[[Path], Path]:
    """Copies what a checkout holds, its links as links, without what builds and runs leave in it."""
    names = (
        *("ctr", "eval", "models", "optim", "pipelines", "tests", "benchmarks", "examples", "docs"),
        *("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md"),
    )

    def copy(target: Path) -> Path:
        target.mkdir(parents=True)
        for name in names:
            source = ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
                shutil.copytree(source, target / name, symlinks=True, ignore=ignored)
            elif source.exists():
                shutil.copy2(source, target / name)
        return target

    return copy
