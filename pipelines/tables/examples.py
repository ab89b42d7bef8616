"""Makes examples from chunks of raw columns: checks and completes each column, then hashes features to ids."""

import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Mapping as Table
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.data.derived import Derived
from ctr.data.features import Vector
from ctr.data.ids import arrow
from ctr.data.ids.arrow import string_ids
from ctr.data.ids.rules import derived_column
from ctr.data.ids.tables import pack_table
from ctr.data.kept_values import VALUE_PREFIX, value_columns
from ctr.data.mapping import FIRST_TIME, LAST_TIME, TIME_LIMIT_US, Mapping, Time
from ctr.data.schema import label_column
from ctr.data.shards import NO_LABEL, shard_schema
from ctr.data.spelling import CAST_NAMES
from ctr.data.time_formats import ZONES
from ctr.data.times import DAY_US, duration_us, format_time
from ctr.io.errors import InputError
from ctr.pipelines.tables.convert import (
    WEIGHT_ALLOWED,
    check_encoded,
    check_utf8,
    is_missing,
    is_text_or_number,
    mix_ids,
    parse_ids,
    parse_labels,
    parse_numbers,
    parse_times,
    parse_vectors,
    parse_weights,
    show_bytes,
)
from ctr.pipelines.tables.input_files import Chunk, SourceFile
from ctr.pipelines.tables.reader import Columns, SideTable, read_files
from ctr.pipelines.tables.rejects import EARLY_ROWS, Reject, RejectLog, make_reject


