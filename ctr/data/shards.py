"""Shards of an example log: defines their columns, writes the shards of a partition, reads and verifies them.

A partition's shards are written first and count only once its manifest names them (log.py). Rows are in the order of
(query_time, query_id, example_id), in a shard and from one to the next.

Columns of a shard: ``query_time, timestamp, query_id, example_id`` (int64; times in microseconds, UTC), ``label``
(int8; ``NO_LABEL`` in a log without labels), ``train_weight, metric_weight`` (float32), ``ids`` (the ids of all
single-valued features, little-endian, packed in one fixed-size binary), and a list of ids for each multivalent feature.
Ids are int32, or int64 in a log that has a feature whose ids grow. For each further label follows ``label:NAME`` (int8;
null where it is unknown).
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa

from ctr.data.features import Vector
from ctr.data.log import (
    MAX_TIME_US,
    Manifest,
    ShardEntry,
    partition_name,
    publish_manifest,
    read_schema,
)
from ctr.data.parquet_files import (
    IDS_COLUMN,
    MOST_VALUES,
    cast_table,
    read_verified_parquet,
    write_parquet,
)
from ctr.data.query_size import find_pages
from ctr.data.schema import LABEL_PREFIX, MISSING_ID, Schema, label_column
from ctr.data.value_arrays import offsets_of
from ctr.io.errors import InputError

NO_LABEL = -1  # label of every row of a log without labels (``Manifest.labeled``)


def shard_schema(schema: Schema, labels: Sequence[str] | None = None) -> pa.Schema:
    """Makes the Arrow schema of the shards of a log with these features; ``labels`` replace the schema's labels."""
    schema = schema.stored
    keys = ("query_time", "timestamp", "query_id", "example_id")
    fields = [pa.field(name, pa.int64(), nullable=False) for name in keys]
    fields.append(pa.field("label", pa.int8(), nullable=False))
    fields += [pa.field(name, pa.float32(), nullable=False) for name in ("train_weight", "metric_weight")]
    if schema.single_valued:
        width = schema.id_type.itemsize * len(schema.single_valued)
        fields.append(pa.field(IDS_COLUMN, pa.binary(width), nullable=False))
    item = pa.field("item", pa.from_numpy_dtype(schema.id_type), nullable=False)
    fields += [pa.field(name, pa.list_(item), nullable=False) for name in schema.multivalent]
    labels = schema.labels if labels is None else labels
    return pa.schema([*fields, *(pa.field(label_column(name), pa.int8()) for name in labels)])


def pack_ids(ids: np.ndarray) -> pa.Array:
    """Packs ids [N, F], int32 or int64, into a shard's column."""
    rows, features = ids.shape
    content = np.ascontiguousarray(ids, dtype=ids.dtype.newbyteorder("<"))
    width = ids.itemsize * features
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), rows, [None, pa.py_buffer(content)])


def list_column(name: str, values: np.ndarray, lengths: np.ndarray, kind: pa.DataType) -> pa.ListArray:
    """Makes the column of a multivalent feature. Raises InputError if it would have 2^31 values or more."""
    offsets = offsets_of(lengths)
    if offsets[-1] >= 2**31:
        raise InputError(f"feature {name}: {offsets[-1]} values in one table; at most 2^31 - 1 fit")
    return pa.ListArray.from_arrays(offsets.astype(np.int32), values, type=kind)


def unpack_ids(column: pa.FixedSizeBinaryArray, schema: Schema) -> np.ndarray:
    """Inverts ``pack_ids``, without a copy."""
    features = len(schema.stored.single_valued)
    flat = np.frombuffer(column.buffers()[1], dtype=schema.id_type.newbyteorder("<"))
    return flat[column.offset * features : (column.offset + len(column)) * features].reshape(-1, features)


def id_matrix(rows: pa.Table | pa.RecordBatch, schema: Schema) -> np.ndarray:
    """Returns the ids of the single-valued features of a shard's rows, [N, F], where possible without a copy."""
    if not schema.stored.single_valued:
        return np.zeros((rows.num_rows, 0), schema.id_type)
    column = rows.column(IDS_COLUMN)
    return unpack_ids(single_array(column) if isinstance(column, pa.ChunkedArray) else column, schema)


