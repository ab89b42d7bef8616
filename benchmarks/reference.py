"""The reference model of the benchmarks: its features, configuration, ids and labels, in memory and as a log.

DCNv2 (three crosses of rank 64, layers of 1024, 512 and 256) on 26 features of 100,000 buckets and width 16, at
batches of 4096 rows; ids by Zipf's law. Loads no TensorFlow, because other frameworks use the same ids.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.data.batches import Batch, set_rejects_apart
from ctr.data.features import Category
from ctr.data.log import create_log
from ctr.data.reader import Rows
from ctr.data.schema import Schema
from ctr.data.shards import pack_ids, publish_partition
from ctr.experiments.config import merged
from ctr.io.hashing import splitmix64
from ctr.training.config import BatchConfig

ZIPF = 1.2
SLATE = 4
"""Number of rows of a query."""
ADAGRAD = {"optimizer": {"dense": {"preconditioned_from_rows": None}}}
"""Changes to the configuration for plain AdaGrad, without Shampoo and momentum."""
RATE, INITIAL_ACCUMULATOR, SCALE = 0.02, 1e-6, 0.05
"""AdaGrad's settings in all frameworks, for the batch's mean loss; the standard deviation of initial embeddings."""
INTERVAL_ROWS = 200_000
MODEL: dict[str, Any] = {
    "experts": ["network"],
    "prior": 0.5,
    "init_scale": SCALE,
    "crosses": {"layers": 3, "rank": 64, "ramp": 100_000},
    "deep": {"units": [1024, 512, 256]},
}
"""The reference model: section ``model`` of its configuration."""
_OPTIMIZER = {
    "embeddings": {
        **{"learning_rate": 0.1, "initial_accumulator": 0.1},
        **{"linear_learning_rate": 0.1, "linear_initial_accumulator": 0.1},
    },
    "dense": {"learning_rate": RATE, "shampoo": {"grafting": {"initial_accumulator": INITIAL_ACCUMULATOR}}},
}


@dataclass(frozen=True)
class Size:
    """Sizes of a model's features, and of the ``feeds`` batches that it is trained on repeatedly.

    Attributes:
        buckets: number of buckets of each feature, or of its distinct ids if they grow.
        growing: whether ids grow.
    """

    features: int = 26
    buckets: int = 100_000
    width: int = 16
    batch: int = 4096
    feeds: int = 8
    growing: bool = False


REFERENCE = Size()
TINY = Size(features=4, buckets=1000, width=8, batch=256, feeds=2)


def reference_config(changes: Mapping[str, Any], batch: int = REFERENCE.batch) -> dict[str, Any]:
    """Returns the configuration of the reference model, which is trained by Shampoo, with ``changes`` merged in."""
    content = {"batch": batch_of(batch), "model": MODEL, "optimizer": _OPTIMIZER}
    return merged(content, changes)


def batch_of(rows: int) -> dict[str, int]:
    """Returns the configuration of batches of ``rows`` rows."""
    return {"rows": rows, "max_query_rows": max(rows, BatchConfig().max_query_rows)}


def reference_schema(size: Size = REFERENCE) -> Schema:
    """Returns the schema of the reference model's features."""
    buckets = dict.fromkeys((f"f{n}" for n in range(size.features)), None if size.growing else size.buckets)
    return category_schema(buckets, width=size.width)


def category_schema(buckets: Mapping[str, int | None], **options: Any) -> Schema:
    """Returns a schema of categories by their numbers of buckets, None for growing ids; ``options`` are for all."""
    return Schema(
        features=tuple(Category(name=n, source=n, buckets=size, **options) for n, size in buckets.items())
    )


def reference_layers() -> list[list[tuple[int, ...]]]:
    """Returns the shapes of the reference model's dense weights by layer, in the order of the forward pass."""
    inputs, rank = REFERENCE.features * REFERENCE.width, MODEL["crosses"]["rank"]
    crosses = [[(inputs, rank), (rank, inputs), (inputs,)]] * MODEL["crosses"]["layers"]
    sizes = [inputs, *MODEL["deep"]["units"], 1]
    return crosses + [[(before, after), (after,)] for before, after in pairwise(sizes)]


def dense_shapes() -> list[tuple[int, ...]]:
    """Returns the shapes of the reference model's dense weights."""
    return [shape for layer in reference_layers() for shape in layer]


def zipf_ids(random: np.random.Generator, rows: int, size: Size = REFERENCE) -> np.ndarray:
    """Draws ids by Zipf's law, int32 [rows, features]."""
    return ((random.zipf(ZIPF, (rows, size.features)) - 1) % size.buckets).astype(np.int32)


