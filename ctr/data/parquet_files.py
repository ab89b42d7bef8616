"""Writes Parquet files whose bytes depend on the table alone, and verifies their hashes when reading."""

import hashlib
import io
import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ctr.io.errors import InputError, one_line
from ctr.io.files import file_sha256, write_atomic_bytes

log = logging.getLogger(__name__)

IDS_COLUMN = "ids"
MOST_VALUES = 2**28  # most values that a column of a shard may have, each item of a list being one

_FEW_VALUED = ("label", "train_weight", "metric_weight")


def parquet_bytes(table: pa.Table, are_ids_small: bool = True) -> bytes:
    """Returns a table as a Parquet file with page checksums; the same bytes for the same arguments.

    The higher bytes of small ids are mostly 0, so the byte planes are stored apart. All bytes of a fingerprint are
    random; LZ4 reads these in half the time of zstd.
    """
    sink = io.BytesIO()
    packed = [IDS_COLUMN] if are_ids_small and IDS_COLUMN in table.column_names else False
    compression: str | dict[str, str] = "zstd"
    level: int | dict[str, int] = 1
    if not are_ids_small:
        columns = [
            f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name
            for field in table.schema
        ]
        compression = {name: "lz4" if name == IDS_COLUMN else "zstd" for name in columns}
        level = {name: 1 for name in columns if name != IDS_COLUMN}
    pq.write_table(
        table,
        sink,
        compression=compression,
        compression_level=level,
        use_dictionary=[name for name in _FEW_VALUED if name in table.column_names],
        column_encoding=None,
        use_byte_stream_split=packed,
        write_page_checksum=True,
        row_group_size=64 * 1024,
        store_schema=False,
    )
    return sink.getvalue()


def write_parquet(
    folder: Path, stem: str, table: pa.Table, are_ids_small: bool = True
) -> tuple[str, int, str]:
    """Writes a table as STEM-HASH.parquet unless it exists; returns the file's name, its size and SHA-256.

    Publishers of different content write different files.
    """
    content = parquet_bytes(table, are_ids_small)
    digest = hashlib.sha256(content).hexdigest()
    path = folder / f"{stem}-{digest[:16]}.parquet"
    if not path.exists() or file_sha256(path) != digest:
        write_atomic_bytes(path, content)
    return path.name, len(content), digest


def read_verified_parquet(path: Path, size: int, sha256: str) -> pa.Table:
    """Reads a Parquet file whose size and SHA-256 a manifest records.

    Raises InputError if it is missing, has other bytes, or a column has more than ``MOST_VALUES`` values.
    """
    # A pipe or a device would never end.
    if not path.is_file():
        raise InputError(f"{path}: the file is missing, though a manifest names it")
    try:
        actual = path.stat().st_size
        content = path.read_bytes() if actual == size else b""
    except OSError as error:
        # The error of a disk does not name the file.
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    log.info("read %s, %d bytes", path, actual)
    if actual != size or hashlib.sha256(content).hexdigest() != sha256:
        raise InputError(
            f"{path}: damaged: its {actual} bytes do not have the SHA-256 that the manifest records "
            f"({size} bytes, {sha256[:16]}...)"
        )
    try:
        with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) as file:
            _check_size(path, file.metadata)
            return file.read()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: not a Parquet file that can be read: {one_line(error)[:300]}") from None


def _check_size(path: Path, metadata: pq.FileMetaData) -> None:
    """Raises InputError before unpacking more values than a shard holds, as a few bytes can encode any number."""
    for column in range(metadata.num_columns):
        groups = range(metadata.num_row_groups)
        values = sum(metadata.row_group(group).column(column).num_values for group in groups)
        if values > MOST_VALUES:
            raise InputError(
                f"{path}: has {values} values in the column {metadata.schema.column(column).path[:80]}; "
                f"allowed: {MOST_VALUES}"
            )


def cast_table(path: Path, table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Casts a table to ``schema``, in one chunk. Raises InputError when a column does not fit."""
    try:
        table = table.cast(schema).combine_chunks()
        table.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise InputError(
            f"{path}: a column is of another type or has nulls: {one_line(error)[:300]}"
        ) from None
    for name in schema.names:
        column = table.column(name)
        items = column.combine_chunks().flatten() if pa.types.is_list(column.type) else column
        if not schema.field(name).nullable and (column.null_count or items.null_count):
            raise InputError(f"{path}: the column {name} has nulls")
    return table
