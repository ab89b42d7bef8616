"""A small synthetic log, and small configurations of runs over it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.config import parse_model
from ctr.data.features import Category, Number, Vector
from ctr.data.log import create_log, read_manifests, read_schema
from ctr.data.schema import Schema, label_column
from ctr.data.shards import pack_ids, publish_partition, read_shard, unpack_ids
from ctr.data.sidecar import write_sidecar_partition
from ctr.data.value_arrays import ids_of_numbers
from ctr.training.config import TrainConfig

SCHEMA = Schema(
    features=(
        Category(name="user", source="user", buckets=30, width=4),
        Category(name="item", source="item", buckets=50, width=4),
        Category(name="tags", source="tags", buckets=40, width=4, multivalent=True),
        Category(name="position", source="position", buckets=8, width=2, tower="ui"),
    )
)
# With numbers that the network reads.
NUMBERS = Schema(
    features=(
        *SCHEMA.features,
        Number.model_validate({"name": "price", "source": "price", "as": "value", "scale": "log"}),
        Vector(name="image", source="image", size=3),
    )
)
# The log's intervals of query time, in microseconds: three, each in two shards or more.
INTERVALS = ((0, 80_000), (80_000, 160_000), (160_000, 240_000))


@dataclass(frozen=True)
class Examples:
    """The rows of a log, as plain arrays."""

    query: np.ndarray
    label: np.ndarray
    train_weight: np.ndarray
    metric_weight: np.ndarray
    ids: np.ndarray
    tags: list[list[int]]

    def __len__(self) -> int:
        return len(self.query)

    def table(self) -> pa.Table:
        row = np.arange(len(self))
        return pa.table(
            {
                "query_time": self.query * 1000,
                "timestamp": self.query * 1000 - 1,
                "query_id": self.query * 7 + 1,
                "example_id": row + 10_000,
                "label": self.label.astype(np.int8),
                "train_weight": self.train_weight.astype(np.float32),
                "metric_weight": self.metric_weight.astype(np.float32),
                "ids": pack_ids(self.ids.astype(np.int32)),
                "tags": pa.array(self.tags, pa.list_(pa.int32())),
            }
        )


def draw_examples(queries: int = 240, seed: int = 0) -> Examples:
    """Queries of 1 to 9 rows whose clicks depend on user, item and position; weights that differ."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 10, queries)
    query = np.repeat(np.arange(queries), sizes)
    count = len(query)
    ids = np.stack(
        [rng.integers(0, 30, queries)[query], rng.zipf(1.4, count) % 50, rng.integers(0, 8, count)], axis=1
    )
    effects = [rng.normal(size=buckets) for buckets in (30, 50, 8)]
    logit = sum(effect[column] for effect, column in zip(effects, ids.T, strict=True)) - 1
    return Examples(
        query=query,
        label=(rng.random(count) < 1 / (1 + np.exp(-logit))).astype(int),
        train_weight=rng.choice([0.0, 0.5, 1.0, 2.0], count, p=[0.1, 0.2, 0.5, 0.2]),
        metric_weight=rng.choice([0.0, 1.0, 1.5], count, p=[0.1, 0.6, 0.3]),
        ids=ids,
        tags=[rng.integers(0, 40, size).tolist() for size in rng.integers(0, 4, count)],
    )


def with_numbers(table: pa.Table, seed: int = 0) -> pa.Table:
    """Adds the columns that rows of ``NUMBERS`` have more than those of ``SCHEMA``; clicked rows have other prices."""
    rng, count = np.random.default_rng(seed), table.num_rows
    price = rng.lognormal(3, 2, count) + 50 * table.column("label").to_numpy() * np.arange(count)
    price[rng.random(count) < 0.1] = np.nan
    ids = unpack_ids(table.column("ids").combine_chunks(), SCHEMA)
    packed = np.column_stack([ids, ids_of_numbers(price.astype(np.float32))])
    lists = [[] if rng.random() < 0.1 else ids_of_numbers(rng.normal(5, 2, 3)).tolist() for _ in range(count)]
    table = table.set_column(table.column_names.index("ids"), "ids", pack_ids(packed))
    return table.append_column("image", pa.array(lists, pa.list_(pa.int32())))


def labeled(table: pa.Table, schema: Schema = SCHEMA, **labels: np.ndarray) -> dict[str, Any]:
    """Adds further labels, 1, 0 or NaN for not known, to the arguments of ``publish``."""
    for name, values in labels.items():
        column = pa.array(values.astype(np.float32), from_pandas=True).cast(pa.int8())
        table = table.append_column(label_column(name), column)
    return {"table": table, "schema": schema.model_copy(update={"labels": tuple(labels)})}


def publish(
    folder: Path,
    table: pa.Table,
    intervals: tuple[tuple[int, int], ...] = INTERVALS,
    schema: Schema = SCHEMA,
) -> Path:
    create_log(folder, schema)
    times = table.column("query_time").to_numpy()
    for start, end in intervals:
        inside = np.flatnonzero((times >= start) & (times < end))
        publish_partition(folder, schema, start, end, table.take(pa.array(inside)), shard_rows=170)
    return folder


def write_teacher(
    log: Path, name: str, logit_of: Callable[[np.ndarray], np.ndarray], partitions: slice = slice(None)
) -> None:
    """Writes a sidecar with a logit for each row, by its example id."""
    schema = read_schema(log)
    for manifest in read_manifests(log)[partitions]:
        shards = [read_shard(log, entry, schema).column("example_id").to_numpy() for entry in manifest.shards]
        ids = np.concatenate([np.zeros(0, np.int64), *shards])
        table = pa.table({"example_id": ids, "logit": logit_of(ids).astype(np.float32)})
        write_sidecar_partition(log, name, manifest, table)


# Nothing divides anything else: windows, checkpoints, batches, shards and intervals end at different rows.
SMALL: dict[str, Any] = {
    "batch": {"rows": 50, "max_query_rows": 64},
    "model": {
        "crosses": {"layers": 2, "rank": 3, "ramp": [100, 600]},
        "deep": {"units": [8]},
        "init_scale": 0.05,
        "experts": ["network"],
        "prior": 0.3,
        # Rows are scored alone, too.
        "query_size": False,
    },
    "optimizer": {
        "embeddings": {
            "learning_rate": 0.1,
            "initial_accumulator": 0.01,
            "linear_initial_accumulator": 0.02,
        },
        "dense": {"learning_rate": 0.02, "preconditioned_from_rows": 1},
    },
    "metrics": {"window_examples": 230, "slices": ["position"]},
    "checkpoint": {"every_examples": 310, "keep": 2},
    "compute_dtype": "float32",
}
LOGISTIC = {
    **SMALL,
    "model": {
        "crosses": {"layers": 0},
        "deep": {"units": []},
        "experts": ["linear"],
        "prior": 0.3,
        "query_size": False,
    },
    "optimizer": {**SMALL["optimizer"], "dense": {"learning_rate": 0.02}},
}


def merged(content: dict[str, Any], *changes: dict[str, Any]) -> dict[str, Any]:
    """``content`` with some changes, one after the other, each within what is there."""
    out = dict(content)
    for key, value in (item for change in changes for item in change.items()):
        is_within = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = merged(out[key], value) if is_within else value
    return out


def config_of(content: dict[str, Any], *changes: dict[str, Any]) -> TrainConfig:
    return parse_model(TrainConfig, merged(content, *changes), "test")


def make_config(changes: dict[str, Any] | None = None, logistic: bool = False) -> TrainConfig:
    """``SMALL``, or ``LOGISTIC``, with changes."""
    return config_of(LOGISTIC if logistic else SMALL, changes or {})
