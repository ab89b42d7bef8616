"""Reads files that are tables already, csv, tsv and Parquet, in chunks or whole."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from ctr.data.mapping import DelimitedInput, ParquetInput
from ctr.io.errors import InputError
from ctr.pipelines.rows.chunks import Chunk
from ctr.pipelines.rows.convert import check_utf8
from ctr.pipelines.rows.delimited import delimited_columns, read_delimited
from ctr.pipelines.rows.parquet import parquet_columns, read_parquet
from ctr.pipelines.rows.sources import SourceFile


def table_file_columns(path: Path, form: DelimitedInput | ParquetInput) -> tuple[str, ...]:
    """Reads the names of a file's columns; InputError when it is damaged."""
    return parquet_columns(path) if isinstance(form, ParquetInput) else delimited_columns(path, form)


def absent_columns(
    form: DelimitedInput | ParquetInput, wanted: Sequence[str], found: Sequence[str]
) -> list[str]:
    """Returns the wanted columns that a file with the columns ``found`` lacks, and may lack."""
    return [name for name in wanted if name in form.optional and name not in found]


def read_table_file(
    source: SourceFile,
    form: DelimitedInput | ParquetInput,
    wanted: Sequence[str],
    block_bytes: int,
    encoded: Collection[str] = (),
) -> Iterator[Chunk]:
    """Yields the wanted columns in chunks of about ``block_bytes`` of text, or of 65,536 Parquet rows.

    Of text, the columns of ``encoded`` come as dictionaries.

    Raises:
        InputError: a missing column or a damaged file.
    """
    if isinstance(form, ParquetInput):
        return read_parquet(source, wanted)
    return read_delimited(source, form, wanted, block_bytes, encoded)


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
