"""Ingestion and the graph make the same ids, which are those of a table and of formulas in plain Python.

Columns of tables of all types become ids; others are refused.
"""

import math
import random
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctr.config import parse_model
from ctr.data.features import Cross, Number
from ctr.data.ids import arrow, graph
from ctr.data.ids.graph import fingerprint, transform_tensors
from ctr.data.ids.rules import ids_of_prints
from ctr.data.ids.tables import transform_table
from ctr.data.schema import Schema
from ctr.io.errors import InputError
from ctr.io.farmhash import fingerprint64, fingerprints_of
from ctr.pipelines.tables.examples import Verdict, add_derived, check_numbers
from ctr.pipelines.tables.input_files import Chunk

Ids = dict[str, list[Any]]


def make_schema(*features: dict[str, Any], derive: dict[str, Any] | None = None) -> Schema:
    return parse_model(Schema, {"features": list(features), "derive": derive or {}}, "test")


def as_tensors(columns: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    return {
        name: tf.constant(values, None if isinstance(values, np.ndarray) else tf.string, (len(values),))
        for name, values in columns.items()
    }


def from_tensors(ids: Mapping[str, Any]) -> Ids:
    return {
        name: one.to_list() if isinstance(one, tf.RaggedTensor) else one.numpy().tolist()
        for name, one in ids.items()
    }


def from_table(schema: Schema, columns: Mapping[str, Any]) -> Ids:
    matrix, lists = transform_table(schema, pa.table(dict(columns)))
    assert matrix.dtype == schema.id_type
    ids: Ids = {name: matrix[:, at].tolist() for at, name in enumerate(schema.single_valued)}
    for name, (values, lengths) in lists.items():
        assert (values.dtype, lengths.dtype, lengths.sum()) == (schema.id_type, np.int32, len(values))
        ids[name] = [part.tolist() for part in np.split(values, np.cumsum(lengths))[:-1]]
    return ids


def check_ingestion(schema: Schema, columns: Mapping[str, Any], expected: Ids) -> None:
    """Ingestion makes the same ids, also of what no cast accepts, but of times before 1970 or of what is no number."""
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    chunk = Chunk(0, table, np.arange(len(table)), [])
    made = {name: table.column(name).combine_chunks() for name in table.column_names}
    times = columns.get("time_us", np.zeros(len(table), np.int64))
    add_derived(schema.derive, made, times, Verdict(chunk))
    compared = {name: np.arange(len(table)) for name in schema.by_name}
    for name, one in schema.by_name.items():
        if not isinstance(one, Cross) and one.source in schema.derive:
            verdict = Verdict(chunk)
            check_numbers([one.source] if isinstance(one, Number) else [], {}, made, verdict)
            past = schema.derive[one.source].of_time & (times < 0)
            compared[name] = np.flatnonzero(verdict.good & ~past)
    for name, ids in from_table(schema, made).items():
        assert [ids[row] for row in compared[name]] == [expected[name][row] for row in compared[name]], name


def all_ways(schema: Schema, columns: Mapping[str, Any]) -> Ids:
    """The ids of the graph, once those of ingestion are known to be the same."""
    ids = from_tensors(transform_tensors(schema, as_tensors(columns)))
    check_ingestion(schema, columns, ids)
    return ids


def growing(print_: int) -> int:
    return print_ - 2**64 if print_ >= 2**63 else print_


def hashed(text: str, buckets: int | None) -> int:
    """The id of a value that is not missing; of None buckets ids grow."""
    print_ = fingerprint64(text.encode())
    return growing(print_) if buckets is None else 1 + print_ % (buckets - 1)


def cross_id(parts: Sequence[int], buckets: int | None) -> int:
    state, mask = 1, 2**64 - 1
    for part in parts:
        state = (state * 0x9E3779B97F4A7C15 & mask) ^ part
        state ^= state >> 32
        state = state * 0xD6E8FEB86659FD93 & mask
        state ^= state >> 32
    return growing(state) if buckets is None else 1 + state % (buckets - 1)


def plain_tokens(text: str, words: Sequence[int], subwords: Sequence[int], max_values: int) -> list[str]:
    letters = (letter if unicodedata.category(letter)[0] in "LMN" else " " for letter in text)
    kept = "".join(letters).lower().split()
    tokens = [" ".join(kept[at : at + size]) for size in words for at in range(len(kept) - size + 1)]
    for size in subwords:
        for word in kept:
            marked = f"<{word}>"
            tokens += [marked[at : at + size] for at in range(len(marked) - size + 1)]
    return tokens[:max_values]


# Ids as the first logs have them: of every kind of feature, by buckets, a vocabulary, or growing.
TABLE: list[tuple[dict[str, Any], list[Any]]] = [
    ({"name": "c", "kind": "category", "source": "c", "buckets": 1000}, [755, 125, 0, 816, 20]),
    ({"name": "grown", "kind": "category", "source": "c"},
     [-5436999610281751320, -5939371580251159728, 0, 5676833963740711883, -3247774798456978881]),
    ({"name": "known", "kind": "category", "source": "c", "vocabulary": ["hello", "12"]}, [1, 2, 0, 3, 3]),
    ({"name": "list", "kind": "category", "source": "m", "multivalent": True, "separator": "|", "strip": "[] '",
      "max_values": 2, "keep": "last"},
     [[-8633013323626695528, -6651148003232386794], [], [-6025967220303244210], [], [693143013273849025]]),
    ({"name": "n", "kind": "number", "source": "n", "boundaries": [-1, 0, 2.5]}, [3, 0, 3, 4, 2]),
    ({"name": "words", "kind": "text", "source": "t", "words": [1, 2], "buckets": 1000},
     [[207, 762, 206, 979, 910], [], [419, 921, 449], [958, 938, 195], [276]]),
    ({"name": "parts", "kind": "text", "source": "t", "words": [], "subwords": [3], "max_values": 2},
     [[-7730204929511147145, 9031857537011164443], [], [-7531500423726424850, -3958886102582078891],
      [-2715807175914365429, -7469436047717846864], [-851070145594136002, -8884666998965082359]]),
    ({"name": "cross", "kind": "cross", "of": ["c", "n"], "buckets": 1000}, [972, 865, 164, 923, 899]),
    ({"name": "crosses", "kind": "cross", "of": ["known", "list"]},
     [[4828540556860666656, 7497792480954564244], [], [-4693215340780945659], [], [-6093003741597247505]]),
]  # fmt: skip
DERIVED: list[tuple[dict[str, Any], dict[str, Any], list[int]]] = [
    ({"kind": "category", "buckets": 1000}, {"from": "c", "prefix": 2}, [567, 125, 0, 816, 20]),
    ({"kind": "category", "buckets": 1000}, {"from": "c", "cast": "text"}, [755, 609, 0, 816, 558]),
    ({"kind": "category", "buckets": 1000}, {"from": "c", "cast": "integer"}, [0, 125, 0, 0, 20]),
    ({"kind": "category", "buckets": 1000}, {"from": "time", "every": "1d"}, [318, 0, 20, 697, 202]),
    ({"kind": "number", "boundaries": [0, 1000.25]}, {"from": "m", "cast": "decimal_comma"}, [0, 0, 3, 0, 0]),
    ({"kind": "number", "boundaries": [6, 12]}, {"from": "time", "part": "hour"}, [3, 0, 1, 3, 1]),
    ({"kind": "number", "boundaries": [2, 5]}, {"from": "c"}, [0, 3, 0, 0, 1]),
]
COLUMNS = {
    "c": ["hello", "12.0", "", "日本", "-0.0"],
    "m": ["['a'| 7.0||'b']", "", "1.000,5", "|[]|", "é"],
    "t": ["Best Running Shoes!", "", "ΟΔΟΣ İstanbul", "a\0b", "Straße"],
    "n": np.array([-0.0, np.nan, 1e-40, np.inf, -1], np.float32),
    "time_us": np.array([1_700_000_000_000_000, -1, 0, 2**55, 3 * 86_400_000_000], np.int64),
}


def test_ids_are_those_of_the_first_logs() -> None:
    schema = make_schema(*(feature for feature, _ in TABLE))
    assert all_ways(schema, COLUMNS) == {feature["name"]: ids for feature, ids in TABLE}
    features = [{**one, "name": f"f{n}", "source": f"d{n}"} for n, (one, _, _) in enumerate(DERIVED)]
    derived = make_schema(*features, derive={f"d{n}": rule for n, (_, rule, _) in enumerate(DERIVED)})
    assert all_ways(derived, COLUMNS) == {f"f{n}": ids for n, (_, _, ids) in enumerate(DERIVED)}


def test_the_one_value_whose_fingerprint_says_missing_has_the_next_id() -> None:
    prints = np.array([0, 1, 2**64 - 1], np.uint64)
    for operations, some in ((arrow, prints), (graph, tf.constant(prints))):
        ids = np.asarray(ids_of_prints(operations, some, [None]))
        assert ids.dtype == np.int64 and ids.tolist() == [1, 1, -1]


# Features of every kind, with buckets, a vocabulary, and ids that grow; crosses of all of them.
EVERY = make_schema(
    {"name": "a", "kind": "category", "source": "a", "buckets": 50},
    {"name": "grown", "kind": "category", "source": "a"},
    {"name": "v", "kind": "category", "source": "v", "vocabulary": ["x", "12", "é"]},
    {"name": "m", "kind": "category", "source": "m", "multivalent": True, "separator": "||", "max_values": 2},
    {**{"name": "last", "kind": "category", "source": "m", "multivalent": True}, "keep": "last", "max_values": 2},
    {"name": "bare", "kind": "category", "source": "m", "multivalent": True, "separator": "|", "strip": "]^-\\[b '1"},
    {"name": "n", "kind": "number", "source": "n", "boundaries": [-1, 0, 2.5]},
    {"name": "words", "kind": "text", "source": "t", "words": [1, 2], "buckets": 90},
    {"name": "parts", "kind": "text", "source": "t", "words": [], "subwords": [3, 2], "max_values": 5},
    {"name": "single", "kind": "cross", "of": ["a", "v", "n"]},
    {"name": "many", "kind": "cross", "of": ["v", "m", "n"], "buckets": 1000},
    {"name": "of_words", "kind": "cross", "of": ["words", "grown"]},
    {"name": "n_text", "kind": "number", "source": "cast", "log": {"signed": True}},
    {"name": "comma", "kind": "number", "source": "comma", "boundaries": [-1, 3, 1000.25]},
    {"name": "both", "kind": "number", "source": "copy", "step": {"low": 0, "high": 5, "size": 1}},
    {"name": "prefix", "kind": "category", "source": "short"},
    {"name": "whole", "kind": "category", "source": "whole", "buckets": 7},
    {"name": "as_written", "kind": "category", "source": "as_written", "buckets": 70},
    {"name": "hour", "kind": "number", "source": "hour", "boundaries": [6, 12]},
    {"name": "weekday", "kind": "category", "source": "weekday", "buckets": 9},
    {"name": "block", "kind": "category", "source": "block"},
    derive={
        "cast": {"from": "v", "cast": "number"},
        "comma": {"from": "v", "cast": "decimal_comma"},
        "copy": {"from": "v"},
        "short": {"from": "a", "prefix": 2},
        "whole": {"from": "v", "cast": "integer"},
        "as_written": {"from": "v", "cast": "text"},
        "hour": {"from": "time", "part": "hour"},
        "weekday": {"from": "time", "part": "weekday"},
        "block": {"from": "time", "every": "12h"},
    },
)  # fmt: skip
NUMBERS = ["", "12", "12.0", "-0.0", "007.0", " 1e3\u00a0", "\v3", "\t+4.50\n", "true", "inf", "-Infinity", "\u0131nf",
           "1.5.0", "-1.250,5", "3,25", " 12.000.000", "9007199254740993", "-9223372036854775808", "1e-40",
           "1e39"]  # fmt: skip
# Marks, both i without and with a dot, the final sigma, NUL, letters of other planes and ones that no Unicode assigns.
LETTERS = (
    "x||y||||z|['12.0'|'é b']|日本.0|e\u0301|İıIi|ΣΑΣ σς|a\0b|ßẞǅ|\U0001d49c\U00010400|\U0010ffff|\u0378"  # noqa: RUF001
)
TEXTS = st.one_of(
    st.sampled_from(NUMBERS),
    st.text("ab.0|1 -+e", max_size=12),
    st.text(LETTERS, max_size=9),
    st.text(max_size=70),
)
ITEMS = st.text(st.characters(codec="utf-8", exclude_characters="|"), max_size=4)
ROW = st.fixed_dictionaries(
    {
        **dict.fromkeys("avmt", TEXTS),
        "n": st.one_of(st.floats(width=32), st.sampled_from([-1.0, -0.0, 1e-40, 2.5, math.inf])),
        "time_us": st.integers(-1, 2**62),
    }
)


def columns_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    numbers = np.array(columns["n"], np.float32), np.array(columns["time_us"], np.int64)
    return {**columns, "n": numbers[0], "time_us": numbers[1]}


@settings(max_examples=8)
@given(st.lists(ROW, min_size=1, max_size=12))
@example([{**dict.fromkeys("avmt", LETTERS), "n": -0.0, "time_us": 0}])
def test_all_ways_make_the_same_ids(rows: list[dict[str, Any]]) -> None:
    all_ways(EVERY, columns_of(rows))


@settings(max_examples=5)
@given(st.lists(st.lists(st.none() | ITEMS, max_size=5), min_size=1))
def test_lists_have_the_ids_of_their_joined_text(rows: list[list[str | None]]) -> None:
    feature = {"kind": "category", "source": "m", "multivalent": True, "separator": "|", "max_values": 3}
    schema = make_schema(
        {"name": "c", "kind": "category", "source": "c"},
        {**feature, "name": "first", "strip": "b "},
        {**feature, "name": "last", "keep": "last", "buckets": 9},
        {"name": "cross", "kind": "cross", "of": ["c", "last"]},
    )
    texts = [[item or "" for item in row] for row in rows]
    other = {"c": [str(len(row)) for row in rows]}
    expected = all_ways(schema, {**other, "m": ["|".join(row) for row in texts]})
    lists = pa.array(rows, pa.list_(pa.string()))
    kinds = pa.large_list(pa.large_string()), pa.list_(pa.dictionary(pa.int8(), pa.string()))
    for column in (lists, *(lists.cast(kind) for kind in kinds)):
        assert from_table(schema, {**other, "m": column}) == expected
        rest = from_table(schema, {"c": other["c"][1:], "m": column.slice(1)})
        assert rest == {name: ids[1:] for name, ids in expected.items()}
    ragged = tf.ragged.constant(texts, tf.string, ragged_rank=1)
    assert from_tensors(transform_tensors(schema, {**as_tensors(other), "m": ragged})) == expected


@settings(max_examples=25)
@given(
    st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=20, unique=True),
    st.lists(st.floats(width=64) | st.none(), max_size=50),
)
def test_number_is_the_float32_count_of_edges(edges: list[float], values: list[float | None]) -> None:
    edges = sorted(set(edges))
    schema = make_schema({"kind": "number", "name": "n", "source": "x", "boundaries": edges})
    smallest = np.finfo(np.float32).tiny
    edges32 = np.array(edges, np.float32)
    with np.errstate(over="ignore"):
        x = np.array([np.nan if value is None else value for value in values], np.float32)
    for array in (edges32, x):  # subnormal numbers are 0
        array[np.abs(array) < smallest] = 0
    expected = np.where(np.isnan(x), 0, 1 + np.searchsorted(edges32, x, side="right"))
    assert from_table(schema, {"x": pa.array(values, pa.float64())})["n"] == expected.tolist()
    assert all_ways(schema, {"x": x})["n"] == expected.tolist()


