"""Columns beside a log: bound to its content, published once, verified, joined by example_id in any order."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.cli import main
from ctr.config import parse_model
from ctr.data.event_mapping import EventTeacher
from ctr.data.features import Category
from ctr.data.joined_sidecar import JoinedSidecar
from ctr.data.log import Manifest, create_log, read_manifests
from ctr.data.parquet_files import parquet_bytes
from ctr.data.schema import Schema
from ctr.data.shards import publish_partition
from ctr.data.sidecar import SidecarHash, list_sidecars, read_sidecar_partition, write_sidecar_partition
from ctr.io.documents import sealed_bytes
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.run.predictions import check_record
from hashed_rows import hashed_rows
from log_files import refused

SCHEMA = Schema(features=(Category(name="a", source="a", buckets=9),))
STEP = 100
COLUMNS = ("logit", "wide", "count", "kept")


def publish(log: Path, partition: int, ids: Any, shard_rows: int = 10**6, **columns: Any) -> Manifest:
    """A partition [100 k, 100 k + 100) with one query an example, times rising by 1."""
    create_log(log, SCHEMA)
    ids = np.asarray(ids, np.int64)
    time = partition * STEP + np.arange(len(ids))
    rows = hashed_rows(SCHEMA, len(ids), query_time=time, query_id=time, example_id=ids, **columns)
    start = partition * STEP
    return publish_partition(log, SCHEMA, start, start + STEP, rows, shard_rows=shard_rows)


def values_of(ids: np.ndarray) -> dict[str, np.ndarray]:
    logit = (ids * 0.5).astype(np.float32)
    return {"logit": logit, "wide": ids * 0.25, "count": ids * 3, "kept": ids % 2 == 0}


def table_of(ids: Any) -> pa.Table:
    return pa.table({"example_id": np.asarray(ids, np.int64), **values_of(np.asarray(ids, np.int64))})


def write(log: Path, manifest: Manifest, ids: Any, name: str = "teacher", **columns: Any) -> None:
    table = pa.table({"example_id": np.asarray(ids, np.int64), **columns}) if columns else table_of(ids)
    write_sidecar_partition(log, name, manifest, table)


IDS = np.arange(30)
TIMES = IDS // 10 * STEP + IDS % 10


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Three partitions of 10 examples each, numbered through, with the sidecar teacher."""
    folder = tmp_path / "log"
    for partition, ids in enumerate(np.split(IDS, 3)):
        write(folder, publish(folder, partition, ids), ids)
    return folder


def test_what_is_written_is_read_and_written_once(log: Path) -> None:
    partition, empty = read_manifests(log)[0], publish(log, 3, [])
    other = pa.table({"example_id": IDS[:10], "p": IDS[:10] / 7})
    first = write_sidecar_partition(log, "truth-1", partition, other)
    write(log, empty, [], "truth-1")
    assert list_sidecars(log) == ["teacher", "truth-1"]
    parts = pa.concat_tables([other.slice(0, 3), other.slice(3)])
    assert write_sidecar_partition(log, "truth-1", partition, parts) == first
    message = "published before with other content; the first version is kept"
    refused(message, write_sidecar_partition, log, "truth-1", partition, table_of(IDS[:10]))
    assert read_sidecar_partition(log, "truth-1", partition).equals(other)
    assert read_sidecar_partition(log, "teacher", partition).equals(table_of(IDS[:10]))
    assert read_sidecar_partition(log, "truth-1", empty).equals(table_of([]))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (table_of([0, 1]), "2 rows are given, the log's partition has 10"),
        (table_of(IDS[:10]).select(["logit"]), "example_id and at least one more column are required"),
        (pa.table({"example_id": ["a"], "p": [1]}), "example_id must be int64 without nulls"),
        (pa.table({"example_id": [1, None], "p": [1, 2]}), "1 nulls"),
        (table_of([*range(9), 0]), "an example_id appears twice"),
    ],
)
def test_bad_tables_are_refused(log: Path, table: pa.Table, message: str) -> None:
    refused(message, write_sidecar_partition, log, "truth", read_manifests(log)[0], table)
    assert list_sidecars(log) == ["teacher"]


def forge(log: Path, **values: Any) -> Manifest:
    """Changes what the manifest of the teacher's first partition says, as who can make hashes, too."""
    partition = read_manifests(log)[0]
    path = log / "sidecars" / "teacher" / f"{partition.name}.json"
    content = json.loads(path.read_text())
    del content["manifest_sha256"]
    path.write_bytes(sealed_bytes({**content, **values}))
    return partition