def log_ids(ids: np.ndarray, size: Size) -> np.ndarray:
    """Returns ids as a log stores them: fingerprints, int64, if ids grow, else unchanged."""
    return splitmix64(ids.astype(np.uint64)).view(np.int64) if size.growing else ids


def click_labels(random: np.random.Generator, ids: np.ndarray) -> np.ndarray:
    """Draws labels, float32 [N]: the click rate is 0.1, or 0.3 where the first id is odd, so that models can learn."""
    return (random.random(len(ids)) < 0.1 + 0.2 * (ids[:, 0] % 2)).astype(np.float32)


def reference_examples(size: Size) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the ids, int32 [B, F], and labels, float32 [B], of each of the ``size.feeds`` batches."""
    random = np.random.default_rng(0)
    ids = [zipf_ids(random, size.batch, size) for _ in range(size.feeds)]
    return [(batch_ids, click_labels(random, batch_ids)) for batch_ids in ids]


def reference_batches(size: Size = REFERENCE, slate: int = SLATE) -> list[Batch]:
    """Returns the batches of ``reference_examples`` in queries of ``slate`` rows."""
    batches = []
    number, ones = np.arange(size.batch, dtype=np.int64), np.ones(size.batch, np.float32)
    for ids, label in reference_examples(size):
        rows = Rows(
            query_time=number // slate,
            timestamp=number // slate,
            query_id=number // slate,
            example_id=number,
            label=label,
            train_weight=ones,
            metric_weight=ones,
            ids=log_ids(ids, size),
            fault=np.zeros(size.batch, np.int8),
            position=number,
            multivalent={},
        )
        batches.append(set_rejects_apart(rows))
    return batches


def with_lists(size: Size, last: int) -> tuple[Schema, list[Batch]]:
    """Returns the reference schema and batches with another, multivalent feature of ``last`` values in each row."""
    schema, random = reference_schema(size), np.random.default_rng(2)
    recent = Category(
        name="recent",
        source="recent",
        buckets=size.buckets,
        width=size.width,
        multivalent=True,
        max_values=last,
    )
    batches = []
    for batch in reference_batches(size):
        values = ((random.zipf(1.2, size.batch * last) - 1) % size.buckets).astype(np.int32)
        lists = {"recent": (values, np.arange(size.batch + 1) * last)}
        batches.append(replace(batch, rows=replace(batch.rows, multivalent=lists)))
    return Schema(features=(*schema.features, recent)), batches


def make_log(folder: Path, rows: int, size: Size = REFERENCE) -> Path:
    """Creates a log of ``rows`` reference examples; returns its folder."""
    schema = reference_schema(size)
    create_log(folder, schema)
    random = np.random.default_rng(1)
    for first in range(0, rows, INTERVAL_ROWS):
        ids = zipf_ids(random, min(INTERVAL_ROWS, rows - first), size)
        label = click_labels(random, ids)
        query = (first + np.arange(len(ids))) // SLATE
        publish_rows(folder, schema, log_ids(ids, size), label, query, first)
    return folder


def publish_log(
    folder: Path, schema: Schema, ids: np.ndarray, label: np.ndarray, query_us: int = 1000
) -> Path:
    """Creates a log of queries of ``SLATE`` rows, ``query_us`` microseconds apart, and publishes all of it.

    Args:
        ids: ids as the schema's log stores them, [N, F].
        label: [N], 0 or 1.
    """
    create_log(folder, schema)
    query = np.arange(len(label)) // SLATE
    for first in range(0, len(label), INTERVAL_ROWS):
        part = slice(first, first + INTERVAL_ROWS)
        publish_rows(folder, schema, ids[part], label[part], query[part], first, query[part] * query_us)
    return folder


def publish_rows(
    folder: Path,
    schema: Schema,
    ids: np.ndarray,
    label: np.ndarray,
    query: np.ndarray,
    first: int = 0,
    time: np.ndarray | None = None,
) -> None:
    """Publishes a partition of whole queries.

    Args:
        ids: ids as the schema's log stores them, [N, F].
        label: [N], 0 or 1.
        query: query ids, int64 [N], ascending.
        first: example id of the first row.
        time: int64 [N], in microseconds; by default the query id.
    """
    time, ones = query if time is None else time, np.ones(len(label), np.float32)
    columns = {
        "query_time": time,
        "timestamp": time,
        "query_id": query,
        "example_id": first + np.arange(len(label)),
        "label": label.astype(np.int8),
        "train_weight": ones,
        "metric_weight": ones,
        "ids": pack_ids(ids),
    }
    publish_partition(folder, schema, int(time[0]), int(time[-1]) + 1, pa.table(columns))
