"""Reads Parquet files batch by batch."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr.pipelines.rows.chunks import Chunk
from ctr.pipelines.rows.sources import SourceFile, faults_named, require_columns

_BATCH_ROWS = 65_536


def parquet_columns(path: Path) -> tuple[str, ...]:
    """Reads the names of a file's columns; InputError when it is damaged."""
    with faults_named(path):
        return tuple(pq.read_schema(path).names)


def row_group_sizes(path: Path) -> list[int]:
    """Counts the rows of each row group of a file; InputError when it is damaged."""
    with faults_named(path), pq.ParquetFile(path) as file:
        return [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]


def read_parquet(
    source: SourceFile,
    wanted: Sequence[str],
    row_groups: tuple[int, int] | None = None,
) -> Iterator[Chunk]:
    """Yields the wanted columns in their own types, of the ``row_groups`` [begin, end); rows are numbered from 1.

    Raises:
        InputError: a missing column or a damaged file.
    """
    require_columns(source.path, wanted, parquet_columns(source.path))
    sizes = row_group_sizes(source.path)
    begin, end = (0, len(sizes)) if row_groups is None else row_groups
    row = 1 + sum(sizes[:begin])
    with faults_named(source.path), pq.ParquetFile(source.path, page_checksum_verification=True) as file:
        groups = list(range(begin, end))
        for batch in file.iter_batches(
            _BATCH_ROWS, row_groups=groups, columns=list(wanted), use_threads=False
        ):
            rows = np.arange(row, row + batch.num_rows)
            row += batch.num_rows
            yield Chunk(source.number, pa.Table.from_batches([batch]), rows, [])
