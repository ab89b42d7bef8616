"""Reads and transforms: the examples of all input files in order, as Arrow tables, with threads that work ahead."""

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa

from ctr.data.ids.arrow import string_ids
from ctr.data.ids.tables import pack_table
from ctr.data.kept_values import VALUE_PREFIX, value_columns
from ctr.data.mapping import Mapping, Time
from ctr.data.shards import shard_schema
from ctr.data.times import DAY_US, format_time
from ctr.pipelines.tables.input_files import Chunk, SourceFile
from ctr.pipelines.tables.joins import SideTable
from ctr.pipelines.tables.raw_columns import (
    Verdict,
    add_derived,
    check_numbers,
    checked_columns,
    read_further_labels,
    read_keys,
    read_labels,
    read_times,
    read_weights,
)
from ctr.pipelines.tables.reader import read_files
from ctr.pipelines.tables.rejects import EARLY_ROWS, Reject, RejectLog

# Columns beside those of a shard, with the source of each example; no feature can have such a name.
FILE_COLUMN, ROW_COLUMN = "@file", "@row"
_ORIGIN = (
    pa.field(FILE_COLUMN, pa.int32(), nullable=False),
    pa.field(ROW_COLUMN, pa.int64(), nullable=False),
)

Item = TypeVar("Item")
Result = TypeVar("Result")

