"""Finds files of raw events, and reads files and records to chunks of raw columns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ctr.data.event_mapping import EventMapping
from ctr.data.mapping import JsonlInput, ParquetInput, input_patterns
from ctr.io.errors import InputError
from ctr.pipelines.events.tables import KINDS, Kind, source_of, wanted_columns
from ctr.pipelines.rows.chunks import Chunk, with_constants
from ctr.pipelines.rows.jsonl import JsonlReader
from ctr.pipelines.rows.parquet import read_parquet, row_group_sizes
from ctr.pipelines.rows.sources import SourceFile, natural_order
from ctr.pipelines.rows.table_files import absent_columns, read_table_file, table_file_columns

BLOCK_BYTES = 16 << 20  # of a file that are read, parsed and transformed at a time

_UNIT_ROWS = 1 << 20


@dataclass(frozen=True)
class Unit:
    """Work of one worker at a time: a file of events, or some row groups of one."""

    kind: Kind
    name: str  # of the file, which does not depend on the machine
    path: Path
    row_groups: tuple[int, int] | None = None  # [begin, end); None: the whole file


@dataclass(frozen=True)
class Version:
    """Size and time that distinguish the content of a file from an earlier or later one."""

    size: int = 0
    modified_ns: int = 0

    @classmethod
    def read(cls, path: Path) -> "Version":
        """Reads the version of a file. Raises OSError when it cannot."""
        stat = path.stat()
        return cls(stat.st_size, stat.st_mtime_ns)


def find_events(mapping: EventMapping, folders: Sequence[Path]) -> list[Unit]:
    """Finds the files of events in some folders, in the order in which they count as arriving.

    Searches ``impressions/`` and ``clicks/`` for files of the mapping's formats, or for the mapping's patterns. Skips
    files that are being written: their names begin with a dot or end in ``.tmp``.

    Raises:
        InputError: no such folder, or two files of one name.
    """
    found: dict[str, Unit] = {}
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"events {folder}: no such folder")
        for kind in KINDS:
            form = source_of(mapping, kind).input
            patterns = input_patterns(form)
            if form.pattern is None:
                patterns = tuple(f"{kind}/{pattern}" for pattern in patterns)
            for path in _matches(folder, patterns):
                name = path.relative_to(folder).as_posix()
                if path.name.startswith(".") or path.name.endswith(".tmp") or not path.is_file():
                    continue
                if name in found:
                    places = f"{path} and {found[name].path}"
                    raise InputError(f"events {places} are both named {name}: give the folder above them")
                found[name] = Unit(kind, name, path)
    return sorted(found.values(), key=lambda unit: (unit.kind, natural_order(unit.name)))


def _matches(folder: Path, patterns: Sequence[str]) -> set[Path]:
    try:
        return {path for pattern in patterns for path in folder.glob(pattern)}
    except (NotImplementedError, ValueError) as error:
        # What Path.glob raises for an absolute pattern, and for an empty one.
        raise InputError(f"mapping: the pattern {' or '.join(patterns)}: {error}") from None


def split_units(units: Sequence[Unit]) -> list[Unit]:
    """Splits Parquet files into units of about a million rows; other files stay whole. InputError for a damaged one."""
    parts: list[Unit] = []
    for unit in units:
        if unit.path.suffix != ".parquet":
            parts.append(unit)
            continue
        begin = rows = 0
        sizes = row_group_sizes(unit.path)
        for number, size in enumerate(sizes):
            rows += size
            if rows >= _UNIT_ROWS or number + 1 == len(sizes):
                parts.append(Unit(unit.kind, unit.name, unit.path, (begin, number + 1)))
                begin, rows = number + 1, 0
    return parts


def read_unit(mapping: EventMapping, unit: Unit, block_bytes: int = BLOCK_BYTES) -> Iterator[Chunk]:
    """Yields the raw columns of a unit's events; InputError for a damaged file, or one that lacks a column."""
    source = SourceFile(0, unit.path, unit.name)
    form = source_of(mapping, unit.kind).input
    wanted = wanted_columns(mapping, unit.kind)
    if isinstance(form, JsonlInput):
        yield from line_reader(mapping, unit.kind).read(source, block_bytes)
        return
    absent = absent_columns(form, wanted, table_file_columns(unit.path, form))
    own = [name for name in wanted if name not in absent]
    if isinstance(form, ParquetInput):
        chunks = read_parquet(source, own, unit.row_groups)
    else:
        chunks = read_table_file(source, form, own, block_bytes)
    for chunk in chunks:
        yield with_constants(chunk, dict.fromkeys(absent))


def line_reader(mapping: EventMapping, kind: Kind) -> JsonlReader:
    """Makes the reader of events that are JSON objects; a key that an object lacks is null."""
    source = source_of(mapping, kind)
    numbers = {time.column or "" for time in source.times.values() if time.unit is not None}
    texts = {source.impression_id}
    lists: dict[str, str | None] = {}
    if kind == "impressions":
        numbers |= {*mapping.number_sources, *filter(None, [mapping.impressions.weight])}
        texts |= {mapping.impressions.query_id, *mapping.feature_schema.sources} - set(mapping.number_sources)
        texts |= {derived.source for derived in mapping.impressions.derive.values()}
        lists = mapping.list_sources
    return JsonlReader(wanted_columns(mapping, kind), sorted(numbers - texts), lists, all_needed=False)
