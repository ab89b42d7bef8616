"""The example log: published whole or not at all, once, and nothing damaged is ever read."""

import json
import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.config import parse_model
from ctr.data.log import check_log, create_log, list_partitions, log_sha256, read_manifests, read_schema
from ctr.data.row_order import sort_rows
from ctr.data.schema import Schema
from ctr.data.shards import pack_ids, publish_partition, read_shard, shard_schema, unpack_ids
from ctr.io.documents import sealed_bytes
from ctr.io.errors import InputError


def make_schema(**buckets: int | None) -> Schema:
    """A text "t" and categories; of those with no buckets the ids grow."""
    features = [
        {"kind": "text" if name == "t" else "category", "name": name, "source": name, "buckets": count}
        for name, count in buckets.items()
    ]
    return parse_model(Schema, {"features": features}, "test")


SCHEMA = make_schema(a=None, b=100, t=None)
BUCKETED = make_schema(a=100, b=100, t=100)
OTHER = make_schema(a=100_000)
BUCKETED_AND_GROWING = pytest.mark.parametrize("schema", [BUCKETED, SCHEMA], ids=["bucketed", "growing"])


def make_rows(rows: int, start: int = 0, end: int = 1000, seed: int = 0, schema: Schema = SCHEMA) -> pa.Table:
    """Sorted rows of a partition, about three to a query."""
    rng = np.random.default_rng(seed)
    kind = schema.id_type

    def draw(name: str, count: int) -> np.ndarray:
        if name in schema.growing:
            return rng.integers(-(2**63), 2**63 - 1, count, endpoint=True)
        return rng.integers(0, 100, count).astype(kind)

    query = np.sort(rng.integers(0, rows // 3 + 1, rows))
    time = start + query * (end - start) // (rows // 3 + 1)
    return pa.table(
        {
            "query_time": time,
            "timestamp": time,
            "query_id": query + 10**9 * seed,
            "example_id": np.arange(rows) + 10**9 * seed,
            "label": rng.integers(0, 2, rows).astype(np.int8),
            "train_weight": np.ones(rows, np.float32),
            "metric_weight": np.ones(rows, np.float32),
            "ids": pack_ids(np.stack([draw("a", rows), draw("b", rows)], axis=1)),
            "t": pa.array(
                [draw("t", rng.integers(0, 4)).tolist() for _ in range(rows)],
                pa.list_(pa.from_numpy_dtype(kind)),
            ),
        }
    ).cast(shard_schema(schema))


def replaced(table: pa.Table, name: str, values: Any) -> pa.Table:
    at = table.column_names.index(name)
    return table.set_column(at, table.schema.field(name), pa.array(values, table.schema.field(name).type))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    create_log(tmp_path / "log", SCHEMA)
    return tmp_path / "log"


@BUCKETED_AND_GROWING
def test_what_is_published_is_read(tmp_path: Path, schema: Schema) -> None:
    log = tmp_path / "log"
    create_log(log, schema)
    first, second = make_rows(50, schema=schema), make_rows(20, 2000, 3000, seed=1, schema=schema)
    publish_partition(log, schema, 2000, 3000, second, {"rows_in": 21})
    publish_partition(log, schema, 0, 1000, first, shard_rows=10)
    assert read_schema(log) == schema
    manifests = read_manifests(log)
    assert [(one.start, one.end) for one in manifests] == list_partitions(log) == [(0, 1000), (2000, 3000)]
    assert manifests[1].counters == {"rows_in": 21}
    for manifest, rows in zip(manifests, (first, second), strict=True):
        assert manifest.clicks == sum(rows.column("label").to_pylist())
        assert manifest.queries == len(set(rows.column("query_id").to_pylist()))
        parts = [read_shard(log, entry, schema) for entry in manifest.shards]
        assert pa.concat_tables(parts).equals(rows)
        queries = [set(part.column("query_id").to_pylist()) for part in parts]
        assert sum(map(len, queries)) == manifest.queries, "a query straddles two shards"
    assert len(manifests[0].shards) > 2
    assert len(manifests[1].shards) == 1


def test_an_empty_partition_is_published(log: Path) -> None:
    manifest = publish_partition(log, SCHEMA, 0, 1000, make_rows(0))
    assert (manifest.rows, manifest.queries, manifest.clicks, manifest.shards) == (0, 0, 0, ())
    assert read_manifests(log) == [manifest]


def test_publishing_again_gives_the_same_bytes(log: Path, tmp_path: Path) -> None:
    rows = make_rows(50)
    publish_partition(log, SCHEMA, 0, 1000, rows, shard_rows=10)
    before = contents(log)
    chunked = pa.concat_tables([rows.slice(0, 7), rows.slice(7)])
    publish_partition(log, SCHEMA, 0, 1000, chunked, shard_rows=10)
    assert contents(log) == before
    create_log(tmp_path / "elsewhere", SCHEMA)
    publish_partition(tmp_path / "elsewhere", SCHEMA, 0, 1000, rows, shard_rows=10)
    assert contents(tmp_path / "elsewhere") == before


def test_other_content_for_a_published_partition_is_refused(log: Path) -> None:
    publish_partition(log, SCHEMA, 0, 1000, make_rows(50))
    before = log_sha256(read_manifests(log))
    with pytest.raises(InputError, match="published before with other content; the first version is kept"):
        publish_partition(log, SCHEMA, 0, 1000, make_rows(50, seed=1))
    with pytest.raises(InputError, match="published before with other content"):
        publish_partition(log, SCHEMA, 0, 1000, make_rows(50), {"more": 1})
    assert log_sha256(read_manifests(log)) == before
    read_shard(log, read_manifests(log)[0].shards[0], SCHEMA)


def _publish(log: Path, seed: int, start: Any, results: Any) -> None:
    rows = make_rows(300, seed=seed)
    start.wait()
    try:
        publish_partition(log, SCHEMA, 0, 1000, rows)
        results.put((seed, "published"))
    except InputError as error:
        results.put((seed, str(error)))


@pytest.mark.parametrize("seeds", [(1, 1), (1, 2)])
def test_two_publishers_at_once(log: Path, seeds: tuple[int, int]) -> None:
    context = multiprocessing.get_context("fork")
    start, results = context.Event(), context.Queue()
    workers = [context.Process(target=_publish, args=(log, seed, start, results)) for seed in seeds]
    for worker in workers:
        worker.start()
    start.set()
    outcomes = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    published = [seed for seed, outcome in outcomes if outcome == "published"]
    assert len(published) == (2 if seeds[0] == seeds[1] else 1)
    (manifest,) = read_manifests(log)
    rows = pa.concat_tables([read_shard(log, entry, SCHEMA) for entry in manifest.shards])
    assert rows.equals(make_rows(300, seed=published[0]))


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        (500, 1500, "overlaps the published"),
        (0, 999, "overlaps the published"),
        (100, 200, "overlaps the published"),
    ],
)
def test_overlapping_partitions_are_refused(log: Path, start: int, end: int, message: str) -> None:
    publish_partition(log, SCHEMA, 0, 1000, make_rows(50))
    with pytest.raises(InputError, match=message):
        publish_partition(log, SCHEMA, start, end, make_rows(0))
    assert list_partitions(log) == [(0, 1000)]