class Verdict:
    """Mask of a chunk's rows that are still good, and a reject with the first fault of each other row."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self.good = np.ones(chunk.table.num_rows, bool)
        self.rejects = list(chunk.rejects)

    def refuse(self, bad: np.ndarray, key: str, reason: str, values: pa.Array, allowed: str) -> None:
        """Rejects the ``bad`` rows with their values; a null or empty value is called missing."""
        refused = np.flatnonzero(bad & self.good)
        self.good[refused] = False
        for index in refused.tolist():
            try:
                value = values[index].as_py()
            except (OverflowError, ValueError):
                # A time beyond Python's years is reported as its number.
                value = values[index].value
            why = "missing" if value is None or value == "" else reason
            row = int(self._chunk.rows[index])
            self.rejects.append(make_reject(self._chunk.file, row, key, why, value, allowed))


def checked_columns(
    chunk: Chunk, sides: Iterable[SideTable], verdict: Verdict, encoded: Collection[str] = ()
) -> Columns:
    """Converts a chunk's columns to UTF-8 and adds side tables' columns; ``encoded`` columns may stay dictionaries.

    Side tables with ``valid_from`` are left to ``make_examples``, since their times are compared with the rows'.
    """
    columns = {}
    for name in chunk.table.column_names:
        raw = chunk.table.column(name).combine_chunks()
        # In a Parquet file, the dictionary of each batch has the values of its whole row group.
        is_encoded = name in encoded and pa.types.is_dictionary(raw.type) and len(raw.dictionary) <= len(raw)
        columns[name], bad = check_encoded(raw) if is_encoded else check_utf8(raw)
        if bad.any():
            verdict.refuse(bad, name, "invalid UTF-8", show_bytes(raw), "UTF-8")
    for side in sides:
        if not side.has_times:
            columns |= side.look_up(columns[side.key], np.zeros(len(chunk.rows), np.int64))
    return columns


def read_time_column(time: Time, key: str, columns: Columns, verdict: Verdict) -> np.ndarray:
    """Reads the column of ``time`` as int64 [N] microseconds since 1970; ``key`` is its name in the mapping."""
    times, bad = parse_column(str(time.column), columns, parse_times, time)
    zones = f" (%Z: {' or '.join(ZONES)})" if "%Z" in (time.format or "") else ""
    allowed = f"{time.form}{zones}, {time.range_text}"
    verdict.refuse(bad, key, "unreadable or out of range", columns[str(time.column)], allowed)
    return times


def read_ids(name: str, key: str, columns: Columns, verdict: Verdict) -> np.ndarray:
    """Reads the column ``name`` as int64 [N] ids; ``key`` is its name in the mapping."""
    ids, bad = parse_column(name, columns, parse_ids)
    verdict.refuse(bad, key, "missing", columns[name], "a whole number or text")
    return ids


def read_further_labels(
    mapping: Mapping, columns: Columns, times: np.ndarray, verdict: Verdict
) -> dict[str, pa.Array]:
    """Reads the further labels of N rows at ``times`` (int64 microseconds), by column: int8 [N], null if unknown."""
    labels: dict[str, pa.Array] = {}
    for name, label in mapping.labels.items():
        key = f"labels.{name}"
        column = columns[label.columns[0]]
        if label.value is not None:
            values, bad, allowed = parse_column(label.columns[0], columns, parse_labels, label.value)
            unknown = is_missing(column, is_nan_missing=True)
            verdict.refuse(bad & ~unknown, key, "not a label", column, allowed)
        else:
            assert label.time is not None and label.window is not None
            observed, missing = _optional_times(label.time, key, columns, verdict)
            early = ~missing & (observed < times)
            verdict.refuse(early, key, "before the row's own time", column, "a time from the row's own on")
            end = times + duration_us(label.window)
            values, unknown = ~missing & (observed <= end), np.zeros(len(times), bool)
            if label.until is not None:
                watched = label.time.model_copy(update={"column": label.until})
                until, unknown = _optional_times(watched, f"{key}.until", columns, verdict)
                # Whether a label is missing does not depend on it: rows with a label are a fair sample.
                unknown |= until < end
        labels[label_column(name)] = pa.array(values.astype(np.int8), mask=unknown)
    return labels


def _optional_times(
    time: Time, key: str, columns: Columns, verdict: Verdict
) -> tuple[np.ndarray, np.ndarray]:
    """Reads the column of ``time`` as int64 [N] microseconds since 1970, and whether each is missing, bool [N]."""
    assert time.column is not None
    column = columns[time.column]
    times, bad = parse_column(time.column, columns, parse_times, time)
    missing = is_missing(column, is_nan_missing=True)
    verdict.refuse(
        bad & ~missing, key, "unreadable or out of range", column, f"{time.form}, {time.range_text}"
    )
    return times, missing


def read_weights(name: str | None, columns: Columns, verdict: Verdict) -> np.ndarray:
    """Reads the column ``name`` as float32 [N] weights; all are 1 if ``name`` is None."""
    if name is None:
        return np.ones(len(verdict.good), np.float32)
    weights, bad = parse_column(name, columns, parse_weights)
    verdict.refuse(bad, "weight", "not a weight", columns[name], WEIGHT_ALLOWED)
    return weights


def add_derived(derive: Table[str, Derived], columns: Columns, times: np.ndarray, verdict: Verdict) -> None:
    """Adds the columns that a mapping derives; ``times`` are int64 [N], in microseconds."""
    derived = {}
    for name, rule in derive.items():
        if rule.of_time:
            derived[name] = pa.array(derived_column(arrow, rule, times))
            continue
        values = columns[rule.source]
        if not rule.is_copy:
            values = _as_text(name, rule, values)
        derived[name] = derived_column(arrow, rule, values)
        if rule.cast in CAST_NAMES:
            bad = pc.and_(pc.equal(derived[name], ""), pc.not_equal(values, ""))
            bad = pc.fill_null(bad, False).to_numpy(zero_copy_only=False)
            what = CAST_NAMES[rule.cast]
            verdict.refuse(bad, name, f"not {what}", values, f"{what}, or empty")
    columns |= derived


def _as_text(name: str, rule: Derived, source: pa.Array) -> pa.Array:
    is_nested = pa.types.is_nested(source.type)
    if is_nested and rule.cast == "text":
        return source
    if is_nested or not is_text_or_number(source.type):
        what = "; allowed: text, numbers and booleans"
        if is_nested:
            what = f", which has {'no prefix' if rule.prefix is not None else f'no cast to {rule.cast}'}"
        raise InputError(f"derive.{name}: the column {rule.source} is of type {source.type}{what}")
    return arrow.text_array(source)


def check_numbers(
    names: Sequence[str], vectors: Table[str, Vector], columns: Columns, verdict: Verdict
) -> None:
    """Converts sources of numbers to numeric columns and of vectors to lists; refuses bad rows in ``verdict``."""
    for name in names:
        numbers, bad = parse_column(name, columns, parse_numbers)
        verdict.refuse(bad, name, "not a number", columns[name], "a number, or empty")
        columns[name] = numbers
    for name, vector in vectors.items():
        lists, bad = parse_column(name, columns, parse_vectors, vector)
        allowed = f"{vector.size} finite numbers, or empty"
        verdict.refuse(bad, name, "not a vector of its size", columns[name], allowed)
        columns[name] = lists


def parse_column(name: str, columns: Columns, parse: Callable[..., Any], *arguments: object) -> Any:
    """Parses a column with ``parse``. Raises InputError, which names the column, for an unsuitable type."""
    try:
        return parse(columns[name], *arguments)
    except InputError as error:
        raise InputError(f"the column {name} is {error}") from None


# Columns with the source of each example, beside a shard's columns; no feature can have such a name.
FILE_COLUMN, ROW_COLUMN = "@file", "@row"
_FILE_FIELD = pa.field(FILE_COLUMN, pa.int32(), nullable=False)
_ROW_FIELD = pa.field(ROW_COLUMN, pa.int64(), nullable=False)

Item = TypeVar("Item")
Result = TypeVar("Result")

_HOUR_US = DAY_US // 24
_MOST_BACK = 100
_ORDERED_ROWS = 20  # fewer rows show no order
_OFFSET = re.compile(r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$", re.IGNORECASE)
_WORKERS = 2
_AHEAD = 3


def spill_schema(mapping: Mapping) -> pa.Schema:
    """Returns the schema of spilled rows: the columns of a shard, raw values of ``keep_values``, and file and row."""
    schema = mapping.feature_schema
    values = value_columns(schema, mapping.keep_values)
    fields = [pa.field(VALUE_PREFIX + name, kind) for name, kind in values.items()]
    return pa.schema([*shard_schema(schema), *fields, _FILE_FIELD, _ROW_FIELD])


def _is_local(time: Time, chunk: Chunk) -> bool:
    """Returns whether the times of a chunk have no zone, judging by its first row."""
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

    ``name_hash`` is the hash of the file's name, ``first`` the number of lines of the files before it. In a log that
    groups rows, ``query_id`` is still the group and ``query_time`` the time of the row. Raises InputError for a column
    whose type does not suit its use.
    """
    schema, verdict = mapping.feature_schema, Verdict(chunk)
    columns = checked_columns(chunk, sides, verdict, mapping.value_sources)
    if mapping.time.row_order is None:
        times = read_time_column(mapping.time, "time", columns, verdict)
    else:
        order = mapping.time.row_order
        times = order.start_us + (first + chunk.rows - 1) * order.step_us
        outside = (times < 0) | (times >= TIME_LIMIT_US)
        verdict.refuse(outside, "time", "out of range", pa.array(times), f"{FIRST_TIME} to {LAST_TIME}")
    for side in sides:
        if side.has_times:
            columns |= side.look_up(columns[side.key], times)
    labels = np.full(len(times), NO_LABEL, np.int8)
    if mapping.label is not None:
        name = mapping.label.column
        labels, bad, allowed = parse_column(name, columns, parse_labels, mapping.label)
        verdict.refuse(bad, "label", "not a label", columns[name], allowed)
    further = read_further_labels(mapping, columns, times, verdict)
    weights = read_weights(mapping.weight, columns, verdict)
    # The time distinguishes equal lines of files that have the same name on different days.
    ids = groups = mix_ids(name_hash, chunk.rows, times)
    if mapping.example_id is not None:
        ids = groups = read_ids(mapping.example_id, "example_id", columns, verdict)
    if mapping.query is not None:
        groups = read_ids(mapping.query.group_column, "query", columns, verdict)
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
    tables = [pa.table(keys), pa.table(raw)]
    rows = chunk.rows[verdict.good]
    if not verdict.good.all():
        tables = [table.filter(pa.array(verdict.good)) for table in tables]
    packed = pack_table(schema, tables[0], tables[1], tuple(value_columns(schema, mapping.keep_values)))
    packed = packed.append_column(_FILE_FIELD, [np.full(len(rows), chunk.file, np.int32)])
    return packed.append_column(_ROW_FIELD, [rows]), verdict.rejects


