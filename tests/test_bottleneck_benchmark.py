"""The benchmark of bottlenecks, made tiny: that it times, trains, goes on and reports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ctr.eval.run_comparison import compare_runs
from ctr.simulator.config import SimulatorConfig
from ctr.simulator.simulate import simulate

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


@pytest.mark.slow
def test_accuracy_is_compared_on_the_same_queries(tmp_path: Path) -> None:
    simulate(SimulatorConfig(examples=2000, seed=3), tmp_path / "log")
    config = tmp_path / "config.yaml"
    config.write_text(
        "{batch: {rows: 256}, model: {crosses: {layers: 1, rank: 4}, deep: {units: [16, 8]}}, compute_dtype: float32}"
    )
    arguments = (
        "--accuracy",
        tmp_path / "log",
        "--config",
        config,
        "--ranks",
        "4,0",
        "--out",
        tmp_path / "runs",
    )
    rows = json.loads(run(*arguments, "--json"))
    assert [row["ranks"] for row in rows] == ["none", "4,0"]
    assert rows[0]["per_query_auc_change"] == 0
    plain, narrow = (next((tmp_path / "runs").glob(f"*/{name}-seed-1-*")) for name in ("none", "4,0"))
    compared = compare_runs(plain, narrow).as_dict()["metrics"]["per_query_auc"]
    assert rows[1]["per_query_auc_change"] == pytest.approx(compared["difference"])
    assert rows[1]["per_query_auc_change_ci95"] == pytest.approx(compared["ci95"])
    written = (narrow / "summary.json").stat().st_mtime_ns
    text = run(*arguments)
    assert (narrow / "summary.json").stat().st_mtime_ns == written
    assert f"| 4,0 | {rows[1]['per_query_auc']:.5f} [" in text
