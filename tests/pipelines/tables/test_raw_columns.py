"""Derived columns and numeric categories: what ingestion makes of a row is what the exported graph makes of it."""

import itertools
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.config import parse_model
from ctr.data.derived import TIME_COLUMN
from ctr.data.ids.graph import transform_tensors
from ctr.data.mapping import Mapping
from ctr.io.errors import InputError
from ctr.pipelines.tables.examples import make_examples
from ctr.pipelines.tables.input_files import Chunk
from ctr.serving.raw_values import make_numbers, make_texts, make_times


def category(source, **more):
    return {"name": f"f_{source}", "kind": "category", "source": source, "buckets": 2**31 - 1, **more}


def number(source, boundaries):
    return {"name": f"n_{source}", "kind": "number", "source": source, "boundaries": boundaries}


BOUNDARIES = [-1, 0.1, 1, 12, 1e6]
DERIVE = {
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
}
CONTENT = {
    "input": {"type": "csv"},
    "time": {"column": "shown", "unit": "us"},
    "label": "click",
    "partition": "1d",
    "derive": DERIVE,
    "features": [
        *(category(name) for name in (*DERIVE, "zip", "code") if not name.endswith("_number")),
        number("hour_number", [0, 6, 12, 23]),
        number("amount", BOUNDARIES),
        number("price_number", BOUNDARIES),
        {"name": "f_size", "kind": "category", "source": "code", "vocabulary": ["0", "12", "1.5", "a"]},
        {"name": "f_tags", "kind": "category", "source": "tags", "multivalent": True, "separator": "|"},
        {"name": "f_title", "kind": "text", "source": "code"},
        {"name": "f_cross", "kind": "cross", "of": ["f_code", "f_half_day"]},
    ],
}


def make_mapping(**changes):
    return parse_model(Mapping, {**CONTENT, **changes}, "test")


SCHEMA = make_mapping().feature_schema
KINDS = {"text": tf.string, "number": tf.float32, "time": tf.int64}
GRAPH = tf.function(
    lambda raw: transform_tensors(SCHEMA, raw),
    input_signature=[{name: tf.TensorSpec([None], KINDS[kind]) for name, kind in SCHEMA.inputs.items()}],
    autograph=False,
)


def ingested(columns, times, mapping=None):
    """By feature its ids of the rows that were not rejected, and the numbers of these rows."""
    mapping = mapping or make_mapping()
    columns = {
        **columns,
        "shown": pa.array(times, pa.int64()),
        "click": pa.array([1] * len(times), pa.int8()),
    }
    made, _ = make_examples(mapping, 0, Chunk(0, pa.table(columns), np.arange(len(times)), []), (), 0)
    schema = mapping.feature_schema
    width = len(schema.single_valued)
    matrix = np.frombuffer(b"".join(made.column("ids").to_pylist()), schema.id_type).reshape(-1, width)
    ids = dict(zip(schema.single_valued, matrix.T.tolist(), strict=True))
    ids |= {name: made.column(name).to_pylist() for name in schema.multivalent}
    return ids, made.column("@row").to_pylist()


def in_graph(values, times):
    """By feature the ids that the exported model makes of Python's values."""
    raw = {TIME_COLUMN: tf.constant(make_times(TIME_COLUMN, times, len(times)))}
    for name, kind in SCHEMA.inputs.items():
        if kind == "text":
            texts = make_texts(name, values[name], SCHEMA.list_separators.get(name))
            raw[name] = tf.constant(texts, tf.string, shape=(len(times),))
        elif kind == "number":
            raw[name] = tf.constant(make_numbers(name, values[name], len(times)))
    return {
        name: value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()
        for name, value in GRAPH(raw).items()
    }


def check_agreement(columns, values, times):
    found, kept = ingested(columns, times)
    expected = in_graph(values, times)
    for name, ids in found.items():
        assert ids == [expected[name][row] for row in kept], name


