"""Reads the input files of a mapping as chunks of raw columns, with the side tables that belong to each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ctr.data.mapping import DelimitedInput, Join, JsonlInput, Mapping, MindInput, ParquetInput
from ctr.io.errors import InputError
from ctr.pipelines.rows.jsonl import JsonlReader
from ctr.pipelines.rows.mind import News, read_mind
from ctr.pipelines.rows.side_tables import SideTable, find_side_file, make_side_table
from ctr.pipelines.rows.sources import (
    Chunk,
    SourceFile,
    folder_keys,
    is_blank,
    require_columns,
    with_constants,
)
from ctr.pipelines.rows.table_files import read_strictly, read_table_file, table_file_columns


def read_files(
    mapping: Mapping,
    sources: Sequence[SourceFile],
    block_bytes: int,
    line: int = 0,
) -> Iterator[tuple[Chunk, tuple[SideTable, ...], int]]:
    """Yields the chunks of input files, each with the side tables beside its file and the number of lines before that.

    A chunk is about ``block_bytes`` of a file; a blank file has none. Lines are counted from ``line`` on. Raises
    InputError where a file cannot be read.
    """
    reader = _Reader(mapping, block_bytes)
    for source in sources:
        last = 0
        for chunk, sides in () if is_blank(source.path) else reader.read(source):
            last = max(last, chunk.last_row)
            yield chunk, sides, line
        line += last


@dataclass
class _Reader:
    mapping: Mapping
    block_bytes: int
    _sides: dict[Path, tuple[SideTable, ...]] = field(default_factory=dict)
    _news: dict[Path, News] = field(default_factory=dict)

    @property
    def _columns(self) -> tuple[str, ...]:
        return self.mapping.raw_columns

    def read(self, source: SourceFile) -> Iterator[tuple[Chunk, tuple[SideTable, ...]]]:
        form = self.mapping.input
        if isinstance(form, MindInput):
            folder = source.path.parent
            if folder not in self._news:
                self._news[folder] = News.load(folder)
            for chunk in read_mind(source, self._news[folder], self._columns, self.block_bytes):
                yield chunk, ()
            return
        sides = self._side_tables(source.path.parent)
        joined = {name: side for side in sides for name in side.columns.column_names}
        wanted = [name for name in self._columns if name not in joined]
        wanted += [name for name in dict.fromkeys(side.key for side in sides) if name not in wanted]
        for chunk in self._read_file(source, form, wanted, joined):
            yield chunk, sides

    def _read_file(
        self,
        source: SourceFile,
        form: DelimitedInput | JsonlInput | ParquetInput,
        wanted: Sequence[str],
        joined: dict[str, SideTable],
    ) -> Iterator[Chunk]:
        keys = {name: value for name, value in folder_keys(source.path).items() if name in wanted}
        if isinstance(form, JsonlInput):
            own = [name for name in wanted if name not in keys]
            chunks = self._jsonl_reader(own, form.optional).read(source, self.block_bytes)
        else:
            names = table_file_columns(source.path, form)
            if both := [name for name in joined if name in names]:
                fault = f"the column {both[0]} is there and in a side table too"
                raise InputError(f"{source.path}: {fault}: give the join a prefix")
            keys = {name: value for name, value in keys.items() if name not in names}
            own = [name for name in wanted if name not in keys]
            needed = [name for name in own if name not in form.optional]
            require_columns(source.path, needed, (*names, *joined))
            chunks = read_table_file(source, form, own, self.block_bytes, self.mapping.value_sources)
        for chunk in chunks:
            yield with_constants(chunk, keys)

    def _jsonl_reader(self, wanted: Sequence[str], optional: Sequence[str]) -> JsonlReader:
        mapping = self.mapping
        keys = [mapping.weight, mapping.time.column if mapping.time.unit is not None else None]
        if mapping.label is not None and not isinstance(mapping.label.value, str):
            keys.append(mapping.label.column)
        texts = {*mapping.text_sources, mapping.example_id, *(join.key for join in mapping.joins)}
        texts |= {derived.source for derived in mapping.derive.values()}
        if mapping.query is not None:
            texts.add(mapping.query.group_column)
        given = (*mapping.number_sources, *mapping.vector_sources, *keys)
        numbers = [name for name in given if name is not None and name not in texts]
        return JsonlReader(wanted, numbers, mapping.list_sources, optional=optional)

    def _side_tables(self, folder: Path) -> tuple[SideTable, ...]:
        if folder not in self._sides:
            loaded = [self._load_side(join, folder) for join in self.mapping.joins]
            names = [name for side in loaded for name in side.columns.column_names]
            repeated = next((name for name in names if names.count(name) > 1), None)
            if repeated is not None:
                fault = f"two side tables give the column {repeated}"
                raise InputError(f"{folder}: {fault}: give the joins prefixes")
            self._sides[folder] = tuple(side for side in loaded if side.columns.num_columns)
            name = self.mapping.time.column
            if any(
                side.versions is not None and name in side.columns.column_names
                for side in self._sides[folder]
            ):
                fault = f"the column {name}, the time of the rows, is in a side table with valid_from"
                raise InputError(f"{folder}: {fault}, which is looked up by that time")
        return self._sides[folder]

    def _load_side(self, join: Join, folder: Path) -> SideTable:
        form = join.input or self.mapping.input
        assert isinstance(form, DelimitedInput | ParquetInput)
        path = find_side_file(join, folder)
        names = table_file_columns(path, form)
        require_columns(path, join.own_columns, names)
        needed = self._columns
        own = join.own_columns
        wanted = [*own, *(name for name in names if name not in own and join.prefix + name in needed)]
        return make_side_table(join, path, *read_strictly(path, form, wanted, self.block_bytes))
