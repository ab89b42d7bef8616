"""The example log: published whole or not at all, once, durably, and refused where it is not what was published."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctr.config import parse_model
from ctr.data.log import check_log, create_log, list_partitions, log_sha256, read_manifests, read_schema
from ctr.data.schema import Schema
from ctr.data.shards import publish_partition, read_shard, sort_rows
from ctr.io.documents import sealed_bytes
from ctr.io.errors import InputError
from hashed_rows import hashed_rows
from log_files import digests, rows_of


def make_schema(**buckets: int | None) -> Schema:
    """A text "t" and categories; of those with no buckets the ids grow."""
    features = [
        {"kind": "text" if name == "t" else "category", "name": name, "source": name, "buckets": count}
        for name, count in buckets.items()
    ]
    return parse_model(Schema, {"features": features}, "test")


SCHEMA, OTHER = make_schema(a=None, b=100, t=None), make_schema(a=100_000)
# Query times from 0 to 24,000; the last query has its own.
ROWS, END = hashed_rows(SCHEMA, 50), 25_000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    create_log(tmp_path / "log", SCHEMA)
    return tmp_path / "log"


def publish(log: Path, rows: pa.Table = ROWS, start: int = 0, end: int = END, **more: Any) -> Any:
    return publish_partition(log, SCHEMA, start, end, rows, **more)


def refused(message: str, run: Any, *arguments: Any, **more: Any) -> None:
    with pytest.raises(InputError) as refusal:
        run(*arguments, **more)
    assert message in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("schema", [make_schema(a=100, b=100, t=100), SCHEMA], ids=["bucketed", "growing"])
def test_what_is_published_is_read(tmp_path: Path, schema: Schema) -> None:
    log = tmp_path / "log"
    create_log(log, schema)
    first, second = hashed_rows(schema, 50), hashed_rows(schema, 20, first=60)
    publish_partition(log, schema, 30_000, 40_000, second, {"rows_in": 21})
    publish_partition(log, schema, 0, END, first, shard_rows=9)
    empty = publish_partition(log, schema, 50_000, 60_000, first.slice(0, 0))
    assert (empty.rows, empty.queries, empty.clicks, empty.shards) == (0, 0, 0, ())
    assert read_schema(log) == schema
    *manifests, last = read_manifests(log)
    assert last == empty and manifests[1].counters == {"rows_in": 21}
    assert [(one.start, one.end) for one in (*manifests, last)] == list_partitions(log)
    for manifest, rows in zip(manifests, (first, second), strict=True):
        assert manifest.clicks == sum(rows["label"].to_pylist())
        assert manifest.queries == len(set(rows["query_id"].to_pylist()))
        parts = [read_shard(log, entry, schema) for entry in manifest.shards]
        assert pa.concat_tables(parts).equals(rows)
        queries = [set(part["query_id"].to_pylist()) for part in parts]
        assert sum(map(len, queries)) == manifest.queries, "a query straddles two shards"
    # A shard ends with the first query after nine rows.
    assert [entry.rows for entry in manifests[0].shards] == [10] * 5 and len(manifests[1].shards) == 1
    assert sort_rows(first.take(np.random.default_rng(3).permutation(50))).equals(first)


def test_publishing_again_gives_the_same_bytes_and_refuses_other_content(log: Path, tmp_path: Path) -> None:
    publish(log, shard_rows=10)
    before = digests(log)
    publish(log, pa.concat_tables([ROWS.slice(0, 7), ROWS.slice(7)]), shard_rows=10)
    assert digests(log) == before
    create_log(tmp_path / "elsewhere", SCHEMA)
    publish(tmp_path / "elsewhere", shard_rows=10)
    assert digests(tmp_path / "elsewhere") == before
    sha256 = log_sha256(read_manifests(log))
    message = "published before with other content; the first version is kept"
    refused(message, publish, log, hashed_rows(SCHEMA, 50, seed=1))
    refused(message, publish, log, counters={"more": 1}, shard_rows=10)
    assert log_sha256(read_manifests(log)) == sha256
    # A damaged shard is repaired by publishing again.
    (shard, *_) = read_manifests(log)[0].shards
    (log / "shards" / shard.file).write_bytes(b"PAR1")
    publish(log, shard_rows=10)
    assert digests(log).items() >= before.items() and rows_of(log, read_manifests(log)[0]).equals(ROWS)


@pytest.mark.parametrize("seed", [0, 1])
def test_of_two_publishers_at_once_the_first_one_wins(log: Path, monkeypatch: Any, seed: int) -> None:
    rival, done = hashed_rows(SCHEMA, 50, seed=seed), list[Any]()

    def after_the_rival(call: Any) -> Any:
        def called(source: Any, target: Any) -> None:
            # The last moment before the name of a manifest would be there.
            if not done and Path(target).parent.name == "manifests":
                done.append(None)
                done[0] = publish(log, rival)
            call(source, target)

        return called

    for name in ("link", "replace", "rename"):
        monkeypatch.setattr(os, name, after_the_rival(getattr(os, name)))
    if seed:
        refused("published before with other content", publish, log)
    else:
        publish(log)
    assert done == read_manifests(log) and rows_of(log, done[0]).equals(rival)


def test_overlapping_partitions_are_refused(log: Path, tmp_path: Path) -> None:
    publish(log)
    for start, end in ((500, END + 500), (0, END - 1), (100, 200)):
        refused("overlaps the published", publish, log, ROWS.slice(0, 0), start, end)
    assert list_partitions(log) == [(0, END)]
    # One that two publishers made is not read.
    create_log(tmp_path / "other", SCHEMA)
    publish(tmp_path / "other", ROWS.slice(0, 0), 500, END + 500)
    (path,) = (tmp_path / "other" / "manifests").iterdir()
    shutil.copy(path, log / "manifests")
    refused("overlaps the partition before it", read_manifests, log)


@pytest.mark.parametrize(
    ("start", "end", "rows", "message"),
    [
        (0, END, ROWS.take([1, 0, *range(2, 50)]), "row 1 (example_id 50) is out of order"),
        (0, END, pa.concat_tables([ROWS.slice(0, 1), ROWS]), "row 1 (example_id 50) repeats an example_id"),
        (1, END, ROWS, "partition [1, 25000) of "),
        (0, 24_000, ROWS, "holds query times from 0 to 24000"),
        (0, 2**62 + 1, ROWS, "start must be below end, both from 0"),
        (0, END, ROWS.drop_columns(["t"]), "the rows are not under the log's schema"),
    ],
)
def test_bad_rows_are_refused(log: Path, start: int, end: int, rows: pa.Table, message: str) -> None:
    refused(message, publish, log, rows, start, end)
    assert list_partitions(log) == []


def test_a_log_has_one_schema(log: Path, tmp_path: Path) -> None:
    refused("were made under schema", publish_partition, log, OTHER, 0, END, hashed_rows(OTHER, 0))
    refused("is not an example log: it has no schema.json", publish, tmp_path / "nowhere")
    (entry,) = publish(log).shards
    refused("holds the columns", read_shard, log, entry, OTHER)
    create_log(log, SCHEMA)
    refused("features cannot change inside a log; use another output directory", create_log, log, OTHER)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.tex").write_text("")
    for path in (tmp_path / "used", tmp_path / "used" / "thesis.tex"):
        refused("neither empty nor an example log", check_log, path, SCHEMA)


def test_a_changed_schema_is_refused(log: Path) -> None:
    path = log / "schema.json"
    content = path.read_text()
    for values, message in (
        ({"features": []}, "features"),
        ({"version": "0" * 16}, "not match the recorded version 0000000000000000: the file was changed"),
        ({"format": 2}, "schema.json: made by an unreleased version of ctr; make it again"),
        ({"more": 1}, "more: unknown key; allowed: counts_rows, derive, features, labels, spelling"),
    ):
        path.write_text(json.dumps({**json.loads(content), **values}))
        refused(message, read_manifests, log)
    path.write_text(content.replace('"max_values": 100', '"max_values": 99', 1))
    refused("do not match the recorded version", read_schema, log)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rows": 51}, "rows is not the sum over the shards"),
        ({"end": 10}, "lie outside the partition"),
        ({"schema_version": "x"}, "written under schema x, but the log's schema is"),
        ({"format": 2}, "format: 2 is not allowed"),
        ({"end": 2000, "rows": 0, "queries": 0, "shards": []}, "names another partition"),
    ],
)
def test_a_manifest_of_a_publisher_at_fault_is_refused(log: Path, values: Any, message: str) -> None:
    publish(log)
    path = next((log / "manifests").iterdir())
    content = json.loads(path.read_text())
    del content["manifest_sha256"]
    path.write_bytes(sealed_bytes({**content, **values}))
    refused(message, read_manifests, log)
    path.write_text(json.dumps(content))
    refused(f"{path.name}: made by an unreleased version of ctr; make it again", read_manifests, log)
