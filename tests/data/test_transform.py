"""Ids of features: against independent truths, and ingestion against the graph."""

import itertools
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.config import parse_model
from ctr.data.ids import arrow, graph
from ctr.data.ids.arrow import string_ids
from ctr.data.ids.graph import transform_tensors
from ctr.data.ids.rules import ids_of_prints
from ctr.data.ids.tables import pack_table, transform_table
from ctr.data.ids.values import Operations
from ctr.data.schema import Schema
from ctr.data.shards import shard_schema, unpack_ids
from ctr.io.errors import InputError

# Published values of FarmHash Fingerprint64 (its empty string is the constant k2 of the algorithm).
FINGERPRINT_OF_EMPTY = 0x9AE16A3B2F90404F
FINGERPRINT_OF_A = 12917804110809363939
FINGERPRINT_OF_HELLO = 13009744463427800296


def make_schema(*features: dict[str, Any]) -> Schema:
    return parse_model(Schema, {"features": list(features)}, "test")


def fingerprint(text: str) -> int:
    return int(np.uint64(tf.bitcast(tf.fingerprint([text], "farmhash64"), tf.uint64).numpy()[0]))


def growing(print_: int) -> int:
    return print_ - 2**64 if print_ >= 2**63 else print_


def hashed(text: str, buckets: int | None) -> int:
    """The id of a value that is not missing; of None buckets ids grow."""
    return growing(fingerprint(text)) if buckets is None else 1 + fingerprint(text) % (buckets - 1)


def cross_id(parts: Sequence[int], buckets: int | None) -> int:
    state, mask = 1, 2**64 - 1
    for part in parts:
        state = (state * 0x9E3779B97F4A7C15 & mask) ^ part
        state ^= state >> 32
        state = state * 0xD6E8FEB86659FD93 & mask
        state ^= state >> 32
    return growing(state) if buckets is None else 1 + state % (buckets - 1)


def plain_tokens(text: str, words: Sequence[int], subwords: Sequence[int], max_values: int) -> list[str]:
    kept = (
        "".join(letter if unicodedata.category(letter)[0] in "LMN" else " " for letter in text)
        .lower()
        .split()
    )
    tokens = [" ".join(kept[at : at + size]) for size in words for at in range(len(kept) - size + 1)]
    for size in subwords:
        for word in kept:
            marked = f"<{word}>"
            tokens += [marked[at : at + size] for at in range(len(marked) - size + 1)]
    return tokens[:max_values]


