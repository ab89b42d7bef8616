"""Memory, threads, open files and speed along one long pass: what grows with the log, and is to be limited.

    python benchmarks/bench_endurance.py [--examples 20000000] [--log LOG | --capacity SLOTS]

One pass of a DCNv2 over a simulated log, or over LOG, with everything that a run does: metrics, predictions, windows,
checkpoints and Shampoo's roots. At each twentieth of it: the resident memory, the threads, the open files, and the
examples a second since the last one. What grows with the log shows as a slope; the first fifth is left out of it,
since tables and buffers are touched for the first time there.

With --capacity the log has four features whose ids grow, a new one of each every fourth row, and each feature has that
many slots: all are soon taken, and from then on ids are evicted as fast as new ones come. Memory then may not grow.
"""

import os
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from reference import publish_rows
from runner import main, resident_bytes

from ctr.config import parse_model
from ctr.data.features import Category
from ctr.data.log import create_log, read_manifests
from ctr.data.schema import Schema
from ctr.io.documents import read_json_object
from ctr.io.hashing import splitmix64
from ctr.simulator.config import SimulatorConfig
from ctr.simulator.simulate import simulate
from ctr.training.config import TrainConfig
from ctr.training.session import train

MARKS = 20
CONFIG: dict[str, Any] = {
    "model": {"crosses": {"rank": 16}, "deep": {"units": [64, 32]}},
    "checkpoint": {"every_examples": 1_000_000},
    "metrics": {"window_examples": 200_000},
}
GROWING, WIDTH, ROWS_PER_ID, SLATE = 4, 16, 4, 4
"""Of the log with growing ids: features, their width, rows until each has a new id, and rows of a query."""
PARTITION_ROWS = 500_000


def make_growing_log(folder: Path, examples: int) -> Path:
    """A log in which ids come and go: mostly recent ones, by a heavy tail, and never one that is still to come."""
    schema = Schema(
        features=tuple(Category(name=f"f{n}", source=f"f{n}", width=WIDTH) for n in range(GROWING))
    )
    create_log(folder, schema)
    random = np.random.default_rng(0)
    for first in range(0, examples, PARTITION_ROWS):
        row = np.arange(first, min(first + PARTITION_ROWS, examples))
        age = (random.pareto(1.1, (len(row), GROWING)) * 2000).astype(np.int64)
        numbers = (row[:, np.newaxis] // ROWS_PER_ID - age) * GROWING + np.arange(GROWING)
        ids = splitmix64(numbers.view(np.uint64)).view(np.int64)
        click = random.random(len(row)) < 0.1 + 0.2 * (ids[:, 0] % 2)
        publish_rows(folder, schema, ids, click, row // SLATE, first)
    return folder


def resources() -> dict[str, int]:
    """Of this process now: resident memory in MB, threads of the system and of Python, open files."""
    return {
        "memory_mb": resident_bytes() // 2**20,
        "threads": len(os.listdir("/proc/self/task")),
        "python_threads": threading.active_count(),
        "open_files": len(os.listdir("/proc/self/fd")),
    }


def endure(log: Path, run: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the pass; a line for each mark, and what grew from the first fifth to the end."""
    rows = sum(manifest.rows for manifest in read_manifests(log))
    lines: list[dict[str, float]] = []
    last = [0, time.perf_counter()]

    def passed(position: int, _: Any) -> None:
        if position >= rows * (len(lines) + 1) / MARKS:
            now = time.perf_counter()
            rate = (position - last[0]) / (now - last[1])
            lines.append({"examples": position, **resources(), "examples_per_second": round(rate)})
            last[:] = [position, now]

    train(log, parse_model(TrainConfig, {**CONFIG, **changes}, "benchmark"), run, passed)
    later = lines[MARKS // 5 :]
    million = np.array([line["examples"] for line in later]) / 1e6
    slopes = {
        name: round(float(np.polyfit(million, [line[name] for line in later], 1)[0]), 3)
        for name in ("memory_mb", "threads", "open_files")
    }
    memory = [line["memory_mb"] for line in lines]
    most = max(memory[MARKS // 5 :]) / max(memory[: MARKS // 5])
    rates = [line["examples_per_second"] for line in lines]
    fifth = MARKS // 5
    return {
        "marks": {f"{line['examples']:,}": line for line in lines},
        "growth_per_million_examples": slopes,
        "most_memory_over_most_of_first_fifth": round(most, 4),
        "speed_end_over_start": round(float(np.median(rates[-fifth:]) / np.median(rates[1 : fifth + 1])), 3),
    }


def measure(examples: int = 20_000_000, log: Path | None = None, capacity: int = 0) -> dict[str, Any]:
    """Makes the log, unless it is given, and the pass."""
    with tempfile.TemporaryDirectory() as name:
        folder, changes = Path(name), {}
        if capacity:
            changes = {"ids": {"capacity": capacity}}
            log = make_growing_log(folder / "log", examples)
        elif log is None:
            log = folder / "log"
            simulate(parse_model(SimulatorConfig, {"examples": examples}, "benchmark"), log)
        results = endure(log, folder / "run", changes)
        if capacity:
            ids = read_json_object(folder / "run" / "summary.json", "no summary")["ids"]
            results["ids"] = {key: ids[key] for key in ("occupancy", "capacity", "admitted", "evicted")}
    return results


if __name__ == "__main__":
    main(measure, {"examples": 20_000})