TITLES = ["Best Running Shoes!", "best-running SHOES", "", "…", "ΟΔΟΣ ΣΑΣ", "Straße 12½", "a\0b c", "हिन्दी",
         "日本語 ニュース", "e\u0301te\u0301", "İstanbul I", "x"]  # fmt: skip


# Letters that an old Unicode knows: Python's tables and TensorFlow's are not of the same version.
ASSIGNED = st.characters(codec="utf-8").filter(lambda one: unicodedata.ucd_3_2_0.category(one) != "Cn")
HARD_CASES = st.sampled_from("ΣσςΑα İIıi ÌJĮ \u0301\u0307'.-\0\n\u00ad\u2019ßẞǅ")  # noqa: RUF001


@settings(max_examples=10)
@given(
    st.lists(st.text(ASSIGNED | HARD_CASES, max_size=30), min_size=1, max_size=5),
    st.sampled_from([((1, 2), (3,), 20), ((1,), (3, 4), 64), ((), (2,), 5), ((2, 1), (3,), 3)]),
)
@example(TITLES, ((1, 2), (), 64))
@example(TITLES, ((2, 1), (3, 4), 30))
def test_text_matches_a_plain_tokeniser(texts: list[str], sizes: tuple[Any, Any, int]) -> None:
    words, subwords, most = sizes
    feature = {"kind": "text", "source": "s", "words": words, "subwords": subwords, "max_values": most}
    schema = make_schema({**feature, "name": "t"}, {**feature, "name": "b", "buckets": 100_000})
    tokens = [plain_tokens(text, words, subwords, most) for text in texts]
    assert all_ways(schema, {"s": texts}) == {
        name: [[hashed(token, buckets) for token in row] for row in tokens]
        for name, buckets in (("t", None), ("b", 100_000))
    }


