"""JSON and YAML from elsewhere: what is refused, and in what time and memory."""

import contextlib
import math

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from ctr.config import Dumper
from ctr.io.documents import parse_json, parse_yaml

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' appears twice"),
        ("NaN", "NaN is not a JSON number"),
        ("[1e400]", "is too large"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5000, "limit"),
        (b"\xff", "decode"),
        ('{"a": "\\ud800"}', "surrogates not allowed"),
    ],
)
def test_json_that_is_refused(text, words):
    with pytest.raises(ValueError, match=words) as raised:
        parse_json(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2", "the key a appears twice"),
        ("? [a]\n: b", "a key is a list"),
        ("&a [*a]", "refers to a value that contains it"),
        (BOMB, "more than 1,000,000 values"),
        ("[" * 150 + "]" * 150, "nested deeper than 100"),
        ("2026-13-45", "month"),
        ("!!int x", "invalid literal"),
        ("9" * 5000, "limit"),
        ("!!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("a\x1bb", "special characters are not allowed"),
        ('"\\ud800"', "surrogates not allowed"),
    ],
)
def test_yaml_that_is_refused(text, words):
    with pytest.raises(ValueError, match=words) as raised:
        parse_yaml(text)
    assert "\n" not in str(raised.value)


def test_yaml_that_means_what_it_seems_to():
    for text, value in {
        **{"1e-6": 1e-6, "1.0e-6": 1e-6, "-2.E+3": -2e3, ".5e1": 5.0, "5E2": 500, "0.25": 0.25, "12": 12},
        **{"e5": "e5", "1e": "1e", "'1e-6'": "1e-6"},
    }.items():
        assert repr(parse_yaml(text)) == repr(value)
    assert parse_yaml("base: &b {x: 1, y: 2}\nother: {<<: *b, y: 3}")["other"] == {"x": 1, "y": 3}
    assert parse_yaml("") is None
    assert math.isinf(parse_yaml(".inf"))


@given(PLAIN)
@example({"0E0": None})
def test_plain_values_come_back(value):
    # PyYAML's own dumper writes the text 0E0 like the number.
    assert parse_yaml(yaml.dump(value, Dumper=Dumper, allow_unicode=False)) == value


@given(st.text(max_size=50))
def test_any_text_is_read_or_refused(text):
    for parse in (parse_yaml, parse_json):
        with contextlib.suppress(ValueError):
            parse(text)
