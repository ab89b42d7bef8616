"""Lists files of raw events, detects which are new and complete, and reads them as chunks of raw columns.

A watch has a report in its spool for every file that it has read; a stream knows only the last file, ``ReadSoFar``,
which is part of the runner's checkpoint.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

import pyarrow.compute as pc

from ctr.data.event_mapping import EventMapping
from ctr.data.ids.arrow import text_array
from ctr.data.mapping import JsonlInput, input_patterns
from ctr.io.errors import InputError
from ctr.pipelines.events.addresses import local_file, match_files
from ctr.pipelines.events.drivers import FollowSettings, Location
from ctr.pipelines.events.tables import IMPRESSIONS, Kind, wanted_columns
from ctr.pipelines.tables.convert import check_utf8
from ctr.pipelines.tables.input_files import Chunk, SourceFile, natural_order
from ctr.pipelines.tables.jsonl import JsonlReader
from ctr.pipelines.tables.reader import read_table_file, row_group_sizes

BLOCK_BYTES = 16 << 20  # of a file that are read, parsed and transformed at a time

_UNIT_ROWS = 1 << 20


@dataclass(frozen=True)
class Version:
    """Size and modification time of a file, which distinguish its content from an earlier or later version."""

    size: int = 0
    modified_ns: int = 0

    @classmethod
    def read(cls, path: Path) -> "Version":
        """Reads the version of a file. Raises OSError on failure."""
        stat = path.stat()
        return cls(stat.st_size, stat.st_mtime_ns)


@dataclass(frozen=True)
class Unit:
    """Unit of work for one worker: a file of events, or some of its row groups."""

    kind: Kind
    name: str  # of the file, which does not depend on the machine
    path: Location
    row_groups: tuple[int, int] | None = None  # [begin, end); None: the whole file
    version: Version = Version()  # at the time of listing

    @property
    def digest(self) -> str:
        """Returns the hash that identifies the unit in the names of its files in a spool."""
        text = f"{self.kind}\0{self.name}\0{self.row_groups}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def find_events(mapping: EventMapping, folders: Sequence[Location]) -> list[Unit]:
    """Lists the files of events in folders, sorted by kind, then by name, which is their order of arrival.

    Searches ``impressions/``, ``clicks/`` and a folder with each label's name for files of the mapping's formats, or
    for the mapping's patterns. Skips files that are being written: their names begin with a dot or end in ``.tmp``.
    Raises InputError if a folder does not exist, or two files have the same name.
    """
    units: dict[tuple[Kind, str], Unit] = {}
    for folder in folders:
        if isinstance(folder, Path) and not folder.is_dir():
            raise InputError(f"events {folder}: no such folder")
        for kind in mapping.kinds:
            patterns = _patterns(mapping, kind)
            try:
                versions = _find_files(folder, patterns)
            except (NotImplementedError, ValueError) as error:
                # Path.glob raises these for an absolute or an empty pattern.
                raise InputError(f"mapping: the pattern {' or '.join(patterns)}: {error}") from None
            for name, version in versions.items():
                if PurePosixPath(name).name.startswith(".") or name.endswith(".tmp"):
                    continue
                key = kind if mapping.sources[kind].where else "", name
                path = folder / name if isinstance(folder, Path) else f"{folder}/{name}"
                if key in units:
                    paths = f"{path} and {units[key].path}"
                    raise InputError(f"events {paths} are both named {name}: give the folder above them")
                units[key] = Unit(kind, name, path, version=version)
    return sorted(units.values(), key=lambda unit: (unit.kind, natural_order(unit.name)))


def _find_files(folder: Location, patterns: Sequence[str]) -> dict[str, Version]:
    """Returns the versions of the files in a folder that match patterns, keyed by relative path."""
    if not isinstance(folder, Path):
        files = match_files(folder, patterns).items()
        return {
            name: Version(file.size_in_bytes, int((file.last_updated_in_seconds or 0) * 1e9))
            for name, file in files
        }
    versions = {}
    for path in (path for pattern in patterns for path in folder.glob(pattern)):
        # A file may be deleted at any moment.
        with suppress(FileNotFoundError):
            if path.is_file():
                versions[path.relative_to(folder).as_posix()] = Version.read(path)
    return versions


def looked_for(mapping: EventMapping, folders: Sequence[Path], kind: Kind) -> list[str]:
    """Lists the path patterns by which a kind's files are found."""
    return [f"{folder}/{pattern}" for folder in folders for pattern in _patterns(mapping, kind)]


def _patterns(mapping: EventMapping, kind: Kind) -> tuple[str, ...]:
    form = mapping.sources[kind].input
    patterns = input_patterns(form)
    return patterns if form.pattern is not None else tuple(f"{kind}/{pattern}" for pattern in patterns)