def test_a_cross_mixes_the_full_fingerprints_in_order() -> None:
    bounds = {"": None, "_": 1000}
    schema = make_schema(
        {"kind": "category", "name": "a", "source": "a", "buckets": 2},
        {"kind": "category", "name": "b", "source": "b", "vocabulary": ["x"]},
        {"kind": "number", "name": "n", "source": "n", "boundaries": [0, 1]},
        {"kind": "category", "name": "m", "source": "m", "multivalent": True, "buckets": 2},
        *(
            {"kind": "cross", "name": name + mark, "of": list(name), "buckets": buckets}
            for name in ("ab", "ba", "abn", "am", "mn")
            for mark, buckets in bounds.items()
        ),
    )
    columns = {"a": ["p", "", ""], "b": ["q", "x", ""], "m": ["1 2.0", "", "4"]}
    ids = all_ways(schema, {**columns, "n": np.array([0.5, 3, np.nan], np.float32)})
    p, q, x, none, one, two, four = map(fingerprint64, (b"p", b"q", b"x", b"", b"1", b"2", b"4"))
    for mark, buckets in bounds.items():

        def of(*parts: int, buckets: int | None = buckets) -> int:
            return cross_id(parts, buckets)

        assert ids["ab" + mark] == [of(p, q), of(none, x), 0]
        assert ids["ba" + mark] == [of(q, p), of(x, none), 0]
        assert ids["abn" + mark] == [of(p, q, 2), of(none, x, 3), 0]
        assert ids["am" + mark] == [[of(p, one), of(p, two)], [], [of(none, four)]]
        assert ids["mn" + mark] == [[of(one, 2), of(two, 2)], [], [of(four, 0)]]


