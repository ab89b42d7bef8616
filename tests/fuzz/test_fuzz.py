"""Broken inputs for every parser: a few that are the same every time, and others for as long as one likes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
EXECUTIONS = 8


def run(root: Path, out: Path, executions: int, *options: str) -> list[dict[str, Any]]:
    """Fuzzes targets in a process of their own; returns what became of each."""
    command = [sys.executable, str(HERE / "worker.py"), "--executions", str(executions), "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    ended = subprocess.run([*command, *options], env=environment, capture_output=True, text=True)
    current = (out / "name").read_text() if (out / "name").exists() else "nothing"
    assert ended.returncode == 0, (
        f"ended while parsing {current}; the input is {out / 'current'}\n{ended.stderr}"
    )
    found: list[dict[str, Any]] = json.loads((out / "result.json").read_text())
    assert not {outcome["name"]: outcome["failures"] for outcome in found if outcome["failures"]}
    assert all(outcome["executions"] == executions + 1 for outcome in found)
    return found


pytestmark = pytest.mark.soak


@pytest.mark.parametrize("options", [(), ("--slow",)], ids=["quick", "slow"])
def test_no_parser_fails_in_another_way_than_it_should(options, root, tmp_path):
    found = run(root, tmp_path, EXECUTIONS, *options)
    # Some of it is refused, and not only the broken ones are looked at.
    assert sum(outcome["refused"] for outcome in found) and sum(outcome["accepted"] for outcome in found)


@pytest.mark.timeout(24 * 3600)
def test_other_inputs_for_as_long_as_wanted(root, tmp_path):
    """A turn in which a parser fails is the last; its inputs are kept in the folder that the message names."""
    end = time.monotonic() + 60 * float(os.environ.get("CTR_FUZZ_MINUTES", "30"))
    seed = int(os.environ.get("CTR_FUZZ_SEED", time.time()))
    while time.monotonic() < end:
        seed += 1
        run(root, tmp_path / f"turn-{seed}", 50, f"--seed={seed}")
