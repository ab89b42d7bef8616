"""Measures the memory that tables cost each worker. The limit is the bytes of one process.

    python benchmarks/study.py workers_memory [--rows 4000000] [--workers 1 2 4]

All arms are `ctr train` over the same rows. The cost of tables is the peak memory of each process minus its peak with
tables of a few rows. It has two parts: the table with its accumulators, and the copy of both for checkpoints.
"""

import tempfile
from pathlib import Path
from typing import Any

from processes import run_python
from reference import Size, make_log
from runner import main
from workers import write_config

FEATURES, WIDTH, BATCH, STEPS, FEW = 4, 16, 1024, 8, 1000
CHANGES = {
    "model": {"crosses": {"layers": 1, "rank": 4}, "deep": {"units": [16]}},
    "workers": {"divided_from_mb": 0.0},
}


def peaks(folder: Path, rows: int, workers: int) -> list[int]:
    """Trains with tables of ``rows`` rows; returns the peak memory of each worker in bytes."""
    size = Size(features=FEATURES, buckets=rows, width=WIDTH, batch=BATCH)
    log, run = folder / f"log-{rows}", folder / f"run-{rows}-{workers}"
    if not log.exists():
        make_log(log, STEPS * BATCH, size)
    config = write_config(folder / f"config-{rows}.yaml", CHANGES, BATCH)
    command = ["-m", "ctr", "train", log, "--config", config, "--out", run, "-q"]
    return [ended.peak_bytes for ended in run_python(command, workers, threads=1)]


def measure(rows: int = 4_000_000, workers: tuple[int, ...] = (1, 2, 4)) -> dict[str, Any]:
    """Returns the peaks with tables of ``rows`` rows, the cost of these, and both relative to the first arm."""
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in workers:
            large, small = (peaks(Path(folder), size, number) for size in (rows, FEW))
            cost = max(a - b for a, b in zip(large, small, strict=True))
            row = {"peak_mib": max(large) / 2**20, "of_tables_mib": cost / 2**20}
            base = next(iter(results.values()), row)
            results[str(number)] = row | {f"{name}_share": row[name] / base[name] for name in row}
    # WIDTH weights and a linear weight, with an accumulator for each.
    return {"tables_with_accumulators_mib": FEATURES * rows * (WIDTH + 1) * 4 * 2 / 2**20, "workers": results}


if __name__ == "__main__":
    main(measure, {"rows": 2000, "workers": (1,)})
