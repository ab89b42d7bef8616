"""Numbers in categories have one spelling, and it is the same in Python, in Arrow and in the graph."""

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctr.config import parse_model
from ctr.data.ids.arrow import spell_array, text_array
from ctr.data.ids.graph import spell as spell_in_graph
from ctr.data.schema import Schema
from ctr.data.spelling import float_text, spell
from ctr.io.errors import InputError

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


@pytest.mark.slow
@given(st.lists(st.from_regex(r"[-+]?[0-9]{0,3}\.?0{0,3}[0-9a]?\n?", fullmatch=True) | st.text(max_size=6)))
def test_every_way_spells_alike(texts):
    every_way(texts)


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
    with pytest.raises(
        InputError, match=r"feature size: the vocabulary has '2\.0', which categories spell '2'"
    ):
        parse_model(Schema, {"features": [feature]}, "test")
    as_written = {"t": {"from": "s", "cast": "text"}}
    parse_model(Schema, {"features": [{**feature, "source": "t"}], "derive": as_written}, "test")