def lists_of(values: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    ends = np.cumsum(lengths)
    assert (ends[-1] if len(ends) else 0) == len(values)
    return [values[end - length : end].tolist() for end, length in zip(ends, lengths, strict=True)]


def table_ids(schema: Schema, columns: dict[str, Any]) -> dict[str, list[Any]]:
    matrix, lists = transform_table(schema, pa.table(columns))
    assert matrix.dtype == schema.id_type
    result: dict[str, list[Any]] = {
        name: matrix[:, at].tolist() for at, name in enumerate(schema.single_valued)
    }
    for name, (values, lengths) in lists.items():
        assert values.dtype == schema.id_type and lengths.dtype == np.int32
        result[name] = lists_of(values, lengths)
    return result


def tensor_ids(schema: Schema, raw: dict[str, Any]) -> dict[str, list[Any]]:
    ids = transform_tensors(schema, raw)
    for name, value in ids.items():
        assert value.dtype == (tf.int64 if name in schema.growing else tf.int32)
    return {
        name: value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()
        for name, value in ids.items()
    }


def test_known_fingerprints() -> None:
    assert [fingerprint(text) for text in ("", "a", "hello")] == [
        FINGERPRINT_OF_EMPTY, FINGERPRINT_OF_A, FINGERPRINT_OF_HELLO
    ]  # fmt: skip


def test_category_is_its_fingerprint_modulo_the_buckets() -> None:
    schema = make_schema({"kind": "category", "name": "c", "source": "s", "buckets": 1000})
    values = ["a", "hello", "", None, "日本"]
    expected = [1 + FINGERPRINT_OF_A % 999, 1 + FINGERPRINT_OF_HELLO % 999, 0, 0, hashed("日本", 1000)]
    assert table_ids(schema, {"s": values})["c"] == expected
    assert 1 + int(tf.strings.to_hash_bucket_fast(["hello"], 999).numpy()[0]) == expected[1]


def test_a_category_without_buckets_has_fingerprints_as_ids() -> None:
    schema = make_schema({"kind": "category", "name": "c", "source": "s"})
    values = ["a", "hello", "", None, "日本"]
    expected = np.array([FINGERPRINT_OF_A, FINGERPRINT_OF_HELLO, 0, 0, fingerprint("日本")], np.uint64)
    assert table_ids(schema, {"s": values})["c"] == expected.view(np.int64).tolist()
    texts = [text or "" for text in values]
    assert tensor_ids(schema, {"s": tf.constant(texts)})["c"] == expected.view(np.int64).tolist()
    assert string_ids(pa.array(["a", "hello"])).tolist() == expected[:2].view(np.int64).tolist()


def test_the_one_value_whose_fingerprint_says_missing_has_the_next_id() -> None:
    prints = np.array([0, 1, 2**64 - 1], np.uint64)
    for operations, some in (
        (arrow, prints),
        (graph, tf.constant(prints)),
        (Operations(), prints.tolist()),
    ):
        ids = np.asarray(ids_of_prints(operations, some, [None]))
        assert ids.dtype == np.int64 and ids.tolist() == [1, 1, -1]


def test_two_buckets_leave_one_id_for_all_values() -> None:
    schema = make_schema({"kind": "category", "name": "c", "source": "s", "buckets": 2})
    assert table_ids(schema, {"s": ["a", "b", None]})["c"] == [1, 1, 0]


def test_the_largest_bucket_count_fits_int32() -> None:
    schema = make_schema({"kind": "category", "name": "c", "source": "s", "buckets": 2**31 - 1})
    texts = [str(number) for number in range(100)]
    assert table_ids(schema, {"s": texts})["c"] == [hashed(text, 2**31 - 1) for text in texts]


def test_vocabulary_ids_follow_its_order() -> None:
    words = [f"word{number}" for number in range(50)]
    schema = make_schema({"kind": "category", "name": "c", "source": "s", "vocabulary": words})
    ids = table_ids(schema, {"s": [*words, "other", "zzz", "", None]})["c"]
    assert ids == [*range(1, 51), 51, 51, 0, 0]
    assert schema.by_name["c"].buckets == 52


BUCKETED_AND_GROWING = pytest.mark.parametrize("buckets", [100_000, None])


@BUCKETED_AND_GROWING
def test_integers_booleans_and_dictionaries_are_their_text(buckets: int | None) -> None:
    schema = make_schema({"kind": "category", "name": "c", "source": "s", "buckets": buckets})
    expected = [hashed("-7", buckets), 0, hashed("12", buckets)]
    for kind in (pa.int8(), pa.int32(), pa.int64()):
        assert table_ids(schema, {"s": pa.array([-7, None, 12], kind)})["c"] == expected
    text = pa.array(["-7", None, "12"])
    for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        assert table_ids(schema, {"s": text.cast(kind)})["c"] == expected
    assert table_ids(schema, {"s": pa.array([-7, None, 12], pa.float16())})["c"] == expected
    numbers = pa.array([-7, None, 12]).dictionary_encode()
    assert table_ids(schema, {"s": numbers})["c"] == expected
    words = [f"w{number}" for number in range(300)]
    chunks = [pa.array(words[at : at + 128]).dictionary_encode() for at in (0, 128)]
    narrow = [
        pa.DictionaryArray.from_arrays(pa.array([*range(128), None], pa.int8()), chunk.dictionary)
        for chunk in chunks
    ]
    plain = pa.array([*words[:128], None, *words[128:256], None])
    assert table_ids(schema, {"s": pa.chunked_array(narrow)})["c"] == table_ids(schema, {"s": plain})["c"]
    with_null = [
        pa.DictionaryArray.from_arrays(
            pa.array(range(len(values)), pa.int32()), pa.array(values, pa.string())
        )
        for values in (["-7", None, "12"], ["12", "-7"])
    ]
    assert table_ids(schema, {"s": with_null[0]})["c"] == expected
    both = table_ids(schema, {"s": pa.chunked_array(with_null)})["c"]
    assert both == [*expected, expected[2], expected[0]]
    assert table_ids(schema, {"s": [True, False]})["c"] == [hashed("true", buckets), hashed("false", buckets)]
    assert tensor_ids(schema, {"s": tf.constant([True, False])}) == table_ids(schema, {"s": [True, False]})
    assert tensor_ids(schema, {"s": tf.constant([-7, 12])})["c"] == [expected[0], expected[2]]
    assert table_ids(schema, {"s": pa.nulls(2)})["c"] == [0, 0]


@BUCKETED_AND_GROWING
def test_a_nul_inside_a_string_counts(buckets: int | None) -> None:
    schema = make_schema({"kind": "category", "name": "c", "source": "s", "buckets": buckets})
    assert table_ids(schema, {"s": ["a\0b", "a"]})["c"] == [hashed("a\0b", buckets), hashed("a", buckets)]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20, unique=True
    ),
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
    assert table_ids(schema, {"x": pa.array(values, pa.float64())})["n"] == expected.tolist()
    assert tensor_ids(schema, {"x": tf.constant(x)})["n"] == expected.tolist()