def split_units(units: Sequence[Unit]) -> list[Unit]:
    """Splits Parquet files into units of about a million rows; other files stay whole. Raises InputError if damaged."""
    parts: list[Unit] = []
    for unit in units:
        if not isinstance(unit.path, Path) or unit.path.suffix != ".parquet":
            parts.append(unit)
            continue
        begin = rows = 0
        sizes = row_group_sizes(unit.path)
        for number, size in enumerate(sizes):
            rows += size
            if rows >= _UNIT_ROWS or number + 1 == len(sizes):
                parts.append(replace(unit, row_groups=(begin, number + 1)))
                begin, rows = number + 1, 0
    return parts


def read_unit(mapping: EventMapping, unit: Unit, block_bytes: int = BLOCK_BYTES) -> Iterator[Chunk]:
    """Yields the raw columns of a unit's events. Raises InputError for a damaged file, or one that lacks a column."""
    form = mapping.sources[unit.kind].input
    wanted = wanted_columns(mapping, unit.kind)
    with local_file(unit.path) as path:
        source = SourceFile(0, path, unit.name)
        if isinstance(form, JsonlInput):
            chunks = line_reader(mapping, unit.kind).read(source, block_bytes)
        else:
            chunks = read_table_file(source, form, wanted, block_bytes, row_groups=unit.row_groups)
        for chunk in chunks:
            yield select_kind(mapping, unit.kind, chunk)


def select_kind(mapping: EventMapping, kind: Kind, chunk: Chunk) -> Chunk:
    """Filters a chunk to the events of a kind, which its ``where`` selects."""
    for name, value in mapping.sources[kind].where.items():
        texts = text_array(check_utf8(chunk.table.column(name).combine_chunks())[0])
        text = str(value).lower() if isinstance(value, bool) else str(value)
        same = pc.fill_null(pc.equal(texts, text), False)
        chunk = replace(
            chunk, table=chunk.table.filter(same), rows=chunk.rows[same.to_numpy(zero_copy_only=False)]
        )
    return chunk


def line_reader(mapping: EventMapping, kind: Kind) -> JsonlReader:
    """Returns the reader of events that are JSON objects; a key that an object lacks is null."""
    source = mapping.sources[kind]
    numbers = {time.column or "" for time in source.times.values() if time.unit is not None}
    texts = {source.impression_id, *source.where}
    lists: dict[str, str | None] = {}
    if kind == IMPRESSIONS:
        floats = {*mapping.number_sources, *mapping.vector_sources}
        numbers |= {*floats, *filter(None, [mapping.impressions.weight])}
        texts |= {mapping.impressions.query_id, *mapping.feature_schema.read_sources} - floats
        texts |= {derived.source for derived in mapping.impressions.derive.values()}
        lists = mapping.list_sources
    return JsonlReader(wanted_columns(mapping, kind), sorted(numbers - texts), lists, all_needed=False)


@dataclass(frozen=True)
class ReadSoFar:
    """Position in the files of a kind, whose new files must always sort after the older ones."""

    last: str = ""  # the name of the last file; empty before the first
    files: int = 0  # number of files up to that name when it was read
    arrival: int = 0  # the latest, in microseconds; 0 before the first
    # When the last file was written, or before the first file when the job began; seconds since 1970.
    written: float = 0.0
    over: bool = False  # this part of the work is done

    def unread(self, units: Sequence[Unit]) -> Sequence[Unit]:
        """Returns the units after the last one read. Raises InputError if a file was added before it."""
        last = natural_order(self.last)
        before = sum(1 for unit in units if self.last and natural_order(unit.name) <= last)
        if before > self.files:
            raise InputError(
                f"events: there are {before} files up to {self.last}, of which {self.files} were read: the "
                "names of new files must sort after those of older ones"
            )
        return units[before:]


class EventFolders:
    """Lists new and complete files of events in folders.

    The files of a kind arrive in the order of their names, and must not change once they have their
    final name. If the folders are drained, all files are complete.
    """

    def __init__(self, mapping: EventMapping, folders: Sequence[Location], settings: FollowSettings) -> None:
        self._settings = settings
        self._waiting: dict[Kind, dict[str, tuple[Version, float]]] = {}
        self.scan = partial(find_events, mapping, tuple(folders))

    def complete_files(self, kind: Kind, unread: Sequence[Unit]) -> tuple[Sequence[Unit], bool]:
        """Returns the unread files that are complete, and whether files being written delay others."""
        if self._settings.drain:
            return unread, False
        before, self._waiting[kind] = self._waiting.get(kind, {}), {}
        settled = [self._is_settled(unit, before) for unit in unread]
        end = settled.index(False) if False in settled else len(unread)
        return unread[:end], end < len(unread)

    def _is_settled(self, unit: Unit, before: dict[str, tuple[Version, float]]) -> bool:
        """Returns whether a file has been unchanged for long enough, by its modification time or earlier scans."""
        limit, now, version = self._settings.settle_seconds, time.monotonic(), unit.version
        if time.time_ns() - version.modified_ns >= limit * 1e9:
            return True
        # The clock of its machine may be ahead of ours.
        seen, since = before.get(unit.name, (version, now))
        if seen != version:
            since = now
        self._waiting[unit.kind][unit.name] = version, since
        return now - since >= limit
