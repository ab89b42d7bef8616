"""The benchmark of bottlenecks, made tiny."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(*arguments: object) -> str:
    command = [sys.executable, "benchmarks/bench_bottleneck.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=True).stdout


@pytest.mark.slow
def test_steps_are_timed_with_their_work() -> None:
    chosen = ("--dtypes", "float32", "--optimizers", "adagrad", "--ranks", "128,64,0")
    found = json.loads(run("--batch", 32, "--rounds", 1, *chosen, "--json"))
    rows = found["float32, adagrad"]
    assert set(rows) == {"none", "128,64,0"}
    crosses, last = 3 * 2 * 416 * 64, 512 * 256 + 256
    plain = crosses + 416 * 1024 + 1024 * 512 + last
    narrow = crosses + 128 * (416 + 1024) + 64 * (1024 + 512) + last
    assert rows["none"]["gigaflops"] == pytest.approx(6e-9 * 32 * plain)
    assert rows["128,64,0"]["gigaflops"] == pytest.approx(6e-9 * 32 * narrow)
    assert rows["none"]["ratio"] == 1 and rows["128,64,0"]["step_ms"] > 0
