"""Measures the time that checkpoints add to a pass, and how long training stops for them. The limit is bytes.

    python benchmarks/bench_checkpoints.py [--examples 2200000] [--every 1000000] [--rounds 3]

The reference model makes passes over a synthetic log: without a checkpoint before the end, with checkpoints written in
the background, and with checkpoints that training waits for. A pass is timed from its first batch to its last, which
excludes the start and the final checkpoint. The limit is measured, too: the bytes of a checkpoint copied in memory,
the only part that has to stop training, and written to a plain file and synced.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from reference import ADAGRAD, Size, make_log, reference_config
from runner import Numbers, compare, main, timed

from ctr.config import parse_model
from ctr.training.config import TrainConfig
from ctr.training.run.run import Run
from ctr.training.session import train

NEVER = 10**12


def timed_pass(log: Path, run: Path, content: Mapping[str, Any]) -> float:
    """Trains with the configuration ``content``; returns the seconds from the first batch to the last one."""
    times: list[float] = []
    train(
        log, parse_model(TrainConfig, content, "benchmark"), run, lambda *_: times.append(time.perf_counter())
    )
    return times[-1] - times[0]


def waiting(save: Callable[[Run], None]) -> Callable[[Run], None]:
    """Wraps ``Run.save`` so that it returns only when the checkpoint is on disk."""

    def wait(run: Run) -> None:
        save(run)
        run.background.wait()

    return wait


def write_plainly(content: np.ndarray, path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        file.write(content.data)
        os.fsync(file.fileno())


def measure(
    examples: int = 2_200_000, every: int = 1_000_000, rounds: int = 3, batch: int = 4096
) -> dict[str, Any]:
    """Runs the passes in turns, and the plain copy and write of the checkpoint's bytes."""
    sizes: list[int] = []
    numbers = count()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = make_log(folder / "log", examples, Size(batch=batch))
        content = reference_config({**ADAGRAD, "metrics": {"window_examples": 100_000}}, batch)

        def one_pass(frequency: int, save: Callable[[Run], None]) -> Numbers:
            run = folder / f"run-{next(numbers)}"
            with mock.patch.object(Run, "save", save):
                seconds = timed_pass(log, run, {**content, "checkpoint": {"every_examples": frequency}})
            sizes.append(max(path.stat().st_size for path in run.glob("checkpoints/*/arrays.npz")))
            shutil.rmtree(run)
            return {"seconds": seconds, "examples_per_second": (examples - batch) / seconds}

        passes = compare(
            {
                "none": partial(one_pass, NEVER, Run.save),
                "beside": partial(one_pass, every, Run.save),
                "waited for": partial(one_pass, every, waiting(Run.save)),
            },
            rounds,
            warm=0,
        )
        plain, target = np.ones(sizes[-1], np.uint8), np.zeros(sizes[-1], np.uint8)
        limits = {
            "plain copy": timed(lambda: np.copyto(target, plain))(),
            "plain write": timed(lambda: write_plainly(plain, folder / "plain"))(),
        }
    return {
        "checkpoints": (examples - 1) // every,
        "megabytes": round(sizes[-1] / 1e6),
        "passes": passes,
        "limits": limits,
    }


if __name__ == "__main__":
    main(measure, {"examples": 2000, "every": 900, "rounds": 1, "batch": 256})
