"""Measures memory, threads, open files and speed along one long pass, to find whatever grows with the log.

    python benchmarks/bench_endurance.py [--examples 20000000] [--log LOG]

A DCNv2 makes one pass over a simulated log, or over LOG, with everything that a run does: metrics, predictions,
windows, checkpoints and Shampoo's roots. At each twentieth of the pass it records the resident memory, the threads, the
open files, and the examples per second since the previous mark. Growth with the log shows as a slope, computed without
the first fifth, in which tables and buffers are touched for the first time.
"""

import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from runner import main, resident_bytes

from ctr.config import parse_model
from ctr.data.log import read_manifests
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


def resources() -> dict[str, int]:
    """Returns this process's resident memory in MiB, its system and Python threads, and its open files."""
    return {
        "memory_mb": resident_bytes() // 2**20,
        "threads": len(os.listdir("/proc/self/task")),
        "python_threads": threading.active_count(),
        "open_files": len(os.listdir("/proc/self/fd")),
    }


def endure(log: Path, run: Path) -> dict[str, Any]:
    """Makes the pass; returns the resources at each mark, and their growth from the first fifth to the end."""
    rows = sum(manifest.rows for manifest in read_manifests(log))
    lines: list[dict[str, float]] = []
    last = [0, time.perf_counter()]

    def passed(position: int, _: Any) -> None:
        if position >= rows * (len(lines) + 1) / MARKS:
            now = time.perf_counter()
            rate = (position - last[0]) / (now - last[1])
            lines.append({"examples": position, **resources(), "examples_per_second": round(rate)})
            last[:] = [position, now]

    train(log, parse_model(TrainConfig, CONFIG, "benchmark"), run, passed)
    fifth = MARKS // 5
    later = lines[fifth:]
    million = np.array([line["examples"] for line in later]) / 1e6
    slopes = {
        name: round(float(np.polyfit(million, [line[name] for line in later], 1)[0]), 3)
        for name in ("memory_mb", "threads", "open_files")
    }
    memory = [line["memory_mb"] for line in lines]
    most = max(memory[fifth:]) / max(memory[:fifth])
    rates = [line["examples_per_second"] for line in lines]
    return {
        "marks": {f"{line['examples']:,}": line for line in lines},
        "growth_per_million_examples": slopes,
        "most_memory_over_most_of_first_fifth": round(most, 4),
        "speed_end_over_start": round(float(np.median(rates[-fifth:]) / np.median(rates[1 : fifth + 1])), 3),
    }


def measure(examples: int = 20_000_000, log: Path | None = None) -> dict[str, Any]:
    """Measures a pass over ``log``, by default a simulated one of ``examples`` rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if log is None:
            log = folder / "log"
            simulate(parse_model(SimulatorConfig, {"examples": examples}, "benchmark"), log)
        return endure(log, folder / "run")


if __name__ == "__main__":
    main(measure, {"examples": 20_000})
