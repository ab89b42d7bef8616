"""Two workers of one thread each against one process of two threads, on the reference model: examples a second.

    python benchmarks/bench_workers.py [--batches 4096 16384] [--workers 2] [--steps 24] [--rounds 3] [--json]

Both arms are `ctr train` over the same log, with as many threads in all, and take turns. Each reports the speed of
every window of four steps; the first windows, in which functions are compiled and memory is touched, do not count.
After them some steps of the workers are traced: what they exchange, by kind, in bytes and milliseconds.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from parts.gang import run_workers
from reference import ADAGRAD, Size, make_log, reference_config, table

from ctr.config import dump_yaml, parse_model
from ctr.training.config import TrainConfig

WINDOW = 4
FIRST = 2
"""Windows that do not count."""


def examples_per_second(
    log: Path, config: Path, run: Path, workers: int, threads: int, divided_from_mb: float | None
) -> list[float]:
    """The speed of each window of a pass but the first ones.

    Args:
        threads: of each worker.
        divided_from_mb: from which size on tables are divided; None: the default.
    """
    shutil.rmtree(run, ignore_errors=True)
    count = {name: str(threads) for name in ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")}
    command = [
        sys.executable,
        "-m",
        "ctr",
        "train",
        str(log),
        "--config",
        str(config),
        "--out",
        str(run),
        "-q",
    ]
    command += ["--workers", str(workers)] if workers > 1 else []
    command += [] if divided_from_mb is None else ["--set", f"workers.divided_from_mb={divided_from_mb}"]
    done = subprocess.run(command, env={**os.environ, **count}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()[-2000:]}")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    # The end of a pass may be a part of a window, which has no speed.
    return [line["examples_per_second"] for line in lines[FIRST:] if "examples_per_second" in line]


def measure(batch: int, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All arms at one size of the batch, one after the other in each round."""
    log = make_log(folder / "log", arguments.steps * batch, Size(batch=batch))
    changes = {
        **ADAGRAD,
        "metrics": {"window_examples": WINDOW * batch},
        "record_predictions": False,
        "compute_dtype": arguments.compute_dtype,
    }
    config = folder / "config.yaml"
    config.write_text(dump_yaml(parse_model(TrainConfig, reference_config(changes, batch), "benchmark")))
    count = arguments.workers
    arms = {
        "one process": (1, count, None),
        "workers": (count, 1, None),
        "workers, tables divided": (count, 1, 0.0),
    }
    speeds: dict[str, list[float]] = {name: [] for name in arms}
    ratios: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(arguments.rounds):
        turn = {
            name: float(np.median(examples_per_second(log, config, folder / "run", *arm)))
            for name, arm in arms.items()
        }
        for name, speed in turn.items():
            speeds[name].append(speed)
            ratios[name].append(speed / turn["one process"])
    divided = folder / "divided.yaml"
    own = reference_config({**changes, "workers": {"divided_from_mb": 0.0}}, batch)
    divided.write_text(dump_yaml(parse_model(TrainConfig, own, "benchmark")))
    return {
        "batch": batch,
        "exchanges": exchanges(log, divided, folder / "run", count),
        "examples_per_second": {name: float(np.median(own)) for name, own in speeds.items()},
        "of_one_process": {name: [float(one) for one in own] for name, own in ratios.items()},
    }


def exchanges(log: Path, config: Path, run: Path, workers: int) -> dict[str, Any]:
    """What the first of some workers, which divide the tables, exchanges in a step (``parts.traced_worker``)."""
    shutil.rmtree(run, ignore_errors=True)
    script = Path(__file__).parent / "parts/traced_worker.py"
    first = run_workers([str(script), str(log), str(config), str(run)], workers)[0]
    traced: dict[str, Any] = json.loads(first.output.partition("RESULT ")[2])
    return traced


def report(found: Sequence[Mapping[str, Any]], workers: int) -> str:
    """The table: the medians over rounds, and the range of the ratios."""
    rows = []
    for one in found:
        for name, speed in one["examples_per_second"].items():
            ratios = one["of_one_process"][name]
            shown = f"{np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            label = (
                f"{name}, {workers} threads"
                if name == "one process"
                else f"{workers} {name}, one thread each"
            )
            rows.append([one["batch"], label, f"{speed:,.0f}", shown])
    shown = [table(["batch", "", "examples/s", "of one process"], rows)]
    for one in found:
        step, kinds = one["exchanges"]["step_ms"], one["exchanges"]["kinds"]
        lines = [
            [kind, f"{own['bytes'] / 1e6:.3f}", f"{own['ms']:.1f}", f"{own['ms'] / step:.1%}"]
            for kind, own in kinds.items()
        ]
        title = f"batch {one['batch']}: exchange, tables divided"
        shown.append(table([title, "MB a step", "ms", f"of {step:.0f} ms, traced"], lines))
    return "\n\n".join(shown)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=24, help="of each pass")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compute-dtype", default="auto")
    parser.add_argument("--json", action="store_true", help="print all numbers")
    arguments = parser.parse_args(argv)
    found = []
    for batch in arguments.batches:
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(batch, arguments, Path(folder)))
    print(json.dumps(found, indent=1) if arguments.json else report(found, arguments.workers))


if __name__ == "__main__":
    main()
