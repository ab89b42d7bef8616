"""Derived columns and numeric categories: what ingestion makes of a row is what the exported graph makes of it."""

import itertools
import json
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import raw_logs
from ctr.config import parse_model
from ctr.data.derived import TIME_COLUMN
from ctr.data.ids.graph import transform_tensors
from ctr.data.mapping import Mapping
from ctr.data.spelling import float_text
from ctr.io.errors import InputError
from ctr.pipelines.ingest.examples import make_examples
from ctr.pipelines.ingest.run import ingest
from ctr.pipelines.rows.sources import Chunk
from ctr.serving.raw_values import make_numbers, make_texts, make_times

CONTENT = {
    "input": {"type": "csv"},
    "time": {"column": "shown", "unit": "us"},
    "label": "click",
    "partition": "1d",
    "derive": {
        "hour": {"from": "time", "part": "hour"},
        "weekday": {"from": "time", "part": "weekday"},
        "hour_number": {"from": "time", "part": "hour"},
        "half_day": {"from": "time", "every": "12h"},
        "week": {"from": "time", "every": "7d"},
        "us": {"from": "time", "every": "1us"},
        "area": {"from": "zip", "prefix": 2},
        "long_area": {"from": "zip", "prefix": 100},
        "zip_copy": {"from": "zip"},
        "whole": {"from": "code", "cast": "integer"},
        "decimal": {"from": "code", "cast": "number"},
        "as_written": {"from": "code", "cast": "text"},
        "amount_text": {"from": "amount"},
        "price_number": {"from": "price"},
    },
    "features": [
        *(
            {"name": f"f_{name}", "kind": "category", "source": name, "buckets": 2**31 - 1}
            for name in ("hour", "weekday", "half_day", "week", "us", "area", "long_area", "zip_copy", "zip")
        ),
        *(
            {"name": f"f_{name}", "kind": "category", "source": name, "buckets": 2**31 - 1}
            for name in ("whole", "decimal", "as_written", "code", "amount_text")
        ),
        {"name": "f_hour_number", "kind": "number", "source": "hour_number", "boundaries": [0, 6, 12, 23]},
        {"name": "f_amount", "kind": "number", "source": "amount", "boundaries": [-1, 0.1, 1, 12, 1e6]},
        {"name": "f_price", "kind": "number", "source": "price_number", "boundaries": [-1, 0.1, 1, 12, 1e6]},
        {"name": "f_size", "kind": "category", "source": "code", "vocabulary": ["0", "12", "1.5", "a"]},
        {"name": "f_tags", "kind": "category", "source": "tags", "multivalent": True, "separator": "|"},
        {"name": "f_title", "kind": "text", "source": "code"},
        {"name": "f_cross", "kind": "cross", "of": ["f_code", "f_half_day"]},
    ],
}
MAPPING = parse_model(Mapping, CONTENT, "test")
SCHEMA = MAPPING.feature_schema
KINDS = {"text": tf.string, "number": tf.float32, "time": tf.int64}
GRAPH = tf.function(
    lambda raw: transform_tensors(SCHEMA, raw),
    input_signature=[{name: tf.TensorSpec([None], KINDS[kind]) for name, kind in SCHEMA.inputs.items()}],
    autograph=False,
)


def test_what_the_graph_takes():
    assert SCHEMA.inputs == {
        TIME_COLUMN: "time", "zip": "text", "code": "text", "amount": "text", "price": "number", "tags": "text",
    }  # fmt: skip
    assert not set(SCHEMA.inputs) & set(SCHEMA.derive)


def ingested(columns: dict[str, pa.Array], times: list[int], mapping: Mapping = MAPPING):
    """By feature its ids of the rows that were not rejected, and the numbers of these rows."""
    count = len(times)
    table = pa.table(
        {**columns, "shown": pa.array(times, pa.int64()), "click": pa.array([1] * count, pa.int8())}
    )
    made, _ = make_examples(mapping, 0, Chunk(0, table, np.arange(count), []), (), 0)
    schema = mapping.feature_schema
    width = len(schema.single_valued)
    matrix = np.frombuffer(b"".join(made.column("ids").to_pylist()), schema.id_type).reshape(-1, width)
    ids = dict(zip(schema.single_valued, matrix.T.tolist(), strict=True))
    ids |= {name: made.column(name).to_pylist() for name in schema.multivalent}
    return ids, made.column("@row").to_pylist()


