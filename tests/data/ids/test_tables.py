"""Columns of tables of all types become ids, and rows of a shard; others are refused."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from ctr.config import parse_model
from ctr.data.ids.arrow import string_ids
from ctr.data.ids.graph import transform_tensors
from ctr.data.ids.tables import pack_table, transform_table
from ctr.data.schema import Schema
from ctr.data.shards import shard_schema, unpack_ids
from ctr.io.errors import InputError
from ctr.io.farmhash import fingerprint64


def make_schema(*features: dict[str, Any]) -> Schema:
    return parse_model(Schema, {"features": list(features)}, "test")


def hashed(text: str) -> int:
    """The id of a value that is not missing, where ids grow."""
    print_ = fingerprint64(text.encode())
    return print_ - 2**64 if print_ >= 2**63 else print_


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


def with_nulls(*values: str | None) -> pa.DictionaryArray:
    """A dictionary that has the missing value among its words."""
    return pa.DictionaryArray.from_arrays(
        pa.array(range(len(values)), pa.int32()), pa.array(values, pa.string())
    )


def test_integers_booleans_and_dictionaries_are_their_text() -> None:
    schema = make_schema({"kind": "category", "name": "c", "source": "s"})
    expected, numbers, text = (
        [hashed("-7"), 0, hashed("12")],
        pa.array([-7, None, 12]),
        pa.array(["-7", None, "12"]),
    )
    columns = [numbers.cast(kind) for kind in (pa.int8(), pa.int32(), pa.int64(), pa.float16())]
    columns += [
        text.cast(kind)
        for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()))
    ]
    for column in (*columns, numbers.dictionary_encode(), with_nulls("-7", None, "12")):
        assert table_ids(schema, {"s": column})["c"] == expected, column.type
    # Chunks with dictionaries of their own, and one whose indices are too narrow for both.
    chunks = pa.chunked_array([with_nulls("-7", None, "12"), with_nulls("12", "-7")])
    assert table_ids(schema, {"s": chunks})["c"] == [*expected, expected[2], expected[0]]
    words = [f"w{number}" for number in range(256)]
    places = pa.array([*range(128), None], pa.int8())
    narrow = [pa.DictionaryArray.from_arrays(places, pa.array(words[at : at + 128])) for at in (0, 128)]
    plain = pa.array([*words[:128], None, *words[128:], None])
    assert table_ids(schema, {"s": pa.chunked_array(narrow)}) == table_ids(schema, {"s": plain})
    for values in ([True, False], [-7, 12]):
        assert tensor_ids(schema, {"s": tf.constant(values)}) == table_ids(schema, {"s": values})
    assert table_ids(schema, {"s": [True, False]})["c"] == [hashed("true"), hashed("false")]
    assert table_ids(schema, {"s": pa.nulls(2)})["c"] == [0, 0]


def test_numbers_of_all_types() -> None:
    schema = make_schema({"kind": "number", "name": "n", "source": "x", "boundaries": [0, 1, 2.5]})
    expected = [1, 2, 0, 3, 4]
    values = [-1, 0, None, 1, 3]
    for kind in (pa.int16(), pa.int64(), pa.float16(), pa.float32(), pa.float64(), pa.decimal128(30, 2)):
        assert table_ids(schema, {"x": pa.array(values).cast(kind)})["n"] == expected
    assert table_ids(schema, {"x": [True, False, None]})["n"] == [3, 2, 0]
    assert table_ids(schema, {"x": pa.array([1.0, 3.0]).dictionary_encode()})["n"] == [3, 4]


def test_multivalent_category_cuts_drops_and_keeps() -> None:
    feature = {"kind": "category", "name": "m", "source": "s", "multivalent": True}
    rows = pa.array([["", "a", "b", None, "c", "a"], [], None, ["x y"]], pa.list_(pa.string()))
    other = pa.large_list(pa.large_string()), pa.list_(pa.dictionary(pa.int8(), pa.string()))
    for keep, kept in (("first", ["a", "b"]), ("last", ["c", "a"])):
        schema = make_schema({**feature, "separator": "|", "max_values": 2, "keep": keep})
        ids = [[hashed(text) for text in kept], [], [], [hashed("x y")]]
        assert table_ids(schema, {"s": ["|a||b|c|a|", "", None, "x y"]})["m"] == ids
        for column in (rows, *(rows.cast(kind) for kind in other)):
            assert table_ids(schema, {"s": column})["m"] == ids
            assert table_ids(schema, {"s": column.slice(1, 3)})["m"] == ids[1:]


def test_what_stands_around_the_values_of_a_list_is_taken_off() -> None:
    feature = {"kind": "category", "name": "m", "source": "s", "multivalent": True, "separator": ","}
    schema = make_schema({**feature, "strip": "[]'\" "})
    ids = [[hashed("art"), hashed("7")], [], [hashed("d'or")], [hashed("7")] * 2]
    texts = ["['art', \"7\"]", "[]", "[ d'or ]", "['', '7.0', 7]"]
    assert table_ids(schema, {"s": texts})["m"] == ids
    assert tensor_ids(schema, {"s": tf.constant(texts)})["m"] == ids
    # Of real lists, too, so that a file and a request agree.
    lists = [["'art'", "7"], ["[]"], ["d'or"], [" 7.0", "7", None]]
    assert table_ids(schema, {"s": lists})["m"] == ids
    bare = make_schema(feature)
    assert "strip" not in bare.canonical_json() and schema.version != bare.version


def test_lists_of_integers_are_their_text() -> None:
    schema = make_schema({"kind": "category", "name": "m", "source": "s", "multivalent": True})
    lists = table_ids(schema, {"s": [[1, 22], [], None, [None, 1]]})
    assert lists == table_ids(schema, {"s": ["1 22", "", None, "1"]})
    fixed = pa.array([[1, 22], [3, 4]], pa.list_(pa.int64(), 2))
    assert table_ids(schema, {"s": fixed}) == table_ids(schema, {"s": ["1 22", "3 4"]})
    ragged = tf.ragged.constant([[1, 22], []], tf.int64)
    assert tensor_ids(schema, {"s": ragged}) == table_ids(schema, {"s": ["1 22", ""]})


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


def of_every_kind(**buckets: int) -> Schema:
    return make_schema(
        {"kind": "category", "name": "a", "source": "a", **buckets},
        {"kind": "category", "name": "b", "source": "b", "vocabulary": ["x", "y"]},
        {"kind": "number", "name": "n", "source": "n", "boundaries": [0, 1]},
        {"kind": "text", "name": "t", "source": "t", "words": [1, 2], **buckets},
        {"kind": "cross", "name": "ab", "of": ["a", "b"], "buckets": 1000},
        {"kind": "cross", "name": "tn", "of": ["t", "n"], **buckets},
    )


RAW = {"a": ["p", "q"], "b": ["x", "y"], "n": [1.0, 2.0], "t": ["u v", ""]}


@pytest.mark.parametrize("schema", [of_every_kind(), of_every_kind(buckets=50)], ids=["growing", "bucketed"])
def test_pack_table_is_under_the_shard_schema(schema: Schema) -> None:
    raw = pa.table(RAW)
    table = pack_table(schema, pa.table(keys_of(2)), raw)
    assert table.schema.equals(shard_schema(schema))
    table.validate(full=True)
    ids = table_ids(schema, RAW)
    packed = unpack_ids(table.column("ids").combine_chunks(), schema)
    assert packed.T.tolist() == [ids[name] for name in schema.single_valued]
    assert [table.column(name).to_pylist() for name in schema.multivalent] == [ids["t"], ids["tn"]]
    assert table.column("label").to_pylist() == [0, 1]
    keys = pa.table(keys_of(0)).cast(pa.schema(list(shard_schema(schema))[:7]))
    none = pack_table(schema, keys, raw.slice(0, 0))
    assert none.num_rows == 0 and none.schema.equals(shard_schema(schema))


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


def test_string_ids_are_signed_fingerprints() -> None:
    expected = np.array([hashed("a"), hashed("hello")])
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
