"""Columns beside a log: bound to its content, published once, verified, joined by example_id."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctr.config import parse_model
from ctr.data.ids.tables import pack_table
from ctr.data.log import Manifest, create_log
from ctr.data.schema import Schema
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

SCHEMA = parse_model(Schema, {"features": [{"kind": "category", "name": "a", "source": "a"}]}, "test")


def make_partition(log: Path, rows: int, start: int = 0, value: str = "x") -> Manifest:
    create_log(log, SCHEMA)
    keys = {
        name: np.arange(start, start + rows) for name in ("query_time", "timestamp", "query_id", "example_id")
    }
    ones = np.ones(rows)
    table = pa.table({**keys, "label": np.zeros(rows), "train_weight": ones, "metric_weight": ones})
    return publish_partition(
        log, SCHEMA, start, start + 100, pack_table(SCHEMA, table, pa.table({"a": [value] * rows}))
    )


def columns(rows: int, seed: int = 0) -> pa.Table:
    values = np.random.default_rng(seed).normal(size=rows).astype(np.float32)
    return pa.table({"example_id": np.arange(rows), "logit": values})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_what_is_written_is_read(log: Path) -> None:
    partition, empty = make_partition(log, 30), make_partition(log, 0, start=100)
    assert list_sidecars(log) == []
    write_sidecar_partition(log, "teacher-1", partition, columns(30))
    write_sidecar_partition(log, "teacher-1", empty, columns(0))
    write_sidecar_partition(log, "truth", partition, columns(30, seed=1))
    assert list_sidecars(log) == ["teacher-1", "truth"]
    assert read_sidecar_partition(log, "teacher-1", partition).equals(columns(30))
    assert read_sidecar_partition(log, "truth", partition).equals(columns(30, seed=1))
    assert read_sidecar_partition(log, "teacher-1", empty).equals(columns(0))


def test_writing_again_gives_the_same_bytes_and_nothing_else_is_taken(log: Path) -> None:
    partition = make_partition(log, 30)
    first = write_sidecar_partition(log, "truth", partition, columns(30))
    parts = pa.concat_tables([columns(30).slice(0, 3), columns(30).slice(3)])
    assert write_sidecar_partition(log, "truth", partition, parts) == first
    with pytest.raises(InputError, match="published before with other content; the first version is kept"):
        write_sidecar_partition(log, "truth", partition, columns(30, seed=1))
    assert read_sidecar_partition(log, "truth", partition).equals(columns(30))


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "ä", "a\n", "a.b"])
def test_names_stay_inside_the_folder(log: Path, name: str) -> None:
    partition = make_partition(log, 3)
    with pytest.raises(InputError, match="a name consists of letters, digits, _ and -"):
        write_sidecar_partition(log, name, partition, columns(3))
    with pytest.raises(InputError, match="a name consists of letters, digits, _ and -"):
        read_sidecar_partition(log, name, partition)


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
    partition = make_partition(log, 3)
    with pytest.raises(InputError, match=message):
        write_sidecar_partition(log, "truth", partition, table)
    assert list_sidecars(log) == []


def test_damage_and_absence_are_named(log: Path) -> None:
    partition = make_partition(log, 30)
    with pytest.raises(InputError, match=r"the sidecar truth lacks the partition \[0, 100\)"):
        read_sidecar_partition(log, "truth", partition)
    manifest = write_sidecar_partition(log, "truth", partition, columns(30))
    path = log / "sidecars" / "truth" / manifest.file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        read_sidecar_partition(log, "truth", partition)
    path.unlink()
    with pytest.raises(InputError, match="the file is missing, though a manifest names it"):
        read_sidecar_partition(log, "truth", partition)


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
def test_a_changed_manifest_is_refused(log: Path, values: dict[str, Any], message: str) -> None:
    partition = make_partition(log, 30)
    write_sidecar_partition(log, "truth", partition, columns(30))
    path = log / "sidecars" / "truth" / f"{partition.name}.json"
    content = json.loads(path.read_text())
    del content["manifest_sha256"]
    path.write_bytes(sealed_bytes({**content, **values}))
    with pytest.raises(InputError, match=message):
        read_sidecar_partition(log, "truth", partition)


def test_a_sidecar_of_another_log_is_refused(log: Path, tmp_path: Path) -> None:
    partition = make_partition(log, 30)
    other = make_partition(tmp_path / "other", 30, value="y")
    write_sidecar_partition(log, "truth", partition, columns(30))
    with pytest.raises(InputError, match="was written for a partition with other content"):
        read_sidecar_partition(log, "truth", other)


def test_alignment_by_example_id() -> None:
    table = columns(30)
    assert align_sidecar(table, np.arange(30), "truth").equals(table)
    wanted = np.array([29, 0, 7])
    shuffled = table.take(np.random.default_rng(0).permutation(30))
    for source in (table, shuffled):
        aligned = align_sidecar(source, wanted, "truth")
        assert aligned.column("example_id").to_numpy().tolist() == wanted.tolist()
        assert (
            aligned.column("logit").to_numpy().tolist() == table.column("logit").to_numpy()[wanted].tolist()
        )
    with pytest.raises(InputError, match="truth: has no row for example_id 30"):
        align_sidecar(table, np.array([3, 30]), "truth")
    with pytest.raises(InputError, match="truth: has no row for example_id 1"):
        align_sidecar(columns(0), np.array([1]), "truth")
    assert align_sidecar(columns(0), np.array([], np.int64), "truth").num_rows == 0


# ---------------------------------------------------------------- the hash of what was read


def hash_of_all(folder: Path, until: int = 2**62) -> str:
    """From the definition: names and contents of the manifests that begin before ``until``."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.json")):
        if int(path.name[:19]) < until:
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def test_the_hash_of_what_was_read_grows_with_it(log: Path) -> None:
    folder = log / "sidecars" / "truth"
    running = SidecarHash(log, "truth")
    assert running.until() == hash_of_all(folder) == hashlib.sha256().hexdigest()
    for number in range(4):
        write_sidecar_partition(log, "truth", make_partition(log, 5, 100 * number), columns(5, 100 * number))
    # Also back, as a run asks that goes on from an earlier checkpoint.
    for time in (0, 1, 100, 101, 250, 250, 1, 301, 2**62):
        assert running.until(time) == SidecarHash(log, "truth").until(time) == hash_of_all(folder, time)
    assert len({running.until(time) for time in (0, 1, 101, 201, 301)}) == 5


def test_what_changes_among_the_manifests_that_were_read(log: Path) -> None:
    folder = log / "sidecars" / "truth"
    for number in (0, 2, 3):
        write_sidecar_partition(log, "truth", make_partition(log, 5, 100 * number), columns(5, 100 * number))
    running = SidecarHash(log, "truth")
    read = running.until()
    first, second, _ = sorted(folder.glob("*.json"))
    first.write_bytes(first.read_bytes() + b" ")
    # It was read as it was; whoever reads it now sees what it is.
    assert running.until() == read != SidecarHash(log, "truth").until() == hash_of_all(folder)
    second.unlink()
    assert running.until() == hash_of_all(folder)
    write_sidecar_partition(log, "truth", make_partition(log, 5, 100), columns(5, 100))
    assert running.until() == hash_of_all(folder)
    (folder / "notes.json").write_text("{}")
    with pytest.raises(InputError, match=r"notes\.json: not the name of a manifest \(START-END\.json\)"):
        running.until()
