"""Ids of raw values are those that ingestion gives; values without one are refused."""

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctr.config import parse_model
from ctr.data.ids.arrow import spell_array, text_array
from ctr.data.ids.graph import spell as spell_in_graph
from ctr.data.ids.tables import transform_table
from ctr.data.ids.values import feature_ids
from ctr.data.schema import Schema
from ctr.data.spelling import float_text, spell
from ctr.io.errors import InputError

SCHEMA = parse_model(
    Schema,
    {
        "features": [
            {"name": "site", "kind": "category", "source": "site", "buckets": 100_000},
            {"name": "grown", "kind": "category", "source": "site"},
            {"name": "known", "kind": "category", "source": "site", "vocabulary": ["a", "7", "true"]},
            {"name": "age", "kind": "number", "source": "age", "boundaries": [18, 30, 65.5]},
            {"name": "tags", "kind": "category", "source": "tags", "multivalent": True},
            {"name": "words", "kind": "text", "source": "site"},
            {"name": "cross", "kind": "cross", "of": ["site", "age"]},
            {"name": "long", "kind": "category", "source": "f", "vocabulary": [f"v{i}" for i in range(500)]},
        ]
    },
    "test",
)


def ingested(name, column):
    """The ids that ``transform_table`` gives a column of the feature's source."""
    schema = SCHEMA.only([name])
    return transform_table(schema, pa.table({SCHEMA.by_name[name].source: column}))[0][:, 0].tolist()


@pytest.mark.parametrize("name", ["site", "known", "grown"])
def test_values_have_the_ids_that_ingestion_gives(name):
    for values, kind in (
        (["a", "7", "", "true"], pa.string()),
        ([7, None], pa.int64()),
        ([True, None], pa.bool_()),
        ([7.0, None], pa.float64()),
        ([], pa.string()),
    ):
        ids = feature_ids(SCHEMA, name, values)
        assert ids.dtype == ("int64" if name == "grown" else "int32")
        assert ids.tolist() == ingested(name, pa.array(values, kind))
    ages = [-3, 18, 30.25, 1e9, None]
    assert feature_ids(SCHEMA, "age", ages).tolist() == ingested("age", pa.array(ages)) == [1, 2, 3, 4, 0]
    assert feature_ids(SCHEMA, "age", [""]).tolist() == [0]


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("sight", ["a"], "sight is not a feature of the log; allowed: site, grown, known, age, tags"),
        ("tags", ["a"], "feature tags is a multivalent category"),
        ("age", [20, "old"], "feature age: 'old' is not a number"),
        ("known", ["a", "b"], "feature known: 'b' is not in its vocabulary; allowed: a, 7, true"),
        ("site", ["7.0", 7], "feature site: 7 and '7.0' have the same id"),
        ("long", ["x"], r"v0, v1, .*v19, \.\.\.$"),
    ],
)
def test_values_that_a_feature_cannot_have_are_refused(name, values, message):
    with pytest.raises(InputError, match=message):
        feature_ids(SCHEMA, name, values)


CHANGED = {
    "12.0": "12",
    "12.00": "12",
    "-12.0": "-12",
    "0.0": "0",
    "-0.0": "0",
    "9007199254740993.0": "9007199254740993",
    "123456789012345678901234567890.0": "123456789012345678901234567890",
}
OTHERS = (
    "|12|-0|01234|01234.0|00.0|12.5|12.50|1.10|12.|.0|+12.0|--1.0|1e3|1e3.0|12.0a|a12.0|12.0.0|10.0.0.1| 12.0|"
    "0x0c|ab.0|1,2.0|12.0\0|12.0\n|\N{ARABIC-INDIC DIGIT ONE}.0"
)
UNCHANGED = OTHERS.split("|")


def test_numbers_have_one_spelling_and_other_text_stays():
    expected = CHANGED | {text: text for text in UNCHANGED}
    assert {text: spell(text) for text in expected} == expected
    every_way(list(expected))


def every_way(texts):
    expected = [spell(text) for text in texts]
    assert spell_array(pa.array(texts, pa.string())).to_pylist() == expected
    made = spell_in_graph(tf.constant(texts, tf.string, shape=(len(texts),))).numpy()
    assert [text.decode() for text in made] == expected
    assert [spell(text) for text in expected] == expected


@settings(max_examples=50)
@given(st.floats() | st.integers(-(2**53), 2**53).map(float))
def test_floats_are_what_python_writes(value):
    text = float_text(value)
    assert (text == "") if value != value else float(text) == value
    assert spell(text) == (text if not value.is_integer() or abs(value) >= 1e16 else str(int(value)))


def significant_digits(text):
    return len(text.partition("e")[0].lstrip("-").replace(".", "").strip("0"))


@settings(max_examples=50)
@given(st.floats(width=32, allow_nan=False))
@example(99999997952.0)
def test_narrow_floats_have_their_own_digits(value):
    text = float_text(np.float32(value))
    assert np.float32(text) == np.float32(value)
    assert significant_digits(text) <= significant_digits(repr(value))
    missing = pa.array([value, None, float("nan")], pa.float32())
    assert text_array(missing).to_pylist() == [text, None, None]


def test_a_vocabulary_is_spelled_as_its_categories():
    feature = {"kind": "category", "name": "size", "source": "s", "vocabulary": ["1", "2.0"]}
    with pytest.raises(InputError, match=r"size: the vocabulary has '2\.0', which categories spell '2'"):
        parse_model(Schema, {"features": [feature]}, "test")
    as_written = {"t": {"from": "s", "cast": "text"}}
    parse_model(Schema, {"features": [{**feature, "source": "t"}], "derive": as_written}, "test")
