"""What checkpoints add to the time of a pass, and what of it training stands still for. Its limit: bytes.

    python benchmarks/bench_checkpoints.py [--examples 2200000] [--every 1000000] [--rounds 3]

The reference model makes passes over a made log: without a checkpoint before its end, with checkpoints that are written
beside it, and with checkpoints that it waits for. A pass is timed from its first batch to its last one, so neither the
start nor the checkpoint at the end counts. Beside them the limit: the bytes of a checkpoint copied in memory, which is
all that has to stop training, and written and synced by a plain file.
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
    """Seconds from the first batch to the last one.

    Args:
        content: of the configuration.
    """
    times: list[float] = []
    train(
        log, parse_model(TrainConfig, content, "benchmark"), run, lambda *_: times.append(time.perf_counter())
    )
    return times[-1] - times[0]


def waiting(save: Callable[[Run], None]) -> Callable[[Run], None]:
    """A way to save that returns when the checkpoint is on the disk."""

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
    """Runs the passes in turns."""
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