# What is damaged is tested with the log's files (test_log_faults.py).
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"start": 1}, "names another partition"),
        ({"rows": 9}, "has 9 rows, the log's partition has 10"),
        ({"columns": ["example_id", "p"]}, "does not hold the rows and columns"),
        ({"more": 1}, "unknown key"),
    ],
)
def test_a_manifest_of_a_publisher_at_fault_is_refused(log: Path, values: Any, message: str) -> None:
    refused(message, read_sidecar_partition, log, "teacher", forge(log, **values))


def test_an_example_that_a_sidecar_has_twice_is_named(log: Path) -> None:
    content = parquet_bytes(table_of([*range(9), 7]))
    (log / "sidecars" / "teacher" / "forged.parquet").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    partition = forge(log, file="forged.parquet", bytes=len(content), sha256=digest)
    sidecar = JoinedSidecar(log, "teacher", ["logit"])
    refused(f"{partition.name}.json: example_id 7 appears twice", sidecar.at, TIMES, IDS)


def test_a_sidecar_of_another_log_is_refused(log: Path, tmp_path: Path) -> None:
    other = publish(tmp_path / "other", 0, IDS[:10], seed=1)
    refused("was written for a partition with other content", read_sidecar_partition, log, "teacher", other)
    lacks = r"the sidecar teacher lacks the partition \[300, 400\)"
    refused(lacks, read_sidecar_partition, log, "teacher", publish(log, 3, []))