def single_array(column: pa.ChunkedArray) -> pa.Array:
    """Joins the chunks of a column; a single one is not copied."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def publish_partition(
    folder: Path,
    schema: Schema,
    start: int,
    end: int,
    rows: pa.Table,
    counters: dict[str, int] | None = None,
    shard_rows: int = 1_000_000,
    counts_pages: bool = True,
) -> Manifest:
    """Writes a partition (``stage_partition``) and publishes its manifest (``publish_manifest``); raises as both do."""
    manifest = stage_partition(folder, schema, start, end, rows, counters, shard_rows, counts_pages)
    publish_manifest(folder, manifest)
    return manifest


def stage_partition(
    folder: Path,
    schema: Schema,
    start: int,
    end: int,
    rows: pa.Table,
    counters: dict[str, int] | None = None,
    shard_rows: int = 1_000_000,
    counts_pages: bool = True,
) -> Manifest:
    """Writes the shards of the partition [start, end) of query time (microseconds), invisible to readers.

    Args:
        rows: under ``shard_schema(schema)``, sorted as ``sort_rows`` does, each (query, example_id) once.
        counters: the partition's input, counted by its outcome; stored in the manifest.
        shard_rows: a new shard starts at the first query boundary after this many rows; after fewer if vectors are
            so long that these rows would have more than half of ``MOST_VALUES`` numbers.
        counts_pages: whether the rows of a query are the page that the user saw, with a size that is known before they
            are scored.

    Raises:
        InputError: rows are out of order, outside the partition, or not under the log's schema.
    """
    name = f"partition [{start}, {end}) of {folder}"
    if not 0 <= start < end <= MAX_TIME_US:
        raise InputError(f"{name}: start must be below end, both from 0 to {MAX_TIME_US} microseconds")
    version = read_schema(folder).version
    if version != schema.version:
        raise InputError(
            f"{name}: the rows were made under schema {schema.version}, the log has schema {version}"
        )
    try:
        rows = rows.cast(shard_schema(schema)).combine_chunks()
    except (pa.ArrowException, ValueError) as error:
        raise InputError(f"{name}: the rows are not under the log's schema: {error}") from None
    begins = check_order(rows, name)
    times = rows.column("query_time").to_numpy()
    if len(times) and not start <= times[0] <= times[-1] < end:
        raise InputError(f"{name}: holds query times from {times[0]} to {times[-1]}")
    for feature in schema.features:
        if isinstance(feature, Vector):
            shard_rows = min(shard_rows, max(1, MOST_VALUES // (2 * feature.size)))
    # Both take about as long, most of it outside Python.
    with ThreadPoolExecutor(1, "count-ids") as counting:
        distinct = counting.submit(_distinct_ids, rows, schema)
        shards = _write_shards(folder, schema, partition_name(start, end), rows, begins, shard_rows)
    labels = rows.column("label").to_numpy()
    labeled = not len(labels) or bool((labels != NO_LABEL).any())
    return Manifest(
        start=start,
        end=end,
        schema_version=schema.version,
        rows=rows.num_rows,
        queries=len(begins),
        clicks=int(labels.sum()) if labeled else 0,
        shards=shards,
        counters=dict(counters or {}),
        distinct=distinct.result(),
        pages=find_pages(begins, rows.column("timestamp").to_numpy()) if counts_pages else {},
        labeled=labeled,
    )


def _write_shards(
    folder: Path, schema: Schema, partition: str, rows: pa.Table, begins: np.ndarray, shard_rows: int
) -> tuple[ShardEntry, ...]:
    times = rows.column("query_time").to_numpy()
    shards: list[ShardEntry] = []
    first = 0
    while first < len(times):
        next_query = np.searchsorted(begins, first + shard_rows)
        last = int(begins[next_query]) if next_query < len(begins) else len(times)
        part = rows.slice(first, last - first)
        stem = f"{partition}-{len(shards):04d}"
        file, size, digest = write_parquet(folder / "shards", stem, part, schema.id_type == np.int32)
        shards.append(
            ShardEntry(
                file=file,
                rows=last - first,
                queries=int(np.count_nonzero((begins >= first) & (begins < last))),
                first_query_time=int(times[first]),
                last_query_time=int(times[last - 1]),
                bytes=size,
                sha256=digest,
            )
        )
        first = last
    return tuple(shards)


def _distinct_ids(rows: pa.Table, schema: Schema) -> dict[str, int]:
    # Loaded here: commands that need no tables start sooner.
    import pandas as pd

    if not schema.growing or not rows.num_rows:
        return dict.fromkeys(schema.growing, 0)
    columns = {name: column for column, name in enumerate(schema.single_valued)}
    matrix = id_matrix(rows, schema)
    counts = {}
    for name in schema.growing:
        ids = matrix[:, columns[name]] if name in columns else rows.column(name).combine_chunks().flatten()
        counts[name] = int(np.count_nonzero(pd.unique(np.asarray(ids)) != MISSING_ID))
    return counts


def read_shard(folder: Path, entry: ShardEntry, schema: Schema) -> pa.Table:
    """Reads a shard after verifying its bytes. Raises InputError if they differ from the manifest.

    The table has the further labels of the shard's log, whatever the labels of ``schema`` are.
    """
    path = folder / "shards" / entry.file
    table = read_verified_parquet(path, entry.bytes, entry.sha256)
    labels = [name for name in table.column_names if name.startswith(LABEL_PREFIX)]
    expected = shard_schema(schema, [name.removeprefix(LABEL_PREFIX) for name in labels])
    if table.column_names != expected.names:
        raise InputError(f"{path}: holds the columns {table.column_names}, not {expected.names}")
    table = cast_table(path, table, expected)
    if table.num_rows != entry.rows:
        raise InputError(f"{path}: holds {table.num_rows} rows, the manifest says {entry.rows}")
    queries = len(check_order(table, str(path)))
    if queries != entry.queries:
        raise InputError(f"{path}: holds {queries} queries, the manifest says {entry.queries}")
    times = key_at(table, 0)[0], key_at(table, -1)[0]
    if times != (entry.first_query_time, entry.last_query_time):
        raise InputError(
            f"{path}: holds query times from {times[0]} to {times[1]}, the manifest says "
            f"{entry.first_query_time} to {entry.last_query_time}"
        )
    return table


KEY_COLUMNS = ("query_time", "query_id", "example_id")
Key = tuple[int, int, int]


def sort_rows(table: pa.Table) -> pa.Table:
    """Sorts by (query_time, query_id, example_id), the order of a log; rows with equal keys keep their order."""
    order = np.lexsort([table.column(name).to_numpy() for name in reversed(KEY_COLUMNS)])
    # Moving the rows costs more than finding their order, and many logs come sorted.
    return table if (order[1:] > order[:-1]).all() else table.take(pa.array(order))


def check_order(table: pa.Table, where: str) -> np.ndarray:
    """Returns the row numbers at which a query begins, int64. Raises InputError if rows are out of order."""
    time, query, example = (table.column(name).to_numpy() for name in KEY_COLUMNS)
    later = time[1:] > time[:-1]
    same_time = time[1:] == time[:-1]
    same_query = same_time & (query[1:] == query[:-1])
    in_order = later | (same_time & (query[1:] > query[:-1])) | (same_query & (example[1:] > example[:-1]))
    if not in_order.all():
        row = int(np.flatnonzero(~in_order)[0]) + 1
        repeated = same_query[row - 1] and example[row] == example[row - 1]
        problem = "repeats an example_id of its query" if repeated else "is out of order"
        raise InputError(
            f"{where}: row {row} (example_id {example[row]}) {problem}; rows are sorted by {', '.join(KEY_COLUMNS)}"
        )
    return np.concatenate([[0], np.flatnonzero(~same_query) + 1]) if len(time) else np.zeros(0, np.int64)


def key_at(table: pa.Table, row: int) -> Key:
    """Returns (query_time, query_id, example_id) of a row; -1 is the last one."""
    time, query, example = (int(table.column(name)[row].as_py()) for name in KEY_COLUMNS)
    return time, query, example


def check_goes_on(last: Key, first: Key, where: str) -> None:
    """Raises InputError unless a shard begins with a query after the previous shard's last one."""
    if first[:2] > last[:2]:
        return
    problem = (
        "belongs to the query of the last row of the shard before it; all rows of a query belong in one shard"
        if first[:2] == last[:2]
        else f"comes before the last row of the shard before it (query_time {last[0]}, query_id {last[1]}); "
        f"rows are sorted by {', '.join(KEY_COLUMNS)}"
    )
    raise InputError(
        f"{where}: row 0 (query_time {first[0]}, query_id {first[1]}, example_id {first[2]}) {problem}"
    )