def test_numbers_of_all_types() -> None:
    schema = make_schema({"kind": "number", "name": "n", "source": "x", "boundaries": [0, 1, 2.5]})
    expected = [1, 2, 0, 3, 4]
    values = [-1, 0, None, 1, 3]
    for kind in (pa.int16(), pa.int64(), pa.float16(), pa.float32(), pa.float64(), pa.decimal128(30, 2)):
        assert table_ids(schema, {"x": pa.array(values).cast(kind)})["n"] == expected
    assert table_ids(schema, {"x": [True, False, None]})["n"] == [3, 2, 0]
    assert table_ids(schema, {"x": pa.array([1.0, 3.0]).dictionary_encode()})["n"] == [3, 4]


def test_a_boundary_rounds_to_float32_as_the_value_does() -> None:
    schema = make_schema(
        {"kind": "number", "name": "n", "source": "x", "step": {"low": 0, "high": 1, "size": 0.1}}
    )
    values = [0.1 * k for k in range(11)]
    assert table_ids(schema, {"x": values})["n"] == list(range(2, 13))


TEXTS = ["Best Running Shoes!", "best-running SHOES", "", None, "…", "ΟΔΟΣ ΣΑΣ", "Straße 12½", "a\0b c", "हिन्दी",
         "日本語 ニュース", "e\u0301te\u0301", "İstanbul I", "x"]  # fmt: skip


@BUCKETED_AND_GROWING
@pytest.mark.parametrize(
    ("words", "subwords", "most"), [((1, 2), (), 64), ((1,), (3, 4), 64), ((), (2,), 5), ((2, 1), (3,), 3)]
)
def test_text_matches_a_plain_tokeniser(
    words: tuple[int, ...], subwords: tuple[int, ...], most: int, buckets: int | None
) -> None:
    tokens = {"words": words, "subwords": subwords, "max_values": most}
    schema = make_schema({"kind": "text", "name": "t", "source": "s", "buckets": buckets, **tokens})
    expected = [
        [hashed(token, buckets) for token in plain_tokens(text or "", words, subwords, most)]
        for text in TEXTS
    ]
    assert table_ids(schema, {"s": TEXTS})["t"] == expected


