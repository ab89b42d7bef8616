"""A log whose ids grow, with the values of some of them."""

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa

from ctr.data.features import Category
from ctr.data.kept_values import FOLDER, values_path
from ctr.data.log import ValuesEntry, manifest_bytes, manifest_path, read_manifests
from ctr.data.parquet_files import parquet_bytes
from ctr.data.schema import Schema
from ctr.data.shards import pack_ids
from ctr.io.hashing import splitmix64
from small_runs import Examples, publish

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


def table_with(schema: Schema, rows: Examples) -> pa.Table:
    """The rows with any of these features and hours, with a fingerprint for each id of those whose ids grow."""
    table = rows.table()
    columns = dict(zip(("user", "item", "position"), rows.ids.T, strict=True))
    columns["hour"] = np.arange(len(rows)) % 24

    def ids_of(name: str, values: np.ndarray) -> np.ndarray:
        return prints_of(values) if name in schema.growing else values

    ids = np.stack([ids_of(name, columns[name]) for name in schema.single_valued], axis=1)
    tags = [ids_of("tags", np.array(row, np.int64)).tolist() for row in rows.tags]
    table = table.drop_columns(["ids", "tags"]).append_column("ids", pack_ids(ids.astype(schema.id_type)))
    if "tags" in schema.by_name:
        table = table.append_column("tags", pa.array(tags, pa.list_(pa.from_numpy_dtype(schema.id_type))))
    return table


def growing_table(rows: Examples) -> pa.Table:
    return table_with(SCHEMA, rows)


def publish_growing(folder: Path, rows: Examples) -> Path:
    """Such a table as a log, with a dictionary of the users."""
    publish(folder, growing_table(rows), schema=SCHEMA)
    users = np.arange(1, 30)
    values = {"feature": ["user"] * 29, "id": prints_of(users), "value": [f"user-{one}" for one in users]}
    content = parquet_bytes(pa.table(values))
    digest = hashlib.sha256(content).hexdigest()
    (folder / FOLDER).mkdir()
    for manifest in read_manifests(folder):
        entry = ValuesEntry(bytes=len(content), sha256=digest)
        values_path(folder, manifest.name, entry).write_bytes(content)
        named = manifest.model_copy(update={"values": entry})
        manifest_path(folder, manifest).write_bytes(manifest_bytes(named))
    return folder


def values_of(rows: Examples, name: str) -> np.ndarray:
    """A feature's ids, as numbers, in all rows, without missing values."""
    if name == "tags":
        ids = np.array([one for row in rows.tags for one in row])
    else:
        ids = rows.ids[:, ["user", "item", "position"].index(name)]
    return ids[ids != 0]