def test_an_overlap_that_two_publishers_made_is_not_read(log: Path, tmp_path: Path) -> None:
    publish_partition(log, SCHEMA, 0, 1000, make_rows(50))
    create_log(tmp_path / "other", SCHEMA)
    publish_partition(tmp_path / "other", SCHEMA, 500, 1500, make_rows(0))
    (path,) = (tmp_path / "other" / "manifests").iterdir()
    shutil.copy(path, log / "manifests")
    with pytest.raises(InputError, match="overlaps the partition before it"):
        read_manifests(log)


@pytest.mark.parametrize(
    ("start", "end", "change", "message"),
    [
        (0, 1000, lambda t: t.take([1, 0, *range(2, 50)]), "row 1 (example_id 0) is out of order"),
        (
            0,
            1000,
            lambda t: pa.concat_tables([t.slice(0, 1), t]),
            "row 1 (example_id 0) repeats an example_id",
        ),
        (1, 1000, lambda t: t, "partition [1, 1000) of "),
        (0, 900, lambda t: t, "holds query times from 0 to"),
        (1000, 1000, lambda t: t, "start must be below end"),
        (-1000, 1000, lambda t: t, "start must be below end, both from 0"),
        (0, 2**62 + 1, lambda t: t, "start must be below end, both from 0"),
        (0, 1000, lambda t: t.drop_columns(["t"]), "the rows are not under the log's schema"),
        (
            0,
            1000,
            lambda t: t.set_column(4, "label", pa.array([None] * 50, pa.int8())),
            "the rows are not under the log's schema",
        ),
    ],
)
def test_bad_rows_are_refused(log: Path, start: int, end: int, change: Any, message: str) -> None:
    with pytest.raises(InputError) as refusal:
        publish_partition(log, SCHEMA, start, end, change(make_rows(50)))
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert list_partitions(log) == []


