"""Reads files that are tables already, csv, tsv and Parquet, in chunks or whole."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr.data.mapping import DelimitedInput, ParquetInput
from ctr.io.errors import InputError
from ctr.pipelines.tables.convert import check_utf8
from ctr.pipelines.tables.delimited import delimited_columns, read_delimited
from ctr.pipelines.tables.input_files import Chunk, SourceFile, faults_named, require_columns, with_constants

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
    source: SourceFile, wanted: Sequence[str], row_groups: tuple[int, int] | None = None
) -> Iterator[Chunk]:
    """Yields the wanted columns of row groups [begin, end), in their own types; rows are numbered from 1."""
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


def table_file_columns(path: Path, form: DelimitedInput | ParquetInput) -> tuple[str, ...]:
    """Reads the names of a file's columns; InputError when it is damaged."""
    return parquet_columns(path) if isinstance(form, ParquetInput) else delimited_columns(path, form)


def read_table_file(
    source: SourceFile,
    form: DelimitedInput | ParquetInput,
    wanted: Sequence[str],
    block_bytes: int,
    encoded: Collection[str] = (),
    row_groups: tuple[int, int] | None = None,
) -> Iterator[Chunk]:
    """Yields the wanted columns in chunks of about ``block_bytes`` of text, or of 65,536 Parquet rows.

    A column that the file lacks, and may lack, is null. Of text, the columns of ``encoded`` come as dictionaries.
    Raises InputError: a missing column or a damaged file.
    """
    absent: list[str] = []
    if form.optional:
        names = table_file_columns(source.path, form)
        absent = [name for name in wanted if name in form.optional and name not in names]
    own = [name for name in wanted if name not in absent]
    if isinstance(form, ParquetInput):
        chunks = read_parquet(source, own, row_groups)
    else:
        chunks = read_delimited(source, form, own, block_bytes, encoded)
    for chunk in chunks:
        yield with_constants(chunk, dict.fromkeys(absent))


def read_strictly(
    path: Path, form: DelimitedInput | ParquetInput, wanted: Sequence[str], block_bytes: int
) -> tuple[pa.Table, list[int]]:
    """Reads the wanted columns of a whole file as UTF-8, and the row numbers; InputError for an unreadable row."""
    source = SourceFile(0, path, path.name)
    chunks = list(read_table_file(source, form, wanted, block_bytes))
    rows = [row for chunk in chunks for row in chunk.rows.tolist()]
    for reject in (reject for chunk in chunks for reject in chunk.rejects):
        raise InputError(
            f"{path} row {reject.row}: {reject.reason} ({reject.value!r}; allowed: {reject.allowed})"
        )
    columns = []
    for name in wanted:
        pieces = [chunk.table.column(name).combine_chunks() for chunk in chunks]
        column, bad = check_utf8(pa.concat_arrays(pieces) if pieces else pa.array([], pa.string()))
        if bad.any():
            raise InputError(f"{path} row {rows[int(bad.argmax())]}: {name}: invalid UTF-8")
        columns.append(column)
    return pa.table(columns, names=list(wanted)), rows
