"""A log whose ids grow, with the values of some of them."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from ctr.data.kept_values import write_values
from ctr.data.log import create_log
from ctr.data.schema import Category, Schema
from ctr.data.shards import pack_ids, publish_partition
from ctr.io.hashing import splitmix64
from small_runs import INTERVALS, Examples

SCHEMA = Schema(
    features=(
        Category(name="user", source="user", width=4),
        Category(name="item", source="item", buckets=50, width=4),
        Category(name="tags", source="tags", width=4, multivalent=True),
        Category(name="position", source="position", width=2),
    )
)


def prints_of(ids: np.ndarray) -> np.ndarray:
    """Another number, of 64 bits, for each id; 0 stays 0."""
    return np.where(ids == 0, 0, splitmix64(ids.astype(np.uint64)).view(np.int64))


def growing_table(rows: Examples) -> pa.Table:
    """The rows with a fingerprint for each id but those of items."""
    ids = rows.ids.astype(np.int64)
    ids[:, [0, 2]] = prints_of(ids[:, [0, 2]])
    table = rows.table()
    tags = [prints_of(np.array(row, np.int64)).tolist() for row in rows.tags]
    for name, column in (("ids", pack_ids(ids)), ("tags", pa.array(tags, pa.list_(pa.int64())))):
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def publish_growing(folder: Path, rows: Examples) -> Path:
    """Such a table as a log, with values for the users."""
    table = growing_table(rows)
    create_log(folder, SCHEMA)
    times = table.column("query_time").to_numpy()
    users = np.arange(1, 30)
    values = {"feature": ["user"] * 29, "id": prints_of(users), "value": [f"user-{one}" for one in users]}
    for start, end in INTERVALS:
        inside = pa.array(np.flatnonzero((times >= start) & (times < end)))
        manifest = publish_partition(folder, SCHEMA, start, end, table.take(inside), shard_rows=170)
        write_values(folder, manifest, pa.table(values))
    return folder


def values_of(rows: Examples, name: str) -> np.ndarray:
    """A feature's ids, as numbers, in all rows, without missing values."""
    if name == "tags":
        ids = np.array([one for row in rows.tags for one in row])
    else:
        ids = rows.ids[:, ["user", "item", "position"].index(name)]
    return ids[ids != 0]
