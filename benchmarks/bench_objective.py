"""Measures what each technique of the objective adds to a training step. The limit is the FLOPs of the plain step.

    python benchmarks/bench_objective.py [--batch 4096] [--rounds 12]

The reference model is trained on a simulated log. Models with and without a technique take turns on the same batches
in one process. ``feed_ms`` is the time to make a batch's arrays, which another thread spends while the step runs: it
costs nothing as long as it is shorter than the step.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from ctr_model import Model, benchmark_config, make_model
from reference import REFERENCE
from runner import compare, main

from ctr.config import parse_model
from ctr.data.batches import whole_query_batches
from ctr.data.log import read_manifests
from ctr.data.sample_log import write_decisions
from ctr.data.sampling import SamplingConfig
from ctr.data.sidecar import read_sidecar_partition, write_sidecar_partition
from ctr.data.stream import read_selection
from ctr.experiments.config import merged
from ctr.simulator.config import SimulatorConfig
from ctr.simulator.simulate import TRUTH, simulate
from ctr.training.inputs import open_inputs, selection_of

FEEDS = 12
FAMILIES = [
    {"name": "ctr", "estimated_ctr": [0.01, 0.02, 0.04, 0.08, 0.16, 0.32]},
    {"name": "low", "estimated_ctr": [0.15], "features": {"position": [4, 5, 6]}},
]
RANKING: dict[str, Any] = {"ranking": {}}
TWO_HEADS = {"ranking": {"setup": "multi_task"}}
DISTILLATION = {"distillation": {"teacher": "teacher"}}
CONSTRAINTS = {"bias_constraints": {"families": FAMILIES}}
SAMPLING = {"sampling": {"name": "sample"}}
CLIPPING = {"optimizer": {"dense": {"clip_norm": 1.0}}}
VARIANTS: dict[str, dict[str, Any]] = {
    "logistic": {},
    "ranking": {"objective": RANKING},
    "ranking, multi-task": {"objective": TWO_HEADS},
    "distillation": {"objective": DISTILLATION},
    "bias constraints": {"objective": CONSTRAINTS},
    "ranking, distillation, constraints": {"objective": RANKING | DISTILLATION | CONSTRAINTS},
    "sampling, score all": SAMPLING,
    "clipping": CLIPPING,
    "limited updates": {"optimizer": {"dense": {"shampoo": {"limits": {"relative": 0.1, "absolute": 0.01}}}}},
    "everything": {"objective": TWO_HEADS | DISTILLATION | CONSTRAINTS, **SAMPLING, **CLIPPING},
}


def make_log(folder: Path, rows: int) -> Path:
    """Simulates a log with a teacher, whose logits are the true ones, and sampling decisions; returns its folder."""
    simulate(SimulatorConfig(examples=rows), folder)
    for manifest in read_manifests(folder):
        truth = read_sidecar_partition(folder, TRUTH, manifest)
        probability = truth.column("probability").to_numpy()
        logit = np.log(probability / (1 - probability)).astype(np.float32)
        table = pa.table({"example_id": truth.column("example_id"), "logit": logit})
        write_sidecar_partition(folder, "teacher", manifest, table)
    write_decisions(folder, "sample", parse_model(SamplingConfig, {"non_click_rate": 0.3}, "benchmark"))
    return folder


def model_on_log(log: Path, batch: int, changes: Mapping[str, Any]) -> Model:
    """Returns a model with feeds from the first batches of a log."""
    inputs = open_inputs(log, benchmark_config(changes, batch))
    blocks = read_selection(log, inputs.schema, inputs.log.manifests, selection_of(inputs))
    cut = whole_query_batches(blocks, batch, inputs.config.batch.max_query_rows)
    size = replace(REFERENCE, batch=batch)
    return make_model(size, changes, list(islice(cut, FEEDS)), inputs.schema, inputs.families)


def steps(
    log: Path,
    batch: int,
    rounds: int,
    variants: Sequence[str] = tuple(VARIANTS),
    common: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, dict[str, Any]]:
    """Compares the steps of variants with the first one, ``logistic``; all have the configuration ``common``."""
    models = {name: model_on_log(log, batch, merged(common, VARIANTS[name])) for name in variants}
    results = compare({name: model.turn for name, model in models.items()}, rounds)
    return {name: row | {"feed_ms": models[name].feed_ms} for name, row in results.items()}


def measure(
    batch: int = 4096, rounds: int = 12, variants: tuple[str, ...] = tuple(VARIANTS)
) -> dict[str, Any]:
    """Compares the steps of variants on a temporary simulated log."""
    with tempfile.TemporaryDirectory() as folder:
        return steps(make_log(Path(folder) / "log", (FEEDS + 1) * batch), batch, rounds, variants)


if __name__ == "__main__":
    main(measure, {"batch": 64, "rounds": 1, "variants": ("logistic", "ranking")})