# Letters that an old Unicode knows: Python's tables and TensorFlow's are not of the same version.
LETTERS = st.characters(codec="utf-8").filter(lambda one: unicodedata.ucd_3_2_0.category(one) != "Cn")
LETTERS_OF_HARD_CASES = st.sampled_from("ΣσςΑα İIıi ÌJĮ \u0301\u0307'.-\0\n\u00ad\u2019ßẞǅ")  # noqa: RUF001


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(LETTERS | LETTERS_OF_HARD_CASES, max_size=30), min_size=1, max_size=5))
def test_any_text_matches_a_plain_tokeniser(texts: list[str]) -> None:
    feature = {"kind": "text", "source": "s", "words": [1, 2], "subwords": [3], "max_values": 20}
    schema = make_schema({**feature, "name": "t"}, {**feature, "name": "b", "buckets": 100_000})
    tokens = [plain_tokens(text, (1, 2), (3,), 20) for text in texts]
    assert table_ids(schema, {"s": texts}) == {
        name: [[hashed(token, buckets) for token in row] for row in tokens]
        for name, buckets in (("t", None), ("b", 100_000))
    }


def test_bytes_that_are_not_utf8_do_not_stop_the_graph() -> None:
    schema = make_schema({"kind": "text", "name": "t", "source": "s", "subwords": [2]})
    assert len(tensor_ids(schema, {"s": tf.constant([b"ab\xff\xfecd", b"\xc3"])})["t"]) == 2


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("locale", ["tr_TR.UTF-8", pytest.param("lt_LT.UTF-8", marks=pytest.mark.slow)])
def test_lower_case_does_not_follow_the_locale(
    locale: str, root: Path, fresh_python: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "TITLE İstanbul I ÌÍĨJ\u0303Į\u0301 J\u0300"
    monkeypatch.setenv("LC_ALL", locale)
    code = (
        "import tensorflow as tf\n"
        "from ctr.data.ids.graph import lower_case\n"
        f"print(lower_case(tf.constant([{text!r}])).numpy()[0].hex())"
    )
    run = fresh_python("-c", code, cwd=root, path=root)
    assert bytes.fromhex(run.stdout.strip()).decode() == text.lower()


@BUCKETED_AND_GROWING
def test_multivalent_category_cuts_drops_and_keeps(buckets: int | None) -> None:
    for keep, kept in (("first", ["a", "b"]), ("last", ["c", "a"])):
        schema = make_schema(
            {
                "kind": "category",
                "name": "m",
                "source": "s",
                "buckets": buckets,
                "multivalent": True,
                "separator": "|",
                "max_values": 2,
                "keep": keep,
            }
        )
        ids = [[hashed(text, buckets) for text in kept], [], [], [hashed("x y", buckets)]]
        assert table_ids(schema, {"s": ["|a||b|c|a|", "", None, "x y"]})["m"] == ids
        rows = [["", "a", "b", None, "c", "a"], [], None, ["x y"]]
        for kind in (
            pa.list_(pa.string()),
            pa.large_list(pa.large_string()),
            pa.list_(pa.dictionary(pa.int8(), pa.string())),
        ):
            column = pa.array(rows, pa.list_(pa.string())).cast(kind)
            assert table_ids(schema, {"s": column})["m"] == ids
            assert table_ids(schema, {"s": column.slice(1, 3)})["m"] == ids[1:]


def test_what_stands_around_the_values_of_a_list_is_taken_off() -> None:
    feature = {"kind": "category", "name": "m", "source": "s", "multivalent": True, "separator": ","}
    schema = make_schema({**feature, "strip": "[]'\" "})
    ids = [[hashed("art", None), hashed("7", None)], [], [hashed("d'or", None)], [hashed("7", None)] * 2]
    texts = ["['art', \"7\"]", "[]", "[ d'or ]", "['', '7.0', 7]"]
    assert table_ids(schema, {"s": texts})["m"] == ids
    assert tensor_ids(schema, {"s": tf.constant(texts)})["m"] == ids
    # Of real lists, too, so that a file and a request agree.
    lists = [["'art'", "7"], ["[]"], ["d'or"], [" 7.0", "7", None]]
    assert table_ids(schema, {"s": lists})["m"] == ids
    bare = make_schema(feature)
    assert "strip" not in bare.canonical_json() and schema.version != bare.version


@BUCKETED_AND_GROWING
def test_lists_of_integers_are_their_text(buckets: int | None) -> None:
    schema = make_schema(
        {"kind": "category", "name": "m", "source": "s", "multivalent": True, "buckets": buckets}
    )
    assert table_ids(schema, {"s": [[1, 22], [], None, [None, 1]]}) == table_ids(
        schema, {"s": ["1 22", "", None, "1"]}
    )
    fixed = pa.array([[1, 22], [3, 4]], pa.list_(pa.int64(), 2))
    assert table_ids(schema, {"s": fixed}) == table_ids(schema, {"s": ["1 22", "3 4"]})
    ragged = tf.ragged.constant([[1, 22], []], tf.int64)
    assert tensor_ids(schema, {"s": ragged}) == table_ids(schema, {"s": ["1 22", ""]})


# Features of every kind: with buckets or a vocabulary, and (in capitals) with ids that grow, also where only the cross
# or only one of its parts has buckets.
CROSSES = make_schema(
    {"kind": "category", "name": "a", "source": "a", "buckets": 5},
    {"kind": "category", "name": "b", "source": "b", "vocabulary": ["x", "y"]},
    {"kind": "number", "name": "n", "source": "n", "boundaries": [0, 1]},
    {"kind": "text", "name": "t", "source": "t", "words": [1, 2], "buckets": 1000},
    {
        **{"kind": "category", "name": "m", "source": "m", "buckets": 1000},
        **{"multivalent": True, "max_values": 2, "keep": "last"},
    },
    {"kind": "category", "name": "A", "source": "a"},
    {"kind": "text", "name": "T", "source": "t", "words": [1, 2]},
    {"kind": "category", "name": "M", "source": "m", "multivalent": True, "max_values": 2, "keep": "last"},
    {"kind": "cross", "name": "ab", "of": ["a", "b"], "buckets": 1000},
    {"kind": "cross", "name": "ba", "of": ["b", "a"], "buckets": 1000},
    {"kind": "cross", "name": "abn", "of": ["a", "b", "n"], "buckets": 1000},
    {"kind": "cross", "name": "at", "of": ["a", "t"], "buckets": 1000},
    {"kind": "cross", "name": "mn", "of": ["m", "n"], "buckets": 1000},
    {"kind": "cross", "name": "Ab", "of": ["A", "b"], "buckets": 1000},
    {"kind": "cross", "name": "AB", "of": ["A", "b"]},
    {"kind": "cross", "name": "BA", "of": ["b", "a"]},
    {"kind": "cross", "name": "ABN", "of": ["A", "b", "n"]},
    {"kind": "cross", "name": "AT", "of": ["a", "T"]},
    {"kind": "cross", "name": "MN", "of": ["M", "n"]},
)
BUCKETED = CROSSES.only([name for name in CROSSES.by_name if name.islower()])


@pytest.mark.parametrize("schema", [CROSSES, BUCKETED], ids=["mixed", "bucketed"])
def test_cross_mixes_the_full_fingerprints_in_order(schema: Schema) -> None:
    columns = {
        "a": ["p", "", ""],
        "b": ["q", "x", None],
        "n": [0.5, 3, None],
        "t": ["u v", "", "w"],
        "m": ["1 2 3", "", "4"],
    }
    ids = table_ids(schema, columns)
    prints = {text: fingerprint(text) for text in ("", "p", "q", "x", "u", "v", "u v", "w", "2", "3", "4")}
    # A cross is of values: whether its parts have buckets does not matter.
    for names, buckets in ((("ab", "ba", "abn", "at", "mn"), 1000), (("AB", "BA", "ABN", "AT", "MN"), None)):
        if buckets is None and not schema.growing:
            continue
        ab, ba, abn, at, mn = (ids[name] for name in names)
        assert ab == [
            cross_id([prints["p"], prints["q"]], buckets),
            cross_id([prints[""], prints["x"]], buckets),
            0,
        ]
        assert ba[0] == cross_id([prints["q"], prints["p"]], buckets) != ab[0]
        assert abn == [
            cross_id([prints["p"], prints["q"], 2], buckets),
            cross_id([prints[""], prints["x"], 3], buckets),
            0,
        ]
        assert at == [
            [cross_id([prints["p"], prints[token]], buckets) for token in ("u", "v", "u v")],
            [],
            [cross_id([prints[""], prints["w"]], buckets)],
        ]
        assert mn == [
            [cross_id([prints["2"], 2], buckets), cross_id([prints["3"], 2], buckets)],
            [],
            [cross_id([prints["4"], 0], buckets)],
        ]
    if schema.growing:
        assert ids["Ab"] == ids["ab"]
        assert ids["A"] == [hashed("p", None), 0, 0]


def test_crosses_do_not_inherit_the_collisions_of_their_parts() -> None:
    left = [f"l{number}" for number in range(2000)]
    schema = make_schema(
        {"kind": "category", "name": "a", "source": "a", "buckets": 2},
        {"kind": "number", "name": "n", "source": "n", "step": {"low": 0, "high": 63, "size": 1}},
        {"kind": "cross", "name": "an", "of": ["a", "n"], "buckets": 1_000_001},
        {"kind": "cross", "name": "na", "of": ["n", "a"], "buckets": 65},
        {"kind": "cross", "name": "growing", "of": ["a", "n"]},
    )
    ids = table_ids(schema, {"a": left, "n": [number % 64 for number in range(2000)]})
    assert len(set(ids["an"])) > 1990
    assert len(set(ids["growing"])) == 2000
    counts = np.bincount(ids["na"], minlength=65)[1:]
    assert ((counts - 2000 / 64) ** 2 / (2000 / 64)).sum() < 120  # chi-square, 63 degrees of freedom


SIGNATURE = {
    "a": tf.TensorSpec([None], tf.string),
    "b": tf.TensorSpec([None], tf.string),
    "n": tf.TensorSpec([None], tf.float32),
    "t": tf.TensorSpec([None], tf.string),
    "m": tf.TensorSpec([None], tf.string),
}
IN_GRAPH = tf.function(lambda raw: transform_tensors(CROSSES, raw), input_signature=[SIGNATURE])
LISTS_IN_GRAPH = tf.function(
    lambda raw: transform_tensors(CROSSES, raw),
    input_signature=[{**SIGNATURE, "m": tf.RaggedTensorSpec([None, None], tf.string, 1)}],
)

text_or_none = st.none() | st.text(max_size=12) | st.sampled_from(["x", "y", "A b A b", " ", "  a  b c d"])
rows_of_columns = st.lists(
    st.tuples(
        text_or_none,
        text_or_none,
        st.none() | st.floats(width=32),
        text_or_none,
        st.none()
        | st.lists(
            st.none() | st.text(st.characters(codec="utf-8", exclude_characters=" "), max_size=4), max_size=5
        ),
    ),
    max_size=12,
)
text_types = st.sampled_from([pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])


def arrange(array: pa.Array, cuts: tuple[int, int]) -> pa.ChunkedArray:
    """The same values as slices of a longer array, in up to three chunks."""
    longer = pa.concat_arrays([array, array, array])
    first, second = sorted(cut % (len(array) + 1) for cut in cuts)
    bounds = [0, first, second, len(array)]
    return pa.chunked_array(
        [longer.slice(len(array) + start, end - start) for start, end in itertools.pairwise(bounds)],
        array.type,
    )


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    rows_of_columns,
    st.lists(text_types, min_size=4, max_size=4),
    st.tuples(st.integers(0, 12), st.integers(0, 12)),
    st.booleans(),
)
def test_ingestion_equals_the_graph(
    rows: list[tuple[Any, ...]], types: list[pa.DataType], cuts: tuple[int, int], as_lists: bool
) -> None:
    a, b, n, t, m = ([row[at] for row in rows] for at in range(5))
    joined = [" ".join(item or "" for item in items or ()) for items in m]
    columns = {
        "a": pa.array(a, pa.string()).cast(types[0]),
        "b": pa.array(b, pa.string()).cast(types[1]),
        "n": pa.array(n, pa.float32()),
        "t": pa.array(t, pa.string()).cast(types[2]),
        "m": pa.array(m, pa.list_(pa.string())) if as_lists else pa.array(joined, pa.string()).cast(types[3]),
    }
    found = table_ids(CROSSES, {name: arrange(array, cuts) for name, array in columns.items()})
    raw = {
        name: tf.constant([value or "" for value in values], tf.string)
        for name, values in (("a", a), ("b", b), ("t", t))
    }
    raw["n"] = tf.constant([float("nan") if value is None else value for value in n], tf.float32)
    if as_lists:
        raw["m"] = tf.ragged.constant(
            [[item or "" for item in items or ()] for items in m], tf.string, ragged_rank=1
        )
    else:
        raw["m"] = tf.constant(joined, tf.string)
    in_graph = (LISTS_IN_GRAPH if as_lists else IN_GRAPH)(raw)
    for name, value in in_graph.items():
        ids = value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()
        assert found[name] == ids, name
        flat = value.values if isinstance(value, tf.RaggedTensor) else value
        assert flat.dtype == (tf.int64 if name in CROSSES.growing else tf.int32)
        if name not in CROSSES.growing:
            assert ((flat.numpy() >= 0) & (flat.numpy() < CROSSES.by_name[name].buckets)).all()


