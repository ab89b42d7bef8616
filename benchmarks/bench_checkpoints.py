"""What checkpoints add to the time of a pass, and what of it training stands still for.

    python benchmarks/bench_checkpoints.py [--examples 2200000] [--every 1000000] [--rounds 3] [--json]

The reference model (26 features of 100,000 buckets and width 16, three crosses of rank 64, layers of 1024, 512 and
256, AdaGrad) makes passes over a made log: without a checkpoint before its end, with checkpoints that are written
beside it, and with checkpoints that it waits for. The three take turns; a pass is timed from its first batch to its
last one, so neither the start nor the checkpoint at the end counts. Beside them the limit: the bytes of a checkpoint
copied in memory, which is all that has to stop training, and written and synced by a plain file.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from reference import ADAGRAD, make_log, reference_config

from ctr.config import parse_model
from ctr.training.config import TrainConfig
from ctr.training.loop import train
from ctr.training.run.run import Run

CONFIG: dict[str, Any] = reference_config({**ADAGRAD, "metrics": {"window_examples": 100_000}})


def timed_pass(log: Path, run: Path, content: Mapping[str, Any]) -> tuple[float, int]:
    """Seconds from the first batch to the last one, and how many checkpoints were begun between.

    Args:
        content: of the configuration.
    """
    times: list[float] = []
    begun: list[int] = []
    save = Run.save

    def counted(run: Run) -> None:
        begun.append(len(times))
        save(run)

    config = parse_model(TrainConfig, content, "benchmark")
    with mock.patch.object(Run, "save", counted):
        train(log, config, run, lambda *_: times.append(time.perf_counter()))
    return times[-1] - times[0], sum(batches < len(times) for batches in begun)


def waiting(save: Callable[[Run], None]) -> Callable[[Run], None]:
    """A way to save that returns when the checkpoint is on the disk."""

    def wait(run: Run) -> None:
        save(run)
        run.files.background.wait()

    return wait


def plain_copy_and_write(folder: Path, size: int) -> tuple[float, float]:
    """Seconds to copy so many bytes in memory, and to write and sync them."""
    content, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    begun = time.perf_counter()
    np.copyto(target, content)
    copied = time.perf_counter() - begun
    begun = time.perf_counter()
    with (folder / "plain").open("wb", buffering=0) as file:
        file.write(content.data)
        os.fsync(file.fileno())
    written = time.perf_counter() - begun
    (folder / "plain").unlink()
    return copied, written


def measure(folder: Path, examples: int, every: int, rounds: int) -> dict[str, Any]:
    """Runs the passes in turns."""
    log = make_log(folder / "log", examples)
    seconds: dict[str, list[float]] = {"none": [], "beside": [], "waited for": []}
    checkpoints = size = 0
    for number in range(rounds):
        for arm in seconds:
            run = folder / f"{arm}-{number}"
            save = waiting(Run.save) if arm == "waited for" else Run.save
            with mock.patch.object(Run, "save", save):
                frequency = {"every_examples": 10**12 if arm == "none" else every}
                spent, begun = timed_pass(log, run, {**CONFIG, "checkpoint": frequency})
            seconds[arm].append(spent)
            checkpoints = max(checkpoints, begun)
            size = max(path.stat().st_size for path in run.glob("checkpoints/*/arrays.npz"))
            shutil.rmtree(run)
    copied, written = plain_copy_and_write(folder, size)
    none = statistics.median(seconds["none"])
    return {
        "examples": examples,
        "checkpoints": checkpoints,
        "megabytes": round(size / 1e6),
        "examples_per_second": round(examples / none),
        "added_percent": {arm: _added(times, seconds["none"]) for arm, times in seconds.items()},
        "seconds": {arm: [round(one, 2) for one in times] for arm, times in seconds.items()},
        "plain_copy_seconds": round(copied, 3),
        "plain_write_seconds": round(written, 3),
    }


def _added(times: list[float], base: list[float]) -> float:
    """Percent, as the median over the rounds."""
    ratios = [one / other for one, other in zip(times, base, strict=True)]
    return round(100 * (statistics.median(ratios) - 1), 2)


def main() -> None:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--examples", type=int, default=2_200_000)
    parser.add_argument("--every", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), arguments.examples, arguments.every, arguments.rounds)
    if arguments.json:
        print(json.dumps(result, indent=1))
        return
    for name, value in result.items():
        print(f"{name:22} {value}")


if __name__ == "__main__":
    main()
