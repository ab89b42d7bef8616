"""Reads the input files of a mapping as chunks of raw columns, with the side tables that belong to each."""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from ctr.data.mapping import DelimitedInput, JsonlInput, Mapping, MindInput, ParquetInput
from ctr.io.errors import InputError
from ctr.pipelines.tables.input_files import (
    Chunk,
    SourceFile,
    folder_keys,
    is_blank,
    require_columns,
    with_constants,
)
from ctr.pipelines.tables.joins import SideTable, find_side_file, make_side_table
from ctr.pipelines.tables.jsonl import JsonlReader
from ctr.pipelines.tables.mind import News, read_mind
from ctr.pipelines.tables.table_files import read_strictly, read_table_file, table_file_columns


def read_files(
    mapping: Mapping, sources: Sequence[SourceFile], block_bytes: int, line: int = 0
) -> Iterator[tuple[Chunk, tuple[SideTable, ...], int]]:
    """Yields the chunks of input files, each with the side tables beside its file and the number of lines before that.

    A chunk is about ``block_bytes`` of a file; a blank file has none. Lines are counted from ``line`` on. Raises
    InputError where a file cannot be read.
    """
    sides_of = cache(lambda folder: _side_tables(mapping, folder, block_bytes))
    news_of = cache(News.load)
    for source in sources:
        folder, last = source.path.parent, 0
        sides: tuple[SideTable, ...] = ()
        chunks: Iterator[Chunk] = iter(())
        if is_blank(source.path):
            pass
        elif isinstance(mapping.input, MindInput):
            chunks = read_mind(source, news_of(folder), mapping.raw_columns, block_bytes)
        else:
            sides = sides_of(folder)
            chunks = _read_file(mapping, mapping.input, source, sides, block_bytes)
        for chunk in chunks:
            last = max(last, chunk.last_row)
            yield chunk, sides, line
        line += last


def _read_file(
    mapping: Mapping,
    form: DelimitedInput | JsonlInput | ParquetInput,
    source: SourceFile,
    sides: Sequence[SideTable],
    block_bytes: int,
) -> Iterator[Chunk]:
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
    """Loads the side tables in a folder, those with columns that the mapping reads."""
    loaded = []
    for join in mapping.joins:
        form = join.input or mapping.input
        assert isinstance(form, DelimitedInput | ParquetInput)
        path = find_side_file(join, folder)
        names = table_file_columns(path, form)
        keys = join.own_columns
        require_columns(path, keys, names)
        read = [name for name in names if name not in keys and join.prefix + name in mapping.raw_columns]
        loaded.append(make_side_table(join, path, *read_strictly(path, form, [*keys, *read], block_bytes)))
    columns = [name for side in loaded for name in side.columns.column_names]
    if repeated := [name for name in columns if columns.count(name) > 1]:
        fault = f"two side tables give the column {repeated[0]}"
        raise InputError(f"{folder}: {fault}: give the joins prefixes")
    time = mapping.time.column
    if any(side.has_times and time in side.columns.column_names for side in loaded):
        fault = f"the column {time}, the time of the rows, is in a side table with valid_from"
        raise InputError(f"{folder}: {fault}, which is looked up by that time")
    return tuple(side for side in loaded if side.columns.num_columns)
