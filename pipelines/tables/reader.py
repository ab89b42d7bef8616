"""Reads the input files of a mapping as chunks of raw columns, with the side tables that belong to each.

Parquet is read here, other formats by ``delimited`` and ``jsonl``. Side tables are small tables beside the input files,
looked up by a key, and also by time if their rows have one.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ctr.data.ids.arrow import spell_array, text_array
from ctr.data.mapping import DelimitedInput, Join, JsonlInput, Mapping, ParquetInput, Time
from ctr.data.times import format_time
from ctr.io.errors import InputError
from ctr.pipelines.tables.convert import check_utf8, parse_times
from ctr.pipelines.tables.delimited import delimited_columns, read_delimited
from ctr.pipelines.tables.input_files import (
    Chunk,
    SourceFile,
    faults_named,
    folder_keys,
    is_blank,
    require_columns,
    with_constants,
)
from ctr.pipelines.tables.jsonl import JsonlReader

_BATCH_ROWS = 65_536
Columns = dict[str, pa.Array]


def row_group_sizes(path: Path) -> list[int]:
    """Counts the rows of each row group of a file. Raises InputError if it is damaged."""
    with faults_named(path), pq.ParquetFile(path) as file:
        return [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]


def read_parquet(
    source: SourceFile, wanted: Sequence[str], row_groups: tuple[int, int] | None = None
) -> Iterator[Chunk]:
    """Yields the wanted columns of row groups [begin, end), in the file's types; rows are numbered from 1."""
    with faults_named(source.path), pq.ParquetFile(source.path, page_checksum_verification=True) as file:
        require_columns(source.path, wanted, file.schema_arrow.names)
        begin, end = row_groups or (0, file.num_row_groups)
        row = 1 + sum(file.metadata.row_group(number).num_rows for number in range(begin))
        groups = list(range(begin, end))
        for batch in file.iter_batches(
            _BATCH_ROWS, row_groups=groups, columns=list(wanted), use_threads=False
        ):
            rows = np.arange(row, row + batch.num_rows)
            row += batch.num_rows
            yield Chunk(source.number, pa.Table.from_batches([batch]), rows, [])


def table_file_columns(path: Path, form: DelimitedInput | ParquetInput) -> tuple[str, ...]:
    """Reads the names of a file's columns. Raises InputError if it is damaged."""
    if isinstance(form, DelimitedInput):
        return delimited_columns(path, form)
    with faults_named(path):
        return tuple(pq.read_schema(path).names)


def read_table_file(
    source: SourceFile,
    form: DelimitedInput | ParquetInput,
    wanted: Sequence[str],
    block_bytes: int,
    encoded: Collection[str] = (),
    row_groups: tuple[int, int] | None = None,
) -> Iterator[Chunk]:
    """Yields the wanted columns in chunks of about ``block_bytes`` of text, or of 65,536 Parquet rows.

    An optional column that the file lacks is null. In text formats, the columns of ``encoded`` are dictionaries.
    Raises InputError for a missing column or a damaged file.
    """
    absent: list[str] = []
    if form.optional:
        names = table_file_columns(source.path, form)
        absent = [name for name in wanted if name in form.optional and name not in names]
    present = [name for name in wanted if name not in absent]
    if isinstance(form, ParquetInput):
        chunks = read_parquet(source, present, row_groups)
    else:
        chunks = read_delimited(source, form, present, block_bytes, encoded)
    for chunk in chunks:
        yield with_constants(chunk, dict.fromkeys(absent))


def read_strictly(
    path: Path, form: DelimitedInput | ParquetInput, wanted: Sequence[str], block_bytes: int
) -> tuple[pa.Table, list[int]]:
    """Reads the wanted columns of a whole file as UTF-8, and the row numbers. Raises InputError for a bad row."""
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


