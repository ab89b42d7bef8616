"""Events as they must not be: each is rejected alone, with what is wrong where, and nothing is ever raised."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

import event_files
from ctr.config import parse_model
from ctr.data.event_mapping import EventMapping
from ctr.data.times import DAY_US
from ctr.pipelines.events.read import Unit, read_unit
from ctr.pipelines.events.tables import CLICK_SCHEMA, FAR_US, Kind, impression_schema, prepare
from ctr.pipelines.tables.input_files import Chunk
from ctr.pipelines.tables.rejects import Reject

NOW_US = 1_767_700_000_000_000
TIME = NOW_US - 3_600_000_000
GOOD: dict[str, Any] = {
    "impression_id": 7,
    "query_id": 3,
    "event_time": TIME,
    "arrival_time": TIME + 5,
    "weight": 0.5,
    "color": "red",
    "price": 7.5,
    "tags": ["a"],
}
IN_TIME = "unit us, 1970-01-01 to 9999-12-31"
LIMIT = 1_000


class Prepared(NamedTuple):
    table: pa.Table
    rejects: list[Reject]


def read(mapping: EventMapping, kind: Kind, path: Path, block_bytes: int = 1 << 20, **clock: int) -> Prepared:
    """All of a file; what it counts must add up."""
    parts = []
    for chunk in read_unit(mapping, Unit(kind, path.name, path), block_bytes):
        part = Prepared(*prepare(mapping, kind, chunk, **clock))
        assert part.table.num_rows + len(part.rejects) == chunk.count
        parts.append(part)
    table = pa.concat_tables([part.table for part in parts])
    assert table.schema == (impression_schema(mapping) if kind == "impressions" else CLICK_SCHEMA)
    return Prepared(table, [reject for part in parts for reject in part.rejects])


def read_lines(mapping: EventMapping, kind: Kind, folder: Path, *lines: bytes | dict[str, Any]) -> Prepared:
    path = folder / "events.jsonl"
    data = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"".join(line + b"\n" for line in data))
    return read(mapping, kind, path)


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in GOOD.items() if name not in names}


def each(name: str, *values: Any) -> list[dict[str, Any]]:
    return [{**GOOD, name: value} for value in values]


Bad = bytes | dict[str, Any]
RANGE = "unreadable or out of range"
WEIGHT = "a number from 0 to 1,000,000,000"
ID = "a whole number or text"
POISON: dict[tuple[str, str, str], list[Bad]] = {
    ("line", "malformed JSON", "one JSON object"): [
        *(b'{"impression_id": 7,', b"{} {}", b"[1]", b"5", b"null", b"[" * 100_000),
        b'{"color": "\\ud800"}',
    ],
    ("line", "invalid UTF-8", "UTF-8"): [b'{"color": "\xff"}'],
    ("time", "missing", IN_TIME): [{}, without("event_time")],
    ("arrival", "missing", IN_TIME): [{**GOOD, "arrival_time": None}],
    ("time", RANGE, IN_TIME): each("event_time", "now", -1, TIME * 1000, 10**30, float("nan")),
    ("arrival", RANGE, IN_TIME): [{**GOOD, "arrival_time": float("inf")}],
    ("event_time", "a nested value", "a single value"): [{**GOOD, "event_time": [TIME]}],
    ("time", "after its arrival", "at most 5m ahead"): [{**GOOD, "arrival_time": TIME - 300_000_001}],
    ("impression_id", "missing", ID): [without("impression_id"), {**GOOD, "impression_id": ""}],
    ("impression_id", "a nested value", "a single value"): [{**GOOD, "impression_id": [1]}],
    ("query_id", "missing", ID): [without("query_id")],
    ("query_id", "a nested value", "a single value"): [{**GOOD, "query_id": {"a": 1}}],
    ("weight", "not a weight", WEIGHT): each("weight", float("nan"), -1, 1.1e9, "much", 1e300),
    ("weight", "missing", WEIGHT): [without("weight")],
    ("price", "not a number", "a number, or empty"): [{**GOOD, "price": "cheap"}],
    ("price", "a nested value", "a single value"): [{**GOOD, "price": [1]}],
    ("color", "too large", "at most 1000 bytes"): each("color", "r" * 1001, "ü" * 501),
    ("tags", "too large", "at most 1000 bytes"): each("tags", ["a"] * 1001, ["a", "a" * 1001]),
    ("tags", "a nested value", "a single value or a list of them"): [{**GOOD, "tags": [["a"]]}],
}


def found_in(rejects: list[Reject]) -> dict[int, tuple[str, str, str]]:
    assert len({reject.row for reject in rejects}) == len(rejects)
    assert all(len(reject.value) <= 80 for reject in rejects)
    return {reject.row: (reject.key, reject.reason, reject.allowed) for reject in rejects}


def test_a_bad_event_is_set_aside_and_its_neighbours_are_not(tmp_path):
    mapping = event_files.mapping(largest_value=LIMIT)
    wanted = [(why, line) for why, lines in POISON.items() for line in lines]
    for why, line in wanted:
        alone = read_lines(mapping, "impressions", tmp_path, GOOD, b"", line)
        assert alone.table.num_rows == 1 and found_in(alone.rejects) == {3: why}
    # All of them in one file; beside a text, what is not a number is called missing.
    wanted = [one for one in wanted if b"NaN" not in json.dumps(one[1], default=str).encode()]
    good = [{**GOOD, "impression_id": number} for number in range(len(wanted))]
    events = [one for pair in zip(good, (line for _, line in wanted), strict=True) for one in pair]
    prepared = read_lines(mapping, "impressions", tmp_path, *events, b"", GOOD)
    assert prepared.table.column("example_id").to_pylist() == [*range(len(wanted)), 7]
    assert max(prepared.table["arrival"].to_pylist()) == GOOD["arrival_time"]
    expected = {2 * number + 2: why for number, (why, _) in enumerate(wanted)}
    assert found_in(prepared.rejects) == expected
    # Rows are told by their lines whatever the blocks.
    pieces = read(mapping, "impressions", tmp_path / "events.jsonl", block_bytes=300)
    assert found_in(pieces.rejects) == expected
    assert pieces.table.equals(prepared.table)


def test_what_is_unusual_but_allowed_stays(tmp_path):
    events = [
        without("color", "price", "tags"),
        {**GOOD, "impression_id": "a text", "event_time": str(TIME), "arrival_time": float(TIME + 5)},
        {**GOOD, "impression_id": str(2**63 - 1), "query_id": -5, "weight": 0, "unknown": {"nested": [1]}},
        {**GOOD, "event_time": TIME + 300_000_000, "arrival_time": TIME},
        {**GOOD, "color": "r" * 1000, "tags": ["t" * 1000]},
        {**GOOD, "arrival_time": NOW_US + 300_000_000},
        {**GOOD, "event_time": 0, "arrival_time": 0},
    ]
    prepared = read_lines(event_files.mapping(largest_value=LIMIT), "impressions", tmp_path, *events)
    assert prepared.rejects == []
    assert prepared.table.num_rows == len(events)
    assert prepared.table.column("example_id").to_pylist()[2] == 2**63 - 1
    assert prepared.table.column("query_time").to_pylist()[3] == TIME + 300_000_000
    assert max(prepared.table["arrival"].to_pylist()) == NOW_US + 300_000_000


def test_an_impression_is_shown_within_the_show_window_and_not_before_its_query(tmp_path):
    shown_at = {"timestamp": {"column": "shown_at", "unit": "us"}}
    mapping = event_files.mapping(clock_skew="2s", show_window="30s", impressions=shown_at)
    shown = [TIME + by * 1_000_000 for by in (-3, -2, 0, 30, 31)]
    events = [{**GOOD, "shown_at": at} for at in shown]
    prepared = read_lines(mapping, "impressions", tmp_path, *events)
    assert prepared.table.column("timestamp").to_pylist() == shown[1:4]
    assert [(reject.row, reject.key, reject.reason) for reject in prepared.rejects] == [
        (5, "timestamp", "shown too long after its query"),
        (1, "timestamp", "shown before its query"),
    ]


def arriving(*arrivals: int) -> list[dict[str, Any]]:
    return [{**GOOD, "event_time": min(arrivals), "arrival_time": arrival} for arrival in arrivals]


@pytest.mark.parametrize(("step", "limit"), [(1, DAY_US), (6_000_000_000, 10 * 8 * 6_000_000_000)])
def test_the_future_begins_a_day_after_nine_tenths_of_the_events_or_ten_times_their_span(
    step, limit, tmp_path
):
    mapping = event_files.mapping()
    others = [TIME + number * step for number in range(10)]
    for beyond in (0, 1):
        lines = arriving(*others[:9], others[9] + limit + beyond, others[9])
        rejects = read_lines(mapping, "impressions", tmp_path, *lines).rejects
        found = [(reject.row, reject.key, reject.reason) for reject in rejects]
        assert found == [(10, "arrival", "in the future")] * beyond
    # All at once are the present, as far as they may be; none decides where there is no future.
    assert not read_lines(mapping, "impressions", tmp_path, *arriving(*[TIME + 10**15] * 10)).rejects
    anywhere = mapping.model_copy(update={"future": None})
    assert not read_lines(anywhere, "impressions", tmp_path, *lines).rejects


def test_a_few_events_are_compared_with_those_before_and_a_record_with_its_timestamp(tmp_path):
    path, mapping = tmp_path / "events.jsonl", event_files.mapping()
    path.write_text("".join(json.dumps(line) + "\n" for line in arriving(TIME, TIME + 300_000_001)))
    chunk = next(read_unit(mapping, Unit("impressions", path.name, path)))
    for before, rejected in ((-1, 0), (TIME + 300_000_001 - FAR_US, 0), (TIME + 300_000_000 - FAR_US, 1)):
        assert len(prepare(mapping, "impressions", chunk, before)[1]) == rejected
    (reject,) = prepare(mapping, "impressions", chunk, stamps=np.full(2, TIME))[1]
    assert (reject.row, reject.key, reject.allowed) == (2, "arrival", "at most 5m ahead of its record")


def test_where_arrivals_are_unknown_an_event_arrives_at_its_time_but_not_before_the_clock(tmp_path):
    content = event_files.content()
    for kind in ("impressions", "clicks"):
        del content[kind]["arrival"]
    mapping = parse_model(EventMapping, content, "test")
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps({**GOOD, "event_time": time}) + "\n" for time in (10, 20, NOW_US * 2)))
    prepared = read(mapping, "impressions", path, clock_us=15, before=10)
    assert prepared.table.column("arrival").to_pylist() == [15, 20]
    assert prepared.table.column("query_time").to_pylist() == [10, 20]
    (reject,) = prepared.rejects
    assert (reject.row, reject.key, reject.reason) == (3, "time", "in the future")


def test_a_line_beyond_all_limits_is_one_bad_event(tmp_path, monkeypatch):
    monkeypatch.setattr("ctr.pipelines.tables.jsonl._LONGEST_LINE", 10_000)
    path = tmp_path / "events.jsonl"
    long = json.dumps({**GOOD, "color": "r" * 100_000})
    path.write_text(f"{json.dumps(GOOD)}\n{long}\n{json.dumps(GOOD)}\n")
    prepared = read(event_files.mapping(), "impressions", path, block_bytes=1_000)
    assert prepared.table.num_rows == 2
    (reject,) = prepared.rejects
    assert (reject.row, reject.reason) == (2, "malformed JSON")


# ---------------------------------------------------------------- Parquet


def good_columns(rows: int = 2) -> dict[str, pa.Array]:
    return {name: pa.array([value] * rows) for name, value in GOOD.items()}


TYPES = [
    *(pa.int8(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.null()),
    *(pa.decimal128(9, 2), pa.string(), pa.large_string(), pa.binary(), pa.binary(3), pa.date32()),
    *(pa.timestamp("ns"), pa.time64("us"), pa.duration("us"), pa.dictionary(pa.int8(), pa.string())),
    *(pa.list_(pa.int64()), pa.list_(pa.float64()), pa.list_(pa.string()), pa.large_list(pa.string())),
    *(pa.list_(pa.binary()), pa.list_(pa.int64(), 2), pa.list_(pa.list_(pa.string()))),
    *(pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64())),
]
NAN, INF = float("nan"), float("inf")
VALUES = (None, 0, 1, 100, True, 1.5, NAN, INF, "", "a", "7", "nan", b"abc", b"\xff\xfe\xfd")
NESTED = (None, [], [1, 2], [None, 1], [1.5, float("nan")], ["a", None], [b"\xff"], [["a"]], {"a": 1})


def column_of(kind: pa.DataType) -> pa.Array:
    """Of values of all kinds those that a type takes."""
    # Arrow ends the process for other values of a map.
    held = (None, [("a", 1)]) if pa.types.is_map(kind) else (*VALUES, *NESTED)
    taken = []
    for value in held:
        try:
            taken.append(pa.array([value], kind))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
    return pa.concat_arrays(taken)


def test_no_type_of_a_column_stops_a_job():
    mapping = event_files.mapping("parquet")
    for kind in TYPES:
        column = column_of(kind)
        rows = len(column)
        assert rows > 1 or pa.types.is_null(kind)
        for name in GOOD:
            chunk = Chunk(0, pa.table({**good_columns(rows), name: column}), np.arange(1, rows + 1), [])
            prepared = Prepared(*prepare(mapping, "impressions", chunk))
            assert prepared.table.num_rows + len(prepared.rejects) == rows, (name, kind)
            assert len({reject.row for reject in prepared.rejects}) == len(prepared.rejects)
            assert all(len(reject.allowed.splitlines()) == 1 for reject in prepared.rejects)
            assert prepared.table.schema == impression_schema(mapping)
