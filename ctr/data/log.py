"""The example log on disk: immutable shards, and one manifest per published interval.

::

    LOG/schema.json                      the features (schema.py)
    LOG/manifests/START-END.json         one interval [START, END) of query time, in microseconds
    LOG/shards/START-END-N-HASH.parquet  rows sorted by (query_time, query_id, example_id)
    LOG/sidecars/NAME/                   columns written later, keyed by example_id (sidecar.py)

A shard is complete before its name appears, and counts only once a manifest names it; a manifest is
created exclusively. So an interval is there whole or not at all, also with several publishers, and
publishing it again gives the same bytes.

Columns of a shard: ``query_time, timestamp, query_id, example_id`` (int64; times in microseconds, UTC),
``label`` (int8), ``train_weight, metric_weight`` (float32), ``ids`` (the ids of all single-valued
features, int32 little-endian, packed in one fixed-size binary), and a ``list<int32>`` for each
multivalent feature.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from ctr.config import StrictModel, parse_model
from ctr.data.parquet_files import IDS_COLUMN, cast_table, parquet_bytes, read_verified_parquet
from ctr.data.schema import Schema
from ctr.errors import InputError
from ctr.eval.documents import parse_json
from ctr.files import create_exclusively, file_sha256, is_temporary, names_in, write_atomic_bytes

KEY_COLUMNS = ("query_time", "query_id", "example_id")
MAX_TIME_US = 2**62
_FORMAT = 1


def shard_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of the shards of a log with these features."""
    keys = ("query_time", "timestamp", "query_id", "example_id")
    fields = [pa.field(name, pa.int64(), nullable=False) for name in keys]
    fields.append(pa.field("label", pa.int8(), nullable=False))
    fields += [pa.field(name, pa.float32(), nullable=False) for name in ("train_weight", "metric_weight")]
    if schema.single_valued:
        fields.append(pa.field(IDS_COLUMN, pa.binary(4 * len(schema.single_valued)), nullable=False))
    fields += [
        pa.field(name, pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False)
        for name in schema.multivalent
    ]
    return pa.schema(fields)


def pack_ids(ids: np.ndarray) -> pa.Array:
    """[N, F] int32 ids as the packed column of a shard."""
    rows, features = ids.shape
    content = np.ascontiguousarray(ids, dtype="<i4")
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(4 * features), rows, [None, pa.py_buffer(content)])


def unpack_ids(column: pa.FixedSizeBinaryArray) -> np.ndarray:
    """The inverse of ``pack_ids``, without a copy."""
    features = column.type.byte_width // 4
    flat = np.frombuffer(column.buffers()[1], dtype="<i4")
    return flat[column.offset * features : (column.offset + len(column)) * features].reshape(-1, features)


class ShardEntry(StrictModel):
    """What a manifest says of one shard. Times are query times in microseconds."""

    file: str = Field(pattern=r"^[0-9a-zA-Z.\-]+\.parquet$")
    rows: int = Field(ge=0)
    queries: int = Field(ge=0)
    first_query_time: int
    last_query_time: int
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(StrictModel):
    """One published interval [start, end) of query time, in microseconds."""

    format: int = Field(default=_FORMAT, ge=_FORMAT, le=_FORMAT)
    start: int = Field(ge=0, lt=MAX_TIME_US)
    end: int = Field(gt=0, le=MAX_TIME_US)
    schema_version: str
    rows: int
    queries: int
    clicks: int
    shards: tuple[ShardEntry, ...]
    counters: dict[str, int] = {}

    @property
    def name(self) -> str:
        """The file name stem: sorts as the times do."""
        return f"{self.start:019d}-{self.end:019d}"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for count in ("rows", "queries"):
            if getattr(self, count) != sum(getattr(shard, count) for shard in self.shards):
                raise ValueError(f"{count} is not the sum over the shards")
        for shard in self.shards:
            if not self.start <= shard.first_query_time <= shard.last_query_time < self.end:
                raise ValueError(f"the times of shard {shard.file} lie outside the interval")
        return self


def json_bytes(content: object) -> bytes:
    """The text of a manifest: the same bytes for the same content."""
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def check_log(folder: Path, schema: Schema) -> None:
    """Checks that the folder is a log with this schema or can become one; changes nothing.

    Hidden files and ``rejects/`` may stand there before there is a log.

    Raises:
        InputError: the folder holds a log of another schema, or something else.
    """
    path = folder / "schema.json"
    if path.exists():
        found = read_schema(folder).version
        if found != schema.version:
            raise InputError(
                f"{path}: this log was written under schema {found}, not {schema.version}: "
                "features cannot change inside a log; write to another folder"
            )
    elif folder.exists():
        others = not folder.is_dir() or any(
            other.name != "rejects" and not other.name.startswith(".") and not is_temporary(other)
            for other in folder.iterdir()
        )
        if others:
            raise InputError(f"{folder} is neither empty nor an example log: another folder is needed")