@pytest.mark.slow
def test_a_saved_model_gives_the_same_ids(tmp_path: Path) -> None:
    module = tf.Module()
    module.transform = IN_GRAPH
    tf.saved_model.save(module, str(tmp_path))
    raw = {
        "a": tf.constant(["p", ""]),
        "b": tf.constant(["x", "other"]),
        "n": tf.constant([0.5, float("nan")]),
        "t": tf.constant(["Two Words", ""]),
        "m": tf.constant(["1 2 3", ""]),
    }
    loaded = tf.saved_model.load(str(tmp_path)).transform(raw)
    for name, ids in transform_tensors(CROSSES, raw).items():
        if isinstance(ids, tf.RaggedTensor):
            assert loaded[name].to_list() == ids.to_list()
        else:
            assert loaded[name].numpy().tolist() == ids.numpy().tolist()


@pytest.mark.parametrize(
    ("feature", "column", "message"),
    [
        (
            {"kind": "category"},
            pa.array([{"x": 1}]),
            "of type struct<x: int64>; a category reads strings, numbers and booleans: convert the column",
        ),
        (
            {"kind": "category"},
            pa.array([["a"]]),
            "holds lists (list<item: string>), which only a multivalent category reads",
        ),
        ({"kind": "text"}, pa.array([["a"]]), "holds lists"),
        (
            {"kind": "category", "multivalent": True},
            pa.array([[b"a"]]),
            "of type binary; a category reads strings",
        ),
        ({"kind": "category"}, pa.array([b"a"]), "of type binary"),
        ({"kind": "number", "boundaries": [1]}, pa.array(["1"]), "of type string; a number is required"),
        ({"kind": "number", "boundaries": [1]}, pa.array([[1]]), "a number is required"),
    ],
)
def test_unreadable_columns_are_refused(feature: dict[str, Any], column: pa.Array, message: str) -> None:
    schema = make_schema({**feature, "name": "f", "source": "s"})
    with pytest.raises(InputError) as refusal:
        transform_table(schema, pa.table({"s": column}))
    assert message in str(refusal.value) and "feature f: its source column s" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_absent_source_is_refused() -> None:
    schema = make_schema({"kind": "category", "name": "f", "source": "s"})
    expected = "feature f: its source column s is absent; the columns are a, b"
    with pytest.raises(InputError, match=expected):
        transform_table(schema, pa.table({"a": [1], "b": [2]}))
    with pytest.raises(InputError, match=expected):
        transform_tensors(schema, {"a": tf.constant([1]), "b": tf.constant([1])})


