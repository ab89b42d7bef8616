"""What tables, and the map of growing ids, cost each worker in memory. Its limit: the bytes of one process.

    python benchmarks/study.py workers_memory [--rows 4000000] [--workers 1 2 4]
    python benchmarks/study.py workers_memory --map [--examples 100000] [--workers 1 2 4]

All arms are `ctr train` over the same rows. What tables cost is the peak of each process with them less that with
tables of a few rows. It has two parts: the table with its accumulators, and the copy of both that a checkpoint writes.

With --map, instead: what the map of growing ids takes in each worker at the end of a pass, with admission at the second
occurrence and capacities so small that ids are evicted. These are bytes of arrays, not peaks.
"""

import tempfile
from pathlib import Path
from typing import Any

from processes import FOLDER, run_python
from reference import Size, make_log
from runner import main
from workers import write_config

FEATURES, WIDTH, BATCH, STEPS, FEW = 4, 16, 1024, 8, 1000
CHANGES = {
    "model": {"crosses": {"layers": 1, "rank": 4}, "deep": {"units": [16]}},
    "workers": {"divided_from_mb": 0.0},
}


def peaks(folder: Path, rows: int, workers: int) -> list[int]:
    """The peak of each worker, bytes."""
    size = Size(features=FEATURES, buckets=rows, width=WIDTH, batch=BATCH)
    log, run = folder / f"log-{rows}", folder / f"run-{rows}-{workers}"
    if not log.exists():
        make_log(log, STEPS * BATCH, size)
    config = write_config(folder / f"config-{rows}.yaml", CHANGES, BATCH)
    command = ["-m", "ctr", "train", log, "--config", config, "--out", run, "-q"]
    return [ended.peak_bytes for ended in run_python(command, workers, threads=1)]


def tables(folder: Path, rows: int, workers: tuple[int, ...]) -> dict[str, Any]:
    """The peaks with tables of so many rows, and what of it they cost."""
    results: dict[str, Any] = {}
    for number in workers:
        large, small = (peaks(folder, size, number) for size in (rows, FEW))
        cost = max(a - b for a, b in zip(large, small, strict=True))
        results[str(number)] = {"peak_mib": max(large) / 2**20, "of_tables_mib": cost / 2**20}
    # Weights of the width, a linear weight, and an accumulator of each.
    return {"tables_with_accumulators_mib": FEATURES * rows * (WIDTH + 1) * 4 * 2 / 2**20, "workers": results}


def maps(folder: Path, examples: int, workers: tuple[int, ...]) -> dict[str, Any]:
    """The most that a worker has of what ``map_worker.py`` finds."""
    size = Size(features=FEATURES, buckets=2**31 - 1, width=4, batch=BATCH, growing=True)
    log = make_log(folder / "log", examples, size)
    ids = {"capacity": max(examples // 64, 2), "admission": {"rule": "count", "count": 2}}
    config = write_config(folder / "config.yaml", CHANGES | {"ids": ids}, BATCH)
    results = {}
    for number in workers:
        command = [FOLDER / "studies/map_worker.py", log, config, folder / f"run-{number}"]
        ended = [process.result for process in run_python(command, number, threads=1)]
        results[str(number)] = {name: max(result[name] for result in ended) for name in ended[0]}
    return {"workers": results}


def measure(
    rows: int = 4_000_000, workers: tuple[int, ...] = (1, 2, 4), map: bool = False, examples: int = 100_000
) -> dict[str, Any]:
    """Tables or maps, by the number of workers, with shares of what the first number has."""
    with tempfile.TemporaryDirectory() as folder:
        results = maps(Path(folder), examples, workers) if map else tables(Path(folder), rows, workers)
    rows_of, base = results["workers"], next(iter(results["workers"].values()))
    shares = {
        number: {f"{name}_share": value / base[name] for name, value in row.items()}
        for number, row in rows_of.items()
    }
    return {**results, "workers": {number: row | shares[number] for number, row in rows_of.items()}}


if __name__ == "__main__":
    main(measure, {"rows": 2000, "workers": (1,)})