def create_log(folder: Path, schema: Schema) -> None:
    """Makes the folder a log with this schema, or checks that it is one.

    Raises:
        InputError: the folder holds a log of another schema, or something else.
    """
    check_log(folder, schema)
    if not create_exclusively(folder / "schema.json", schema_bytes(schema)):
        check_log(folder, schema)


def schema_bytes(schema: Schema) -> bytes:
    """The content of a file that ``read_schema_file`` reads."""
    return json_bytes({"format": _FORMAT, "version": schema.version, **schema.model_dump(mode="json")})


def read_schema(folder: Path) -> Schema:
    """The features of a log. Raises InputError when it is missing, malformed or changed by hand."""
    return read_schema_file(folder / "schema.json", f"{folder} is not an example log: it has no schema.json")


def read_schema_file(path: Path, absent: str) -> Schema:
    """The features in a file. Raises InputError: ``absent``, or that it is malformed or was changed by hand."""
    content = read_json_object(path, absent)
    if content.pop("format", None) != _FORMAT:
        raise InputError(f"{path}: this is not a log of format {_FORMAT}")
    version = content.pop("version", None)
    schema = parse_model(Schema, content, str(path))
    if schema.version != version:
        raise InputError(
            f"{path}: the features do not match the recorded version {version}: the file was changed"
        )
    return schema


