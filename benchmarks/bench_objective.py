"""What each technique of the objective adds to a training step, in percent.

    python benchmarks/bench_objective.py [--batch 4096] [--rounds 12] [--json]

The reference model (DCNv2, three crosses of rank 64, layers of 1024, 512 and 256) on a simulated log, at a batch of
4096 rows. Models with and without a technique take turns on the same batches in one process; a ratio is the median
over the rounds, with its quartiles. Beside the step, the time to make a batch's arrays, which another thread spends
while the step runs: it costs nothing as long as it is the shorter of the two.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from own import by_turns
from reference import reference_config

from ctr.config import parse_model
from ctr.data.batches import whole_query_batches
from ctr.data.log import read_manifests, read_schema
from ctr.data.sample_log import write_decisions
from ctr.data.sampling import SamplingConfig
from ctr.data.sidecar import read_sidecar_partition, write_sidecar_partition
from ctr.data.stream import read_selection
from ctr.experiments.config import merged
from ctr.simulator.config import SimulatorConfig
from ctr.simulator.simulate import TRUTH, simulate
from ctr.training.compiled_step import TrainStep
from ctr.training.config import TrainConfig
from ctr.training.device import make_deterministic, resolve_compute_dtype
from ctr.training.feed import Feed, make_feed
from ctr.training.inputs import Inputs, open_inputs, selection_of
from ctr.training.state import TrainState

FEEDS = 12
FAMILIES = [
    {"name": "ctr", "estimated_ctr": [0.01, 0.02, 0.04, 0.08, 0.16, 0.32]},
    {"name": "low", "estimated_ctr": [0.15], "features": {"position": [4, 5, 6]}},
]
VARIANTS: dict[str, dict[str, Any]] = {
    "logistic": {},
    "ranking": {"objective": {"ranking": {}}},
    "ranking, multi-task": {"objective": {"ranking": {"setup": "multi_task"}}},
    "distillation": {"objective": {"distillation": {"teacher": "teacher"}}},
    "bias constraints": {"objective": {"bias_constraints": {"families": FAMILIES}}},
    "ranking, distillation, constraints": {
        "objective": {
            "ranking": {},
            "distillation": {"teacher": "teacher"},
            "bias_constraints": {"families": FAMILIES},
        }
    },
    "sampling, score all": {"sampling": {"name": "sample"}},
    "clipping": {"optimizer": {"dense": {"clip_norm": 1.0}}},
    "limited updates": {"optimizer": {"dense": {"shampoo": {"limits": {"relative": 0.1, "absolute": 0.01}}}}},
    "everything": {
        "objective": {
            "ranking": {"setup": "multi_task"},
            "distillation": {"teacher": "teacher"},
            "bias_constraints": {"families": FAMILIES},
        },
        "sampling": {"name": "sample"},
        "optimizer": {"dense": {"clip_norm": 1.0}},
    },
}


def make_log(folder: Path, rows: int) -> Path:
    """A simulated log with a teacher, which is the truth, and a sample."""
    simulate(SimulatorConfig(examples=rows), folder)
    for manifest in read_manifests(folder):
        truth = read_sidecar_partition(folder, TRUTH, manifest)
        probability = truth.column("probability").to_numpy()
        logit = np.log(probability / (1 - probability)).astype(np.float32)
        table = pa.table({"example_id": truth.column("example_id"), "logit": logit})
        write_sidecar_partition(folder, "teacher", manifest, table)
    write_decisions(folder, "sample", parse_model(SamplingConfig, {"non_click_rate": 0.3}, "benchmark"))
    return folder


def make_feeds(inputs: Inputs, state: TrainState) -> tuple[list[Feed], float]:
    """The first batches, and the seconds that each of them took to make, without reading."""
    batch = inputs.config.batch
    log = inputs.log
    blocks = read_selection(log.path, inputs.schema, log.manifests, selection_of(inputs))
    batches = []
    for one in whole_query_batches(blocks, batch.rows, batch.max_query_rows):
        batches.append(one)
        if len(batches) == FEEDS:
            break
    begun = time.perf_counter()
    feeds = [
        make_feed(one, state.layouts, batch.rows, inputs.config.objective, inputs.families) for one in batches
    ]
    return feeds, (time.perf_counter() - begun) / FEEDS


def measure(
    log: Path,
    batch: int,
    rounds: int,
    variants: Sequence[str] = tuple(VARIANTS),
    common: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, dict[str, float]]:
    """Milliseconds and ratios of variants, ``logistic`` among them; ``common`` is the configuration of all."""
    steps, feeds, made, numbers = {}, {}, {}, {}
    for name in variants:
        content = reference_config(merged(common, VARIANTS[name]), batch)
        config = parse_model(TrainConfig, content, "benchmark")
        make_deterministic(config.seed)
        inputs = open_inputs(log, config)
        layouts = config.table_layouts(read_schema(log))
        state = TrainState(layouts, config, resolve_compute_dtype(config), inputs.families)
        steps[name] = TrainStep(state, config, jit=False).learn
        feeds[name], made[name] = make_feeds(inputs, state)
        numbers[name] = config.ramps_at(10**9), config.rates_at(10**9)

    def turn(name: str) -> float:
        begun = time.perf_counter()
        for feed in feeds[name]:
            steps[name](feed, *numbers[name]).logit.numpy()
        return (time.perf_counter() - begun) / FEEDS

    times = by_turns({name: partial(turn, name) for name in variants}, "logistic", rounds)
    return {name: row | {"feed_ms": 1000 * made[name]} for name, row in times.items()}


def report(results: Mapping[str, Mapping[str, float]]) -> str:
    """The table."""
    lines = [
        "| technique | ms a step | more than logistic (quartiles) | ms of the reading thread |",
        "|---|---|---|---|",
    ]
    for name, row in results.items():
        extra = [100 * (row[key] - 1) for key in ("ratio", "ratio_q25", "ratio_q75")]
        more = f"{extra[0]:+.1f}% ({extra[1]:+.1f}, {extra[2]:+.1f})" if name != "logistic" else ""
        lines.append(f"| {name} | {row['step_ms']:.1f} | {more} | {row['feed_ms']:.1f} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=4096, help="rows of a batch")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each variant")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        log = make_log(Path(folder) / "log", (FEEDS + 1) * arguments.batch)
        results = measure(log, arguments.batch, arguments.rounds)
    print(json.dumps(results, indent=1) if arguments.json else report(results))


if __name__ == "__main__":
    main()
