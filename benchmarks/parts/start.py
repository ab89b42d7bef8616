"""Measures the time of short commands, each a process, and of the first step, and the memory of a process."""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from parts.setting import Setting
from processes import FOLDER, run_command, run_python
from reference import Size
from runner import Arm, Numbers, compare

TIMES = 5
EXAMPLES = 20_000
TABLE_ROWS = 10_000
FIRST_BATCH = "the step that learns: first run"
"""Text that ``ctr train -v`` logs after training on its first batch."""
POINTS = {
    "libraries": "resident with all libraries",
    "with_state": "with tables, accumulators and weights",
    "after_steps": "after the first steps",
    "after_checkpoint_copy": "with the copies that a checkpoint is written from",
    "bytes_rows": "of it: tables",
    "bytes_rows_accumulator": "of it: accumulators of tables",
    "bytes_dense": "of it: dense weights",
    "bytes_shampoo": "of it: optimizer of dense weights",
    "bytes_checkpoint_copy": "of it: copies for checkpoints",
}


@cache
def fresh_process(size: Size) -> dict[str, float]:
    """Returns the measurements of ``parts/fresh.py``, run once for each size."""
    return run_python([FOLDER / "parts/fresh.py", json.dumps(asdict(size))])[0].result


def start(setting: Setting) -> dict[str, Any]:
    """Times commands in turns; the first round, which reads files from disk, does not count."""
    # Otherwise loops compiled by earlier runs would be loaded.
    os.environ["CTR_CACHE"] = ""
    with tempfile.TemporaryDirectory() as name:
        commands = compare(_commands(Path(name)), 1 if setting.quick else TIMES)
    fresh = fresh_process(setting.size)
    names = ("import_seconds", "state_seconds", "first_step_seconds")
    return {"commands": commands, **{name: fresh[name] for name in names}}


def quickstart(setting: Setting) -> dict[str, Any]:
    """Times ``ctr quickstart`` of a table: the first time, and again with the cached compiled loops."""
    rows = 500 if setting.quick else TABLE_ROWS
    rng = np.random.default_rng(0)
    columns = {name: rng.zipf(1.3, rows) % 500 for name in ("user", "item", "device")}
    label = rng.random(rows) < 0.2 + 0.1 * np.sin(columns["item"])
    with tempfile.TemporaryDirectory() as name:
        folder, numbers = Path(name), count()
        table = pd.DataFrame({**columns, "price": rng.lognormal(3, 1, rows), "click": label.astype(int)})
        table.to_csv(folder / "table.csv", index=False)

        def run(cache: str | None) -> Numbers:
            out = f"out-{next(numbers)}"
            os.environ["CTR_CACHE"] = str(folder / (cache or f"{out}-cache"))
            ended = run_command(
                "quickstart", "table.csv", "--label", "click", "--out", out, "--json", cwd=folder
            )
            summary = json.loads(ended.output)["summary"]
            return {
                "seconds": ended.seconds,
                "processor_seconds": ended.processor_seconds,
                "train_seconds": summary["wall_seconds"],
                "steps_seconds": rows / summary["examples_per_second"],
            }

        # The warm-up round compiles the loops that the second arm loads.
        arms = {"first": partial(run, None), "again": partial(run, "cache")}
        return compare(arms, 1 if setting.quick else TIMES)


def memory(setting: Setting) -> dict[str, Any]:
    """Returns the resident megabytes of a fresh process at several points, and the sizes of its arrays."""
    measured = fresh_process(setting.size)
    return {title: 1e-6 * measured[name] for name, title in POINTS.items()}


def _commands(folder: Path) -> dict[str, Arm]:
    """Makes a small log, a finished run, its exported model and a log of one row; returns the commands to measure."""
    run_command("simulate", "--examples", EXAMPLES, "--out", "log", cwd=folder)
    run_command("train", "log", "--out", "run", cwd=folder)
    run_command("export", "run", "--out", "models", cwd=folder)
    run_command("simulate", "--examples", "1", "--out", "row", cwd=folder)

    def whole(*arguments: str) -> Numbers:
        ended = run_command(*arguments, cwd=folder)
        return {"seconds": ended.seconds, "processor_seconds": ended.processor_seconds}

    return {
        "help": partial(whole, "--help"),
        "finished_run": partial(whole, "train", "log", "--out", "run"),
        "one_row": partial(whole, "score", "models", "row", "--out", "scores.parquet"),
        "first_batch": partial(_first_batch, folder, count()),
    }


def _first_batch(folder: Path, numbers: "count[int]") -> Numbers:
    """Times ``ctr train`` of a new run until it has learned from its first batch."""
    command = [sys.executable, "-m", "ctr", "train", "-v", "log", "--out", f"fresh-{next(numbers)}"]
    begun = time.perf_counter()
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        has_learned = any(FIRST_BATCH in line for line in process.stderr)
        seconds = time.perf_counter() - begun
        process.kill()
    if not has_learned:
        raise RuntimeError(f"{' '.join(command)} did not say {FIRST_BATCH!r}")
    return {"seconds": seconds}
