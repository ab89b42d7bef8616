"""The benchmark of the techniques, made tiny: that it runs, resumes and reports."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/techniques.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=True)


@pytest.mark.slow
def test_every_technique_is_trained_compared_and_reported(tmp_path):
    arguments = ("--out", tmp_path, "--only", "simulated", "--examples", 4000)
    done = run(*arguments)
    rows = [
        line.split(" | ")[0].removeprefix("| ") for line in done.stdout.splitlines() if line.startswith("| ")
    ]
    for name in ("base", "teacher", "other seed", "ranking", "distillation", "sampling", "everything"):
        assert name in rows
    shares = re.findall(r"\| sampling \|.*\| ([0-9.]+)% \|", done.stdout)
    assert len(shares) == 1 and 10 < float(shares[0]) < 60
    assert len(re.findall(r"position [456], estimated CTR", done.stdout)) == 6
    # What is there is not computed again, and told alike.
    assert run(*arguments, "--report").stdout == done.stdout
    again = run(*arguments)
    assert again.stdout == done.stdout and "log-4000" not in again.stderr
