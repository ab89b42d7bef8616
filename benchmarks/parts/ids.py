"""What ids that grow cost: the step and the reader with them against as many buckets, on the reference model."""

import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from own import make_model, median_ms, ratio, show_ratio
from parts.setting import Setting
from reference import ADAGRAD, make_log, reference_config, table

from ctr.config import parse_model
from ctr.models.rows import TableLayout
from ctr.training.config import TrainConfig
from ctr.training.inputs import Inputs, open_inputs, read_feeds

EXAMPLES = 600_000
FEEDS = 24
"""More than usual: their ids are met for the first time in the first turn, which is not timed."""


def measure(setting: Setting) -> dict[str, Any]:
    """Turns of both steps, then of both readers, of logs of the same examples."""
    size = replace(setting.size, feeds=2 if setting.quick else FEEDS)
    sizes = {"buckets": size, "growing": replace(size, growing=True)}
    models = {name: make_model(own) for name, own in sizes.items()}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for number in range(setting.rounds + 1):
        for name, model in models.items():
            spent = model.seconds()
            if number:
                seconds[name].append(spent)
    examples = 20 * size.batch if setting.quick else EXAMPLES
    config = parse_model(TrainConfig, reference_config(ADAGRAD, size.batch), "benchmark")
    reading: dict[str, list[float]] = {name: [] for name in sizes}
    with tempfile.TemporaryDirectory() as folder:
        readers = {}
        for name, own in sizes.items():
            inputs = open_inputs(make_log(Path(folder) / name, examples, own), config)
            readers[name] = partial(read_all, inputs, config.table_layouts(inputs.schema))
        for number in range(setting.rounds + 1):
            for name, read in readers.items():
                begun = time.perf_counter()
                read()
                if number:
                    reading[name].append(time.perf_counter() - begun)
    return {
        "step_ms": {name: median_ms(own) for name, own in seconds.items()},
        "growing_over_buckets": ratio(seconds["growing"], seconds["buckets"]),
        "reader": {name: examples / median(own) for name, own in reading.items()},
        "reader_buckets_over_growing": ratio(reading["buckets"], reading["growing"]),
        "ids": sum(id_map.rows for id_map in models["growing"].state.tables.id_maps.values()),
    }


def read_all(inputs: Inputs, layouts: tuple[TableLayout, ...]) -> None:
    """All that the reading thread does for a pass."""
    for _ in read_feeds(inputs, layouts, 0, {}):
        pass


def report(found: Mapping[str, Any]) -> str:
    """The table."""
    rows = [
        [f"step with {name}", f"{found['step_ms'][name]:.1f} ms", f"{found['reader'][name]:,.0f}"]
        for name in found["step_ms"]
    ]
    rows.append(
        [
            f"growing over buckets, {found['ids']:,} ids known",
            show_ratio(found["growing_over_buckets"]),
            show_ratio(found["reader_buckets_over_growing"]),
        ]
    )
    return table(["", "step", "reader, examples/s"], rows)
