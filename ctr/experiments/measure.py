"""Measures models in a process of its own: operations for an example, and times of steps by turns (FF 3).

    python -m ctr.experiments.measure < WANTED > FOUND

Both are JSON, WANTED as ``measure`` takes it.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ctr.config import parse_model
from ctr.data.batches import Batch, whole_query_batches
from ctr.data.log import read_manifests, read_schema
from ctr.data.schema import Schema
from ctr.data.stream import Selection, read_selection
from ctr.experiments.config import merged
from ctr.io.errors import InputError
from ctr.models.rows import TableLayout
from ctr.training.analysis.flops import Touched, count_flops, dense_parameters
from ctr.training.analysis.speed import TimedModel, ratio_quartiles, take_turns
from ctr.training.config import TrainConfig
from ctr.training.feed import make_feed
from ctr.training.logs import resolve

BATCHES = 50
"""Batches of a turn: the steps between two of Shampoo's roots by default, so that each turn has one."""


def measure(
    log: Path, configs: Mapping[str, Mapping[str, Any]], base: str, rounds: int
) -> dict[str, dict[str, Any]]:
    """Measures what each configuration costs on the first batches of a log.

    For each ``train_flops`` and ``inference_flops`` for an example and their parts ``flops``,
    ``dense_parameters``, ``embedding_parameters``, ``batch_rows``; with ``rounds`` of turns also ``step_ms``
    and ``inference_ms`` of a batch, ``step_ratio`` and ``inference_ratio``: quartiles of the ratio of a
    batch's time to that of ``base`` in the same round. Raises InputError: the log is damaged, or its time
    range has no row.
    """
    schema = read_schema(log)
    manifests = read_manifests(log)
    parsed = {
        name: resolve(parse_model(TrainConfig, content, f"config {name}"), schema, manifests)
        for name, content in configs.items()
    }
    batches = {name: first_batches(log, schema, config) for name, config in parsed.items()}
    found = {name: _operations(config, schema, batches[name]) for name, config in parsed.items()}
    if rounds:
        models = {
            name: TimedModel(with_late_roots(config), schema, batches[name])
            for name, config in parsed.items()
        }
        turns: dict[str, Callable[[], float]] = {}
        for name, model in models.items():
            turns |= {f"step {name}": model.seconds, f"inference {name}": model.scoring_seconds}
        seconds = take_turns(turns, rounds)
        for turn, own in seconds.items():
            kind, name = turn.split(" ", 1)
            found[name] |= {
                f"{kind}_ms": 1000 * float(np.median(own)),
                f"{kind}_ratio": ratio_quartiles(own, seconds[f"{kind} {base}"]),
            }
    return found


def first_batches(log: Path, schema: Schema, config: TrainConfig) -> list[Batch]:
    """Reads the batches of a turn, again where a log has fewer; raises InputError without rows."""
    blocks = read_selection(log, schema, read_manifests(log), Selection(time_range=config.time_range))
    batches = whole_query_batches(blocks, config.batch.rows, config.batch.max_query_rows)
    first = [batch for batch in islice(batches, BATCHES) if len(batch.rows)]
    if not first:
        raise InputError(f"{log}: no valid row to measure with in the first {BATCHES} batches")
    return [first[index % len(first)] for index in range(BATCHES)]


def with_late_roots(config: TrainConfig) -> TrainConfig:
    """Sets roots to those of later steps: the first few hundred steps wait for more frequent ones."""
    late = {"optimizer": {"dense": {"shampoo": {"roots": {"early_growth": 0}}}}}
    return parse_model(TrainConfig, merged(config.model_dump(), late), "config")


def _operations(config: TrainConfig, schema: Schema, batches: list[Batch]) -> dict[str, Any]:
    layouts = config.table_layouts(schema)
    rows = sum(len(batch.rows) for batch in batches)
    touched = touched_features(layouts, batches, config.batch.rows)
    flops = count_flops(config, layouts, touched_tables(layouts, touched, rows), rows / len(batches))
    return {
        "train_flops": flops.train,
        "inference_flops": flops.inference,
        "flops": dict(vars(flops)),
        "dense_parameters": dense_parameters(config, layouts),
        "embedding_parameters": sum(layout.rows * layout.columns for layout in layouts),
        "batch_rows": rows / len(batches),
    }


@dataclass(frozen=True)
class TouchedFeature:
    """Values of a feature that batches look up, and its distinct rows, summed over the batches."""

    values: int
    distinct: int


def touched_features(
    layouts: Sequence[TableLayout], batches: Sequence[Batch], batch_rows: int
) -> dict[str, TouchedFeature]:
    """Counts what batches touch of each feature of some tables; its width and its table do not matter."""
    alone = [replace(layout, features=(feature,)) for layout in layouts for feature in layout.features]
    distinct = [0] * len(alone)
    for batch in batches:
        for number, plan in enumerate(make_feed(batch, tuple(alone), batch_rows).plans):
            distinct[number] += plan.distinct_count
    return {
        name: TouchedFeature(
            sum(len(batch.rows.multivalent[name][0]) for batch in batches) if many else 0, count
        )
        for layout, count in zip(alone, distinct, strict=True)
        for name, many in [(layout.features[0].name, bool(layout.multivalent))]
    }


def touched_tables(
    layouts: Sequence[TableLayout], touched: Mapping[str, TouchedFeature], rows: int
) -> dict[str, Touched]:
    """Counts per row what batches touch of each table, from what they touch of its features."""
    return {
        layout.name: Touched(
            single=len(layout.single),
            values=sum(touched[f.name].values for f in layout.multivalent) / rows,
            multivalent=len(layout.multivalent),
            distinct=sum(touched[f.name].distinct for f in layout.features) / rows,
        )
        for layout in layouts
    }


def main() -> None:
    """Reads what is wanted and writes what was found."""
    wanted = json.load(sys.stdin)
    found = measure(Path(wanted["log"]), wanted["configs"], wanted["base"], wanted["rounds"])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