def in_graph(values: dict[str, list], times: list[int | None]):
    """By feature the ids that the exported model makes of Python's values."""
    raw = {TIME_COLUMN: tf.constant(make_times(TIME_COLUMN, times, len(times)))}
    for name, kind in SCHEMA.inputs.items():
        if kind == "text":
            texts = make_texts(name, values[name], SCHEMA.list_separators.get(name))
            raw[name] = tf.constant(texts, tf.string, shape=(len(times),))
        elif kind == "number":
            raw[name] = tf.constant(make_numbers(name, values[name], len(times)))
    ids = GRAPH(raw)
    return {
        name: value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()
        for name, value in ids.items()
    }


def _us(*moment: int) -> int:
    return int(datetime(*moment, tzinfo=UTC).timestamp()) * 1_000_000


EDGES = [
    0,
    _us(1970, 1, 2),
    _us(1999, 12, 31, 12),
    _us(2000, 2, 29),
    _us(2000, 3, 1),
    _us(2019, 11, 12),
    _us(2023, 2, 28, 12),
    _us(2024, 2, 29, 12),
    _us(2024, 12, 31, 23),
    _us(2100, 3, 1),
    _us(9999, 12, 31),
]
TIMES = st.one_of(
    st.tuples(st.sampled_from(EDGES), st.sampled_from([-1, 0, 1])).map(lambda pair: max(0, sum(pair))),
    st.integers(0, 253_402_300_799_999_999),
)
SPELLED = [
    "12",
    "12.0",
    "12.00",
    "-3.0",
    "-0.0",
    "0.0",
    "0",
    "-0",
    "01234",
    "01234.0",
    "12.50",
    "1.10",
    "12.",
    "+12.0",
]
SPELLED += [
    ".0",
    "1e3",
    "0x0c",
    "ffff.0",
    "1.0.0",
    "12.0 ",
    "12.0\n",
    "99999999999999999999.0",
    "nan",
    "inf",
    "1.5",
    "007",
]
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="|"), max_size=6)
TEXTS = st.none() | st.sampled_from([*SPELLED, "日本語", "é", "e\u0301x", "👩‍👧", "a\x00b", ""]) | TEXT
FLOATS = st.floats() | st.sampled_from([12.0, -0.0, 0.1, 1e15, 1e16, 2.0**53, 1e-5, 123456789.0])
NUMBERS = [
    "",
    "0.1",
    ".5",
    "5.",
    " 7 ",
    "+3",
    "1e5",
    "-1E-3",
    "inf",
    "-Infinity",
    "nan",
    "\u200312",
    "0.10000000149011612",
]
NUMBER_TEXTS = (
    st.none() | st.sampled_from([*NUMBERS, "x", "0x10", "1_0", *SPELLED]) | st.floats().map(repr) | TEXT
)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(TIMES, TEXTS, TEXTS, NUMBER_TEXTS, st.none() | FLOATS, TEXTS), min_size=1, max_size=40)
)
def test_text_columns(rows):
    """As CSV and TSV have them."""
    times = [row[0] for row in rows]
    names = ("zip", "code", "amount", "price", "tags")
    values = {name: [row[at] for row in rows] for at, name in enumerate(names, 1)}
    columns = {
        name: pa.array(column, pa.float64() if name == "price" else pa.string())
        for name, column in values.items()
    }
    found, kept = ingested(columns, times)
    expected = in_graph(values, times)
    for name, ids in found.items():
        assert ids == [expected[name][row] for row in kept], name


