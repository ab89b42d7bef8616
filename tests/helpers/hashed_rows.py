"""Rows of a log as ingestion leaves them, without raw values: keys in the log's order, and ids drawn at random."""

from typing import Any

import numpy as np
import pyarrow as pa

from ctr.data.schema import Schema, label_column
from ctr.data.shards import pack_ids, shard_schema

QUERY_US = 1000


def hashed_rows(schema: Schema, count: int, first: int = 0, seed: int = 0, **columns: Any) -> pa.Table:
    """Rows ``first`` to ``first + count`` of a log with two rows a query and a query a millisecond.

    Ids are drawn within the buckets, from 0 on, or from all of their 64 bits where they grow. ``columns`` stand in
    place of those made here, whatever they hold.
    """
    rng = np.random.default_rng([seed, first])
    row = np.arange(first, first + count)

    def draw(name: str, size: int) -> np.ndarray:
        buckets = schema.by_name[name].buckets
        low, high = (-(2**63), 2**63) if buckets is None else (0, buckets)
        return rng.integers(low, high, size, dtype=np.int64).astype(schema.id_type)

    made: dict[str, Any] = {
        "query_time": row // 2 * QUERY_US,
        # Of the two rows of a query the second one is shown first.
        "timestamp": (row ^ 1) * QUERY_US // 2,
        "query_id": row // 2 + 7,
        "example_id": row + 50,
        "label": rng.integers(0, 2, count),
        # Neither weight is 1, and the two differ.
        "train_weight": rng.uniform(0.5, 3, count),
        "metric_weight": rng.uniform(0.5, 3, count),
        "ids": pack_ids(np.stack([draw(name, count) for name in schema.single_valued], axis=1)),
    }
    for name in schema.multivalent:
        made[name] = [draw(name, size).tolist() for size in rng.integers(0, 4, count)]
    made |= {label_column(name): rng.choice([0, 1, None], count).tolist() for name in schema.labels}
    made, fields = {**made, **columns}, shard_schema(schema)
    arrays = [as_array(made[field.name], field.type) for field in fields]
    return pa.Table.from_arrays(arrays, schema=fields)


def as_array(values: Any, kind: pa.DataType) -> pa.Array:
    """Of this type, however wide the numbers are; an array stays what it is."""
    if isinstance(values, pa.Array):
        return values
    return pa.array(values, kind) if isinstance(values, list) else pa.array(values).cast(kind)
