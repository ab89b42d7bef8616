"""Rows to be scored: their features are those of an ingest, whatever form the files have."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import raw_logs
from ctr.data.ids.graph import transform_tensors
from ctr.data.ids.tables import transform_table
from ctr.data.mapping import JsonlInput
from ctr.io.errors import InputError
from ctr.pipelines.rows.raw_rows import key_schema, plain_mapping, read_raw_rows

NAMES = ("color", "price", "kind", "hour", "zone", "tags")


def ids_of(schema, raw: pa.Table) -> dict[str, list]:
    """The ids that an exported model would make."""
    columns = {}
    for name in raw.column_names:
        is_text = pa.types.is_large_binary(raw.schema.field(name).type)
        values = raw.column(name).to_pylist() if is_text else raw.column(name).to_numpy()
        columns[name] = (
            tf.constant(values, tf.string, shape=(raw.num_rows,)) if is_text else tf.constant(values)
        )
    ids = transform_tensors(schema, columns)
    lists = {name: value.to_list() for name, value in ids.items() if isinstance(value, tf.RaggedTensor)}
    return {name: value.numpy().tolist() for name, value in ids.items() if name not in lists} | lists


def read(mapping, inputs, **options) -> tuple[pa.Table, pa.Table, list]:
    """Keys, raw columns, and the rows, keys and reasons of the rejects."""
    parts = list(read_raw_rows(mapping.feature_schema, mapping, inputs, **options))
    tables = [pa.concat_tables(part[place] for part in parts) for place in range(2)]
    rejects = [(one["row"], one["key"], one["reason"]) for part in parts for one in part[2]]
    return tables[0], tables[1], rejects


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "jsonl.zst"])
def test_features_are_those_of_an_ingest(tmp_path, suffix):
    rows = raw_logs.make_rows(60)
    mapping = raw_logs.make_mapping(input={"type": suffix.partition(".")[0]})
    path = raw_logs.write_rows(tmp_path, rows, suffix)
    keys, raw, rejects = read(mapping, [path], block_bytes=900)
    assert rejects == []
    first = 1 if suffix.startswith(("jsonl", "parquet")) else 2
    numbers = list(range(first, 60 + first))
    names = [int(row["id"]) for row in rows]
    assert keys.to_pydict() == {"file": [path.name] * 60, "row": numbers, "example_id": names}
    assert keys.schema == key_schema(mapping)
    # No text is null: an empty one is missing.
    for name in ("color", "tags", "shop_kind", "code"):
        assert raw.schema.field(name).type == pa.large_binary()
        assert raw.column(name).null_count == 0 and b"" in raw.column(name).to_pylist()
    assert np.isnan(raw.column("price").to_numpy()).any()
    ids = ids_of(mapping.feature_schema, raw)
    examples = raw_logs.reference([(path.name, 0, row) for row in rows], mapping)
    expected = {example["example_id"]: {name: example[name] for name in NAMES} for example in examples}
    assert {one: {n: ids[n][place] for n in NAMES} for place, one in enumerate(names)} == expected


def test_only_what_the_features_need_is_needed(tmp_path):
    rows = [{**row, "rating": "?", "weight": "-1", "user": ""} for row in raw_logs.make_rows(5)]
    rows[2]["time"] = "yesterday"
    path = raw_logs.write_rows(tmp_path, rows)
    keys, raw, rejects = read(raw_logs.make_mapping(), [path])
    # What the model derives itself is not there, but what it derives it from.
    assert set(raw.column_names) == {"color", "price", "tags", "shop_kind", "time_us", "code"}
    assert keys.column("row").to_pylist() == [2, 3, 5, 6]
    assert [reject[:2] for reject in rejects] == [(4, "time")]
    features = [feature for feature in raw_logs.FEATURES if feature["name"] != "hour"]
    keys, _, rejects = read(raw_logs.make_mapping(features=features), [path])
    assert (keys.num_rows, rejects) == (5, [])


def test_times_of_row_order_go_on_from_file_to_file(tmp_path):
    order = {"start": "2020-01-01T00:00:00Z", "step_us": raw_logs.HOUR_US}
    mapping = raw_logs.make_mapping(time={"row_order": order}, input={"type": "jsonl"})
    paths = [raw_logs.write_rows(tmp_path, raw_logs.make_rows(5), "jsonl", name) for name in "ab"]
    _, raw, _ = read(mapping, paths)
    start = 1_577_836_800_000_000
    assert raw.column("time_us").to_pylist() == [start + raw_logs.HOUR_US * row for row in range(10)]


TAGS = next(feature for feature in raw_logs.FEATURES if feature["name"] == "tags")
ALONE = {"derive": None, "joins": None, "example_id": None}


def tags_mapping(**second):
    """Two features of one column of Parquet; ``second`` changes one of them."""
    features = [TAGS, {**TAGS, "name": "again", **second}]
    return raw_logs.make_mapping(features=features, input={"type": "parquet"}, **ALONE)


def test_lists_with_separators_in_values(tmp_path):
    rows = [{"color": "red", "tags": tags} for tags in (["a", "b"], ["a|b"], None, [], [None, "c"])]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    features = [raw_logs.FEATURES[0], TAGS]
    mapping = raw_logs.make_mapping(features=features, input={"type": "jsonl"}, **ALONE)
    keys, raw, rejects = read(mapping, [path])
    assert keys.to_pydict() == {"file": ["rows.jsonl"] * 4, "row": [1, 3, 4, 5]}
    assert ids_of(mapping.feature_schema, raw)["tags"] == [[1, 2], [], [], [3]]
    assert rejects == [(2, "tags", "a value contains the separator")]
    # Texts among lists, and lists of several features, need one separator.
    path.write_text('{"tags": ["a"]}\n{"tags": "b,c"}\n')
    other = tags_mapping(separator=",").model_copy(update={"input": JsonlInput(type="jsonl")})
    with pytest.raises(InputError, match="the column tags holds lists and single values"):
        read(other, [path])
    pq.write_table(pa.table({"tags": [["a"], ["b"]]}), tmp_path / "rows.parquet")
    assert read(tags_mapping(), [tmp_path / "rows.parquet"])[1].column("tags").to_pylist() == [b"a", b"b"]
    with pytest.raises(InputError, match=r"the column tags holds lists .* with one separator"):
        read(tags_mapping(separator=","), [tmp_path / "rows.parquet"])


STRINGS = pa.list_(pa.string(), 2)


@pytest.mark.parametrize(
    "kind", [STRINGS, pa.large_list(pa.string()), pa.list_(pa.dictionary(pa.int8(), pa.string()))]
)
def test_other_types_of_lists(tmp_path, kind):
    rows = [["a", "b"], [None, "b"], ["c", None], ["a|b", "c"]]
    pq.write_table(pa.table({"tags": pa.array(rows, kind)}), tmp_path / "rows.parquet")
    keys, raw, rejects = read(tags_mapping(), [tmp_path / "rows.parquet"])
    assert raw.column("tags").to_pylist() == [b"a|b", b"|b", b"c|"]
    assert keys.column("row").to_pylist() == [1, 2, 3]
    assert rejects == [(4, "tags", "a value contains the separator")]


@pytest.mark.parametrize("values", [[[{"x": 1}], []], [[b"a"], None]])
def test_lists_that_an_ingest_refuses(tmp_path, values):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"tags": values}), path)
    message = r"the column tags holds lists of type .*; categories and text features are"
    with pytest.raises(InputError, match=message):
        read(tags_mapping(), [path])
    with pytest.raises(InputError, match="reads strings, numbers and booleans"):
        transform_table(tags_mapping().feature_schema, pq.read_table(path))


def test_files_that_are_tables_of_the_sources(tmp_path):
    schema = raw_logs.make_mapping(features=raw_logs.FEATURES[:2], derive=None, joins=None).feature_schema
    path = tmp_path / "rows.csv"
    path.write_text("price,other,color\n2,x,red\n,y,\n")
    keys, raw, _ = read(plain_mapping(schema, [path]), [path])
    assert keys.column_names == ["file", "row"]
    assert ids_of(schema, raw) == {"color": [1, 0], "price": [2, 0]}
    for name in ("rows", "rows.txt", "rows.gz"):
        message = rf"input {name}: its name does not show its format; allowed: \.csv"
        with pytest.raises(InputError, match=message):
            plain_mapping(schema, [Path(name)])
    # A time is in microseconds.
    hour = next(feature for feature in raw_logs.FEATURES if feature["name"] == "hour")
    schema = raw_logs.make_mapping(features=[hour], joins=None).feature_schema
    times = [0, raw_logs.HOUR_US * 7, raw_logs.HOUR_US * 24 - 1]
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"time_us": times}), path)
    _, raw, _ = next(read_raw_rows(schema, plain_mapping(schema, [path]), [path]))
    assert raw.column("time_us").to_pylist() == times
    assert ids_of(schema, raw) == {"hour": [1, 2, 4]}


def test_rows_that_an_ingest_would_reject_for_a_derived_column(tmp_path):
    features = [{"name": "f", "kind": "category", "source": "whole", "buckets": 1000}]
    derive = {"whole": {"from": "c", "cast": "integer"}}
    mapping = raw_logs.make_mapping(features=features, derive=derive, joins=None, example_id=None)
    (tmp_path / "rows.csv").write_text('c\n7.0\nseven\n""\n')
    _, raw, rejects = read(mapping, [tmp_path / "rows.csv"])
    assert raw.column("c").to_pylist() == [b"7.0", b""]
    assert rejects == [(3, "whole", "not a whole number")]