def test_rows_of_another_schema_are_refused(log: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="were made under schema"):
        publish_partition(log, OTHER, 0, 1000, make_rows(0).select(range(8)))
    with pytest.raises(InputError, match=r"is not an example log: it has no schema\.json"):
        publish_partition(tmp_path / "nowhere", SCHEMA, 0, 1000, make_rows(5))


@BUCKETED_AND_GROWING
def test_sort_rows_gives_the_order_of_a_log(schema: Schema) -> None:
    rows = make_rows(50, schema=schema)
    shuffled = rows.take(np.random.default_rng(3).permutation(50))
    assert sort_rows(shuffled).equals(rows)


# One damaged copy of a shard at a time; the log itself stays.
@pytest.fixture(scope="module", params=[BUCKETED, SCHEMA], ids=["bucketed", "growing"])
def shard(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Path, Schema, Any, bytes]:
    folder, schema = tmp_path_factory.mktemp("damage") / "log", request.param
    create_log(folder, schema)
    (entry,) = publish_partition(folder, schema, 0, 1000, make_rows(200, schema=schema)).shards
    return folder, schema, entry, (folder / "shards" / entry.file).read_bytes()


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_flipped_byte_is_always_detected(
    shard: tuple[Path, Schema, Any, bytes], data: st.DataObject
) -> None:
    folder, schema, entry, content = shard
    position = data.draw(st.integers(0, len(content) - 1))
    flipped = bytearray(content)
    flipped[position] ^= data.draw(st.integers(1, 255))
    (folder / "shards" / entry.file).write_bytes(flipped)
    with pytest.raises(InputError, match=r"damaged: its .* bytes do not have the SHA-256"):
        read_shard(folder, entry, schema)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_truncated_shard_is_detected(shard: tuple[Path, Schema, Any, bytes], data: st.DataObject) -> None:
    folder, schema, entry, content = shard
    (folder / "shards" / entry.file).write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(InputError, match="damaged"):
        read_shard(folder, entry, schema)


def test_a_missing_shard_is_named(log: Path) -> None:
    (entry,) = publish_partition(log, SCHEMA, 0, 1000, make_rows(50)).shards
    (log / "shards" / entry.file).unlink()
    with pytest.raises(InputError, match="the file is missing, though a manifest names it"):
        read_shard(log, entry, SCHEMA)


def test_a_damaged_shard_is_repaired_by_publishing_again(log: Path) -> None:
    (entry,) = publish_partition(log, SCHEMA, 0, 1000, make_rows(50)).shards
    (log / "shards" / entry.file).write_bytes(b"PAR1")
    publish_partition(log, SCHEMA, 0, 1000, make_rows(50))
    assert read_shard(log, entry, SCHEMA).equals(make_rows(50))


def test_a_shard_that_says_other_than_its_manifest(log: Path) -> None:
    (entry,) = publish_partition(log, SCHEMA, 0, 1000, make_rows(50)).shards
    with pytest.raises(InputError, match="holds 50 rows, the manifest says 49"):
        read_shard(log, entry.model_copy(update={"rows": 49}), SCHEMA)
    with pytest.raises(InputError, match="holds the columns"):
        read_shard(log, entry, OTHER)


def change_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def change_manifest(path: Path, **values: Any) -> None:
    """As by a publisher that is at fault: not by a fault of the disk, which the manifest's own hash would tell."""
    content = json.loads(path.read_text())
    del content["manifest_sha256"]
    path.write_bytes(sealed_bytes({**content, **values}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"features": []}, "features"),
        ({"version": "0" * 16}, "do not match the recorded version 0000000000000000: the file was changed"),
        ({"format": 2}, r"schema\.json: made by an unreleased version of ctr; make it again$"),
        ({"more": 1}, "more: unknown key; allowed: derive, features, spelling"),
    ],
)
def test_a_changed_schema_is_refused(log: Path, values: dict[str, Any], message: str) -> None:
    change_json(log / "schema.json", **values)
    with pytest.raises(InputError, match=message):
        read_manifests(log)


