"""Memory, threads, open files and speed along one long pass.

    python benchmarks/bench_endurance.py [--examples 20000000] [--log LOG | --capacity SLOTS] [--json]

One pass of a DCNv2 over a simulated log, or over LOG, with everything that a run does: metrics, predictions, windows,
checkpoints and Shampoo's roots. At each twentieth of it: the resident memory, the threads, the open files, and the
examples a second since the last one. What grows with the log shows as a slope; the first fifth is left out of it,
since tables and buffers are touched for the first time there.

With --capacity the log has four features whose ids grow, a new one of each every fourth row, and each feature has that
many slots: all are soon taken, and from then on ids are evicted as fast as new ones come. Memory then may not grow.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.config import parse_model
from ctr.data.log import create_log, read_manifests
from ctr.data.schema import Category, Schema
from ctr.data.shards import pack_ids, publish_partition
from ctr.io.documents import read_json_object
from ctr.io.hashing import splitmix64
from ctr.simulator.config import SimulatorConfig
from ctr.simulator.simulate import simulate
from ctr.training.config import TrainConfig
from ctr.training.loop import train

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
        query, ones = row // SLATE, np.ones(len(row), np.float32)
        click = random.random(len(row)) < 0.1 + 0.2 * (ids[:, 0] % 2)
        columns = {
            "query_time": query,
            "timestamp": query,
            "query_id": query,
            "example_id": row,
            "label": click.astype(np.int8),
            "train_weight": ones,
            "metric_weight": ones,
            "ids": pack_ids(ids),
        }
        publish_partition(folder, schema, int(query[0]), int(query[-1]) + 1, pa.table(columns))
    return folder


def resources() -> dict[str, int]:
    """Of this process now: resident memory in MB, threads of the system and of Python, open files."""
    status = Path("/proc/self/status").read_text().splitlines()
    values = {words[0]: words[1] for words in map(str.split, status) if len(words) > 1}
    return {
        "memory_mb": int(values["VmRSS:"]) // 1024,
        "threads": int(values["Threads:"]),
        "python_threads": threading.active_count(),
        "open_files": len(os.listdir("/proc/self/fd")),
    }


def measure(log: Path, run: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
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
        "lines": lines,
        "growth_per_million_examples": slopes,
        "most_memory_over_most_of_first_fifth": round(most, 4),
        "speed_end_over_start": round(float(np.median(rates[-fifth:]) / np.median(rates[1 : fifth + 1])), 3),
    }


def main() -> None:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--examples", type=int, default=20_000_000)
    parser.add_argument("--log", type=Path)
    parser.add_argument(
        "--capacity", type=int, metavar="SLOTS", help="ids grow, with so many slots a feature"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log, run, changes = arguments.log or Path(folder) / "log", Path(folder) / "run", {}
        if arguments.capacity:
            changes = {"ids": {"capacity": arguments.capacity}}
            make_growing_log(log, arguments.examples)
        elif arguments.log is None:
            simulate(parse_model(SimulatorConfig, {"examples": arguments.examples}, "benchmark"), log)
        result = measure(log, run, changes)
        if arguments.capacity:
            ids = read_json_object(run / "summary.json", "no summary")["ids"]
            result["ids"] = {key: ids[key] for key in ("occupancy", "capacity", "admitted", "evicted")}
    if arguments.json:
        print(json.dumps(result, indent=1))
        return
    for number, line in enumerate(result.pop("lines")):
        if not number:
            print("  ".join(f"{name:>19}" for name in line))
        print("  ".join(f"{value:>19,}" for value in line.values()))
    for name, value in result.items():
        print(name, value)


if __name__ == "__main__":
    main()
