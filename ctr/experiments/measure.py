"""Measures models in a separate process: operations per example, and step times of alternating models (FF 3).

    python -m ctr.experiments.measure WANTED RESULT

Both are JSON files; WANTED has the arguments of ``measure``.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from ctr.config import parse_model
from ctr.data.batches import Batch, whole_query_batches
from ctr.data.log import read_manifests, read_schema
from ctr.data.schema import Schema
from ctr.data.stream import Selection, read_selection
from ctr.experiments.config import merged
from ctr.io.errors import DEFECT, InputError, exit_status, one_line
from ctr.io.files import write_atomic_bytes
from ctr.io.log_lines import say, say_crash
from ctr.models.rows import TableLayout
from ctr.training.config import TrainConfig
from ctr.training.experts.pairs import with_pair_ids
from ctr.training.feed import make_feed
from ctr.training.flops import Touched, count_flops, dense_parameters
from ctr.training.logs import resolve
from ctr.training.speed import TimedModel, ratio_quartiles, take_turns

BATCHES = 50
"""Batches of a turn: by default, Shampoo computes roots once in as many steps, so once in each turn."""


def measure(
    log: Path, configs: Mapping[str, Mapping[str, Any]], base: str, rounds: int
) -> dict[str, dict[str, Any]]:
    """Measures the costs of each configuration on the first batches of a log.

    Each configuration's costs are ``train_flops`` and ``inference_flops`` for an example and their parts ``flops``,
    ``dense_parameters``, ``embedding_parameters`` and ``batch_rows``; if ``rounds`` > 0 also ``step_ms`` and
    ``inference_ms`` of a batch, and ``step_ratio`` and ``inference_ratio``: quartiles, over the rounds, of the ratio of
    a batch's time to the time of ``base``. Raises InputError if the log is damaged or its time range has no row.
    """
    count = Operations(log)
    parsed = {
        name: resolve(parse_model(TrainConfig, content, f"config {name}"), count.schema, count.manifests)
        for name, content in configs.items()
    }
    costs = {name: count(config) for name, config in parsed.items()}
    if rounds:
        models = {
            name: TimedModel(with_late_roots(config), count.schema, first_batches(log, count.schema, config))
            for name, config in parsed.items()
        }
        turns: dict[str, Callable[[], float]] = {}
        for name, model in models.items():
            turns |= {f"step {name}": model.seconds, f"inference {name}": model.scoring_seconds}
        seconds = take_turns(turns, rounds)
        for turn, times in seconds.items():
            kind, name = turn.split(" ", 1)
            costs[name] |= {
                f"{kind}_ms": 1000 * float(np.median(times)),
                f"{kind}_ratio": ratio_quartiles(times, seconds[f"{kind} {base}"]),
            }
    return costs


def first_batches(log: Path, schema: Schema, config: TrainConfig) -> list[Batch]:
    """Reads the first ``BATCHES`` batches, repeated if the log is short. Raises InputError if none has a valid row."""
    schema = config.model.features(schema)
    blocks = read_selection(log, schema, read_manifests(log), Selection(time_range=config.time_range))
    batches = whole_query_batches(blocks, config.batch.rows, config.batch.max_query_rows)
    first = [batch for batch in islice(batches, BATCHES) if len(batch.rows)]
    if not first:
        raise InputError(f"{log}: no valid row to measure with in the first {BATCHES} batches")
    return [first[index % len(first)] for index in range(BATCHES)]


def with_late_roots(config: TrainConfig) -> TrainConfig:
    """Returns the configuration with the root interval of later steps; early in a run, roots are more frequent."""
    late = {"optimizer": {"dense": {"shampoo": {"roots": {"early_growth": 0}}}}}
    return parse_model(TrainConfig, merged(config.model_dump(), late), "config")


class Operations:
    """Counts the operations of configurations per example of a log.

    The first batches of the log determine the number of embeddings per example: the same for every architecture.
    """

    def __init__(self, log: Path) -> None:
        self.schema, self.manifests = read_schema(log), read_manifests(log)
        self._log = log
        self._touched: dict[tuple[object, ...], _TouchedRows] = {}

    def __call__(self, config: TrainConfig) -> dict[str, Any]:
        """Returns the counts that ``measure`` describes."""
        config = resolve(config, self.schema, self.manifests)
        layouts, first = config.table_layouts(self.schema), self._first_batches(config)
        tables = {layout.name: first.of_table(layout) for layout in layouts}
        flops = count_flops(config, layouts, tables, first.batch_rows)
        return {
            "train_flops": flops.train,
            "inference_flops": flops.inference,
            "flops": dict(vars(flops)),
            "dense_parameters": dense_parameters(config, layouts),
            "embedding_parameters": sum(layout.rows * layout.columns for layout in layouts),
            "batch_rows": first.batch_rows,
        }

    def _first_batches(self, config: TrainConfig) -> "_TouchedRows":
        batch, model = config.batch.model_dump_json(), config.model
        key = (batch, config.time_range, config.ids.shared_rows, model.query_size, model.experts)
        if key not in self._touched:
            every = model.model_copy(update={"without": ()})
            layouts = config.model_copy(update={"model": every}).table_layouts(self.schema)
            batches = first_batches(self._log, self.schema, config)
            self._touched[key] = _TouchedRows.of(layouts, batches, config.batch.rows)
        return self._touched[key]


class _TouchedRows(NamedTuple):
    """Counts of table rows that batches touch, by feature, independent of widths."""

    rows: int  # of all batches
    batch_rows: float
    values: Mapping[str, int]  # by multivalent feature, summed over the batches
    distinct: Mapping[str, int]  # rows of each feature, summed over the batches

    @classmethod
    def of(cls, layouts: Sequence[TableLayout], batches: Sequence[Batch], batch_rows: int) -> Self:
        # Each feature has a separate table, also the pairs, whose ids are computed here.
        alone = [
            replace(layout, features=(feature,), tower="quality")
            for layout in layouts
            for feature in layout.features
        ]
        features = [layout.features[0] for layout in alone]
        distinct = Counter[str]()
        for batch in batches:
            rows = replace(batch.rows, ids=with_pair_ids(batch.rows.ids, layouts))
            plans = make_feed(replace(batch, rows=rows), tuple(alone), batch_rows).plans
            distinct.update({f.name: plan.distinct_count for f, plan in zip(features, plans, strict=True)})
        many = [feature for feature in features if feature.single is None]
        values = {f.name: sum(len(batch.rows.multivalent[f.source][0]) for batch in batches) for f in many}
        count = sum(len(batch.rows) for batch in batches)
        return cls(count, count / len(batches), values, distinct)

    def of_table(self, layout: TableLayout) -> Touched:
        """Returns the mean counts per example for a table."""
        return Touched(
            single=len(layout.single),
            values=sum(self.values[f.name] for f in layout.multivalent) / self.rows,
            multivalent=len(layout.multivalent),
            distinct=sum(self.distinct[f.name] for f in layout.features) / self.rows,
        )


if __name__ == "__main__":
    try:
        wanted = json.loads(Path(sys.argv[1]).read_bytes())
        result = measure(Path(wanted["log"]), wanted["configs"], wanted["base"], wanted["rounds"])
        write_atomic_bytes(Path(sys.argv[2]), json.dumps(result).encode())
    except Exception as error:
        if (status := exit_status(error)) == DEFECT:
            say_crash(error, status)
        else:
            say(f"error: {one_line(error)}", one_line(error))
        sys.exit(status)
