"""Measures the cost of histories: rows per second of ingestion, and the reference model's step, with and without them.

    python benchmarks/study.py histories [--rows 300000] [--last 50] [--rounds 8]

A CSV table of 12 categories, with returning users, is ingested with and without a history of clicked items.
The step has the reference model's 26 features, without and with a history of full length, by each pooling.
"""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from ctr_model import make_model
from reference import ADAGRAD, REFERENCE, TINY, with_lists
from runner import Arm, compare, main, timed

from ctr.config import parse_model
from ctr.data.mapping import Mapping as TableMapping
from ctr.experiments.config import merged
from ctr.pipelines.tables.ingest import IngestSettings, ingest

CATEGORIES = 12
DAYS = 10
POOLINGS = ("mean", "target")


def write_table(path: Path, rows: int) -> None:
    """Writes a CSV table of queries of four rows, with users and items drawn by Zipf's law."""
    random = np.random.default_rng(1)
    query = np.arange(rows) // 4
    columns = {"time": query * (DAYS * 86_400) // max(query[-1] + 1, 1), "query": query}
    for number in range(CATEGORIES):
        values = (random.zipf(1.2, rows) - 1) % 50_000
        columns[f"c{number}"] = values[query] if number == 0 else values
    columns["click"] = (random.random(rows) < 0.1).astype(np.int8)
    pa_csv.write_csv(pa.table({name: pa.array(values) for name, values in columns.items()}), path)


def table_mapping(last: int) -> TableMapping:
    """Returns the mapping of that table, with a history of the ``last`` values; 0: without one."""
    features: list[dict[str, Any]] = [
        {"name": f"c{number}", "kind": "category", "source": f"c{number}"} for number in range(CATEGORIES)
    ]
    if last:
        history = {"by": "c0", "of": "c1", "after": "10m", "last": last}
        features.append({"name": "recent", "kind": "category", "history": history})
    content = {"time": {"column": "time", "unit": "s"}, "query": {"column": "query"}, "label": "click"}
    content |= {"input": {"type": "csv"}, "partition": "1d", "features": features}
    return parse_model(TableMapping, content, "benchmark")


def ingesting(table: Path, folder: Path, last: int, rows: int) -> Arm:
    """Returns an arm that ingests a table into a new log."""
    mapping = table_mapping(last)

    def turn() -> Mapping[str, float]:
        shutil.rmtree(folder, ignore_errors=True)
        (spent,) = timed(lambda: ingest(mapping, [table], folder, IngestSettings(now_us=2**62)))().values()
        return {"rows_per_second": 1000 * rows / spent}

    return turn


def measure(rows: int = 300_000, last: int = 50, rounds: int = 8, tiny: bool = False) -> dict[str, Any]:
    """Measures rows per second of ingestion, and milliseconds of a step."""
    size = TINY if tiny else REFERENCE
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.csv"
        write_table(table, rows)
        arms = {"without": 0, f"history of {last}": last}
        of_ingest = compare(
            {name: ingesting(table, Path(folder) / "log", count, rows) for name, count in arms.items()},
            rounds,
        )
    schema, batches = with_lists(size, last)
    models = {"without": make_model(size, ADAGRAD).turn}
    for pooling in POOLINGS:
        changes = merged(ADAGRAD, {"model": {"pooling": {"recent": {"kind": pooling, "of": "f0"}}}})
        models[pooling] = make_model(size, changes, batches, schema).turn
    return {"ingest": of_ingest, "step": compare(models, rounds)}


if __name__ == "__main__":
    main(measure, {"rows": 5000, "rounds": 1, "tiny": True})
