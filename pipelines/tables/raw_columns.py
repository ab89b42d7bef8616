"""Checks and completes the raw columns of a chunk."""

from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Mapping as Table
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.data.derived import Derived
from ctr.data.features import Vector
from ctr.data.ids import arrow
from ctr.data.ids.arrow import is_text
from ctr.data.ids.rules import derived_column
from ctr.data.mapping import FIRST_TIME, LAST_TIME, TIME_LIMIT_US, Mapping, Time
from ctr.data.schema import label_column
from ctr.data.shards import NO_LABEL
from ctr.data.spelling import CAST_NAMES
from ctr.data.time_formats import ZONES
from ctr.data.times import duration_us
from ctr.io.errors import InputError
from ctr.pipelines.tables.convert import (
    WEIGHT_ALLOWED,
    check_encoded,
    check_utf8,
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
from ctr.pipelines.tables.input_files import Chunk
from ctr.pipelines.tables.joins import SideTable
from ctr.pipelines.tables.rejects import make_reject

Columns = dict[str, pa.Array]


class Verdict:
    """Rows that are still good; a reject for each that is not, with its first fault only."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self.good = np.ones(chunk.table.num_rows, bool)
        self.rejects = list(chunk.rejects)

    def refuse(self, bad: np.ndarray, key: str, reason: str, values: pa.Array, allowed: str) -> None:
        """Sets the ``bad`` rows aside, with the value that each has; a null or empty one is called missing."""
        places = np.flatnonzero(bad & self.good)
        if not len(places):
            return
        self.good[places] = False
        found = [_as_python(value) for value in values.take(pa.array(places))]
        for row, value in zip(self._chunk.rows[places].tolist(), found, strict=True):
            why = "missing" if value is None or value == "" else reason
            self.rejects.append(make_reject(self._chunk.file, row, key, why, value, allowed))


def _as_python(value: pa.Scalar) -> Any:
    """The value, of a time beyond Python's years its number."""
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return value.value


def checked_columns(
    chunk: Chunk, sides: Iterable[SideTable], verdict: Verdict, encoded: Collection[str] = ()
) -> Columns:
    """Makes the columns of a chunk UTF-8 and adds those of side tables; of ``encoded`` dictionaries stay such.

    Side tables with ``valid_from`` are left to ``make_examples``, since their times are compared with the rows' own.
    """
    columns = {}
    for name in chunk.table.column_names:
        raw = chunk.table.column(name).combine_chunks()
        # Of a Parquet file, each batch comes with the values of its whole row group.
        is_encoded = name in encoded and pa.types.is_dictionary(raw.type) and len(raw.dictionary) <= len(raw)
        columns[name], bad = check_encoded(raw) if is_encoded else check_utf8(raw)
        if bad.any():
            verdict.refuse(bad, name, "invalid UTF-8", show_bytes(raw), "UTF-8")
    table = pa.table(columns)
    for side in sides:
        table = side.attach(table) if not side.has_times else table
    return {name: table.column(name).combine_chunks() for name in table.column_names}


def read_times(mapping: Mapping, columns: Columns, chunk: Chunk, first: int, verdict: Verdict) -> np.ndarray:
    """Reads [N] int64 microseconds; ``first`` is the number of lines of the files before this chunk's file."""
    time = mapping.time
    if time.row_order is not None:
        times = time.row_order.start_us + (first + chunk.rows - 1) * time.row_order.step_us
        outside = (times < 0) | (times >= TIME_LIMIT_US)
        verdict.refuse(outside, "time", "out of range", pa.array(times), f"{FIRST_TIME} to {LAST_TIME}")
        return times
    return read_time_column(time, "time", columns, verdict)


def read_time_column(time: Time, key: str, columns: Columns, verdict: Verdict) -> np.ndarray:
    """Reads [N] int64 microseconds of the column of ``time``; ``key`` is what the mapping calls it."""
    assert time.column is not None
    times, bad = parse_column(time.column, columns, parse_times, time)
    zones = f" (%Z: {' or '.join(ZONES)})" if "%Z" in (time.format or "") else ""
    allowed = f"{time.form}{zones}, {time.range_text}"
    verdict.refuse(bad, key, "unreadable or out of range", columns[time.column], allowed)
    return times


def read_ids(name: str, key: str, columns: Columns, verdict: Verdict) -> np.ndarray:
    """Reads [N] int64 ids of the column ``name``; ``key`` is what the mapping calls it."""
    ids, bad = parse_column(name, columns, parse_ids)
    verdict.refuse(bad, key, "missing", columns[name], "a whole number or text")
    return ids


def read_labels(mapping: Mapping, columns: Columns, verdict: Verdict) -> np.ndarray:
    """Reads [N] int8 labels; ``NO_LABEL`` where the mapping has none."""
    if mapping.label is None:
        return np.full(len(verdict.good), NO_LABEL, np.int8)
    name = mapping.label.column
    labels, bad, allowed = parse_column(name, columns, parse_labels, mapping.label)
    verdict.refuse(bad, "label", "not a label", columns[name], allowed)
    return np.asarray(labels)


def read_further_labels(
    mapping: Mapping, columns: Columns, times: np.ndarray, verdict: Verdict
) -> dict[str, pa.Array]:
    """Reads the columns of the further labels of N rows of these times, int64 in microseconds: int8, null: unknown."""
    found: dict[str, pa.Array] = {}
    for name, label in mapping.labels.items():
        key = f"labels.{name}"
        if label.value is not None:
            column = columns[label.value.column]
            values, bad, allowed = parse_column(label.value.column, columns, parse_labels, label.value)
            unknown = _is_missing(column)
            verdict.refuse(bad & ~unknown, key, "not a label", column, allowed)
        else:
            assert label.time is not None and label.window is not None
            observed, missing = _optional_times(label.time, key, columns, verdict)
            early = ~missing & (observed < times)
            column = columns[label.columns[0]]
            verdict.refuse(early, key, "before the row's own time", column, "a time from the row's own on")
            end = times + duration_us(label.window)
            values, unknown = ~missing & (observed <= end), np.zeros(len(times), bool)
            if label.until is not None:
                watched = label.time.model_copy(update={"column": label.until})
                until, unknown = _optional_times(watched, f"{key}.until", columns, verdict)
                # Whether it is known does not depend on the label: the rows of which it is are a fair sample.
                unknown |= until < end
        found[label_column(name)] = pa.array(values.astype(np.int8), mask=unknown)
    return found


def _optional_times(
    time: Time, key: str, columns: Columns, verdict: Verdict
) -> tuple[np.ndarray, np.ndarray]:
    """Reads [N] int64 microseconds, and which are missing."""
    assert time.column is not None
    column = columns[time.column]
    times, bad = parse_column(time.column, columns, parse_times, time)
    missing = _is_missing(column)
    verdict.refuse(
        bad & ~missing, key, "unreadable or out of range", column, f"{time.form}, {time.range_text}"
    )
    return times, missing


def _is_missing(column: pa.Array) -> np.ndarray:
    """Returns [N] bool: no value, an empty text, or NaN."""
    missing: np.ndarray = column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    if is_text(column.type):
        missing |= pc.fill_null(pc.equal(column, ""), True).to_numpy(zero_copy_only=False)
    return missing


def read_weights(name: str | None, columns: Columns, verdict: Verdict) -> np.ndarray:
    """Reads [N] float32 weights of the column ``name``; 1 where there is none."""
    if name is None:
        return np.ones(len(verdict.good), np.float32)
    weights, bad = parse_column(name, columns, parse_weights)
    verdict.refuse(bad, "weight", "not a weight", columns[name], WEIGHT_ALLOWED)
    return np.asarray(weights)


def read_keys(
    mapping: Mapping, name_hash: int, columns: Columns, chunk: Chunk, times: np.ndarray, verdict: Verdict
) -> tuple[np.ndarray, np.ndarray]:
    """Reads [N] int64 example ids and query ids, or groups where the mapping groups rows, with the file's hash."""
    name = mapping.example_id
    # The time keeps apart the same lines of files that have one name on different days.
    ids = mix_ids(name_hash, chunk.rows, times)
    if name is not None:
        ids = read_ids(name, "example_id", columns, verdict)
    if mapping.query is None:
        return ids, ids
    return ids, read_ids(mapping.query.group_column, "query", columns, verdict)


def add_derived(derive: Table[str, Derived], columns: Columns, times: np.ndarray, verdict: Verdict) -> None:
    """Adds the columns that a mapping derives; ``times`` are int64 [N], in microseconds."""
    made = {}
    for name, rule in derive.items():
        if rule.of_time:
            made[name] = pa.array(derived_column(arrow, rule, times))
            continue
        values = columns[rule.source]
        if not rule.is_copy:
            values = _as_text(name, rule, values)
        made[name] = derived_column(arrow, rule, values)
        if rule.cast in CAST_NAMES:
            bad = pc.and_(pc.equal(made[name], ""), pc.not_equal(values, ""))
            bad = pc.fill_null(bad, False).to_numpy(zero_copy_only=False)
            what = CAST_NAMES[rule.cast]
            verdict.refuse(bad, name, f"not {what}", values, f"{what}, or empty")
    columns |= made


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
    """Makes the sources of numbers numeric, and those of vectors lists of numbers."""
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
    """Parses a column, and names it when its type is refused."""
    try:
        return parse(columns[name], *arguments)
    except InputError as error:
        raise InputError(f"the column {name} is {error}") from None