def keys_of(rows: int) -> dict[str, Any]:
    return {
        **{name: list(range(rows)) for name in ("query_time", "timestamp", "query_id", "example_id")},
        "label": [row % 2 for row in range(rows)],
        "train_weight": [1.0] * rows,
        "metric_weight": [0.5] * rows,
    }


@pytest.mark.parametrize("schema", [CROSSES, BUCKETED], ids=["mixed", "bucketed"])
def test_pack_table_is_under_the_shard_schema(schema: Schema) -> None:
    raw = pa.table(
        {"a": ["p", "q"], "b": ["x", "y"], "n": [1, 2], "t": ["u v", ""], "m": [["1"], ["2", "3"]]}
    )
    table = pack_table(schema, pa.table(keys_of(2)), raw)
    assert table.schema.equals(shard_schema(schema))
    table.validate(full=True)
    ids = table_ids(schema, dict(zip(raw.column_names, raw.columns, strict=True)))
    packed = unpack_ids(table.column("ids").combine_chunks(), schema)
    for at, name in enumerate(schema.single_valued):
        assert packed[:, at].tolist() == ids[name]
    for name in schema.multivalent:
        assert table.column(name).to_pylist() == ids[name]
    assert table.column("label").to_pylist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("label", [0, 2], "the key column label holds values other than 0 and 1"),
        ("train_weight", [1, -1], "the key column train_weight holds values outside 0 to 1,000,000,000"),
        (
            "metric_weight",
            [1, float("nan")],
            "the key column metric_weight holds values outside 0 to 1,000,000,000",
        ),
        ("label", [0, 300], "the key column label is not int8"),
        ("query_id", [1, None], "the key column query_id has 1 nulls"),
        ("query_id", ["a", "b"], "the key column query_id is not int64"),
        ("query_id", None, "the key column query_id is absent"),
    ],
)
def test_pack_table_refuses_bad_keys(name: str, values: list[Any] | None, message: str) -> None:
    schema = make_schema({"kind": "category", "name": "f", "source": "s"})
    keys = {**keys_of(2), name: values}
    with pytest.raises(InputError, match=message):
        pack_table(
            schema,
            pa.table({key: value for key, value in keys.items() if value is not None}),
            pa.table({"s": ["a", "b"]}),
        )


