"""Trains as one worker of a traced run; measures its exchanges in a step, by kind, in bytes and milliseconds.

    python benchmarks/studies/traced_worker.py LOG CONFIG RUN

The name scope of an exchange determines its kind (``ctr.training.tables.tables``); exchanges outside these scopes
are sums of calibrators and of the objective. An exchange ends when its result is available: its time includes waiting
for other workers, and may overlap with products.
"""

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from parts.profile import read_planes
from processes import give

from ctr.config import load_model
from ctr.training.config import TrainConfig
from ctr.training.session import Process, train
from ctr.workers.local import LocalWorkers, join
from ctr.workers.seats import read_place

FIRST, STEPS = 8, 8
"""Number of steps before the trace, and number of traced steps."""
KINDS = ("exchange_rows", "exchange_gradients", "all_reduce", "gather_scores")
OTHER = "small sums"
OPERATION = "PyFunc"
"""Type of the graph operation that makes an exchange (``ctr.workers.local``)."""


def kind_of(name: str) -> str:
    """Returns the kind of an exchange from the name of its operation, or from its name scope."""
    return next((kind for kind in KINDS if kind in name), OTHER)


def count_bytes() -> dict[str, tf.Variable]:
    """Patches exchanges to count the bytes they send; returns the counters by kind. Affects graphs traced later."""
    counted = {kind: tf.Variable(0, dtype=tf.int64) for kind in (*KINDS, OTHER)}
    exchanged = LocalWorkers._exchanged

    def counting(self: LocalWorkers, tensor: tf.Tensor, take: Callable[..., Any]) -> tf.Tensor:
        size = tf.size(tensor, out_type=tf.int64) * tensor.dtype.size
        with tf.control_dependencies([counted[kind_of(tf.get_current_name_scope())].assign_add(size)]):
            return exchanged(self, tf.identity(tensor), take)

    LocalWorkers._exchanged = counting  # type: ignore[method-assign]
    return counted


def read_milliseconds(folder: Path) -> dict[str, float]:
    """Returns the milliseconds of the exchanges in a trace, by kind."""
    spent: dict[str, float] = defaultdict(float)
    for names, _, events in read_planes(folder):
        for event in events:
            name, _, operation = names[event.metadata_id].partition("#")[0].rpartition(":")
            if operation == OPERATION:
                spent[kind_of(name)] += event.duration_ps / 1e9
    return spent


def main(log: Path, config: Path, run: Path) -> dict[str, Any]:
    """Trains and traces ``STEPS`` steps; returns the exchanges by kind, or an empty dict except in the first worker."""
    workers = join(read_place(), 600.0)
    counted, folder = count_bytes(), Path(tempfile.mkdtemp())
    sent_bytes: dict[str, int] = {}
    ends: list[float] = []

    def progress(examples: int, metrics: dict[str, Any]) -> None:
        ends.append(time.perf_counter())
        if len(ends) == FIRST:
            sent_bytes.update({kind: int(variable) for kind, variable in counted.items()})
            tf.profiler.experimental.start(str(folder))
        elif len(ends) == FIRST + STEPS:
            sent_bytes.update({kind: int(variable) - sent_bytes[kind] for kind, variable in counted.items()})
            tf.profiler.experimental.stop()

    # The first worker alone makes progress.
    train(log, load_model(TrainConfig, config, "config"), run, progress=progress, process=Process(workers))
    if not ends:
        return {}
    spent, step_ms = read_milliseconds(folder), 1000 * (ends[FIRST + STEPS - 1] - ends[FIRST - 1]) / STEPS
    kinds = {
        kind: {
            "megabytes": sent_bytes[kind] / STEPS / 1e6,
            "ms": spent.get(kind, 0.0) / STEPS,
            "share": spent.get(kind, 0.0) / STEPS / step_ms,
        }
        for kind in counted
    }
    return {"step_ms": step_ms, "kinds": kinds}


if __name__ == "__main__":
    give(main(*(Path(argument) for argument in sys.argv[1:])))
