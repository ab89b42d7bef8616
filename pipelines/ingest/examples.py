"""Examples of raw rows: made chunk by chunk, and read from all input files in order, with threads that work ahead."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ctr.data.ids.arrow import string_ids
from ctr.data.ids.tables import pack_table
from ctr.data.kept_values import VALUE_PREFIX, value_columns
from ctr.data.mapping import Mapping
from ctr.data.shards import shard_schema
from ctr.data.times import format_time
from ctr.pipelines.ingest.repeats import Repeats, hash_rows
from ctr.pipelines.rows.raw_columns import (
    Verdict,
    add_derived,
    check_numbers,
    checked_columns,
    read_keys,
    read_labels,
    read_times,
    read_weights,
)
from ctr.pipelines.rows.reader import RawReader, SideTable
from ctr.pipelines.rows.rejects import EARLY_ROWS, Reject, RejectLog
from ctr.pipelines.rows.sources import Chunk, SourceFile

# Columns beside those of a shard, with the source of each example; no feature can have such a name.
FILE_COLUMN, ROW_COLUMN = "@file", "@row"


def spill_schema(mapping: Mapping) -> pa.Schema:
    """Returns the columns of a shard, kept raw values (null if held back without), and numbers of file and row."""
    schema = mapping.feature_schema
    values = value_columns(schema, mapping.kept_values)
    fields = [
        *(pa.field(VALUE_PREFIX + name, kind) for name, kind in values.items()),
        pa.field(FILE_COLUMN, pa.int32(), nullable=False),
        pa.field(ROW_COLUMN, pa.int64(), nullable=False),
    ]
    return pa.schema([*shard_schema(schema), *fields])


def with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Gives rows that were held back the columns of the present mapping, which may keep other values."""
    columns = [
        table.column(field.name) if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


@dataclass(frozen=True)
class Examples:
    """Examples of a chunk, as a table under ``spill_schema``, and the rejected rows.

    In a log that groups rows, ``query_id`` is still the group and ``query_time`` the row's own time.
    """

    table: pa.Table
    rejects: list[Reject]
    count: int


class ExampleMaker:
    """Maker of the examples of chunks; immutable, so that threads may share it."""

    def __init__(self, mapping: Mapping, sources: Sequence[SourceFile]) -> None:
        self._mapping = mapping
        self._schema = mapping.feature_schema
        self._spill_schema = spill_schema(mapping)
        self._encoded = frozenset(mapping.value_sources)
        self._kept = tuple(value_columns(self._schema, mapping.kept_values))
        self._name_hashes = string_ids(pa.array([source.name for source in sources], pa.string()))

    def make(self, chunk: Chunk, sides: Iterable[SideTable], first: int) -> Examples:
        """Makes the examples of a chunk after ``first`` lines; InputError for a column that its use cannot read."""
        mapping, verdict = self._mapping, Verdict(chunk)
        columns = checked_columns(chunk, sides, verdict, self._encoded)
        times = read_times(mapping, columns, chunk, first, verdict)
        labels = read_labels(mapping, columns, verdict)
        weights = read_weights(mapping, columns, verdict)
        ids, groups = read_keys(mapping, self._name_hashes[chunk.file], columns, chunk, times, verdict)
        add_derived(mapping.derive, columns, times, verdict)
        check_numbers(mapping.number_sources, columns, verdict)
        keys = {
            "query_time": times,
            "timestamp": times,
            "query_id": groups,
            "example_id": ids,
            "label": labels,
            "train_weight": weights,
            "metric_weight": weights,
        }
        origin = {FILE_COLUMN: np.full(len(times), chunk.file, np.int32), ROW_COLUMN: chunk.rows}
        raw = {name: columns[name] for name in self._schema.sources}
        return Examples(self._pack(keys, raw, origin, verdict.good), verdict.rejects, chunk.count)

    def _pack(
        self,
        keys: dict[str, np.ndarray],
        raw: dict[str, pa.Array],
        origin: dict[str, np.ndarray],
        good: np.ndarray,
    ) -> pa.Table:
        tables = [pa.table(keys), pa.table(raw), pa.table(origin)]
        if not good.all():
            tables = [table.filter(pa.array(good)) for table in tables]
        packed = pack_table(self._schema, tables[0], tables[1], self._kept)
        for name in (FILE_COLUMN, ROW_COLUMN):
            packed = packed.append_column(self._spill_schema.field(name), tables[2].column(name))
        return packed


_WORKERS = 2
_AHEAD = 2


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Adds the time that the block takes to that of a stage."""
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - started


@dataclass
class TimesFound:
    """Range of the rows' times, in microseconds, and how many are unlikely."""

    early: int
    now: int
    first: int | None = None  # None before the first row
    last: int | None = None
    before: int = 0  # rows before ``early``
    after: int = 0  # rows from ``now`` on

    def add(self, times: np.ndarray) -> None:
        """Adds the times of rows, [N] int64."""
        if len(times):
            low, high = int(times.min()), int(times.max())
            self.first = low if self.first is None else min(self.first, low)
            self.last = high if self.last is None else max(self.last, high)
            self.before += int(np.count_nonzero(times < self.early)) if low < self.early else 0
            self.after += int(np.count_nonzero(times >= self.now)) if high >= self.now else 0

    def warnings(self, rows: int) -> Iterator[str]:
        for count, what, extreme, time_us in (
            (self.before, "before the year 1990", "earliest", self.first),
            (self.after, "in the future", "latest", self.last),
        ):
            if count and time_us is not None:
                yield (
                    f"{count} of {rows} times lie {what}, the {extreme} at {format_time(time_us)}: "
                    "if that is wrong, check time.unit or time.format of the mapping"
                )


@dataclass
class ExampleReader:
    """Iterator over the examples of input files, in order; adds rejects, times and hashes of rows to what it is given.

    ``row_order`` counts the lines before each file: ``first_lines``, or else those of the files of ``sources`` before
    it, from ``line`` on. ``progress`` is called with the number of rows read since its last call.
    """

    mapping: Mapping
    sources: Sequence[SourceFile]
    rejects: RejectLog
    times: TimesFound
    repeats: Repeats | None  # None: rows are not hashed
    progress: Callable[[int], None] | None
    block_bytes: int
    seconds: dict[str, float]
    line: int = 0
    first_lines: Sequence[int] | None = None
    rows: int = 0  # of the input so far
    rows_of: Counter[int] = field(default_factory=Counter)  # by the number of the file
    # The first line and the number of lines of each file, by its number.
    lines_of: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reader = RawReader(self.mapping, self.block_bytes)
        self._maker = ExampleMaker(self.mapping, self.sources)

    def __iter__(self) -> Iterator[pa.Table]:
        """Yields tables under ``spill_schema``; counts their rows, and adds their rejects, times and hashes."""
        with ThreadPoolExecutor(_WORKERS, "ingest") as pool:
            waiting: deque[Future[tuple[int, Examples, np.ndarray | None]]] = deque()
            try:
                for job in self._jobs():
                    waiting.append(pool.submit(self._make, *job))
                    if len(waiting) > _AHEAD + 1:
                        yield self._count(*waiting.popleft().result())
                while waiting:
                    yield self._count(*waiting.popleft().result())
            finally:
                for future in waiting:
                    future.cancel()
        if self.repeats is not None:
            self.repeats.finish()

    def _jobs(self) -> Iterator[tuple[Chunk, tuple[SideTable, ...], int]]:
        line = self.line
        for source in self.sources:
            if self.first_lines is not None:
                line = self.first_lines[source.number]
            chunks = self._reader.read(source)
            last = 0
            while True:
                with timed(self.seconds, "read"):
                    found = next(chunks, None)
                if found is None:
                    break
                chunk, sides = found
                last = max([last, *chunk.rows[-1:].tolist(), *(reject.row for reject in chunk.rejects)])
                yield chunk, sides, line
            self.lines_of[source.number] = line, last
            line += last

    def _make(
        self, chunk: Chunk, sides: tuple[SideTable, ...], line: int
    ) -> tuple[int, Examples, np.ndarray | None]:
        with timed(self.seconds, "transform"):
            examples = self._maker.make(chunk, sides, line)
            hashes = None if self.repeats is None else hash_rows(self.mapping, examples.table)
            return chunk.file, examples, hashes

    def _count(self, file: int, examples: Examples, hashes: np.ndarray | None) -> pa.Table:
        self.rows += examples.count
        self.rows_of[file] += examples.count
        self.rejects.add(examples.rejects)
        self.times.add(examples.table.column("query_time").to_numpy())
        if self.repeats is not None and hashes is not None:
            self.repeats.add(file, hashes)
        if self.rows >= EARLY_ROWS:
            self.rejects.check(self.rows)
        if self.progress is not None:
            self.progress(examples.count)
        return examples.table
