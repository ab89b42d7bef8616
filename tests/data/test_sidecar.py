"""Columns beside a log: bound to its content, published once, verified, joined by example_id."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctr.data.log import Manifest, create_log
from ctr.data.schema import Category, Schema
from ctr.data.shards import publish_partition
from ctr.data.sidecar import (
    SidecarHash,
    align_sidecar,
    list_sidecars,
    read_sidecar_partition,
    write_sidecar_partition,
)
from ctr.io.documents import sealed_bytes
from ctr.io.errors import InputError
from hashed_rows import hashed_rows

SCHEMA = Schema(features=(Category(name="a", source="a"),))


def make_partition(log: Path, rows: int, start: int = 0, seed: int = 0) -> Manifest:
    create_log(log, SCHEMA)
    keys = dict.fromkeys(("query_time", "query_id", "example_id"), np.arange(start, start + rows))
    table = hashed_rows(SCHEMA, rows, seed=seed, **keys)
    return publish_partition(log, SCHEMA, start, start + 100, table)


def columns(rows: int, seed: int = 0, first: int = 0) -> pa.Table:
    values = np.random.default_rng(seed).normal(size=rows).astype(np.float32)
    return pa.table({"example_id": np.arange(first, first + rows), "logit": values})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def refused(message: str, run: Any, *arguments: Any) -> None:
    with pytest.raises(InputError, match=message):
        run(*arguments)


def test_what_is_written_is_read_and_written_once(log: Path) -> None:
    partition, empty = make_partition(log, 30), make_partition(log, 0, start=100)
    assert list_sidecars(log) == []
    first = write_sidecar_partition(log, "truth", partition, columns(30))
    write_sidecar_partition(log, "teacher-1", partition, columns(30, seed=1))
    write_sidecar_partition(log, "teacher-1", empty, columns(0))
    assert list_sidecars(log) == ["teacher-1", "truth"]
    parts = pa.concat_tables([columns(30).slice(0, 3), columns(30).slice(3)])
    assert write_sidecar_partition(log, "truth", partition, parts) == first
    again = log, "truth", partition, columns(30, seed=2)
    refused("published before with other content; the first version is kept", write_sidecar_partition, *again)
    assert read_sidecar_partition(log, "truth", partition).equals(columns(30))
    assert read_sidecar_partition(log, "teacher-1", partition).equals(columns(30, seed=1))
    assert read_sidecar_partition(log, "teacher-1", empty).equals(columns(0))


def test_names_stay_inside_the_folder(log: Path) -> None:
    partition, message = make_partition(log, 3), "a name consists of letters, digits, _ and -"
    for name in ("", "..", "a/b", "a b", "ä", "a\n", "a.b"):
        refused(message, write_sidecar_partition, log, name, partition, columns(3))
        refused(message, read_sidecar_partition, log, name, partition)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (columns(2), "2 rows are given, the log's partition has 3"),
        (columns(3).select(["logit"]), "example_id and at least one more column are required"),
        (columns(3).select(["example_id"]), "example_id and at least one more column are required"),
        (pa.table({"example_id": ["a", "b", "c"], "p": [1, 2, 3]}), "example_id must be int64 without nulls"),
        (pa.table({"example_id": [1, 2, None], "p": [1, 2, 3]}), "1 nulls"),
        (pa.table({"example_id": [1, 2, 1], "p": [1, 2, 3]}), "an example_id appears twice"),
    ],
)
def test_bad_tables_are_refused(log: Path, table: pa.Table, message: str) -> None:
    refused(message, write_sidecar_partition, log, "truth", make_partition(log, 3), table)
    assert list_sidecars(log) == []


# What is damaged is tested with the log's files (test_log_faults.py).
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"start": 1}, "names another partition"),
        ({"rows": 29}, "has 29 rows, the log's partition has 30"),
        ({"columns": ["example_id", "p"]}, "does not hold the rows and columns"),
        ({"file": "../x.parquet"}, "is not allowed"),
        ({"more": 1}, "unknown key"),
    ],
)
def test_a_manifest_of_a_publisher_at_fault_is_refused(
    log: Path, values: dict[str, Any], message: str
) -> None:
    partition = make_partition(log, 30)
    refused(
        r"the sidecar truth lacks the partition \[0, 100\)", read_sidecar_partition, log, "truth", partition
    )
    write_sidecar_partition(log, "truth", partition, columns(30))
    path = log / "sidecars" / "truth" / f"{partition.name}.json"
    content = json.loads(path.read_text())
    del content["manifest_sha256"]
    path.write_bytes(sealed_bytes({**content, **values}))
    refused(message, read_sidecar_partition, log, "truth", partition)


def test_a_sidecar_of_another_log_is_refused(log: Path, tmp_path: Path) -> None:
    write_sidecar_partition(log, "truth", make_partition(log, 30), columns(30))
    other = make_partition(tmp_path / "other", 30, seed=1)
    refused("was written for a partition with other content", read_sidecar_partition, log, "truth", other)


def test_alignment_by_example_id() -> None:
    table, wanted = columns(30), np.array([29, 0, 7])
    assert align_sidecar(table, np.arange(30), "truth").equals(table)
    for source in (table, table.take(np.random.default_rng(0).permutation(30))):
        aligned = align_sidecar(source, wanted, "truth")
        assert aligned["example_id"].to_pylist() == wanted.tolist()
        assert aligned["logit"].to_pylist() == table["logit"].to_numpy()[wanted].tolist()
    refused("truth: has no row for example_id 30", align_sidecar, table, np.array([3, 30]), "truth")
    refused("truth: has no row for example_id 1", align_sidecar, columns(0), np.array([1]), "truth")
    assert align_sidecar(columns(0), np.array([], np.int64), "truth").num_rows == 0


def hash_of_all(folder: Path, until: int = 2**62) -> str:
    """From the definition: names and contents of the manifests that begin before ``until``."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.json")):
        if int(path.name[:19]) < until:
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def publish_both(log: Path, number: int) -> None:
    partition = make_partition(log, 5, 100 * number)
    write_sidecar_partition(log, "truth", partition, columns(5, first=100 * number))


def test_the_hash_of_what_was_read_grows_with_it(log: Path) -> None:
    folder, running = log / "sidecars" / "truth", SidecarHash(log, "truth")
    assert running.until() == hash_of_all(folder) == hashlib.sha256().hexdigest()
    for number in range(4):
        publish_both(log, number)
    # Also back, as a run asks that goes on from an earlier checkpoint.
    for time in (0, 1, 100, 101, 250, 250, 1, 301, 2**62):
        assert running.until(time) == SidecarHash(log, "truth").until(time) == hash_of_all(folder, time)
    assert len({running.until(time) for time in (0, 1, 101, 201, 301)}) == 5


def test_what_changes_among_the_manifests_that_were_read(log: Path) -> None:
    folder, running = log / "sidecars" / "truth", SidecarHash(log, "truth")
    for number in (0, 2, 3):
        publish_both(log, number)
    read = running.until()
    first, second, _ = sorted(folder.glob("*.json"))
    first.write_bytes(first.read_bytes() + b" ")
    # It was read as it was; whoever reads it now sees what it is.
    assert running.until() == read != SidecarHash(log, "truth").until() == hash_of_all(folder)
    second.unlink()
    assert running.until() == hash_of_all(folder)
    publish_both(log, 1)
    assert running.until() == hash_of_all(folder)
    (folder / "notes.json").write_text("{}")
    refused(r"notes\.json: not the name of a manifest \(START-END\.json\)", running.until)
