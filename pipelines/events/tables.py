"""Tables of raw events: parses keys, transforms features to ids, and rejects bad events one by one.

An impression is a row of a shard (``ctr.data.shards.shard_schema``) without its label yet, followed by the raw values
of ``keep_values`` (``ctr.data.kept_values.value_columns``) and ``arrival`` (int64). A click, or the event of a label,
is ``impression_id, time, arrival`` (int64). Times are microseconds, UTC.

Arrivals in the future are detected by comparison with other arrivals, never with this machine's clock, so that the same
events are accepted whenever and in whatever order files are read. Of a chunk of ten events or more, nine tenths show
the present: an arrival that comes later than they do by more than a day, ``mapping.future`` and ten times the span of
the middle eight tenths is in the future. (A shorter limit would refuse the last hours of a file of a week.) One that
comes later by more than ``mapping.future`` is accepted, but moves no clock. The events of a smaller chunk are compared
with earlier events: more than a year later is the future. A record of Kafka has a timestamp to compare with.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.data.event_mapping import EventMapping, EventSource
from ctr.data.ids.arrow import is_text
from ctr.data.ids.tables import pack_table
from ctr.data.kept_values import VALUE_PREFIX, value_columns
from ctr.data.schema import label_column
from ctr.data.shards import shard_schema
from ctr.data.times import DAY_US, duration_us, format_time
from ctr.io.errors import InputError
from ctr.pipelines.tables.examples import (
    Verdict,
    add_derived,
    check_numbers,
    checked_columns,
    read_ids,
    read_time_column,
    read_weights,
)
from ctr.pipelines.tables.input_files import Chunk
from ctr.pipelines.tables.reader import Columns
from ctr.pipelines.tables.rejects import Reject, make_reject

Kind: TypeAlias = str
"""``impressions``, ``clicks``, or the name of a further label."""
IMPRESSIONS, CLICKS = "impressions", "clicks"
ARRIVAL = "arrival"
EARLIER = "earlier"  # impressions of earlier partitions that later clicks may match
CLICK_SCHEMA = pa.schema([pa.field(name, pa.int64(), False) for name in ("impression_id", "time", ARRIVAL)])
EARLIER_SCHEMA = pa.schema(
    [pa.field(name, pa.int64(), False) for name in ("example_id", "query_time", "timestamp")]
)
ENOUGH_ARRIVALS = 10  # fewer events do not show what the present is
FAR_US = 366 * DAY_US  # no pause between events is longer

_UNLIMITED = int(np.iinfo(np.int64).max)


def impression_schema(mapping: EventMapping) -> pa.Schema:
    """Returns the Arrow schema of a table of impressions."""
    schema = mapping.feature_schema
    values = value_columns(schema, mapping.keep_values).items()
    fields = [pa.field(VALUE_PREFIX + name, kind) for name, kind in values]
    return pa.schema([*shard_schema(schema), *fields, pa.field(ARRIVAL, pa.int64(), False)])


def prepare(
    mapping: EventMapping,
    kind: Kind,
    chunk: Chunk,
    before: int = -1,
    clock_us: int = 0,
    stamps: np.ndarray | None = None,
) -> tuple[pa.Table, list[Reject]]:
    """Parses a chunk of raw events and transforms the features of impressions; returns good events and rejects.

    ``before`` is the last arrival read before this chunk, -1 for none; ``stamps`` [N] are the timestamps of records.
    An arrival earlier than ``clock_us`` is set to it. If the mapping names no arrivals, the events' times are used. If
    a column's type cannot be read, every row is rejected.
    """
    source = mapping.sources[kind]
    verdict = Verdict(chunk)
    try:
        columns = checked_columns(chunk, (), verdict)
        _refuse_large(columns, mapping.largest_value, verdict)
        times = _read_times(mapping, source, columns, verdict, before, stamps)
        ids = read_ids(source.impression_id, "impression_id", columns, verdict)
        arrival = np.maximum(times.get("arrival", times["time"]), clock_us)
        if kind != IMPRESSIONS:
            table = pa.table(
                {"impression_id": ids, "time": times["time"], ARRIVAL: arrival}, schema=CLICK_SCHEMA
            )
            return table.filter(pa.array(verdict.good)), verdict.rejects
        weight = read_weights(mapping.impressions.weight, columns, verdict)
        keys = {
            "query_time": times["time"],
            "timestamp": times.get("timestamp", times["time"]),
            "query_id": read_ids(mapping.impressions.query_id, "query_id", columns, verdict),
            "example_id": ids,
            "label": np.zeros(len(ids), np.int8),
            "train_weight": weight,
            "metric_weight": weight,
            **{label_column(name): np.zeros(len(ids), np.int8) for name in mapping.labels},
        }
        schema = mapping.feature_schema
        add_derived(mapping.impressions.derive, columns, keys["query_time"], verdict)
        check_numbers(mapping.number_sources, mapping.vector_sources, columns, verdict)
        key_table, features = pa.table(keys), pa.table({name: columns[name] for name in schema.read_sources})
        if not verdict.good.all():
            key_table, features = (table.filter(pa.array(verdict.good)) for table in (key_table, features))
        table = pack_table(schema, key_table, features, tuple(value_columns(schema, mapping.keep_values)))
        table = table.append_column(pa.field(ARRIVAL, pa.int64(), False), [arrival[verdict.good]])
        return table, verdict.rejects
    except (InputError, pa.ArrowException) as error:
        why = " ".join(str(error).split())
        rows = chunk.rows.tolist()
        refused = [make_reject(chunk.file, row, "events", "unreadable", None, why) for row in rows]
        return concat_events(kind, mapping, ()), [*chunk.rejects, *refused]


def arrivals(mapping: EventMapping, kind: Kind, chunk: Chunk, before: int) -> tuple[int, int] | None:
    """Returns raw events' first valid arrival and the last that moves a clock, or None; ``before``: see ``prepare``."""
    source = mapping.sources[kind]
    names = dict.fromkeys(time.column or "" for time in source.times.values())
    slim = replace(chunk, table=chunk.table.select(list(names)), rejects=[])
    verdict = Verdict(slim)
    try:
        times = _read_times(mapping, source, checked_columns(slim, (), verdict), verdict, before, None)
    except (InputError, pa.ArrowException):
        return None
    arrival = times.get("arrival", times["time"])[verdict.good]
    return (int(arrival.min()), last_arrival(mapping, arrival, before)) if len(arrival) else None


