"""Measures the cost of small batches: a pass with many batches in one compiled call, and with a call for each.

    python benchmarks/bench_small_batches.py [--rows 100000] [--batch 64] [--rounds 3]

Trains on a reference log of 18 features with growing ids, with the default configuration except for ``batch`` and the
experts: without pairs and, in the third arm, with pairs. All arms pass over the same log in one process, in turns; only
``wall_seconds`` includes compilation and start. ``step_ms`` is a batch's share of the training calls, with ids and
copies.
"""

import tempfile
from pathlib import Path
from typing import Any

from reference import Size, make_log
from runner import compare, main

from ctr.config import parse_model
from ctr.training.config import TrainConfig
from ctr.training.session import train

FUSED = 64
SIZE = Size(features=18, buckets=10_000, growing=True)


def measure(rows: int = 100_000, batch: int = 64, rounds: int = 3) -> dict[str, Any]:
    """Compares passes with one batch a call, with ``FUSED`` batches a call, and with these and a pairs expert."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = make_log(folder / "log", rows, SIZE)

        def arm(steps: int, *others: str) -> dict[str, float]:
            model = {"experts": ["linear", "network", *others]}
            content = {"batch": {"rows": batch, "steps_per_execution": steps}, "model": model}
            config = parse_model(TrainConfig, content, "benchmark")
            with tempfile.TemporaryDirectory(dir=folder) as run:
                summary = train(log, config, Path(run) / "run")
            return {
                "wall_seconds": summary["wall_seconds"],
                "step_ms": summary["step_ms_p50"],
                "examples_per_second": summary["wall_examples_per_second"],
            }

        arms = {
            "a call each": lambda: arm(1),
            f"{FUSED} in a call": lambda: arm(FUSED),
            "and pairs": lambda: arm(FUSED, "pairs"),
        }
        return compare(arms, rounds, warm=0)


if __name__ == "__main__":
    main(measure, {"rows": 6_000, "rounds": 1})