def work_ahead(
    work: Callable[[Item], Result], items: Iterable[Item], workers: int, ahead: int
) -> Iterator[tuple[Item, Result]]:
    """Yields each item with the result of ``work``, in order, while threads work on the next ``ahead`` items."""
    pool = ThreadPoolExecutor(workers, "ingest")
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    try:
        for item in items:
            waiting.append((item, pool.submit(work, item)))
            if len(waiting) > ahead:
                done, future = waiting.popleft()
                yield done, future.result()
        for done, future in waiting:
            yield done, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass
class TimesRead:
    """Range of the rows' times, in microseconds, and the number of implausible times."""

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
        """Adds the times of consecutive rows of a file, int64 [N]; ``local``: whether they have no zone."""
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
    """Statistics of the input read so far, updated by ``read_examples``."""

    rejects: RejectLog
    times: TimesRead
    line: int = 0  # lines of the files before, which ``row_order`` counts
    rows: int = 0
    rows_of: Counter[int] = field(default_factory=Counter)  # by the number of the file, as lines are
    lines_of: Counter[int] = field(default_factory=Counter)


def read_examples(
    mapping: Mapping,
    sources: Sequence[SourceFile],
    block_bytes: int,
    reading: Reading,
    progress: Callable[[int], None] | None = None,
) -> Iterator[pa.Table]:
    """Yields the examples of each chunk of input files, in order, and updates ``reading``.

    ``progress`` is called with the number of rows read since its last call.
    """
    names = string_ids(pa.array([source.name for source in sources], pa.string()))
    name_hashes = {source.number: names[index] for index, source in enumerate(sources)}

    def make(job: tuple[Chunk, tuple[SideTable, ...], int]) -> tuple[pa.Table, list[Reject]]:
        return make_examples(mapping, name_hashes[job[0].file], *job)

    chunks = read_files(mapping, sources, block_bytes, reading.line)
    for (chunk, _, _), (table, rejects) in work_ahead(make, chunks, _WORKERS, _AHEAD):
        reading.lines_of[chunk.file] = max(chunk.last_row, reading.lines_of[chunk.file])
        reading.rows += chunk.count
        reading.rows_of[chunk.file] += chunk.count
        reading.rejects.add(rejects)
        times = table.column("query_time").to_numpy()
        reading.times.add(times, chunk.file, _is_local(mapping.time, chunk))
        if reading.rows >= EARLY_ROWS:
            reading.rejects.check(reading.rows)
        if progress is not None:
            progress(chunk.count)
        yield table
