"""Columns written later beside a log, keyed by example_id: a teacher's predictions, the simulator's truth.

::

    LOG/sidecars/NAME/START-END.json          the manifest of one partition of the log, with the file's hash
    LOG/sidecars/NAME/START-END-HASH.parquet  example_id and the columns, one row for each row of the partition

The manifest of a sidecar's partition records the hash of the log's partition; beside another log it is refused. A
sidecar's partition is published like a log's, whole or not at all and only once.
"""

import hashlib
import re
from bisect import bisect_left
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from ctr.config import StrictModel, parse_model
from ctr.data.log import MAX_TIME_US, Manifest, log_sha256, partition_name, partitions_in, publish_once
from ctr.data.parquet_files import read_verified_parquet, write_parquet
from ctr.io.documents import read_bytes, read_sealed, sealed_bytes
from ctr.io.errors import InputError

_EXAMPLE_ID = "example_id"
_FORMAT = 1
# Sidecars with a fixed meaning, and the other parts of a log: ctr writes, reads and deletes files by these names.
_RESERVED = {
    *("auction", "truth"),
    *("histories", "manifests", "rejects", "sampling", "schema", "shards", "sidecars", "values"),
}


class SidecarManifest(StrictModel):
    """One partition of a sidecar. Times are the log's partition's, in microseconds."""

    format: int = Field(default=_FORMAT, ge=_FORMAT, le=_FORMAT)
    start: int
    end: int
    interval_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    file: str = Field(pattern=r"^[0-9a-zA-Z.\-]+\.parquet$")
    rows: int = Field(ge=0)
    columns: tuple[str, ...]
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


def sidecar_folder(log: Path, name: str) -> Path:
    """Returns the sidecar's folder. Raises InputError for a name that is not letters, digits, ``_`` and ``-``."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise InputError(f"sidecar {name!r}: a name consists of letters, digits, _ and -")
    return log / "sidecars" / name


def new_sidecar_folder(log: Path, name: str) -> Path:
    """Returns the folder of a sidecar that a user names. Raises InputError if a part of a log has this name."""
    if fault := name_fault(name):
        raise InputError(f"sidecar {name}: {fault}")
    return sidecar_folder(log, name)


def name_fault(name: str) -> str:
    """Returns why a sidecar cannot have this name, or an empty text."""
    allowed = ", ".join(sorted(_RESERVED))
    return f"a part of a log has this name; allowed: any but {allowed}" if name in _RESERVED else ""


def list_sidecars(log: Path) -> list[str]:
    """Lists the names of the log's sidecars that have at least one published partition."""
    return sorted({path.parent.name for path in (log / "sidecars").glob("*/*.json")})


def write_sidecar_partition(log: Path, name: str, partition: Manifest, table: pa.Table) -> SidecarManifest:
    """Publishes a sidecar's columns for one published partition of the log.

    ``table`` has ``example_id`` (int64), each once, and at least one more column, for each row of the partition, in
    any order (the log's order is the fastest to read). Raises InputError for a bad name or table, or if the partition
    was published before with other content.
    """
    folder = sidecar_folder(log, name)
    where = f"{folder}, partition [{partition.start}, {partition.end})"
    if _EXAMPLE_ID not in table.column_names or table.num_columns < 2:
        raise InputError(
            f"{where}: example_id and at least one more column are required, not {table.column_names}"
        )
    ids = table.column(_EXAMPLE_ID)
    if ids.type != pa.int64() or ids.null_count:
        raise InputError(
            f"{where}: example_id must be int64 without nulls, not {ids.type}, {ids.null_count} nulls"
        )
    rows = table.num_rows
    if rows != partition.rows:
        raise InputError(f"{where}: {rows} rows are given, the log's partition has {partition.rows}")
    if len(np.unique(ids.to_numpy())) != rows:
        raise InputError(f"{where}: an example_id appears twice; it must identify a row")
    file, size, digest = write_parquet(folder, partition.name, table.combine_chunks())
    manifest = SidecarManifest(
        start=partition.start,
        end=partition.end,
        interval_sha256=log_sha256([partition]),
        file=file,
        rows=rows,
        columns=tuple(table.column_names),
        bytes=size,
        sha256=digest,
    )
    publish_once(folder / f"{partition.name}.json", sealed_bytes(manifest.model_dump(mode="json")))
    return manifest


