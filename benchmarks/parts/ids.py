"""What ids that grow cost: the step and the reader with them against as many buckets, on the reference model."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from own import make_model, median_ms, ratio, show_ratio
from parts.end_to_end import reader_rates
from parts.setting import Setting
from reference import ADAGRAD, make_log, reference_config, table

from ctr.config import parse_model
from ctr.training.config import TrainConfig
from ctr.training.inputs import open_inputs

EXAMPLES = 600_000
FEEDS = 24
"""More than usual: their ids are met for the first time in the first turn, which is not timed."""


def measure(setting: Setting) -> dict[str, Any]:
    """Turns of both steps, one after the other, then readers of logs of the same examples."""
    size = replace(setting.size, feeds=2 if setting.quick else FEEDS)
    sizes = {"buckets": size, "growing": replace(size, growing=True)}
    models = {name: make_model(own) for name, own in sizes.items()}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for number in range(setting.rounds + 1):
        for name, model in models.items():
            spent = model.seconds()
            if number:
                seconds[name].append(spent)
    readers = {}
    config = parse_model(TrainConfig, reference_config(ADAGRAD, size.batch), "benchmark")
    for name, own in sizes.items():
        with tempfile.TemporaryDirectory() as folder:
            log = make_log(Path(folder) / "log", 20 * size.batch if setting.quick else EXAMPLES, own)
            inputs = open_inputs(log, config)
            layouts = config.table_layouts(inputs.schema)
            readers[name] = reader_rates(inputs, layouts, 1 if setting.quick else 3)["feeds"]
    return {
        "step_ms": {name: median_ms(own) for name, own in seconds.items()},
        "growing_over_buckets": ratio(seconds["growing"], seconds["buckets"]),
        "reader": readers,
        "ids": sum(id_map.rows for id_map in models["growing"].state.id_maps.values()),
    }


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
            f"{found['reader']['growing'] / found['reader']['buckets']:.2f}",
        ]
    )
    return table(["", "step", "reader, examples/s"], rows)
