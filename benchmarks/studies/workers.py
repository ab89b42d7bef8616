"""Compares two workers of one thread with one process of two threads: examples per second of the reference model.

    python benchmarks/study.py workers [--batches 4096 16384] [--workers 2] [--steps 24] [--rounds 3]

All arms are `ctr train` over the same log, with the same total number of threads, and take turns. Each reports the
speed of every window of four steps; the first windows, in which functions are compiled and memory is touched, do not
count. Then some steps of the workers are traced: their exchanges, by kind, in bytes and milliseconds, are the limit.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ctr_model import benchmark_config
from processes import FOLDER, run_command, run_python
from reference import ADAGRAD, Size, make_log
from runner import Numbers, compare, main

from ctr.config import dump_yaml

WINDOW = 4
FIRST = 2
"""Number of first windows that do not count."""
DIVIDED = ("--set", "workers.divided_from_mb=0")


def write_config(path: Path, changes: Mapping[str, Any], batch: int) -> Path:
    path.write_text(dump_yaml(benchmark_config({**ADAGRAD, "record_predictions": False, **changes}, batch)))
    return path


def pass_speed(log: Path, config: Path, run: Path, workers: int, threads: int, *sets: str) -> Numbers:
    """Runs ``ctr train``; returns the examples per second, the median over windows without the first ones.

    ``threads`` is the number of threads of each worker, ``sets`` are further arguments of the command.
    """
    shutil.rmtree(run, ignore_errors=True)
    several = ["--workers", workers] if workers > 1 else []
    run_command("train", log, "--config", config, "--out", run, "-q", *several, *sets, threads=threads)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    # The last window of a pass may be incomplete, and then has no speed.
    speeds = [line["examples_per_second"] for line in lines[FIRST:] if "examples_per_second" in line]
    return {"examples_per_second": float(np.median(speeds))}


def of_batch(
    batch: int, workers: int, steps: int, rounds: int, compute_dtype: str, folder: Path
) -> dict[str, Any]:
    """Compares all arms at one batch size, and traces the exchanges with all tables divided."""
    log = make_log(folder / "log", steps * batch, Size(batch=batch))
    changes = {"metrics": {"window_examples": WINDOW * batch}, "compute_dtype": compute_dtype}
    speed = partial(pass_speed, log, write_config(folder / "config.yaml", changes, batch), folder / "run")
    arms = {
        "one process": partial(speed, 1, workers),
        "workers": partial(speed, workers, 1),
        "workers, tables divided": partial(speed, workers, 1, *DIVIDED),
    }
    passes = compare(arms, rounds, warm=0)
    divided = write_config(folder / "divided.yaml", changes | {"workers": {"divided_from_mb": 0.0}}, batch)
    script = FOLDER / "studies/traced_worker.py"
    traced = run_python([script, log, divided, folder / "traced"], workers, threads=1)[0].result
    return {
        "passes": passes,
        "exchanges, tables divided": traced["kinds"],
        "traced_step_ms": traced["step_ms"],
    }


def measure(
    batches: tuple[int, ...] = (4096, 16384),
    workers: int = 2,
    steps: int = 24,
    rounds: int = 3,
    compute_dtype: str = "auto",
) -> dict[str, Any]:
    """Compares the arms at each batch size."""
    results = {}
    for batch in batches:
        with tempfile.TemporaryDirectory() as folder:
            results[f"batch {batch}"] = of_batch(batch, workers, steps, rounds, compute_dtype, Path(folder))
    return results


if __name__ == "__main__":
    main(measure, {"batches": (64,), "rounds": 1})
