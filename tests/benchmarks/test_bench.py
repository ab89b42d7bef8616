"""The benchmark, made tiny: every part measures something, and every target is judged."""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

PARTS = {
    *("step", "limit", "end_to_end", "profile", "scaling"),
    *("shampoo", "objective", "metrics", "start", "memory", "ids"),
}
TARGETS = (
    "step, over the fastest of Keras and PyTorch in bfloat16",
    "step in float32, over the fastest of Keras and PyTorch in float32",
    "step, of what its matrix products alone allow",
    "a pass over a log, of the step alone",
    "reader, examples/s",
    "row update, of the step",
    "Shampoo over AdaGrad, batch 4096",
    "Shampoo over AdaGrad, batch 16384",
    "ranking, distillation and constraints, over the logistic loss alone",
    "metrics, of the step",
    "step with growing ids, over buckets",
    "reader with growing ids, of buckets",
    "ctr --help, seconds",
    "summary of a finished run, seconds",
    "ctr score of one row, seconds",
    "ctr train until the first batch, seconds",
    "first step, seconds",
)


def run(*arguments: object) -> str:
    command = [sys.executable, "benchmarks/bench.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=True).stdout


def numbers(node: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """All numbers of a document with where they stand."""
    if isinstance(node, dict):
        for name, inner in node.items():
            yield from numbers(inner, f"{path}/{name}")
    elif isinstance(node, list):
        for number, inner in enumerate(node):
            yield from numbers(inner, f"{path}/{number}")
    elif isinstance(node, int | float) and not isinstance(node, bool):
        yield path, node


@pytest.mark.soak
def test_every_part_measures_and_every_target_is_judged(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "bench.json"
    shown = run("--quick", "--json", path)
    found = json.loads(path.read_text())
    assert set(found) == {*PARTS, "environment", "rounds", "targets"}
    for part in PARTS:
        assert f"## {part}\n" in shown
        measured = list(numbers(found[part]))
        assert all(math.isfinite(value) for _, value in measured)
        times = [
            (where, value) for where, value in measured if where.endswith(("_ms", "per_second", "seconds"))
        ]
        # What may be nothing: waiting, what lies around the graph, and a part of the step without operations.
        always = [one for one in times if not any(name in one[0] for name in ("wait", "around", "/parts/"))]
        assert all(value > 0 for _, value in always), always
        assert any(value > 0 for _, value in measured)
    arms = found["step"]["arms"]
    assert {"ctr float32", "ctr bfloat16", "Keras 2 float32", "Keras 3 mixed_bfloat16"} <= set(arms)
    # All arms begin at the loss of a coin, and learn.
    assert all(arm["first_loss"] == pytest.approx(math.log(2), abs=0.1) for arm in arms.values())
    assert all(arm["last_loss"] < arm["first_loss"] for arm in arms.values())
    assert [one["what"] for one in found["targets"]] == list(TARGETS)
    assert all(f"| {target} |" in shown for target in TARGETS)


@pytest.mark.slow
def test_only_some_parts(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    shown = run("--quick", "--only", "metrics", "--json", path)
    found = json.loads(path.read_text())
    assert set(found) == {"metrics", "environment", "rounds", "targets"}
    assert [one["what"] for one in found["targets"]] == ["metrics, of the step"]
    assert "## step" not in shown


@pytest.mark.slow
def test_an_unknown_part_is_refused() -> None:
    command = [sys.executable, "benchmarks/bench.py", "--only", "step,steps"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "no part steps; there are step, limit" in done.stderr