def read_json_object(path: Path, absent: str) -> dict[str, object]:
    """Parses a JSON object. Raises InputError: ``absent`` when there is no such file, or that it is malformed."""
    if not path.is_file():
        raise InputError(absent)
    try:
        content = parse_json(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: a JSON object is expected")
    return content


def sort_rows(table: pa.Table) -> pa.Table:
    """Sorts by (query_time, query_id, example_id), the order of a log; rows with equal keys keep their order."""
    order = np.lexsort([table.column(name).to_numpy() for name in reversed(KEY_COLUMNS)])
    # Moving the rows costs more than finding their order, and many logs come sorted.
    return table if (order[1:] > order[:-1]).all() else table.take(pa.array(order))


def _check_order(table: pa.Table, where: str) -> np.ndarray:
    """Checks the order; returns the row numbers at which a query begins."""
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


def publish_interval(
    folder: Path,
    schema: Schema,
    start: int,
    end: int,
    rows: pa.Table,
    counters: dict[str, int] | None = None,
    shard_rows: int = 1_000_000,
) -> Manifest:
    """Publishes the interval [start, end) of query time (microseconds) whole: ``stage_interval``, then the manifest.

    Raises:
        InputError: as of ``stage_interval`` and ``publish_manifest``.
    """
    manifest = stage_interval(folder, schema, start, end, rows, counters, shard_rows)
    publish_manifest(folder, manifest)
    return manifest


def stage_interval(
    folder: Path,
    schema: Schema,
    start: int,
    end: int,
    rows: pa.Table,
    counters: dict[str, int] | None = None,
    shard_rows: int = 1_000_000,
) -> Manifest:
    """Writes the shards of the interval [start, end) of query time (microseconds), which no reader sees yet.

    Args:
        rows: the interval's examples under ``shard_schema(schema)``, sorted as ``sort_rows`` does, no
            (query, example_id) twice.
        counters: what became of the interval's input, kept in the manifest.
        shard_rows: a new shard starts at the first query boundary after this many rows.

    Returns:
        The manifest that publishes it.

    Raises:
        InputError: rows out of order or outside the interval, or not under the log's schema.
    """
    name = f"interval [{start}, {end}) of {folder}"
    if not 0 <= start < end <= MAX_TIME_US:
        raise InputError(f"{name}: start must be below end, both from 0 to {MAX_TIME_US} microseconds")
    found = read_schema(folder).version
    if found != schema.version:
        raise InputError(
            f"{name}: the rows were made under schema {schema.version}, the log has schema {found}"
        )
    try:
        rows = rows.cast(shard_schema(schema)).combine_chunks()
    except (pa.ArrowException, ValueError) as error:
        raise InputError(f"{name}: the rows are not under the log's schema: {error}") from None
    begins = _check_order(rows, name)
    times = rows.column("query_time").to_numpy()
    if len(times) and not start <= times[0] <= times[-1] < end:
        raise InputError(f"{name}: holds query times from {times[0]} to {times[-1]}")
    stem = f"{start:019d}-{end:019d}"
    shards: list[ShardEntry] = []
    for index, (first, last) in enumerate(_shard_ranges(begins, len(times), shard_rows)):
        part = rows.slice(first, last - first)
        content = parquet_bytes(part)
        digest = hashlib.sha256(content).hexdigest()
        # The hash in the name lets two publishers of different content not overwrite each other's shard.
        file = f"{stem}-{index:04d}-{digest[:16]}.parquet"
        path = folder / "shards" / file
        if not path.exists() or file_sha256(path) != digest:
            write_atomic_bytes(path, content)
        shards.append(
            ShardEntry(
                file=file,
                rows=last - first,
                queries=int(np.count_nonzero((begins >= first) & (begins < last))),
                first_query_time=int(times[first]),
                last_query_time=int(times[last - 1]),
                bytes=len(content),
                sha256=digest,
            )
        )
    return Manifest(
        start=start,
        end=end,
        schema_version=schema.version,
        rows=rows.num_rows,
        queries=len(begins),
        clicks=int(rows.column("label").to_numpy().sum()),
        shards=tuple(shards),
        counters=dict(counters or {}),
    )


def publish_manifest(folder: Path, manifest: Manifest) -> None:
    """Publishes an interval whose shards are there.

    Raises:
        InputError: it overlaps a published one, or was published before with other content.
    """
    for other in list_intervals(folder):
        if other != (manifest.start, manifest.end) and other[0] < manifest.end and manifest.start < other[1]:
            raise InputError(
                f"{folder}: the interval [{manifest.start}, {manifest.end}) overlaps the published "
                f"[{other[0]}, {other[1]})"
            )
    path, content = manifest_path(folder, manifest), manifest_bytes(manifest)
    if not create_exclusively(path, content) and path.read_bytes() != content:
        raise InputError(
            f"{path}: this interval was published before with other content; the first one stays"
        )


def manifest_path(folder: Path, manifest: Manifest) -> Path:
    """Where a manifest lies when it is published."""
    return folder / "manifests" / f"{manifest.name}.json"


def manifest_bytes(manifest: Manifest) -> bytes:
    """What its file holds."""
    return json_bytes(manifest.model_dump(mode="json"))


def _shard_ranges(begins: np.ndarray, rows: int, shard_rows: int) -> Iterator[tuple[int, int]]:
    first = 0
    while first < rows:
        next_query = np.searchsorted(begins, first + shard_rows)
        last = int(begins[next_query]) if next_query < len(begins) else rows
        yield first, last
        first = last


def list_intervals(folder: Path) -> list[tuple[int, int]]:
    """The published intervals (start, end) in order of time, from the names of the manifests."""
    intervals = []
    for name in names_in(folder / "manifests", ".json"):
        start, _, end = name.removesuffix(".json").partition("-")
        if not (start.isdecimal() and end.isdecimal()):
            raise InputError(f"{folder / 'manifests' / name}: not the name of a manifest (START-END.json)")
        intervals.append((int(start), int(end)))
    return sorted(intervals)


def read_manifests(folder: Path, known: Mapping[tuple[int, int], Manifest] | None = None) -> list[Manifest]:
    """All published intervals in order of time, checked for overlaps and schema; ``known`` ones are not read."""
    version = read_schema(folder).version
    manifests: list[Manifest] = []
    for start, end in list_intervals(folder):
        path = f"{folder}/manifests/{start:019d}-{end:019d}.json"
        manifest = (known or {}).get((start, end)) or parse_model(
            Manifest, read_json_object(Path(path), f"{path}: no such manifest"), path
        )
        if (manifest.start, manifest.end) != (start, end):
            raise InputError(f"{path}: names another interval, [{manifest.start}, {manifest.end})")
        if manifest.schema_version != version:
            raise InputError(
                f"{path}: written under schema {manifest.schema_version}, but the log's schema is {version}"
            )
        if manifests and manifests[-1].end > manifest.start:
            raise InputError(f"{path}: overlaps the interval before it, {manifests[-1].name}")
        manifests.append(manifest)
    return manifests


def log_sha256(manifests: Sequence[Manifest]) -> str:
    """One hash for the content of the whole log: of its manifests, which hold the shards' hashes."""
    content = (json_bytes(manifest.model_dump(mode="json")) for manifest in manifests)
    return hashlib.sha256(b"".join(content)).hexdigest()


def read_shard(folder: Path, entry: ShardEntry, schema: Schema) -> pa.Table:
    """Reads a shard after verifying its bytes; nothing of a damaged shard is returned.

    Raises:
        InputError: missing, truncated or changed file, or one that does not hold what the manifest says.
    """
    path = folder / "shards" / entry.file
    table = read_verified_parquet(path, entry.bytes, entry.sha256)
    expected = shard_schema(schema)
    if table.column_names != expected.names:
        raise InputError(f"{path}: holds the columns {table.column_names}, not {expected.names}")
    table = cast_table(path, table, expected)
    if table.num_rows != entry.rows:
        raise InputError(f"{path}: holds {table.num_rows} rows, the manifest says {entry.rows}")
    _check_order(table, str(path))
    return table