def read_sidecar_partition(log: Path, name: str, partition: Manifest) -> pa.Table:
    """Reads a sidecar's columns for a partition of the log. Raises InputError if absent, damaged or of another log."""
    folder = sidecar_folder(log, name)
    path = folder / f"{partition.name}.json"
    manifest = read_sidecar_manifest(log, name, partition)
    if (manifest.start, manifest.end) != (partition.start, partition.end):
        raise InputError(f"{path}: names another partition, [{manifest.start}, {manifest.end})")
    if manifest.interval_sha256 != log_sha256([partition]):
        raise InputError(f"{path}: was written for a partition with other content: the log is not the same")
    if manifest.rows != partition.rows:
        raise InputError(f"{path}: has {manifest.rows} rows, the log's partition has {partition.rows}")
    file = folder / manifest.file
    table = read_verified_parquet(file, manifest.bytes, manifest.sha256)
    if tuple(table.column_names) != manifest.columns or table.num_rows != manifest.rows:
        raise InputError(f"{file}: does not hold the rows and columns that {path.name} names")
    ids = table.column(_EXAMPLE_ID) if _EXAMPLE_ID in manifest.columns else pa.chunked_array([], pa.null())
    if ids.type != pa.int64() or ids.null_count:
        raise InputError(f"{file}: has no column example_id of int64 without nulls")
    return table.combine_chunks()


class SidecarHash:
    """Hashes the manifests of a sidecar's first partitions incrementally, continuing from the last call's hash.

    Starts over if a partition was added or deleted among those hashed so far, or if ``time`` is earlier.
    """

    def __init__(self, log: Path, name: str) -> None:
        self._folder = sidecar_folder(log, name)
        self._hashed: list[tuple[int, int]] = []
        self._digest = hashlib.sha256()

    def until(self, time: int = MAX_TIME_US) -> str:
        """Hashes names and contents of the manifests of partitions before ``time`` (microseconds): SHA-256."""
        partitions = partitions_in(self._folder)
        partitions = partitions[: bisect_left(partitions, time, key=lambda partition: partition[0])]
        done = len(self._hashed)
        if partitions[:done] != self._hashed:
            done, self._digest = 0, hashlib.sha256()
        for start, end in partitions[done:]:
            path = self._folder / f"{partition_name(start, end)}.json"
            self._digest.update(path.name.encode() + read_bytes(path, f"{path}: vanished"))
        self._hashed = partitions
        return self._digest.hexdigest()


def read_sidecar_manifest(log: Path, name: str, partition: Manifest) -> SidecarManifest:
    """Reads a sidecar's manifest of one partition. Raises InputError if it is missing or damaged."""
    folder = sidecar_folder(log, name)
    path = folder / f"{partition.name}.json"
    absent = f"{folder}: the sidecar {name} lacks the partition [{partition.start}, {partition.end}): no {path.name}"
    return parse_model(SidecarManifest, read_sealed(path, absent), str(path))


def align_sidecar(table: pa.Table, example_ids: np.ndarray, where: str) -> pa.Table:
    """Sorts a sidecar's rows in the order of ``example_ids``, int64 [N]. Raises InputError if an example is missing."""
    sidecar_ids = table.column(_EXAMPLE_ID).to_numpy()
    if np.array_equal(sidecar_ids, example_ids):
        return table
    rows = pc.index_in(pa.array(example_ids), pa.array(sidecar_ids))
    if rows.null_count:
        missing = example_ids[pc.index(rows.is_null(), True).as_py()]
        raise InputError(f"{where}: has no row for example_id {missing}")
    return table.take(rows)