def test_tables_without_rows() -> None:
    empty = pa.table({"a": pa.array([], pa.string()), "b": pa.array([], pa.dictionary(pa.int32(), pa.string())),
                      "n": pa.array([], pa.float64()), "t": pa.array([], pa.string()),
                      "m": pa.array([], pa.list_(pa.string()))})  # fmt: skip
    none = pack_table(CROSSES, pa.table(keys_of(0)).cast(pa.schema(list(shard_schema(CROSSES))[:7])), empty)
    assert none.num_rows == 0 and none.schema.equals(shard_schema(CROSSES))


def test_string_ids_are_signed_fingerprints() -> None:
    expected = np.array([FINGERPRINT_OF_A, FINGERPRINT_OF_HELLO], np.uint64).view(np.int64)
    arrays = (
        pa.array(["a", "hello"]),
        pa.chunked_array([["a"], ["hello"]]),
        pa.array(["", "a", "hello"], pa.large_string()).slice(1),
        np.array(["a", "hello"]),
        np.array(["a", "hello"], object),
    )
    for values in arrays:
        ids = string_ids(values)
        assert ids.dtype == np.int64 and ids.tolist() == expected.tolist()
    assert len(string_ids(pa.chunked_array([], pa.string()))) == 0
    with pytest.raises(InputError, match="1 of the values to be converted to ids are null"):
        string_ids(pa.array(["a", None]))
    with pytest.raises(InputError, match="values of type int64 cannot be converted to ids"):
        string_ids(pa.array([1]))