def last_arrival(mapping: EventMapping, arrival: np.ndarray, before: int) -> int:
    """Returns the last of N > 0 arrivals (int64) that moves a clock; ``before`` as in ``prepare``."""
    return int(arrival[arrival <= max(_horizon(mapping, arrival, before)[0], arrival.min())].max())


def _horizon(mapping: EventMapping, arrival: np.ndarray, before: int) -> tuple[int, int]:
    """Returns the last of N arrivals (int64) that moves a clock, and the last that is not in the future."""
    if mapping.future is None:
        return _UNLIMITED, _UNLIMITED
    future = duration_us(mapping.future)
    if len(arrival) < ENOUGH_ARRIVALS:
        latest = _UNLIMITED if before < 0 else before + max(future, FAR_US)
        return latest, latest
    ranked = np.sort(arrival)
    low, high = int(ranked[len(ranked) // 10]), int(ranked[(9 * len(ranked) - 1) // 10])
    return high + future, high + max(future, DAY_US, 10 * (high - low))


def _read_times(
    mapping: EventMapping,
    source: EventSource,
    columns: Columns,
    verdict: Verdict,
    before: int,
    stamps: np.ndarray | None,
) -> dict[str, np.ndarray]:
    times = {key: read_time_column(time, key, columns, verdict) for key, time in source.times.items()}
    # One wrong clock must not close partitions before their events are there.
    if mapping.future is not None:
        future, allowed = duration_us(mapping.future), f"at most {mapping.future} ahead"
        key = "arrival" if "arrival" in times else "time"
        column = columns[source.times[key].column or ""]
        if stamps is not None:
            verdict.refuse(
                times[key] > stamps + future, key, "in the future", column, f"{allowed} of its record"
            )
        else:
            latest = _horizon(mapping, times[key][verdict.good], before)[1]
            until = f"up to {format_time(latest)}, by the events beside it"
            verdict.refuse(times[key] > latest, key, "in the future", column, until)
        if "arrival" in times:
            column = columns[source.time.column or ""]
            verdict.refuse(
                times["time"] > times["arrival"] + future, "time", "after its arrival", column, allowed
            )
    if "timestamp" in times:
        column = columns[source.times["timestamp"].column or ""]
        after, show, skew = times["timestamp"] - times["time"], mapping.show_window_us, mapping.clock_skew_us
        allowed = f"up to {show // 1_000_000:,} s after the query (show_window)"
        verdict.refuse(after > show, "timestamp", "shown too long after its query", column, allowed)
        allowed = f"at most {mapping.clock_skew or '0s'} before the query (clock_skew)"
        verdict.refuse(after < -skew, "timestamp", "shown before its query", column, allowed)
    return times


def _refuse_large(columns: Columns, limit: int, verdict: Verdict) -> None:
    for name, column in columns.items():
        if is_text(column.type):
            lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy()
        elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            lengths = _list_sizes(column)
        else:
            continue
        if (lengths > limit).any():
            sizes = pa.array([f"{length} bytes" for length in lengths])
            verdict.refuse(lengths > limit, name, "too large", sizes, f"at most {limit} bytes")


def _list_sizes(column: pa.Array) -> np.ndarray:
    """Returns each list's number of items or, if larger, its bytes of text; int64 [N]."""
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    if not is_text(column.type.value_type):
        return counts
    lengths = pc.fill_null(pc.binary_length(column.flatten()), 0).to_numpy()
    parents = column.value_parent_indices().to_numpy()
    # Sums of float64 are exact far beyond what fits into a chunk.
    return np.maximum(counts, np.bincount(parents, lengths, len(column)).astype(np.int64))


def concat_events(what: Kind, mapping: EventMapping, tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenates events of one kind, or earlier impressions (``EARLIER``); without tables, empty with its schema."""
    schema = {IMPRESSIONS: impression_schema(mapping), EARLIER: EARLIER_SCHEMA}.get(what, CLICK_SCHEMA)
    return pa.concat_tables([schema.empty_table(), *tables])


def wanted_columns(mapping: EventMapping, kind: Kind) -> Sequence[str]:
    """Returns the raw columns that events of a kind must have, each once."""
    if kind == IMPRESSIONS:
        return mapping.raw_columns
    return tuple(dict.fromkeys(mapping.sources[kind].key_columns))