def test_a_schema_whose_features_were_changed(log: Path) -> None:
    path = log / "schema.json"
    path.write_text(path.read_text().replace('"max_values": 100', '"max_values": 99', 1))
    with pytest.raises(InputError, match="do not match the recorded version"):
        read_schema(log)
    path.write_text("{")
    with pytest.raises(InputError, match=r"schema\.json: not JSON"):
        read_schema(log)
    path.write_text("[]")
    with pytest.raises(InputError, match="must be a JSON object"):
        read_schema(log)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rows": 51}, "rows is not the sum over the shards"),
        ({"queries": 1}, "queries is not the sum over the shards"),
        ({"end": 10}, "lie outside the partition"),
        ({"start": 1}, "lie outside the partition"),
        ({"schema_version": "x"}, "written under schema x, but the log's schema is"),
        ({"format": 2}, "format: 2 is not allowed"),
        ({"shards": [{"file": "../../etc/passwd"}]}, "'../../etc/passwd' is not allowed"),
        ({"end": 2000, "rows": 0, "queries": 0, "shards": []}, "names another partition"),
    ],
)
def test_a_changed_manifest_is_refused(log: Path, values: dict[str, Any], message: str) -> None:
    publish_partition(log, SCHEMA, 0, 1000, make_rows(50))
    change_manifest(next((log / "manifests").iterdir()), **values)
    with pytest.raises(InputError) as refusal:
        read_manifests(log)
    assert message in str(refusal.value)


def test_foreign_files_among_the_manifests(log: Path) -> None:
    (log / "manifests").mkdir()
    (log / "manifests" / "notes.json").write_text("{}")
    with pytest.raises(InputError, match=r"notes\.json: not the name of a manifest"):
        read_manifests(log)


def test_what_an_interrupted_publisher_left_is_ignored(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "schema.json.partial-0123456789abcdef").write_text('{"for')
    create_log(folder, SCHEMA)
    for name in ("manifests", "shards"):
        (folder / name).mkdir()
    stem = f"{0:019d}-{1000:019d}"
    (folder / "manifests" / f"{stem}.json.partial-0123456789abcdef").write_text('{"sta')
    (folder / "shards" / f"{stem}-0000-0123.parquet.partial-0123456789abcdef").write_text("PAR")
    assert read_manifests(folder) == []
    # A shard that no manifest names, complete or not, is no part of the log either.
    (folder / "shards" / f"{stem}-0000-0123.parquet").write_text("PAR1")
    manifest = publish_partition(folder, SCHEMA, 0, 1000, make_rows(50))
    assert read_manifests(folder) == [manifest]


def test_create_log_checks_the_folder(tmp_path: Path) -> None:
    create_log(tmp_path / "log", SCHEMA)
    create_log(tmp_path / "log", SCHEMA)
    with pytest.raises(InputError, match="features cannot change inside a log; use another output directory"):
        create_log(tmp_path / "log", OTHER)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.tex").write_text("")
    for path in (tmp_path / "used", tmp_path / "used" / "thesis.tex"):
        with pytest.raises(InputError, match="neither empty nor an example log"):
            check_log(path, SCHEMA)


@given(st.integers(0, 20), st.integers(1, 5), st.integers(0, 20), st.integers(0, 20))
def test_ids_are_packed_and_unpacked_with_slices(rows: int, features: int, offset: int, length: int) -> None:
    for buckets in (100, None):
        schema = make_schema(**dict.fromkeys("abcde"[:features], buckets))
        limits = np.iinfo(schema.id_type)
        ids = np.random.default_rng(rows).integers(
            limits.min, limits.max, (rows, features), dtype=schema.id_type, endpoint=True
        )
        packed = pack_ids(ids)
        assert len(packed) == rows
        assert packed.type == shard_schema(schema).field("ids").type
        assert np.array_equal(unpack_ids(packed, schema), ids)
        assert np.array_equal(unpack_ids(packed.slice(offset, length), schema), ids[offset : offset + length])
        columns_first = np.asfortranarray(ids)
        assert pack_ids(columns_first).equals(packed)