@dataclass(frozen=True)
class SideTable:
    """Side table: distinct keys [U] as text (as categories spell it), and K rows with prefixed column names.

    A row is valid from its time until the next row of its key; without times, a row is always valid.
    ``times`` are the distinct times, int64 [T], ascending; rows of one key follow one another by time, and ``order``,
    int64 [K], is (index of the row's key) * (T + 1) + 1 + (index of its time), ascending.
    """

    key: str
    keys: pa.Array
    columns: pa.Table
    times: np.ndarray
    order: np.ndarray
    has_times: bool

    def look_up(self, keys: pa.Array, times: np.ndarray) -> Columns:
        """Returns the side columns of N rows by key, as valid at the rows' times, int64 [N] in microseconds.

        A value is null if the key is missing, or has only later rows.
        """
        numbers = pc.fill_null(pc.index_in(_key_texts(keys), self.keys), -1).to_numpy().astype(np.int64)
        step = len(self.times) + 1
        wanted = numbers * step + np.searchsorted(self.times, times, side="right")
        rows = np.searchsorted(self.order, wanted, side="right") - 1
        # Before the first row of a key lies one of another key.
        missing = (rows < 0) | (np.append(self.order, -1)[rows] // step != numbers)
        indices = pa.array(rows, mask=missing)
        names = self.columns.column_names
        return {name: self.columns.column(name).take(indices).combine_chunks() for name in names}


def _key_texts(column: pa.Array) -> pa.Array:
    """Returns keys as categories spell them, so that 12.0 in one file matches 12 in the other."""
    return spell_array(text_array(column).cast(pa.string()))


def find_side_file(join: Join, folder: Path) -> Path:
    """Returns the file of a join for the input files of ``folder``. Raises InputError for none or several."""
    paths = sorted(path for path in folder.glob(join.file) if path.is_file())
    if len(paths) != 1:
        several = f"matches {', '.join(path.name for path in paths)}" if paths else "no such file"
        raise InputError(f"join {join.file} in {folder}: {several}; exactly one file is required")
    return paths[0]


def make_side_table(join: Join, path: Path, table: pa.Table, rows: Sequence[int]) -> SideTable:
    """Makes a side table from columns of ``path`` and row numbers. Raises InputError for a missing or repeated key."""
    keys = _key_texts(table.column(join.key).combine_chunks())
    if keys.null_count:
        row = rows[keys.is_null().index(True).as_py()]
        what = f"the key {join.key} is missing; every row of a side table requires one"
        raise InputError(f"{path} row {row}: {what}")
    encoded = keys.dictionary_encode()
    times = np.zeros(len(keys), np.int64)
    if join.valid_from is not None:
        times = _starts(path, join.valid_from, table, rows)
    distinct, ranks = np.unique(times, return_inverse=True)
    order = encoded.indices.to_numpy().astype(np.int64) * (len(distinct) + 1) + 1 + ranks
    _, firsts, counts = np.unique(order, return_index=True, return_counts=True)
    if (counts > 1).any():
        index = int(firsts[counts > 1].min())
        what = f"{path}: the key {join.key} {keys[index].as_py()!r} appears more than once"
        if join.valid_from is not None:
            what += f" with {join.valid_from.column} {format_time(int(times[index]))}"
        raise InputError(f"{what} (first in row {rows[index]})")
    sorting = np.argsort(order)
    columns = table.drop_columns(list(join.own_columns)).take(pa.array(sorting))
    columns = columns.rename_columns([join.prefix + name for name in columns.column_names])
    return SideTable(
        join.key, encoded.dictionary, columns, distinct, order[sorting], join.valid_from is not None
    )


def _starts(path: Path, valid_from: Time, table: pa.Table, rows: Sequence[int]) -> np.ndarray:
    """Returns the times from which rows are valid, int64 [K] microseconds. Raises InputError for a bad time."""
    name = str(valid_from.column)
    column = table.column(name).combine_chunks()
    try:
        times, bad = parse_times(column, valid_from)
    except InputError as error:
        raise InputError(f"{path}: the column {name} is {error}") from None
    if bad.any():
        index = int(bad.argmax())
        value = column[index].as_py()
        what = "missing" if value in (None, "") else f"unreadable or out of range ({value!r})"
        allowed = f"{valid_from.form}, {valid_from.range_text}"
        raise InputError(f"{path} row {rows[index]}: valid_from {name}: {what}; allowed: {allowed}")
    return times


def read_files(
    mapping: Mapping, sources: Sequence[SourceFile], block_bytes: int, line: int = 0
) -> Iterator[tuple[Chunk, tuple[SideTable, ...], int]]:
    """Yields the chunks of input files, each with its folder's side tables and the number of lines in earlier files.

    A chunk is about ``block_bytes`` of a file; a blank file has none. The count of lines starts at ``line``. Raises
    InputError if a file cannot be read.
    """
    sides_of = cache(lambda folder: _side_tables(mapping, folder, block_bytes))
    for source in sources:
        if is_blank(source.path):
            continue
        last, sides = 0, sides_of(source.path.parent)
        for chunk in _read_file(mapping, source, sides, block_bytes):
            last = max(last, chunk.last_row)
            yield chunk, sides, line
        line += last


def _read_file(
    mapping: Mapping, source: SourceFile, sides: Sequence[SideTable], block_bytes: int
) -> Iterator[Chunk]:
    form = mapping.input
    joined = [name for side in sides for name in side.columns.column_names]
    not_joined = [name for name in mapping.raw_columns if name not in joined]
    wanted = dict.fromkeys((*not_joined, *(side.key for side in sides)))
    keys = {name: value for name, value in folder_keys(source.path).items() if name in wanted}
    if isinstance(form, JsonlInput):
        columns = [name for name in wanted if name not in keys]
        chunks = _json_lines(mapping, columns, form.optional).read(source, block_bytes)
    else:
        names = table_file_columns(source.path, form)
        if both := [name for name in joined if name in names]:
            fault = f"the column {both[0]} is there and in a side table too"
            raise InputError(f"{source.path}: {fault}: give the join a prefix")
        keys = {name: value for name, value in keys.items() if name not in names}
        columns = [name for name in wanted if name not in keys]
        needed = [name for name in columns if name not in form.optional]
        require_columns(source.path, needed, (*names, *joined))
        chunks = read_table_file(source, form, columns, block_bytes, mapping.value_sources)
    for chunk in chunks:
        yield with_constants(chunk, keys)


def _json_lines(mapping: Mapping, wanted: Sequence[str], optional: Sequence[str]) -> JsonlReader:
    keys = [mapping.weight, mapping.time.column if mapping.time.unit is not None else None]
    if mapping.label is not None and not isinstance(mapping.label.value, str):
        keys.append(mapping.label.column)
    texts = {*mapping.text_sources, mapping.example_id, *(join.key for join in mapping.joins)}
    texts |= {derived.source for derived in mapping.derive.values()}
    if mapping.query is not None:
        texts.add(mapping.query.group_column)
    used = (*mapping.number_sources, *mapping.vector_sources, *keys)
    numbers = [name for name in used if name is not None and name not in texts]
    return JsonlReader(wanted, numbers, mapping.list_sources, optional=optional)


def _side_tables(mapping: Mapping, folder: Path, block_bytes: int) -> tuple[SideTable, ...]:
    """Loads the side tables in a folder, except tables without a column that the mapping reads."""
    tables = []
    for join in mapping.joins:
        form = join.input or mapping.input
        assert isinstance(form, DelimitedInput | ParquetInput)
        path = find_side_file(join, folder)
        names = table_file_columns(path, form)
        keys = join.own_columns
        require_columns(path, keys, names)
        read = [name for name in names if name not in keys and join.prefix + name in mapping.raw_columns]
        tables.append(make_side_table(join, path, *read_strictly(path, form, [*keys, *read], block_bytes)))
    columns = [name for side in tables for name in side.columns.column_names]
    if repeated := [name for name in columns if columns.count(name) > 1]:
        fault = f"two side tables give the column {repeated[0]}"
        raise InputError(f"{folder}: {fault}: give the joins prefixes")
    time = mapping.time.column
    if any(side.has_times and time in side.columns.column_names for side in tables):
        fault = f"the column {time}, the time of the rows, is in a side table with valid_from"
        raise InputError(f"{folder}: {fault}, which is looked up by that time")
    return tuple(side for side in tables if side.columns.num_columns)
