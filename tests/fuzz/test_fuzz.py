"""A few broken inputs for every parser, the same ones every time; ``long.py`` draws others for as long as one likes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
EXECUTIONS, MORE_EXECUTIONS = 5, 8
WITHOUT_TENSORFLOW = (
    *("train config", "settings", "simulator config", "sampling config", "experiment", "schema", "manifest"),
    *(
        "sidecar manifest",
        "shard",
        "sidecar",
        "checkpoint arrays",
        "checkpoint state",
        "quarantine",
        "run summary",
        "run windows",
    ),
    *("run environment", "run rejects", "run spectra", "run metrics", "run predictions", "loop"),
    *("run data health", "run timeline"),
)
"""Those that need no libraries which take seconds to load."""


def run(root: Path, out: Path, executions: int, *chosen: str) -> int:
    """Fuzzes targets in a process of their own; returns how many."""
    command = [
        sys.executable,
        str(HERE / "worker.py"),
        *chosen,
        "--executions",
        str(executions),
        "--out",
        str(out),
    ]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    current = (out / "name").read_text() if (out / "name").exists() else "nothing"
    assert ended.returncode == 0, (
        f"ended while parsing {current}; the input is {out / 'current'}\n{ended.stderr}"
    )
    found = json.loads((out / "result.json").read_text())
    assert not {outcome["name"]: outcome["failures"] for outcome in found if outcome["failures"]}
    assert all(outcome["executions"] == executions + 1 for outcome in found)
    return len(found)


@pytest.mark.slow
def test_no_parser_fails_in_another_way_than_it_should(root, tmp_path):
    assert run(root, tmp_path, EXECUTIONS, *WITHOUT_TENSORFLOW) == len(WITHOUT_TENSORFLOW)


@pytest.mark.soak
def test_more_inputs_and_what_takes_longer(root, tmp_path):
    assert run(root, tmp_path / "quick", MORE_EXECUTIONS) > 40
    assert run(root, tmp_path / "slow", EXECUTIONS, "--slow") >= 6


@pytest.mark.soak
@pytest.mark.timeout(24 * 3600)
def test_for_as_long_as_wanted(root, tmp_path):
    minutes = os.environ.get("CTR_FUZZ_MINUTES", "30")
    command = [sys.executable, str(HERE / "long.py"), "--minutes", minutes, "--out", str(tmp_path)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