_HOUR_US = DAY_US // 24
_MOST_BACK = 100
_ORDERED_ROWS = 20  # fewer rows show no order
_OFFSET = re.compile(r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$", re.IGNORECASE)
_WORKERS = 2
_AHEAD = 3


def spill_schema(mapping: Mapping) -> pa.Schema:
    """Returns the columns of a shard, kept raw values, and file and row."""
    schema = mapping.feature_schema
    values = value_columns(schema, mapping.keep_values)
    kept = [pa.field(VALUE_PREFIX + name, kind) for name, kind in values.items()]
    return pa.schema([*shard_schema(schema), *kept, *_ORIGIN])


def _is_local(time: Time, chunk: Chunk) -> bool:
    """Returns whether times have no zone, as those of the first row show."""
    if time.column is None or time.unit or time.zone or not chunk.table.num_rows:
        return False
    if time.format != "iso8601":
        return "%z" not in str(time.format).lower()
    value = chunk.table.column(time.column)[0]
    if pa.types.is_timestamp(value.type):
        return value.type.tz is None
    text = value.as_py()
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
    return _OFFSET.search(text.strip()) is None


def make_examples(
    mapping: Mapping, name_hash: int, chunk: Chunk, sides: Iterable[SideTable], first: int
) -> tuple[pa.Table, list[Reject]]:
    """Makes the examples of a chunk, under ``spill_schema``, and its rejects.

    ``name_hash`` is of the file's name, ``first`` the number of lines of the files before it. In a log that groups
    rows, ``query_id`` is still the group and ``query_time`` the row's own time. Raises InputError for a column that its
    use cannot read.
    """
    schema, verdict = mapping.feature_schema, Verdict(chunk)
    columns = checked_columns(chunk, sides, verdict, mapping.value_sources)
    times = read_times(mapping, columns, chunk, first, verdict)
    for side in sides:
        if side.has_times:
            # What held at the rows' own times.
            looked_up = side.attach(pa.table({side.key: columns[side.key]}), times)
            columns |= {name: looked_up.column(name).combine_chunks() for name in side.columns.column_names}
    labels = read_labels(mapping, columns, verdict)
    further = read_further_labels(mapping, columns, times, verdict)
    weights = read_weights(mapping.weight, columns, verdict)
    ids, groups = read_keys(mapping, name_hash, columns, chunk, times, verdict)
    add_derived(mapping.derive, columns, times, verdict)
    check_numbers(mapping.number_sources, mapping.vector_sources, columns, verdict)
    keys = {
        "query_time": times,
        "timestamp": times,
        "query_id": groups,
        "example_id": ids,
        "label": labels,
        "train_weight": weights,
        "metric_weight": weights,
        **further,
    }
    raw = {name: columns[name] for name in schema.read_sources}
    origin = {FILE_COLUMN: np.full(len(times), chunk.file, np.int32), ROW_COLUMN: chunk.rows}
    tables = [pa.table(keys), pa.table(raw), pa.table(origin)]
    if not verdict.good.all():
        tables = [table.filter(pa.array(verdict.good)) for table in tables]
    packed = pack_table(schema, tables[0], tables[1], tuple(value_columns(schema, mapping.keep_values)))
    fields = spill_schema(mapping)
    for name in tables[2].column_names:
        packed = packed.append_column(fields.field(name), tables[2].column(name))
    return packed, verdict.rejects


def work_ahead(
    work: Callable[[Item], Result], items: Iterable[Item], workers: int, ahead: int
) -> Iterator[Result]:
    """Yields the results of ``work`` in the order of the items; so many of the next ones are under way meanwhile."""
    with ThreadPoolExecutor(workers, "ingest") as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


@dataclass
class TimesRead:
    """Range of the rows' times, in microseconds, and how many are unlikely."""

    early: int
    now: int
    first: int | None = None  # None before the first row
    last: int | None = None
    before: int = 0  # rows before ``early``
    after: int = 0  # rows from ``now`` on
    rows: int = 0
    back: list[int] = field(default_factory=list)  # local times that lie almost an hour before the row above
    unordered: bool = False  # some lie further before it
    _row_above: tuple[int, int] = (-1, 0)  # its file and time

    def add(self, times: np.ndarray, file: int, local: bool) -> None:
        """Adds the times of consecutive rows of a file, [N] int64; ``local``: they have no zone."""
        if not len(times):
            return
        above = self._row_above[1] if self._row_above[0] == file else times[0]
        steps = np.diff(times, prepend=above)
        self.unordered |= bool((steps < -_HOUR_US).any())
        if local and len(self.back) < _MOST_BACK:
            self.back += times[(steps >= -_HOUR_US) & (steps < -_HOUR_US // 2)][:_MOST_BACK].tolist()
        self._row_above = file, int(times[-1])
        self.rows += len(times)
        low, high = int(times.min()), int(times.max())
        self.first = low if self.first is None else min(self.first, low)
        self.last = high if self.last is None else max(self.last, high)
        self.before += int(np.count_nonzero(times < self.early))
        self.after += int(np.count_nonzero(times >= self.now))

    def warnings(self, rows: int) -> Iterator[str]:
        if self.first is None or self.last is None:
            return
        for count, what, extreme, time_us in (
            (self.before, "before the year 1990", "earliest", self.first),
            (self.after, "in the future", "latest", self.last),
        ):
            if count:
                yield (
                    f"{count} of {rows} times lie {what}, the {extreme} at {format_time(time_us)}: "
                    "if that is wrong, check time.unit or time.format of the mapping"
                )
        # Clocks go back once a year; a table in no order does so all the time.
        years = 1 + (self.last - self.first) // (300 * DAY_US)
        if not self.unordered and self.rows >= _ORDERED_ROWS and 0 < len(self.back) <= years:
            yield (
                f"times without a zone go back by almost an hour, at {format_time(self.back[0])}: if they are of a "
                "zone with daylight saving time, the rows of two hours share one; give them in UTC or with their "
                "offset, or name time.zone in the mapping"
            )


@dataclass
class Reading:
    """What is known of the input so far; ``read_examples`` adds to it."""

    rejects: RejectLog
    times: TimesRead
    rows: int = 0
    rows_of: Counter[int] = field(default_factory=Counter)  # by the number of the file
    # The lines before each file and the number of its own, by its number; without blank files.
    lines_of: dict[int, tuple[int, int]] = field(default_factory=dict)


def read_examples(
    mapping: Mapping,
    sources: Sequence[SourceFile],
    block_bytes: int,
    reading: Reading,
    line: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Iterator[pa.Table]:
    """Yields the examples of each chunk of input files, in order, and adds what else is known of them to ``reading``.

    ``row_order`` counts the lines before each file, from ``line`` on. ``progress`` is called with the number of rows
    read since its last call.
    """
    names = string_ids(pa.array([source.name for source in sources], pa.string()))
    name_hashes = {source.number: names[index] for index, source in enumerate(sources)}

    def make(
        job: tuple[Chunk, tuple[SideTable, ...], int],
    ) -> tuple[Chunk, int, pa.Table, list[Reject], bool]:
        chunk, sides, before = job
        table, rejects = make_examples(mapping, name_hashes[chunk.file], chunk, sides, before)
        return chunk, before, table, rejects, _is_local(mapping.time, chunk)

    chunks = read_files(mapping, sources, block_bytes, line)
    for chunk, before, table, rejects, local in work_ahead(make, chunks, _WORKERS, _AHEAD):
        _, lines = reading.lines_of.get(chunk.file, (0, 0))
        reading.lines_of[chunk.file] = before, max(chunk.last_row, lines)
        reading.rows += chunk.count
        reading.rows_of[chunk.file] += chunk.count
        reading.rejects.add(rejects)
        reading.times.add(table.column("query_time").to_numpy(), chunk.file, local)
        if reading.rows >= EARLY_ROWS:
            reading.rejects.check(reading.rows)
        if progress is not None:
            progress(chunk.count)
        yield table
