"""From a chunk of raw rows to examples: keys parsed, bad rows set aside one by one, features transformed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.data.log import shard_schema
from ctr.data.mapping import Mapping, duration_us
from ctr.data.schema import Schema
from ctr.data.transform import pack_table, string_ids
from ctr.errors import InputError
from ctr.pipelines.chunks import Chunk
from ctr.pipelines.convert import (
    FIRST_TIME,
    LAST_TIME,
    TIME_LIMIT_US,
    check_utf8,
    is_text,
    mix_ids,
    parse_ids,
    parse_labels,
    parse_numbers,
    parse_times,
    parse_weights,
    show_bytes,
)
from ctr.pipelines.joins import SideTable
from ctr.pipelines.rejects import Reject, make_reject
from ctr.pipelines.sources import SourceFile

FILE_COLUMN, ROW_COLUMN = "@file", "@row"
"""Columns beside those of a shard that say where an example comes from; no feature can have such a name."""


def spill_schema(schema: Schema) -> pa.Schema:
    """The columns of a shard, then the number of the source file (int32) and the row in it (int64)."""
    fields = [
        pa.field(FILE_COLUMN, pa.int32(), nullable=False),
        pa.field(ROW_COLUMN, pa.int64(), nullable=False),
    ]
    return pa.schema([*shard_schema(schema), *fields])


@dataclass(frozen=True)
class Examples:
    """What became of a chunk: a table under ``spill_schema``, and the rows set aside.

    In a log that groups rows, ``query_id`` is still the group and ``query_time`` the row's own time.
    """

    table: pa.Table
    rejects: list[Reject]
    count: int


class _Verdict:
    """Which rows are still good; collects a reject for each that is not, with its first fault only."""

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
        found = values.take(pa.array(places)).to_pylist()
        for row, value in zip(self._chunk.rows[places].tolist(), found, strict=True):
            why = "missing" if value is None or value == "" else reason
            self.rejects.append(make_reject(self._chunk.file, row, key, why, value, allowed))


class ExampleMaker:
    """Makes examples of chunks; has no state that changes, so that threads may share it.

    Args:
        mapping: the mapping of the log.
        sources: the input files, by their numbers.
    """

    def __init__(self, mapping: Mapping, sources: Sequence[SourceFile]) -> None:
        self._mapping = mapping
        self._schema = mapping.feature_schema
        self._spill_schema = spill_schema(self._schema)
        self._name_hashes = string_ids(pa.array([source.name for source in sources], pa.string()))

    def make(self, chunk: Chunk, sides: Iterable[SideTable], first: int) -> Examples:
        """Makes the examples of a chunk.

        Args:
            chunk: the raw rows.
            sides: the side tables to attach.
            first: lines of the files before this chunk's.

        Raises:
            InputError: a column of a type that its use cannot read.
        """
        verdict = _Verdict(chunk)
        table = self._checked_text(chunk.table, verdict)
        for side in sides:
            table = side.attach(table)
        columns = {name: table.column(name).combine_chunks() for name in table.column_names}
        times = self._times(columns, chunk, first, verdict)
        labels, bad, allowed = _parse(self._mapping.label.column, columns, parse_labels, self._mapping.label)
        verdict.refuse(bad, "label", "not a label", columns[self._mapping.label.column], allowed)
        weights = self._weights(columns, verdict)
        ids, groups = self._ids(columns, chunk, times, verdict)
        self._derive(columns, times)
        self._check_numbers(columns, verdict)
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
        packed = pack_table(self._schema, tables[0], tables[1])
        for name in (FILE_COLUMN, ROW_COLUMN):
            packed = packed.append_column(self._spill_schema.field(name), tables[2].column(name))
        return packed

    def _checked_text(self, table: pa.Table, verdict: _Verdict) -> pa.Table:
        columns = {}
        for name in table.column_names:
            raw = table.column(name).combine_chunks()
            columns[name], bad = check_utf8(raw)
            if bad.any():
                verdict.refuse(bad, name, "invalid UTF-8", show_bytes(raw), "UTF-8")
        return pa.table(columns)

    def _times(self, columns: dict[str, pa.Array], chunk: Chunk, first: int, verdict: _Verdict) -> np.ndarray:
        time = self._mapping.time
        if time.row_order is not None:
            times = time.row_order.start_us + (first + chunk.rows - 1) * time.row_order.step_us
            outside = (times < 0) | (times >= TIME_LIMIT_US)
            verdict.refuse(outside, "time", "out of range", pa.array(times), f"{FIRST_TIME} to {LAST_TIME}")
            return times
        assert time.column is not None
        times, bad = _parse(time.column, columns, parse_times, time)
        form = f"unit {time.unit}" if time.unit is not None else f"format {time.format}"
        allowed = f"{form}, {FIRST_TIME} to {LAST_TIME}"
        verdict.refuse(bad, "time", "unreadable or out of range", columns[time.column], allowed)
        return times

    def _weights(self, columns: dict[str, pa.Array], verdict: _Verdict) -> np.ndarray:
        name = self._mapping.weight
        if name is None:
            return np.ones(len(verdict.good), np.float32)
        weights, bad = _parse(name, columns, parse_weights)
        verdict.refuse(bad, "weight", "not a weight", columns[name], "a finite number, 0 or more")
        return weights

    def _ids(
        self, columns: dict[str, pa.Array], chunk: Chunk, times: np.ndarray, verdict: _Verdict
    ) -> tuple[np.ndarray, np.ndarray]:
        """[N] int64 example ids and [N] int64 query ids, or groups where the mapping groups rows."""
        name = self._mapping.example_id
        if name is None:
            # The time keeps apart the same lines of files that have one name on different days.
            ids = mix_ids(self._name_hashes[chunk.file], chunk.rows, times)
        else:
            ids, bad = _parse(name, columns, parse_ids)
            verdict.refuse(bad, "example_id", "missing", columns[name], "a whole number or text")
        if self._mapping.query is None:
            return ids, ids
        name = self._mapping.query.group_column
        groups, bad = _parse(name, columns, parse_ids)
        verdict.refuse(bad, "query", "missing", columns[name], "a whole number or text")
        return ids, groups

    def _derive(self, columns: dict[str, pa.Array], times: np.ndarray) -> None:
        for name, derived in self._mapping.derive.items():
            if derived.part is not None:
                columns[name] = pa.array(_TIME_PARTS[derived.part](times))
                continue
            if derived.every is not None:
                columns[name] = pa.array(times // duration_us(derived.every))
                continue
            source = columns[derived.source]
            if derived.prefix is not None:
                text = source if is_text(source.type) else source.cast(pa.string())
                source = pc.utf8_slice_codeunits(text, 0, derived.prefix)
            columns[name] = source

    def _check_numbers(self, columns: dict[str, pa.Array], verdict: _Verdict) -> None:
        """Makes the sources of numbers numeric."""
        for name in self._mapping.number_sources:
            numbers, bad = _parse(name, columns, parse_numbers)
            verdict.refuse(bad, name, "not a number", columns[name], "a number, or empty")
            columns[name] = numbers


_HOUR_US, _DAY_US = 3_600_000_000, 86_400_000_000
_TIME_PARTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "hour": lambda times: (times // _HOUR_US % 24).astype(np.int32),
    # 1970-01-01 was a Thursday; Monday is 0.
    "weekday": lambda times: ((times // _DAY_US + 3) % 7).astype(np.int32),
}


def _parse(name: str, columns: dict[str, pa.Array], parse: Callable[..., Any], *arguments: object) -> Any:
    """``parse`` of a column, naming the column when its type is refused."""
    try:
        return parse(columns[name], *arguments)
    except InputError as error:
        raise InputError(f"the column {name} is {error}") from None