def hash_of_all(folder: Path, until: int = 2**62) -> str:
    """From the definition: names and contents of the manifests that begin before ``until``."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.json")):
        if int(path.name[:19]) < until:
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def publish_both(log: Path, number: int) -> None:
    ids = np.arange(5) + STEP * number
    write(log, publish(log, number, ids), ids, "truth")


def test_the_hash_of_what_was_read_grows_with_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    folder, running = log / "sidecars" / "truth", SidecarHash(log, "truth")
    assert running.until() == hash_of_all(folder) == hashlib.sha256().hexdigest()
    for number in range(4):
        publish_both(log, number)
    # Also back, as a run asks that goes on from an earlier checkpoint.
    for time in (0, 1, 100, 101, 250, 250, 1, 301, 2**62):
        assert running.until(time) == SidecarHash(log, "truth").until(time) == hash_of_all(folder, time)
    assert len({running.until(time) for time in (0, 1, 101, 201, 301)}) == 5


# ---------------------------------------------------------------- joined


def check(result: dict[str, np.ndarray], ids: np.ndarray, found: Any) -> None:
    """The columns hold ``values_of`` where found, and what stands for nothing elsewhere."""
    assert set(result) == {*COLUMNS, "found"} and result["found"].dtype == bool
    assert np.array_equal(result["found"], np.broadcast_to(found, len(ids)))
    for name, values in values_of(ids).items():
        assert result[name].dtype == values.dtype
        is_float = values.dtype.kind == "f"
        expected = np.where(found, values, np.array(np.nan if is_float else 0, values.dtype))
        assert np.array_equal(result[name], expected, equal_nan=is_float), name


@settings(max_examples=10)
@given(data=st.data())
def test_any_rows_in_any_blocks(tmp_path_factory, data):
    """Against brute force: a sidecar in any order of rows, asked forward and back for rows that may not be there."""
    folder = tmp_path_factory.mktemp("any") / "log"
    known = set()
    for partition in range(3):
        # Ids may repeat from one partition to another: each is looked for in that of its time.
        ids = sorted(data.draw(st.sets(st.integers(0, 9), max_size=6)))
        manifest = publish(folder, partition, ids)
        if partition == 1 or data.draw(st.booleans()):
            write(folder, manifest, data.draw(st.permutations(ids)))
            known |= {(partition, number) for number in ids}
    sidecar = JoinedSidecar(folder, "teacher", COLUMNS)
    # Times may lie before, between and after the log's partitions.
    rows = st.lists(st.tuples(st.integers(0, 4 * STEP), st.integers(0, 9)), max_size=12)
    for _ in range(10):
        asked = sorted(data.draw(rows), key=lambda row: row[0])
        times, ids = np.array(asked, np.int64).reshape(-1, 2).T
        check(sidecar.at(times, ids), ids, [(time // STEP, number) in known for time, number in asked])


def test_a_partition_without_a_sidecar_is_not_found_until_it_is_there(tmp_path):
    folder = tmp_path / "log"
    manifests = [publish(folder, partition, np.arange(10) + 10 * partition) for partition in range(3)]
    write(folder, manifests[1], np.arange(10, 20))
    sidecar = JoinedSidecar(folder, "teacher", COLUMNS)
    check(sidecar.at(TIMES, IDS), IDS, IDS // 10 == 1)
    write(folder, manifests[2], np.arange(20, 30))
    check(sidecar.at(TIMES, IDS), IDS, IDS // 10 >= 1)
    # Nor are examples among others that the sidecar does not know.
    some = np.where(IDS % 3 == 1, 1000 + IDS, IDS)
    check(sidecar.at(TIMES, some), some, (IDS // 10 >= 1) & (IDS % 3 != 1))


def test_what_is_not_there_is_named(log, tmp_path):
    publish(tmp_path / "bare", 0, np.arange(3))
    for folder, name, columns, message in (
        (log, "nobody", ["logit"], r"has no sidecar nobody; the sidecars beside it: teacher$"),
        (log, "teacher", ["logit", "loss"], r"has no column loss; it has logit, wide, count, kept$"),
        (tmp_path / "nowhere", "teacher", ["logit"], "is not an example log"),
        (tmp_path / "bare", "teacher", ["logit"], r"has no sidecar teacher; the sidecars beside it: none$"),
    ):
        refused(message, JoinedSidecar, folder, name, columns)


def test_columns_are_numbers_and_the_same_in_every_partition(tmp_path):
    folder, ids = tmp_path / "log", np.arange(3)
    manifests = [publish(folder, partition, ids) for partition in range(3)]
    for manifest, kind in zip(manifests, (pa.float32(), pa.float64(), pa.float32()), strict=True):
        write(folder, manifest, ids, "mixed", logit=pa.array([0, None, 3], kind))
    sidecar = JoinedSidecar(folder, "mixed", ["logit"])
    result = sidecar.at(np.arange(3), ids)
    # Nulls of floats are missing.
    assert result["logit"].dtype == np.float32 and result["found"].all()
    assert np.array_equal(result["logit"], [0, np.nan, 3], equal_nan=True)
    refused("the column logit is of type double, in other partitions float32", sidecar.at, STEP + ids, ids)
    write(folder, manifests[0], ids, "text", logit=["a", "b", "c"])
    refused("is of type string; numbers or booleans are required", JoinedSidecar, folder, "text", ["logit"])
    write(folder, manifests[0], ids, "truth", kept=[True, None, False])
    refused("the column kept has 1 nulls", JoinedSidecar, folder, "truth", ["kept"])
    # A column that a later partition lacks is found before any row is asked for.
    write(folder, manifests[0], ids, "short")
    write(folder, manifests[2], ids, "short", other=[1, 2, 3])
    refused("has no column logit; it has other", JoinedSidecar, folder, "short", ["logit"])


def test_a_sidecar_that_a_user_names_takes_no_name_of_a_part_of_the_log(tmp_path, monkeypatch, capfd):
    """An ingest would take it for its own, and delete it or add to it."""
    monkeypatch.chdir(tmp_path)
    publish(Path("log"), 0, [1, 2, 3], label=np.array([0, 1, 0]))
    for name in ("truth", "auction", "shards", "manifests", "histories"):
        fault = f"{name}: a part of a log has this name; allowed: any but auction, "
        for command in (
            ["sample", "log", "--name", name, "--set", "non_click_rate=0.5"],
            ["sample", "log", "--name", name, "--set", "non_click_rate=0.5", "--out", "smaller"],
            ["train", "log", "--out", "run", "--record", name],
        ):
            assert main(command) == 1
            error = capfd.readouterr().err
            assert error.startswith(f"error: sidecar {fault}") and error.count("\n") <= 2
        with pytest.raises(InputError, match=f"^mapping: name: '{name}' is not allowed: a part of a log"):
            parse_model(EventTeacher, {"name": name, "model": "models"}, "mapping")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]
    assert not Path("log/sidecars").exists()


def test_a_sidecar_that_was_begun_keeps_its_name(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    publish(Path("log"), 0, [1, 2, 3], label=np.array([0, 1, 0]))
    # Of a recording that was killed before its first manifest, and of a sampling that was killed before that.
    for name, file in (("teacher", "0-100.parquet"), ("half", "sampling.yaml")):
        Path("log/sidecars", name).mkdir(parents=True)
        Path("log/sidecars", name, file).touch()
    assert main(["sample", "log", "--name", "teacher", "--set", "non_click_rate=0.5"]) == 1
    assert "teacher holds something other than sampling decisions" in capfd.readouterr().err
    # Also of a run that is finished, and may have recorded before.
    Path("run").mkdir()
    Path("run/summary.json").touch()
    with pytest.raises(InputError, match="half already exists, from a sampling; use another name"):
        check_record(Path("log"), TrainConfig(), Path("run"), "half")


def test_what_changes_among_the_manifests_that_were_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
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