DAYS = "1970-01-02 2000-02-29 2000-03-01 2019-11-12 2023-02-28 2024-02-29 2024-12-31 2100-03-01 9999-12-31"
NOON = 43_200_000_000
MIDNIGHTS = [0, *(int(datetime.fromisoformat(f"{day}T00Z").timestamp()) * 1_000_000 for day in DAYS.split())]
EDGES = [*MIDNIGHTS, *(midnight + NOON for midnight in MIDNIGHTS)]
TIMES = st.one_of(
    st.tuples(st.sampled_from(EDGES), st.sampled_from([-1, 0, 1])).map(lambda pair: max(0, sum(pair))),
    st.integers(0, 253_402_300_799_999_999),
)
WORDS = "12 12.0 12.00 -3.0 -0.0 0.0 0 -0 01234 01234.0 12.50 1.10 12. +12.0 .0 1e3 0x0c ffff.0 1.0.0 1.5 007 nan inf"
SPELLED = [*WORDS.split(), "99999999999999999999.0", "12.0 ", "12.0\n"]
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="|"), max_size=6)
TEXTS = st.none() | st.sampled_from([*SPELLED, "日本語", "é", "e\u0301x", "👩‍👧", "a\x00b", ""]) | TEXT
FLOATS = st.floats() | st.sampled_from([12.0, -0.0, 0.1, 1e15, 1e16, 2.0**53, 1e-5, 123456789.0])
NUMBERS = ["", "0.1", ".5", "5.", "+3", "1e5", "-1E-3", "-Infinity", "0.10000000149011612", "1_0", "x", " 7 "]
NUMBER_TEXTS = st.none() | st.sampled_from([*NUMBERS, "\u200312", *SPELLED]) | st.floats().map(repr) | TEXT
ROWS = st.tuples(TIMES, TEXTS, TEXTS, NUMBER_TEXTS, st.none() | FLOATS, TEXTS)


@settings(max_examples=15, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=40))
def test_text_columns(rows):
    """As CSV and TSV have them."""
    times, *columns = map(list, zip(*rows, strict=True))
    values = dict(zip(("zip", "code", "amount", "price", "tags"), columns, strict=True))
    kinds = dict.fromkeys(values, pa.string()) | {"price": pa.float64()}
    check_agreement({name: pa.array(column, kinds[name]) for name, column in values.items()}, values, times)


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
    count = {"min_size": len(times), "max_size": len(times)}
    names = ("zip", "code", "amount", "price")
    values = {name: data.draw(st.lists(st.none() | strategy, **count)) for name in names}
    values["tags"] = data.draw(st.lists(st.none() | st.lists(st.none() | strategy, max_size=3), **count))
    columns = {name: pa.array(values[name], arrow) for name in names}
    columns["tags"] = pa.array(values["tags"], pa.list_(arrow))
    if kind == "float32":
        narrow = {name: [v if v is None else np.float32(v) for v in values[name]] for name in names}
        lists = [v and [i if i is None else np.float32(i) for i in v] for v in values["tags"]]
        values = {**narrow, "tags": lists}
    check_agreement(columns, values, times)