# ---------------------------------------------------------------- tables


def with_nulls(*values: str | None) -> pa.DictionaryArray:
    """A dictionary that has the missing value among its words."""
    return pa.DictionaryArray.from_arrays(pa.array(range(len(values)), pa.int32()), pa.array(values))


def test_integers_booleans_and_dictionaries_are_their_text() -> None:
    schema = make_schema({"kind": "category", "name": "c", "source": "s"})
    numbers, text = pa.array([-7, None, 12]), pa.array(["-7", None, "12"])
    expected = [hashed("-7", None), 0, hashed("12", None)]
    kinds = pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())
    columns = [numbers.cast(kind) for kind in (pa.int8(), pa.int32(), pa.int64(), pa.float16())]
    columns += [text.cast(kind) for kind in kinds]
    for column in (*columns, numbers.dictionary_encode(), with_nulls("-7", None, "12")):
        assert from_table(schema, {"s": column})["c"] == expected, column.type
    # Chunks with dictionaries of their own, and one whose indices are too narrow for both.
    chunks = pa.chunked_array([with_nulls("-7", None, "12"), with_nulls("12", "-7")])
    assert from_table(schema, {"s": chunks})["c"] == [*expected, expected[2], expected[0]]
    words = [f"w{number}" for number in range(256)]
    places = pa.array([*range(128), None], pa.int8())
    narrow = [pa.DictionaryArray.from_arrays(places, pa.array(words[at : at + 128])) for at in (0, 128)]
    plain = pa.array([*words[:128], None, *words[128:], None])
    assert from_table(schema, {"s": pa.chunked_array(narrow)}) == from_table(schema, {"s": plain})
    for values in ([True, False], [-7, 12]):
        tensors = {"s": tf.constant(values)}
        assert from_tensors(transform_tensors(schema, tensors)) == from_table(schema, {"s": values})
    assert from_table(schema, {"s": [True, False]})["c"] == [hashed("true", None), hashed("false", None)]
    assert from_table(schema, {"s": pa.nulls(2)})["c"] == [0, 0]
    number = make_schema({"kind": "number", "name": "n", "source": "x", "boundaries": [0, 1, 2.5]})
    for column in (pa.array([0, None, 3]).cast(pa.float16()), pa.array([0.0, None, 3.0]).dictionary_encode()):
        assert from_table(number, {"x": column})["n"] == [2, 0, 4]


