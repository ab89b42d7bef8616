"""What tables cost each worker in memory: the peak of each process, with large tables and with hardly any.

    python benchmarks/bench_workers_memory.py [--rows 4000000] [--workers 1 2 4] [--json]

All arms are `ctr train` over the same rows. What tables cost is the peak with them less that with tables of a few rows.
It has two parts: the table with its accumulators, and the copy of both that a checkpoint writes.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parts.gang import run_workers
from reference import ADAGRAD, Size, make_log, reference_config, table

from ctr.config import dump_yaml, parse_model
from ctr.training.config import TrainConfig

FEATURES, WIDTH, BATCH, STEPS = 4, 16, 1024, 8
FEW = 1000
MODEL = {"crosses": {"layers": 1, "rank": 4}, "deep": {"units": [16]}}


def peaks(folder: Path, rows: int, workers: int) -> list[int]:
    """The peak of each worker, bytes."""
    log = folder / f"log-{rows}"
    if not log.exists():
        make_log(log, STEPS * BATCH, Size(features=FEATURES, buckets=rows, width=WIDTH, batch=BATCH))
    changes = {**ADAGRAD, "model": MODEL, "workers": {"divided_from_mb": 0.0}, "record_predictions": False}
    config = folder / f"config-{rows}.yaml"
    config.write_text(dump_yaml(parse_model(TrainConfig, reference_config(changes, BATCH), "benchmark")))
    run = folder / f"run-{rows}-{workers}"
    command = ["-m", "ctr", "train", str(log), "--config", str(config), "--out", str(run), "-q"]
    return [ended.peak_bytes for ended in run_workers(command, workers)]


def measure(rows: int, workers: Sequence[int]) -> dict[str, Any]:
    """Peaks with tables of ``rows`` rows and of a few, by the number of workers."""
    with tempfile.TemporaryDirectory() as folder:
        found = {
            str(size): {"large": peaks(Path(folder), rows, size), "small": peaks(Path(folder), FEW, size)}
            for size in workers
        }
    # Weights of the width, a linear weight, and an accumulator of each.
    return {"rows": rows, "table_bytes": FEATURES * rows * (WIDTH + 1) * 4 * 2, "peaks": found}


def report(found: Mapping[str, Any]) -> str:
    """The table."""
    rows = []
    costs = {
        size: max(a - b for a, b in zip(one["large"], one["small"], strict=True))
        for size, one in found["peaks"].items()
    }
    base = costs.get("1")
    for size, one in found["peaks"].items():
        share = "" if base is None else f"{costs[size] / base:.1%}"
        rows.append([size, f"{max(one['large']) / 2**20:,.0f}", f"{costs[size] / 2**20:,.0f}", share])
    head = ["workers", "peak of a worker, MiB", "of it for tables", "of one process"]
    return f"tables with accumulators: {found['table_bytes'] / 2**20:,.0f} MiB\n\n{table(head, rows)}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=4_000_000, help=f"of each of {FEATURES} tables")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--json", action="store_true", help="print all numbers")
    arguments = parser.parse_args(argv)
    found = measure(arguments.rows, arguments.workers)
    print(json.dumps(found, indent=1) if arguments.json else report(found))


if __name__ == "__main__":
    main()
