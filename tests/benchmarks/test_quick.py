"""Every benchmark, made tiny: it runs, and all that it measures is a number."""

import ast
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CAMPAIGNS = ("convergence", "defaults", "growth", "id_memory", "search", "search_planted")
STUDIES = (*CAMPAIGNS, "curvatures", "digits", "placement", "scale_model", "histories")
STUDIES += ("workers", "workers_reading")
NAMES = sorted({path.stem for path in (ROOT / "benchmarks").glob("bench_*.py")} | {*STUDIES})


def run(name: str, path: Path, *arguments: str) -> dict[str, Any]:
    program = ["benchmarks/study.py", name] if name in STUDIES else [f"benchmarks/{name}.py"]
    command = [sys.executable, *program, "--quick", "--json", str(path), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=850)
    assert not done.returncode, done.stderr[-3000:]
    return json.loads(path.read_text())


def numbers(node: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """All numbers of a document with where they stand."""
    if isinstance(node, dict | list):
        for name, inner in node.items() if isinstance(node, dict) else enumerate(node):
            yield from numbers(inner, f"{path}/{name}")
    elif isinstance(node, int | float) and not isinstance(node, bool):
        yield path, node


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name, tmp_path):
    out = ["--out", str(tmp_path / "out")] if name in CAMPAIGNS else []
    results = run(name, tmp_path / "found.json", *out)
    measured = list(
        numbers({key: value for key, value in results.items() if key not in ("environment", "options")})
    )
    assert len(measured) > 1
    assert all(math.isfinite(value) for _, value in measured)
    # What may be nothing: waiting, and what is below the resolution of a clock.
    times = [(where, value) for where, value in measured if where.endswith(("/ms", "per_second", "/seconds"))]
    assert all(value >= 0 for _, value in times)
    assert any(value > 0 for _, value in measured)


@pytest.mark.soak
def test_all_parts_of_the_benchmark_are_measured_and_all_targets_judged(tmp_path):
    results = run("bench", tmp_path / "found.json")
    parts = ("step", "limit", "end_to_end", "profile", "scaling", "shampoo", "objective", "metrics", "start")
    assert {*parts, "memory", "ids", "targets"} <= set(results)
    assert all(
        math.isfinite(value) for _, value in numbers({part: results[part] for part in (*parts, "memory")})
    )
    arms = results["step"]["arms"]
    assert {"ctr float32", "ctr bfloat16", "Keras 2 float32", "Keras 3 mixed_bfloat16"} <= set(arms)
    # All arms begin at the loss of a coin, and learn.
    assert all(arm["first_loss"] == pytest.approx(math.log(2), abs=0.1) for arm in arms.values())
    assert all(arm["last_loss"] < arm["first_loss"] for arm in arms.values())
    assert len(results["targets"]) == 17


def documented_commands() -> Iterator[tuple[str, list[str]]]:
    """Each benchmark that a document runs, with the options that it gives."""
    for path in (*(ROOT / "docs").rglob("*.md"), ROOT / "Makefile", *(ROOT / "benchmarks").rglob("*.py")):
        for study, name, options in re.findall(
            r"python benchmarks/(?:study\.py ([a-z_]+)|([a-z_]+)\.py)([^`#|\n]*)", path.read_text()
        ):
            yield name or f"studies/{study}", re.findall(r"--([a-z-]+)", options)


def test_documented_options_are_there():
    commands = list(documented_commands())
    assert {"bench", "studies/convergence", "studies/growth", "studies/id_memory", "studies/scale_model"} <= {
        name for name, _ in commands
    }
    for name, options in commands:
        source = (ROOT / "benchmarks" / f"{name}.py").read_text()
        functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
        arguments = (function.args.args for function in functions if function.name == "measure")
        parameters = {argument.arg for arg_list in arguments for argument in arg_list}
        for option in options:
            plain = option.removeprefix("no-").replace("-", "_")
            assert plain in parameters | {"quick", "json", "help"}, f"{name}.py --{option}"
