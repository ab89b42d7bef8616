"""Events as they must not be: each is rejected alone, with what is wrong where, and nothing is ever raised."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import event_files
from ctr.config import parse_model
from ctr.data.event_mapping import EventMapping
from ctr.data.shards import pack_ids, unpack_ids
from ctr.io.errors import InputError
from ctr.pipelines.events.read import Unit, line_reader, read_unit
from ctr.pipelines.events.tables import CLICK_SCHEMA, Kind, impression_schema, prepare
from ctr.pipelines.rows.rejects import Reject
from ctr.pipelines.rows.sources import Chunk

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
GOOD_CLICK = {name: GOOD[name] for name in ("impression_id", "event_time", "arrival_time")}
IN_TIME = "unit us, 1970-01-01 to 9999-12-31"
LIMIT = 1_000


class Prepared(NamedTuple):
    table: pa.Table
    rejects: list[Reject]


def read(mapping: EventMapping, kind: Kind, path: Path, block_bytes: int = 1 << 20, **clock: int) -> Prepared:
    """All of a file; what it counts must add up."""
    parts = []
    for chunk in read_unit(mapping, Unit(kind, path.name, path), block_bytes):
        part = Prepared(*prepare(mapping, kind, chunk, NOW_US, **clock))
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


POISON: dict[str, tuple[bytes | dict[str, Any], str, str, str]] = {
    "no JSON": (b'{"impression_id": 7,', "line", "malformed JSON", "one JSON object"),
    "two objects": (b"{} {}", "line", "malformed JSON", "one JSON object"),
    "a list": (b"[1]", "line", "malformed JSON", "one JSON object"),
    "a number": (b"5", "line", "malformed JSON", "one JSON object"),
    "deep": (b"[" * 100_000, "line", "malformed JSON", "one JSON object"),
    "half a pair": (b'{"color": "\\ud800"}', "line", "malformed JSON", "one JSON object"),
    "no UTF-8": (b'{"color": "\xff"}', "line", "invalid UTF-8", "UTF-8"),
    "an empty object": ({}, "time", "missing", IN_TIME),
    "no id": (without("impression_id"), "impression_id", "missing", "a whole number or text"),
    "an empty id": ({**GOOD, "impression_id": ""}, "impression_id", "missing", "a whole number or text"),
    "no query": (without("query_id"), "query_id", "missing", "a whole number or text"),
    "a list as id": ({**GOOD, "impression_id": [1]}, "impression_id", "a nested value", "a single value"),
    "an object as id": ({**GOOD, "query_id": {"a": 1}}, "query_id", "a nested value", "a single value"),
    "no time": (without("event_time"), "time", "missing", IN_TIME),
    "no arrival": ({**GOOD, "arrival_time": None}, "arrival", "missing", IN_TIME),
    "words as time": ({**GOOD, "event_time": "now"}, "time", "unreadable or out of range", IN_TIME),
    "a negative time": ({**GOOD, "event_time": -1}, "time", "unreadable or out of range", IN_TIME),
    "nanoseconds": ({**GOOD, "event_time": TIME * 1000}, "time", "unreadable or out of range", IN_TIME),
    "no end of digits": ({**GOOD, "event_time": 10**30}, "time", "unreadable or out of range", IN_TIME),
    "a time that is NaN": (
        {**GOOD, "event_time": float("nan")},
        "time",
        "unreadable or out of range",
        IN_TIME,
    ),
    "infinite arrival": (
        {**GOOD, "arrival_time": float("inf")},
        "arrival",
        "unreadable or out of range",
        IN_TIME,
    ),
    "a time as list": ({**GOOD, "event_time": [TIME]}, "event_time", "a nested value", "a single value"),
    "from the future": (
        *({**GOOD, "event_time": NOW_US, "arrival_time": NOW_US + 300_000_001}, "arrival"),
        *("in the future", "at most 5m ahead"),
    ),
    "arrived long before": (
        *({**GOOD, "event_time": TIME, "arrival_time": TIME - 300_000_001}, "time"),
        *("after its arrival", "at most 5m ahead"),
    ),
    "a weight that is NaN": (
        {**GOOD, "weight": float("nan")},
        "weight",
        "not a weight",
        "a number from 0 to 1,000,000,000",
    ),
    "a weight of -1": ({**GOOD, "weight": -1}, "weight", "not a weight", "a number from 0 to 1,000,000,000"),
    "a weight of 1.1e9": (
        {**GOOD, "weight": 1.1e9},
        "weight",
        "not a weight",
        "a number from 0 to 1,000,000,000",
    ),
    "a weight of words": (
        {**GOOD, "weight": "much"},
        "weight",
        "not a weight",
        "a number from 0 to 1,000,000,000",
    ),
    "a weight beyond float32": (
        {**GOOD, "weight": 1e300},
        "weight",
        "not a weight",
        "a number from 0 to 1,000,000,000",
    ),
    "no weight": (without("weight"), "weight", "missing", "a number from 0 to 1,000,000,000"),
    "a price of words": ({**GOOD, "price": "cheap"}, "price", "not a number", "a number, or empty"),
    "prices": ({**GOOD, "price": [1]}, "price", "a nested value", "a single value"),
    "a long text": ({**GOOD, "color": "r" * 1001}, "color", "too large", "at most 1000 bytes"),
    "a long text in bytes": ({**GOOD, "color": "ü" * 501}, "color", "too large", "at most 1000 bytes"),
    "many tags": ({**GOOD, "tags": ["a"] * 1001}, "tags", "too large", "at most 1000 bytes"),
    "a long tag": ({**GOOD, "tags": ["a", "a" * 1001]}, "tags", "too large", "at most 1000 bytes"),
    "tags in tags": ({**GOOD, "tags": [["a"]]}, "tags", "a nested value", "a single value or a list of them"),
}


@pytest.mark.parametrize("name", POISON)
def test_a_bad_event_is_set_aside_and_its_neighbours_are_not(name: str, tmp_path: Path) -> None:
    line, key, reason, allowed = POISON[name]
    mapping = event_files.mapping(largest_value=LIMIT)
    prepared = read_lines(mapping, "impressions", tmp_path, GOOD, b"", line, {**GOOD, "impression_id": 8})
    assert prepared.table.column("example_id").to_pylist() == [7, 8]
    assert max(prepared.table["arrival"].to_pylist()) == GOOD["arrival_time"]
    (reject,) = prepared.rejects
    assert (reject.row, reject.key, reject.reason, reject.allowed) == (3, key, reason, allowed)
    assert len(reject.value) <= 80


@pytest.mark.parametrize(
    "name", [name for name in POISON if "time" in name or "arriv" in name or "JSON" in name]
)
def test_a_bad_click_is_set_aside_alike(name: str, tmp_path: Path) -> None:
    line, key, reason, allowed = POISON[name]
    if isinstance(line, dict):
        line = {column: value for column, value in line.items() if column in GOOD_CLICK}
    prepared = read_lines(event_files.mapping(), "clicks", tmp_path, GOOD_CLICK, line)
    assert prepared.table.to_pylist() == [{"impression_id": 7, "time": TIME, "arrival": TIME + 5}]
    (reject,) = prepared.rejects
    assert (reject.row, reject.key, reject.reason, reject.allowed) == (2, key, reason, allowed)


def test_what_is_unusual_but_allowed_stays(tmp_path: Path) -> None:
    events = [
        without("color", "price", "tags"),
        {**GOOD, "impression_id": "a text", "event_time": str(TIME), "arrival_time": float(TIME + 5)},
        {**GOOD, "impression_id": str(2**63 - 1), "query_id": -5, "weight": 0, "unknown": {"nested": [1]}},
        {
            **GOOD,
            "event_time": TIME + 300_000_000,
            "arrival_time": TIME,
            "color": "r" * 1000,
            "tags": ["t" * 1000],
        },
        {**GOOD, "arrival_time": NOW_US + 300_000_000},
        {**GOOD, "event_time": 0, "arrival_time": 0},
    ]
    prepared = read_lines(event_files.mapping(largest_value=LIMIT), "impressions", tmp_path, *events)
    assert prepared.rejects == []
    assert prepared.table.num_rows == len(events)
    assert prepared.table.column("example_id").to_pylist()[2] == 2**63 - 1
    assert prepared.table.column("query_time").to_pylist()[3] == TIME + 300_000_000
    assert max(prepared.table["arrival"].to_pylist()) == NOW_US + 300_000_000


def test_an_impression_is_shown_within_the_show_window_and_not_before_its_query(tmp_path: Path) -> None:
    content = event_files.content(clock_skew="2s", show_window="30s")
    content["impressions"]["timestamp"] = {"column": "shown_at", "unit": "us"}
    mapping = parse_model(EventMapping, content, "test")
    shown = [TIME + by * 1_000_000 for by in (-3, -2, 0, 30, 31)]
    events = [{**GOOD, "shown_at": at} for at in shown]
    prepared = read_lines(mapping, "impressions", tmp_path, *events)
    assert prepared.table.column("timestamp").to_pylist() == shown[1:4]
    assert [(reject.row, reject.key, reject.reason) for reject in prepared.rejects] == [
        (5, "timestamp", "shown too long after its query"),
        (1, "timestamp", "shown before its query"),
    ]


def test_any_time_is_allowed_where_the_mapping_says_so(tmp_path: Path) -> None:
    late = {**GOOD, "event_time": NOW_US + 10**15, "arrival_time": NOW_US + 10**14}
    assert len(read_lines(event_files.mapping(), "impressions", tmp_path, GOOD, late).rejects) == 1
    anywhere = parse_model(EventMapping, {**event_files.content(), "future": None}, "test")
    assert read_lines(anywhere, "impressions", tmp_path, GOOD, late).rejects == []


def test_where_arrivals_are_unknown_an_event_arrives_at_its_time_but_not_before_the_clock(
    tmp_path: Path,
) -> None:
    content = event_files.content()
    for kind in ("impressions", "clicks"):
        del content[kind]["arrival"]
    mapping = parse_model(EventMapping, content, "test")
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps({**GOOD, "event_time": time}) + "\n" for time in (10, 20, NOW_US * 2)))
    prepared = read(mapping, "impressions", path, clock_us=15)
    assert prepared.table.column("arrival").to_pylist() == [15, 20]
    assert prepared.table.column("query_time").to_pylist() == [10, 20]
    (reject,) = prepared.rejects
    assert (reject.row, reject.key, reject.reason) == (3, "time", "in the future")


def test_rows_are_told_by_their_lines_whatever_the_blocks(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = [json.dumps({**GOOD, "impression_id": number}) for number in range(50)]
    lines[17] = lines[40] = "nothing"
    path.write_text("\n".join(lines))
    whole = read(event_files.mapping(), "impressions", path)
    pieces = read(event_files.mapping(), "impressions", path, block_bytes=300)
    assert [reject.row for reject in whole.rejects] == [18, 41]
    assert pieces.rejects == whole.rejects
    assert pieces.table.equals(whole.table)


def test_a_line_beyond_all_limits_is_one_bad_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctr.pipelines.rows.jsonl._LONGEST_LINE", 10_000)
    path = tmp_path / "events.jsonl"
    long = json.dumps({**GOOD, "color": "r" * 100_000})
    path.write_text(f"{json.dumps(GOOD)}\n{long}\n{json.dumps(GOOD)}\n")
    prepared = read(event_files.mapping(), "impressions", path, block_bytes=1_000)
    assert prepared.table.num_rows == 2
    (reject,) = prepared.rejects
    assert (reject.row, reject.reason) == (2, "malformed JSON")


def test_csv_rows_are_set_aside_alike(tmp_path: Path) -> None:
    names = list(GOOD)
    path = tmp_path / "events.csv"
    rows = [
        *(f"{number},3,{TIME},{TIME},1,red,2,a|b" for number in (1, 2)),
        f"3,3,{TIME},{TIME},1,red",
        f"4,3,soon,{TIME},1,red,2,a",
        f"5,3,{TIME},{TIME},-1,red,2,a",
        f",3,{TIME},{TIME},1,red,2,a",
    ]
    data = "\n".join([",".join(names), *rows, ""]).encode()
    path.write_bytes(data + f"7,3,{TIME},{TIME},1,".encode() + b"\xff,2,a\n")
    prepared = read(event_files.mapping("csv"), "impressions", path)
    assert prepared.table.column("example_id").to_pylist() == [1, 2]
    found = {(reject.row, reject.key, reject.reason) for reject in prepared.rejects}
    assert {row for row, *_ in found} == {4, 5, 6, 7, 8}
    assert {(5, "time", "unreadable or out of range"), (6, "weight", "not a weight")} <= found
    assert {(7, "impression_id", "missing"), (8, "color", "invalid UTF-8")} <= found


# ---------------------------------------------------------------- Parquet


def parquet(path: Path, columns: dict[str, pa.Array]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def good_columns(rows: int = 2) -> dict[str, pa.Array]:
    return {name: pa.array([value] * rows) for name, value in GOOD.items()}


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("impression_id", pa.array([1.5, 2.5])),
        ("impression_id", pa.array([[1], [2]])),
        ("impression_id", pa.array([{"a": 1}, {"a": 2}])),
        ("event_time", pa.array([1, 2], pa.timestamp("us"))),
        ("event_time", pa.array([[1], [2]])),
        ("arrival_time", pa.array([b"1", b"2"], pa.binary(1))),
        ("weight", pa.array([[1.0], [2.0]])),
        ("price", pa.array([{"a": 1}, {"a": 2}])),
        ("color", pa.array([{"a": 1}, {"a": 2}])),
        ("color", pa.array([[["a"]], [["b"]]])),
        ("tags", pa.array([{"a": 1}, {"a": 2}])),
    ],
)
def test_a_column_of_a_type_that_says_nothing_is_a_fault_of_each_row(
    name: str, column: pa.Array, tmp_path: Path
) -> None:
    path = parquet(tmp_path / "events.parquet", {**good_columns(), name: column})
    prepared = read(event_files.mapping("parquet"), "impressions", path)
    assert prepared.table.num_rows == 0
    assert [reject.row for reject in prepared.rejects] == [1, 2]
    for reject in prepared.rejects:
        assert name in reject.allowed + reject.key
        assert len(reject.allowed.splitlines()) == 1
        assert reject.reason in ("unreadable", "invalid UTF-8")


_TYPES = [
    *(
        pa.int8(),
        pa.int64(),
        pa.uint64(),
        pa.float32(),
        pa.float64(),
        pa.bool_(),
        pa.null(),
        pa.decimal128(9, 2),
    ),
    *(
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.binary(3),
        pa.date32(),
        pa.timestamp("ns"),
        pa.time64("us"),
    ),
    *(
        pa.dictionary(pa.int8(), pa.string()),
        pa.list_(pa.int64()),
        pa.list_(pa.string()),
        pa.large_list(pa.string()),
    ),
    *(
        pa.list_(pa.float64()),
        pa.list_(pa.list_(pa.string())),
        pa.struct([("a", pa.int64())]),
        pa.duration("us"),
    ),
    *(pa.map_(pa.string(), pa.int64()), pa.list_(pa.binary()), pa.list_(pa.int64(), 2), pa.float16()),
]


def some_values(kind: pa.DataType) -> list[Any]:
    """A few values of a type, also none."""
    for test, values in (
        (pa.types.is_null, []),
        (pa.types.is_boolean, [True, False]),
        (pa.types.is_integer, [0, 1, 100]),
        (pa.types.is_floating, [0.0, 1.5, float("nan"), float("inf")]),
        (pa.types.is_fixed_size_binary, [b"abc", b"\xff\xfe\xfd"]),
        (pa.types.is_binary, [b"", b"12", b"\xff"]),
    ):
        if test(kind):
            return [None, *values]
    if pa.types.is_fixed_size_list(kind):
        return [None, [1, 2]]
    if pa.types.is_map(kind):
        return [None, [("a", 1)]]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [None, [], some_values(kind.value_type)]
    if pa.types.is_struct(kind):
        return [None, {"a": 1}]
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return [None, "", "a", "7", "nan"]
    return [None, *(pa.scalar(value, pa.int64()).as_py() for value in (0, 1, 86_400))]


def column_of(kind: pa.DataType, rows: int) -> pa.Array:
    values = some_values(kind)
    wanted = [values[row % len(values)] for row in range(rows)]
    if pa.types.is_temporal(kind):
        whole = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array(wanted, whole).cast(kind)
    if pa.types.is_float16(kind):
        return pa.array([None if value is None else np.float16(value) for value in wanted], kind)
    return pa.array(wanted, kind)


@pytest.mark.parametrize("kind", _TYPES, ids=str)
@pytest.mark.parametrize("name", GOOD)
def test_no_type_of_a_column_stops_a_job(name: str, kind: pa.DataType) -> None:
    rows = 5
    mapping = event_files.mapping("parquet")
    table = pa.table({**good_columns(rows), name: column_of(kind, rows)})
    chunk = Chunk(0, table, np.arange(1, rows + 1), [])
    prepared = Prepared(*prepare(mapping, "impressions", chunk, NOW_US))
    assert prepared.table.num_rows + len(prepared.rejects) == rows
    assert len({reject.row for reject in prepared.rejects}) == len(prepared.rejects)
    assert prepared.table.schema == impression_schema(mapping)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.integers(0, 2**62),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@pytest.mark.slow
@given(lines=st.lists(st.dictionaries(st.sampled_from(list(GOOD)), _JSON) | _JSON, max_size=6))
def test_no_line_stops_a_job(lines: list[Any]) -> None:
    mapping = event_files.mapping()
    texts = [json.dumps({**GOOD, **line} if isinstance(line, dict) else line) for line in [GOOD, *lines]]
    chunk, *_ = line_reader(mapping, "impressions").read_block(0, "\n".join(texts).encode(), 1)
    prepared = Prepared(*prepare(mapping, "impressions", chunk, NOW_US))
    assert prepared.table.num_rows + len(prepared.rejects) == len(texts)
    places = Counter(reject.row for reject in prepared.rejects)
    assert max(places.values(), default=0) <= 1
    assert 1 not in places


# ---------------------------------------------------------------- ids of a log


def hashed_mapping(*features: dict[str, Any]) -> EventMapping:
    """With features in addition to those of ``event_files``."""
    content = event_files.content("parquet")
    changes = {
        "impressions": {**content["impressions"], "hashed": True},
        "features": [*content["features"], *features],
    }
    return parse_model(EventMapping, {**content, **changes}, "test")


def hashed_columns(
    ids: list[list[int]], tags: pa.Array, dtype: type[np.integer[Any]] = np.int32
) -> dict[str, pa.Array]:
    keys = {
        name: good_columns(len(ids))[name] for name in ("query_id", "event_time", "arrival_time", "weight")
    }
    number = pa.array(range(len(ids)))
    return {"impression_id": number, **keys, "ids": pack_ids(np.array(ids, dtype)), "tags": tags}


def test_ids_of_a_log_pass_and_those_of_no_bucket_are_set_aside(tmp_path: Path) -> None:
    mapping = hashed_mapping()
    ids = [[1, 1], [-1, 1], [1, 99], [1, 1], [1, 1]]
    tags = pa.array([[1], [1], [1], [99], None], pa.list_(pa.int32()))
    prepared = read(mapping, "impressions", parquet(tmp_path / "e.parquet", hashed_columns(ids, tags)))
    assert prepared.table.column("example_id").to_pylist() == [0]
    reasons = {reject.row: (reject.key, reject.reason) for reject in prepared.rejects}
    wrong = ("features", "not ids")
    assert reasons == {2: wrong, 3: wrong, 4: wrong, 5: ("tags", "missing")}


def test_ids_beyond_int32_are_set_aside_alone(tmp_path: Path) -> None:
    tags = pa.array([[2**40], [1], [-1, 2], [1, 2]], pa.list_(pa.int64()))
    path = parquet(tmp_path / "e.parquet", hashed_columns([[1, 1]] * 4, tags))
    prepared = read(hashed_mapping(), "impressions", path)
    assert prepared.table.column("tags").to_pylist() == [[1], [1, 2]]
    assert [(reject.row, reject.key, reject.reason) for reject in prepared.rejects] == [
        (1, "tags", "not ids"),
        (3, "tags", "not ids"),
    ]


def test_any_64_bits_are_an_id_that_grows_and_the_others_keep_their_buckets(tmp_path: Path) -> None:
    words = {"name": "words", "kind": "category", "source": "words", "multivalent": True}
    mapping = hashed_mapping({"name": "user", "kind": "category", "source": "user"}, words)
    low, high = -(2**63), 2**63 - 1
    ids = [[1, 1, low], [1, 1, high], [1, 2**32 + 1, 7], [-1, 1, 7], [1, 1, 0], [1, 1, 7]]
    tags = pa.array([[1], [2, 3], [1], [1], [2**32], []], pa.list_(pa.int64()))
    columns = {
        **hashed_columns(ids, tags, np.int64),
        "words": pa.array([[low, high, 0], [-1], [1], [1], [1], None], pa.list_(pa.int64())),
    }
    prepared = read(mapping, "impressions", parquet(tmp_path / "e.parquet", columns))
    schema = mapping.feature_schema
    assert prepared.table.column("example_id").to_pylist() == [0, 1]
    packed = unpack_ids(prepared.table.column("ids").combine_chunks(), schema)
    assert packed.tolist() == ids[:2]
    assert prepared.table.column("words").to_pylist() == [[low, high, 0], [-1]]
    wrong = ("features", "not ids")
    reasons = {reject.row: (reject.key, reject.reason) for reject in prepared.rejects}
    assert reasons == {3: wrong, 4: wrong, 5: wrong, 6: ("words", "missing")}


def test_ids_that_grow_and_are_beyond_int64_are_set_aside_alone(tmp_path: Path) -> None:
    mapping = hashed_mapping({"name": "user", "kind": "category", "source": "user", "multivalent": True})
    columns = hashed_columns([[1, 1]] * 3, pa.array([[1]] * 3, pa.list_(pa.int64())), np.int64)
    columns["user"] = pa.array([[2**63 - 1], [2**63], [1]], pa.list_(pa.uint64()))
    prepared = read(mapping, "impressions", parquet(tmp_path / "e.parquet", columns))
    assert prepared.table.column("user").to_pylist() == [[2**63 - 1], [1]]
    assert [(reject.row, reject.key, reject.reason) for reject in prepared.rejects] == [
        (2, "user", "not ids")
    ]


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("ids", pa.array([b"x" * 7] * 2, pa.binary(7))),
        ("ids", pa.array([1, 2])),
        ("ids", pa.array([[1, 1], [1, 1]])),
        ("ids", pa.array(["a", "b"])),
        ("ids", pa.nulls(2)),
        ("tags", pa.array([["a"], ["b"]])),
        ("tags", pa.array([[1, None], [None]], pa.list_(pa.int32()))),
        ("tags", pa.nulls(2)),
        ("tags", pa.array([1, 2])),
    ],
)
def test_columns_that_are_no_ids_are_faults_of_the_rows(name: str, column: pa.Array, tmp_path: Path) -> None:
    columns = {**hashed_columns([[1, 1]] * 2, pa.array([[1], [2]], pa.list_(pa.int32()))), name: column}
    mapping = hashed_mapping()
    prepared = read(mapping, "impressions", parquet(tmp_path / "e.parquet", columns))
    assert prepared.table.num_rows == 0
    assert [reject.row for reject in prepared.rejects] == [1, 2]


def test_a_file_without_a_column_is_refused_as_a_whole(tmp_path: Path) -> None:
    columns = good_columns()
    del columns["query_id"]
    with pytest.raises(InputError, match=r"e\.parquet: no column query_id; the columns found are"):
        read(event_files.mapping("parquet"), "impressions", parquet(tmp_path / "e.parquet", columns))
