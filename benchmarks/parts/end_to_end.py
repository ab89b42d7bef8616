"""A pass over a log from its first batch to its last one, against the step alone; and the reader by itself."""

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from bench_checkpoints import timed_pass
from own import make_model, ratio, show_ratio
from parts.setting import Setting
from reference import ADAGRAD, make_log, reference_config, table

from ctr.config import parse_model
from ctr.data.batches import whole_query_batches
from ctr.data.reader import read_rows
from ctr.training.config import TrainConfig
from ctr.training.inputs import Inputs, open_inputs, read_feeds

EXAMPLES, PASSES, STEPS = 1_100_000, 2, 32
"""Rows of the log: so many that the checkpoint that is due after a million of them is among them."""


def reader_rates(inputs: Inputs, layouts: Any, rounds: int) -> dict[str, float]:
    """Examples a second of reading alone: all of it, shards only, and batches of rows that are in memory."""
    batch, log = inputs.config.batch, inputs.log
    blocks = list(read_rows(log.path, inputs.schema, log.manifests))
    ways: dict[str, Callable[[], Iterable[object]]] = {
        "feeds": lambda: read_feeds(inputs, layouts, 0, {}),
        "rows": lambda: read_rows(log.path, inputs.schema, log.manifests),
        "batches": lambda: whole_query_batches(blocks, batch.rows, batch.max_query_rows),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begun = time.perf_counter()
            for _ in way():
                pass
            rates[name].append(log.rows / (time.perf_counter() - begun))
    return {name: median(own) for name, own in rates.items()}


def measure(setting: Setting) -> dict[str, Any]:
    """Passes and turns of the step alone, on the first batches of the same log, one after the other."""
    size = setting.size
    examples = 20 * size.batch if setting.quick else EXAMPLES
    content = reference_config(ADAGRAD, size.batch)
    config = parse_model(TrainConfig, content, "benchmark")
    seconds: dict[str, list[float]] = {"pass": [], "step": []}
    with tempfile.TemporaryDirectory() as folder:
        log = make_log(Path(folder) / "log", examples, size)
        inputs = open_inputs(log, config)
        blocks = read_rows(log, inputs.schema, inputs.log.manifests)
        batches = whole_query_batches(blocks, size.batch, config.batch.max_query_rows)
        model = make_model(size, ADAGRAD, list(islice(batches, STEPS)))
        rates = reader_rates(inputs, model.state.layouts, 1 if setting.quick else 3)
        model.seconds()
        before = model.seconds()
        checkpoints = 0
        for number in range(1 if setting.quick else PASSES):
            spent, checkpoints = timed_pass(log, Path(folder) / f"run-{number}", content)
            after = model.seconds()
            # The clock starts when the first batch is done.
            seconds["pass"].append(spent / (examples - size.batch) * size.batch)
            seconds["step"].append((before + after) / 2)
            before = after
    rate = {name: size.batch / median(own) for name, own in seconds.items()}
    return {
        "examples": examples,
        "checkpoints": checkpoints,
        "examples_per_second": rate["pass"],
        "step_examples_per_second": rate["step"],
        "over_step": ratio(seconds["step"], seconds["pass"]),
        "reader": rates,
    }


def report(found: Mapping[str, Any]) -> str:
    """The table."""
    reader = found["reader"]
    rows = [
        [f"a pass, {found['checkpoints']} checkpoint(s) on the way", f"{found['examples_per_second']:,.0f}"],
        ["the step alone, between passes", f"{found['step_examples_per_second']:,.0f}"],
        ["the pass over the step", show_ratio(found["over_step"])],
        ["the reader: feeds, all that the reading thread does", f"{reader['feeds']:,.0f}"],
        ["of it reading and checking shards", f"{reader['rows']:,.0f}"],
        ["of it batches of whole queries", f"{reader['batches']:,.0f}"],
    ]
    return table(["from a log", "examples/s"], rows)
