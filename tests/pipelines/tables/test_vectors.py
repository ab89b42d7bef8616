"""Numbers that the network reads: those of the rows, whatever form these have; rows with faulty ones are rejected."""

import csv
import json
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import event_files
import raw_logs
from ctr.config import parse_model
from ctr.data import shards
from ctr.data.ids.graph import transform_tensors
from ctr.data.inspection import inspect_log
from ctr.data.inspection_text import inspection_text
from ctr.data.log import read_manifests, read_schema
from ctr.data.mapping import Mapping
from ctr.data.reader import join_rows, read_rows
from ctr.data.value_arrays import numbers_of_ids
from ctr.pipelines.events.follow import ingest_events
from raw_logs import ingest

NOW = 2_000_000_000_000_000
FEATURES = [
    {"name": "user", "kind": "category", "source": "user", "buckets": 9},
    {"name": "price", "kind": "number", "source": "price", "as": "value"},
    {"name": "cheap", "kind": "number", "source": "price", "boundaries": [2.0]},
    {"name": "image", "kind": "vector", "source": "image", "size": 3, "separator": ",", "strip": "[ ]"},
]
# Prices, vectors, and whether the rows are rejected for these; a number has the same value however it is written.
ROWS: list[tuple[Any, Any, bool]] = [
    (1.5, [0.1, -2, 3e30], False),
    (0, [1, 2, 3], False),
    (None, None, False),
    (-7, [1e-8, 0, 1.7], False),
    (3, [], False),
    (3, [1, 2], True),
    (3, [1, 2, 3, 4], True),
    (4, [1, None, 3], True),
    (4, [1, 2, 1e39], True),
    (4, [1.5, 2.5, 3.5], False),
]
GOOD = [(price, vector) for price, vector, is_bad in ROWS if not is_bad]


def write(folder: Path, kind: str) -> Path:
    keys = [{"t": 1_700_000_000 + row, "user": f"u{row}", "y": row % 2} for row in range(len(ROWS))]
    values = [{"price": price, "image": vector} for price, vector, _ in ROWS]
    rows = [{**key, **value} for key, value in zip(keys, values, strict=True)]
    path = folder / f"rows.{kind}"
    if kind == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            for row in rows:
                writer.writerow({**row, "image": json.dumps(row["image"]) if row["image"] else ""})
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def mapping_of(kind: str, features: list[dict[str, Any]] = FEATURES) -> Mapping:
    time = {"column": "t", "unit": "s"}
    content = {"input": {"type": kind}, "time": time, "label": "y", "partition": "1d", "features": features}
    return parse_model(Mapping, content, "test")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_numbers_are_those_of_the_rows_and_faulty_vectors_are_rejected(tmp_path, kind):
    path, log, mapping = write(tmp_path, kind), tmp_path / "log", mapping_of(kind)
    ingest(mapping, [path], log, max_reject_share=0.5, now_us=NOW)
    schema = read_schema(log)
    rows = join_rows(list(read_rows(log, schema, read_manifests(log))))
    prices = np.array([np.nan if price is None else price for price, _ in GOOD], np.float32)
    np.testing.assert_array_equal(numbers_of_ids(rows.ids[:, schema.single_valued.index("price")]), prices)
    assert schema.single_ids == ("user", "cheap")
    ids, offsets = rows.multivalent["image"]
    lists = [vector or [] for _, vector in GOOD]
    assert np.diff(offsets).tolist() == list(map(len, lists))
    np.testing.assert_array_equal(numbers_of_ids(ids), np.float32(list(chain(*lists))))
    rejects = raw_logs.read_rejects(log)
    assert [(one["key"], one["reason"]) for one in rejects] == [("image", "not a vector of its size")] * 4
    assert rejects[0]["allowed"] == "3 finite numbers, or empty"
    # What a server is sent is made into the same.
    texts = [",".join(map(str, vector)) for vector in lists]
    columns = {"user": [""] * len(lists), "price": prices, "image": texts}
    graph = transform_tensors(schema, {name: tf.constant(column) for name, column in columns.items()})
    np.testing.assert_array_equal(graph["price"], rows.ids[:, 1])
    assert graph["image"].to_list() == [ids[begin:end].tolist() for begin, end in pairwise(offsets)]
    # What a server is sent and no row could have is missing.
    odd = {"user": [""] * 3, "price": np.zeros(3, np.float32), "image": ["1,2", "1,x,3", "[1,2,inf]"]}
    graph = transform_tensors(schema, {name: tf.constant(column) for name, column in odd.items()})
    assert graph["image"].to_list() == [[], [], []]
    summary = inspect_log(log)
    shown = {feature.name: feature for feature in summary.features}
    assert "\nimage  " in inspection_text(summary)
    assert (shown["price"].missing, shown["image"].missing) == (1 / 6, 2 / 6)
    assert {top.value for top in shown["price"].top} >= {"1.5", "0", "-7"}


def test_shards_of_long_vectors_have_fewer_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "MOST_VALUES", 13)
    path = write(tmp_path, "jsonl")
    ingest(mapping_of("jsonl"), [path], tmp_path / "log", max_reject_share=0.5, now_us=NOW)
    (manifest,) = read_manifests(tmp_path / "log")
    assert [one.rows for one in manifest.shards] == [2, 2, 2]


def test_events_have_them_too(tmp_path):
    events = event_files.draw_events(20)
    for event in events["impressions"]:
        number = event["impression_id"]
        event["image"] = [number, 0.5] if number % 4 else None
    features = [*event_files.FEATURES, {"name": "image", "kind": "vector", "source": "image", "size": 2}]
    folder = event_files.write_events(tmp_path / "events", events)
    ingest_events(event_files.mapping(features=features), [folder], tmp_path / "log", max_reject_share=0)
    schema = read_schema(tmp_path / "log")
    rows = join_rows(list(read_rows(tmp_path / "log", schema, read_manifests(tmp_path / "log"))))
    ids, offsets = rows.multivalent["image"]
    found = [numbers_of_ids(ids[begin:end]).tolist() for begin, end in pairwise(offsets)]
    assert found == [[one, 0.5] if one % 4 else [] for one in rows.example_id.tolist()] and [] in found


def test_a_run_of_white_space_separates_numbers_in_the_log_and_in_the_model(tmp_path):
    texts = ["1 2 3", "1  2   3", "[ 1.  2.  3.]", "[1\n 2\t3 ]", "[ 1 2 3 ]"]
    lines = [f'170000000{place},1,"{text}"\n' for place, text in enumerate([*texts, "1 2"])]
    (tmp_path / "rows.csv").write_text("".join(["t,y,image\n", *lines]))
    vector = {"name": "image", "kind": "vector", "source": "image", "size": 3, "strip": "[]"}
    mapping = mapping_of("csv", [vector])
    result = ingest(mapping, [tmp_path / "rows.csv"], tmp_path / "log", max_reject_share=0.5, now_us=NOW)
    assert result.reject_reasons == {"image: not a vector of its size": 1}
    schema = read_schema(tmp_path / "log")
    rows = join_rows(list(read_rows(tmp_path / "log", schema, read_manifests(tmp_path / "log"))))
    logged = rows.multivalent["image"][0]
    np.testing.assert_array_equal(numbers_of_ids(logged), np.float32([1, 2, 3] * len(texts)))
    graph = transform_tensors(schema, {"image": tf.constant(texts)})
    np.testing.assert_array_equal(graph["image"].values, logged)