@pytest.mark.parametrize(
    ("feature", "column", "message"),
    [
        ({"kind": "category"}, pa.array([{"x": 1}]), "of type struct<x: int64>; a category reads strings, "),
        ({"kind": "category"}, pa.array([["a"]]), r"holds lists \(list<item: string>\), which only a multi"),
        ({"kind": "text"}, pa.array([["a"]]), "holds lists"),
        ({"kind": "category", "multivalent": True}, pa.array([[b"a"]]), "of type binary; a category reads"),
        ({"kind": "number", "boundaries": [1]}, pa.array(["1"]), "of type string; a number is required"),
    ],
)
def test_unreadable_columns_are_refused(feature: dict[str, Any], column: pa.Array, message: str) -> None:
    schema = make_schema({**feature, "name": "f", "source": "s"})
    with pytest.raises(InputError, match=f"^feature f: its source column s .*{message}.*$"):
        transform_table(schema, pa.table({"s": column}))
    expected = "feature f: its source column s is absent; the columns are a, b"
    for refuse in (
        lambda: transform_table(schema, pa.table({"a": [1], "b": [2]})),
        lambda: transform_tensors(schema, {"a": tf.constant([1]), "b": tf.constant([1])}),
    ):
        with pytest.raises(InputError, match=expected):
            refuse()


def test_it_is_tensorflows_for_every_length_one_by_one_and_in_arrays(monkeypatch):
    # Long arrays are hashed in parts.
    monkeypatch.setattr("ctr.io.farmhash._MOST", 1000)
    rng = random.Random(0)
    sizes = [*range(260), *range(260), 1000, 4096, *rng.choices(range(20), k=3000)]
    texts = [rng.randbytes(size) for size in sizes]
    texts += [bytes(size) for size in range(70)] + [b"\xff" * size for size in range(130)]
    middle = [text for text in texts if 8 <= len(text) <= 16]
    for some in (texts, texts[:9], middle, [b"ab"], [b"a" * 70], [b""], []):
        expected = fingerprint(tf.constant(some, tf.string)).numpy().tolist()
        assert [fingerprint64(text) for text in some] == expected
        lengths = np.array([len(text) for text in some], np.int64)
        content = np.frombuffer(b"".join(some), np.uint8)
        found = fingerprints_of(content, np.cumsum(lengths) - lengths, lengths)
        assert found.dtype == np.uint64 and found.tolist() == expected
