"""What tables cost each worker in memory: the peak of each process, with large tables and with hardly any.

    python benchmarks/bench_workers_memory.py [--rows 4000000] [--workers 1 2 4] [--json]
    python benchmarks/bench_workers_memory.py --map [--examples 100000] [--workers 1 2 4] [--json]

All arms are `ctr train` over the same rows. What tables cost is the peak with them less that with tables of a few rows.
It has two parts: the table with its accumulators, and the copy of both that a checkpoint writes.

With --map, instead: what the map of growing ids takes in each worker at the end of a pass, with admission at the second
occurrence and capacities so small that ids are evicted. These are bytes of arrays, not peaks.
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


def maps(folder: Path, examples: int, workers: Sequence[int]) -> dict[str, list[dict[str, int]]]:
    """What ``parts/map_worker.py`` prints, by the number of workers, of each worker."""
    size = Size(features=FEATURES, buckets=2**31 - 1, width=4, batch=BATCH, growing=True)
    log = make_log(folder / "log", examples, size)
    ids = {"capacity": examples // 64, "admission": {"rule": "count", "count": 2}}
    changes = {**ADAGRAD, "model": MODEL, "workers": {"divided_from_mb": 0.0}, "record_predictions": False}
    config = folder / "config.yaml"
    content = reference_config({**changes, "ids": ids}, BATCH)
    config.write_text(dump_yaml(parse_model(TrainConfig, content, "benchmark")))
    script = Path(__file__).parent / "parts" / "map_worker.py"
    found = {}
    for number in workers:
        ended = run_workers([str(script), str(log), str(config), str(folder / f"run-{number}")], number)
        found[str(number)] = [json.loads(one.output.partition("RESULT ")[2]) for one in ended]
    return found


def report_maps(found: Mapping[str, Sequence[Mapping[str, int]]]) -> str:
    """The table."""
    rows = []
    for size, own in found.items():
        most = {name: max(one[name] for one in own) for name in own[0]}
        shares = [f"{most[name] / found['1'][0][name]:.1%}" if "1" in found else "" for name in most]
        rows.append([size, *(f"{most[name]:,} ({share})" for name, share in zip(most, shares, strict=True))])
    return table(
        ["workers", "ids with a slot that a worker keeps", "entries of its arrays", "their bytes"], rows
    )


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
    parser.add_argument("--map", action="store_true", help="measure the map of growing ids")
    parser.add_argument("--examples", type=int, default=100_000, help="rows of the log, with --map")
    arguments = parser.parse_args(argv)
    if arguments.map:
        with tempfile.TemporaryDirectory() as folder:
            of_maps = maps(Path(folder), arguments.examples, arguments.workers)
        print(json.dumps(of_maps, indent=1) if arguments.json else report_maps(of_maps))
        return
    found = measure(arguments.rows, arguments.workers)
    print(json.dumps(found, indent=1) if arguments.json else report(found))


if __name__ == "__main__":
    main()