TYPES = {
    "float64": (pa.float64(), FLOATS),
    "float32": (pa.float32(), st.floats(width=32)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "bool": (pa.bool_(), st.booleans()),
}


@settings(max_examples=15, deadline=None)
@given(st.data(), st.sampled_from(sorted(TYPES)), st.lists(TIMES, min_size=1, max_size=25))
def test_typed_columns(data, kind, times):
    """As Parquet and JSON have them."""
    arrow, strategy = TYPES[kind]
    values = {
        name: data.draw(st.lists(st.none() | strategy, min_size=len(times), max_size=len(times)))
        for name in ("zip", "code", "amount", "price")
    }
    items = st.none() | st.lists(st.none() | strategy, max_size=3)
    values["tags"] = data.draw(st.lists(items, min_size=len(times), max_size=len(times)))
    columns = {name: pa.array(column, arrow) for name, column in values.items() if name != "tags"}
    columns["tags"] = pa.array(values["tags"], pa.list_(arrow))
    found, kept = ingested(columns, times)
    if kind == "float32":
        narrow = [name for name in values if name != "tags"]
        values |= {name: [None if v is None else np.float32(v) for v in values[name]] for name in narrow}
        values["tags"] = [v and [i if i is None else np.float32(i) for i in v] for v in values["tags"]]
    expected = in_graph(values, times)
    for name, ids in found.items():
        assert ids == [expected[name][row] for row in kept], name


def test_times_around_midnight_and_leap_days():
    """Against Python's calendar."""
    times = sorted({max(0, edge + step) for edge, step in itertools.product(EDGES, (-1, 0, 1))})
    moments = [datetime.fromtimestamp(time // 1_000_000, UTC) for time in times]
    names = {"hour": range(24), "weekday": range(7)}
    features = [
        {"name": name, "kind": "category", "source": name, "vocabulary": [str(n) for n in numbers]}
        for name, numbers in names.items()
    ]
    derive = {name: CONTENT["derive"][name] for name in names}
    mapping = parse_model(Mapping, {**CONTENT, "derive": derive, "features": features}, "test")
    expected = {
        "hour": [1 + moment.hour for moment in moments],
        "weekday": [1 + moment.weekday() for moment in moments],
    }
    assert ingested({}, times, mapping)[0] == expected
    made = transform_tensors(mapping.feature_schema, {TIME_COLUMN: tf.constant(times, tf.int64)})
    assert {name: ids.numpy().tolist() for name, ids in made.items()} == expected


def test_a_missing_time_is_missing_in_every_column_made_of_it():
    made = in_graph({name: ["x"] for name in SCHEMA.inputs if name != "price"} | {"price": [1]}, [None])
    of_time = ("f_hour", "f_weekday", "f_half_day", "f_week", "f_us", "f_hour_number")
    assert {name: made[name] for name in of_time} == {name: [0] for name in of_time}


def test_prefixes_count_characters_not_bytes():
    texts = ["日本語", "日本", "é1", "e\u0301", "1", "", "12.0", "12"]
    found = ingested(
        {**{n: pa.array([""] * 8) for n in ("code", "amount", "price", "tags")}, "zip": pa.array(texts)},
        [0] * 8,
    )
    area = found[0]["f_area"]
    assert area[0] == area[1] != 0
    assert len(set(area[1:6])) == 5 and area[5] == 0
    assert area[6] == area[7]


class TestCasts:
    def made(self, texts, cast):
        features = [{"name": "f", "kind": "category", "source": "d", "buckets": 2**31 - 1}]
        mapping = parse_model(
            Mapping, {**CONTENT, "derive": {"d": {"from": "c", "cast": cast}}, "features": features}, "test"
        )
        ids, kept = ingested({"c": pa.array(texts, pa.string())}, [0] * len(texts), mapping)
        graph = transform_tensors(mapping.feature_schema, {"c": tf.constant(texts)})["f"].numpy().tolist()
        for row, number in enumerate(graph):
            assert number == (ids["f"][kept.index(row)] if row in kept else 0)
        return [ids["f"][kept.index(row)] if row in kept else None for row in range(len(texts))]

    def test_integer(self):
        made = self.made(
            ["12", "12.0", "012", "+12", " 12. ", "000", "-0", "0.0", "", "12.5", "1e3", "x"], "integer"
        )
        assert len(set(made[:5])) == 1 and len(set(made[5:8])) == 1 and made[0] != made[5]
        assert made[8:] == [0, None, None, None]

    def test_number(self):
        made = self.made(
            ["12.5", "12.50", "+012.500", "12", "12.0", "-0.0", "0", "-12.5", "1e3", "1.2.3"], "number"
        )
        assert len(set(made[:3])) == 1 and made[3] == made[4] and made[5] == made[6]
        assert len({made[0], made[3], made[5], made[7]}) == 4
        assert made[8:] == [None, None]

    def test_text_keeps_what_was_written(self):
        assert len(set(self.made(["2", "2.0", "2.00", "02"], "text"))) == 4

    def test_lists_have_no_cast(self):
        mapping = parse_model(
            Mapping,
            {
                **CONTENT,
                "derive": {"d": {"from": "c", "cast": "integer"}},
                "features": [{"name": "f", "kind": "category", "source": "d", "multivalent": True}],
            },
            "test",
        )
        with pytest.raises(InputError, match=r"derive.d: the column c is of type list<.*no cast to integer"):
            ingested({"c": pa.array([["1"]])}, [0], mapping)


@pytest.mark.parametrize("cast", [None, "integer"])
def test_one_category_from_every_format(tmp_path, cast):
    """What pandas writes for whole numbers beside a missing one: 12.0 in CSV and JSON, a float column in Parquet."""
    whole = [12, None, 7, 0, -3]
    features = [{"name": "f", "kind": "category", "source": "d" if cast else "c"}]
    derive = {"d": {"from": "c", "cast": cast}} if cast else None
    content = {"joins": None, "query": None, "example_id": "id", "weight": None, "label": "click"}
    content |= {"features": features, "derive": derive}
    floats = [None if value is None else float(value) for value in whole]
    columns = {"id": list(range(5)), "time": [1_600_000_000] * 5, "click": [1] * 5}
    csv_of = {
        "ints": [("" if value is None else str(value)) for value in whole],
        "floats": [("" if value is None else float_text(value)) for value in floats],
        "zeros": [("" if value is None else f"{value}.000") for value in whole],
    }
    logs = {}
    for name, texts in csv_of.items():
        rows = zip(*columns.values(), texts, strict=True)
        (tmp_path / f"{name}.csv").write_text(
            "id,time,click,c\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
        )
        logs[name] = ("csv", tmp_path / f"{name}.csv")
    for name, values in {"ints": whole, "floats": floats}.items():
        lines = [
            dict(zip((*columns, "c"), row, strict=True))
            for row in zip(*columns.values(), values, strict=True)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        logs[f"{name} jsonl"] = ("jsonl", tmp_path / f"{name}.jsonl")
    import pyarrow.parquet as pq

    for kind in (pa.int64(), pa.float64(), pa.float32(), pa.decimal128(10, 2)):
        path = tmp_path / f"{kind}.parquet".replace(" ", "").replace("(", "").replace(")", "").replace(
            ",", ""
        )
        column = (
            pa.array(whole, pa.int64()).cast(kind)
            if not pa.types.is_decimal(kind)
            else pa.array(csv_of["ints"]).cast(pa.string())
        )
        if pa.types.is_decimal(kind):
            column = pa.array([None if value is None else value for value in whole], pa.decimal128(10, 2))
        pq.write_table(pa.table({**columns, "c": column}), path)
        logs[str(kind)] = ("parquet", path)
    ids = {}
    for name, (form, path) in logs.items():
        mapping = raw_logs.make_mapping(input={"type": form}, **content)
        ingest(mapping, [path], tmp_path / f"log {name}")
        ids[name] = [example["f"] for example in raw_logs.read_log(tmp_path / f"log {name}")]
    assert len(set(ids["ints"])) == 5
    assert all(found == ids["ints"] for found in ids.values()), ids
