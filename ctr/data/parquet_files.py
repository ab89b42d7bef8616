"""Parquet files whose bytes follow from their table, and that are read only as they were written."""

import hashlib
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ctr.errors import InputError

IDS_COLUMN = "ids"
_FEW_VALUED = ("label", "train_weight", "metric_weight")


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as a Parquet file with page checksums; the same bytes for the same table."""
    sink = io.BytesIO()
    packed = [IDS_COLUMN] if IDS_COLUMN in table.column_names else False
    pq.write_table(
        table,
        sink,
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in _FEW_VALUED if name in table.column_names],
        column_encoding=None,
        use_byte_stream_split=packed,
        write_page_checksum=True,
        row_group_size=64 * 1024,
        store_schema=False,
    )
    return sink.getvalue()


def read_verified_parquet(path: Path, size: int, sha256: str) -> pa.Table:
    """Reads a Parquet file whose size and SHA-256 a manifest records.

    Raises:
        InputError: it is missing, cannot be read, has other bytes, or is no Parquet file.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: the file is missing, though a manifest names it") from None
    except OSError as error:
        # The error of a disk does not name the file.
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) != size or hashlib.sha256(content).hexdigest() != sha256:
        raise InputError(
            f"{path}: damaged: its {len(content)} bytes do not have the SHA-256 that the manifest records "
            f"({size} bytes, {sha256[:16]}...)"
        )
    try:
        return pq.read_table(pa.BufferReader(content), page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a Parquet file: {' '.join(str(error).split())}") from None