def test_times_around_midnight_and_leap_days():
    """Against Python's calendar."""
    times = sorted({max(0, edge + step) for edge, step in itertools.product(EDGES, (-1, 0, 1))})
    moments = [datetime.fromtimestamp(time // 1_000_000, UTC) for time in times]
    halves = sorted({str(time // NOON) for time in times})
    words = {"hour": [str(n) for n in range(24)], "weekday": [str(n) for n in range(7)], "half_day": halves}
    features = [
        {"name": n, "kind": "category", "source": n, "vocabulary": found} for n, found in words.items()
    ]
    mapping = make_mapping(derive={name: DERIVE[name] for name in words}, features=features)
    expected = {
        "hour": [1 + moment.hour for moment in moments],
        "weekday": [1 + moment.weekday() for moment in moments],
        "half_day": [1 + halves.index(str(time // NOON)) for time in times],
    }
    assert ingested({}, times, mapping)[0] == expected
    made = transform_tensors(mapping.feature_schema, {TIME_COLUMN: tf.constant(times, tf.int64)})
    assert {name: ids.numpy().tolist() for name, ids in made.items()} == expected


def test_a_missing_time_is_missing_in_every_column_made_of_it():
    made = in_graph({name: ["x"] for name in SCHEMA.inputs if name != "price"} | {"price": [1]}, [None])
    of_time = ("f_hour", "f_weekday", "f_half_day", "f_week", "f_us", "n_hour_number")
    assert {name: made[name] for name in of_time} == {name: [0] for name in of_time}


def test_prefixes_count_characters_not_bytes():
    others = {name: pa.array([""] * 8) for name in ("code", "amount", "price", "tags")}
    texts = ["日本語", "日本", "é1", "e\u0301", "1", "", "12.0", "12"]
    area = ingested({**others, "zip": pa.array(texts)}, [0] * 8)[0]["f_area"]
    assert area[0] == area[1] != 0
    assert len(set(area[1:6])) == 5 and area[5] == 0
    assert area[6] == area[7]


@pytest.mark.parametrize(
    ("cast", "same", "refused"),
    [
        ("integer", [["12", "12.0", "012", "+12", " 12. "], ["000", "-0", "0.0"]], ["12.5", "1e3", "x"]),
        (
            "number",
            [["12.5", "12.50", "+012.500"], ["12", "12.0"], ["-0.0", "0"], ["-12.5"]],
            ["1e3", "1.2.3"],
        ),
        # What was written.
        ("text", [["2"], ["2.0"], ["2.00"], ["02"]], []),
    ],
)
def test_casts(cast, same, refused):
    """Texts of one list have one id, other lists others; in the graph what is refused is missing."""
    texts = [*itertools.chain(*same), *refused, ""]
    features = [category("d")]
    mapping = make_mapping(derive={"d": {"from": "c", "cast": cast}}, features=features)
    ids, kept = ingested({"c": pa.array(texts)}, [0] * len(texts), mapping)
    found = dict(zip((texts[row] for row in kept), ids["f_d"], strict=True))
    assert set(texts) - set(found) == set(refused) and found[""] == 0
    assert [len({found[text] for text in group}) for group in same] == [1] * len(same)
    assert len({found[group[0]] for group in same}) == len(same)
    graph = transform_tensors(mapping.feature_schema, {"c": tf.constant(texts)})["f_d"].numpy().tolist()
    assert graph == [found.get(text, 0) for text in texts]


def test_lists_have_no_cast():
    features = [{"name": "f", "kind": "category", "source": "d", "multivalent": True}]
    mapping = make_mapping(derive={"d": {"from": "c", "cast": "integer"}}, features=features)
    with pytest.raises(InputError, match=r"derive.d: the column c is of type list<.*no cast to integer"):
        ingested({"c": pa.array([["1"]])}, [0], mapping)


@pytest.mark.parametrize("cast", [None, "integer"])
def test_whole_numbers_beside_a_missing_one_are_one_category_in_every_form(cast):
    """As pandas writes them: 12.0 in CSV and JSON, and floats in Parquet."""
    whole = [12, None, 7, 0, -3]
    columns = [
        pa.array(whole, kind) for kind in (pa.int64(), pa.float64(), pa.float32(), pa.decimal128(10, 2))
    ]
    columns += [
        pa.array([None if value is None else spelling.format(value) for value in whole])
        for spelling in ("{}", "{}.0", "{}.000")
    ]
    derive = {"d": {"from": "c", "cast": cast}} if cast else {}
    mapping = make_mapping(derive=derive, features=[category("d" if cast else "c")])
    ids = [ingested({"c": column}, [0] * 5, mapping)[0] for column in columns]
    assert len(set(*ids[0].values())) == 5 and all(found == ids[0] for found in ids), ids
