"""What bottlenecks in the deep layers save of a training step (FF 3.1).

    python benchmarks/bench_bottleneck.py [--ranks 128,128,0 ...] [--batch 4096] [--rounds 12] [--json]

The reference model: 26 features of 100,000 buckets and width 16, three crosses of rank 64, layers of 1024, 512 and
256; ids by Zipf's law. Models with and without bottlenecks take turns on the same batches in one process, in float32
and in bfloat16, their dense weights learned by AdaGrad or by Shampoo; a ratio is the median over the rounds, with its
quartiles. FLOPs are those of the products of the dense weights, 6 for each weight and row: forward, and backward to
inputs and weights.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from own import by_turns
from reference import REFERENCE, reference_batches, reference_config, reference_schema

from ctr.config import parse_model
from ctr.training.analysis.speed import TimedModel
from ctr.training.config import TrainConfig

BATCHES = 10
"""Batches of a turn, as many as the steps from one collection of Shampoo's statistics to the next."""
RANKS = ((256, 256, 0), (128, 128, 0), (64, 64, 0), (0, 128, 0), (128, 128, 64))
"""For each layer the rank of its bottleneck, 0 for none."""
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adagrad": {"start_preconditioning_step": None, "momentum": 0, "nesterov": False},
    # As it is after the first few hundred steps, in which training waits for more frequent roots.
    "shampoo": {"roots": {"early_growth": 0}},
}
PLAIN = "none"


def title(ranks: Sequence[int]) -> str:
    """How a setting is called."""
    return ",".join(map(str, ranks)) if any(ranks) else PLAIN


def measure_steps(
    compute_dtype: str, optimizer: str, settings: Sequence[Sequence[int]], batch: int, rounds: int
) -> dict[str, dict[str, float]]:
    """Milliseconds, ratios and FLOPs of a step of the model without bottlenecks and of each setting."""
    size = replace(REFERENCE, batch=batch, feeds=BATCHES)
    schema, batches = reference_schema(size), reference_batches(size)
    models = {}
    for ranks in ((), *settings):
        changes = {
            "compute_dtype": compute_dtype,
            "model": {"deep": {"ranks": ranks}},
            "optimizer": {"dense": {"shampoo": OPTIMIZERS[optimizer]}},
        }
        content = reference_config(changes, batch)
        models[title(ranks)] = TimedModel(parse_model(TrainConfig, content, "benchmark"), schema, batches)
    times = by_turns({name: model.seconds for name, model in models.items()}, PLAIN, rounds)
    matrices = {
        name: sum(int(np.prod(weight.shape)) for weight in model.state.dense if len(weight.shape) == 2)
        for name, model in models.items()
    }
    return {name: row | {"gigaflops": 6e-9 * matrices[name] * batch} for name, row in times.items()}


def steps_report(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """The table."""
    lines = [
        "| dense weights | ranks | GFLOP a step | ms a step | less than without (quartiles) |",
        "|---|---|---|---|---|",
    ]
    for group, rows in results.items():
        for name, row in rows.items():
            less = [100 * (1 - row[key]) for key in ("ratio", "ratio_q75", "ratio_q25")]
            told = "" if name == PLAIN else f"{less[0]:.1f}% ({less[1]:.1f}, {less[2]:.1f})"
            lines.append(f"| {group} | {name} | {row['gigaflops']:.1f} | {row['step_ms']:.1f} | {told} |")
    return "\n".join(lines)


def _ranks(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--ranks", nargs="+", type=_ranks, default=RANKS, metavar="R,R,R", help="settings to try, 0: none"
    )
    parser.add_argument("--batch", type=int, default=4096, help="rows of a batch")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each model")
    parser.add_argument(
        "--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"]
    )
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    results = {
        f"{compute_dtype}, {optimizer}": measure_steps(
            compute_dtype, optimizer, arguments.ranks, arguments.batch, arguments.rounds
        )
        for compute_dtype in arguments.dtypes
        for optimizer in arguments.optimizers
    }
    print(json.dumps(results, indent=1) if arguments.json else steps_report(results))


if __name__ == "__main__":
    main()
