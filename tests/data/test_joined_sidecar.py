"""Sidecars joined by example_id: of the same log or another, in time order or not, complete or not."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.config import parse_model
from ctr.data import joined_sidecar
from ctr.data.joined_sidecar import JoinedSidecar, count_missing
from ctr.data.log import Manifest, create_log, read_manifests
from ctr.data.schema import Category, Schema
from ctr.data.shards import pack_ids, publish_partition
from ctr.data.sidecar import write_sidecar_partition
from ctr.data.time_range import TimeRange
from ctr.io.errors import InputError

SCHEMA = Schema(features=(Category(name="a", source="a", buckets=9),))
STEP = 100


def publish(
    log: Path, partition: int, example_id: np.ndarray, shard_rows: int = 10**6, **columns
) -> Manifest:
    """A partition [100 k, 100 k + 100) with one query an example, times rising by 1."""
    create_log(log, SCHEMA)
    rows = len(example_id)
    time = partition * STEP + np.arange(rows)
    table = pa.table(
        {
            "query_time": time,
            "timestamp": time,
            "query_id": time,
            "example_id": pa.array(example_id, pa.int64()),
            "label": pa.array(columns.get("label", np.zeros(rows)), pa.int8()),
            "train_weight": pa.array(columns.get("train_weight", np.ones(rows)), pa.float32()),
            "metric_weight": pa.array(np.ones(rows), pa.float32()),
            "ids": pack_ids(np.zeros((rows, 1), np.int32)),
        }
    )
    return publish_partition(
        log, SCHEMA, partition * STEP, (partition + 1) * STEP, table, shard_rows=shard_rows
    )


def values_of(example_id: np.ndarray) -> dict[str, np.ndarray]:
    ids = np.asarray(example_id, np.int64)
    return {
        "logit": (ids * 0.5).astype(np.float32),
        "wide": ids * 0.25,
        "count": ids * 3,
        "kept": ids % 2 == 0,
    }


def write(log: Path, manifest: Manifest, example_id: np.ndarray, name: str = "teacher") -> None:
    table = pa.table({"example_id": pa.array(example_id, pa.int64()), **values_of(example_id)})
    write_sidecar_partition(log, name, manifest, table)


def times_of(partition: int, rows: int) -> np.ndarray:
    return partition * STEP + np.arange(rows)


COLUMNS = ("logit", "wide", "count", "kept")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Three partitions of 10 examples each, numbered through, with the sidecar teacher."""
    folder = tmp_path / "log"
    for partition in range(3):
        ids = np.arange(10) + 10 * partition
        write(folder, publish(folder, partition, ids), ids)
    return folder


def all_times() -> np.ndarray:
    return np.concatenate([times_of(partition, 10) for partition in range(3)])


def check(result: dict[str, np.ndarray], example_id: np.ndarray, found: np.ndarray) -> None:
    """The columns hold ``values_of`` where found, and what stands for nothing elsewhere."""
    assert set(result) == {*COLUMNS, "found"}
    assert result["found"].dtype == bool
    assert np.array_equal(result["found"], found)
    for name, values in values_of(example_id).items():
        assert result[name].dtype == values.dtype
        nothing = np.nan if values.dtype.kind == "f" else 0
        expected = np.where(found, values, np.array(nothing, values.dtype))
        assert np.array_equal(result[name], expected, equal_nan=values.dtype.kind == "f"), name


@pytest.mark.parametrize("size", [1, 3, 7, 10, 12, 30])
def test_blocks_of_the_same_log(log, size):
    sidecar = JoinedSidecar(log, "teacher", COLUMNS)
    times, ids = all_times(), np.arange(30)
    for begin in range(0, 30, size):
        block = slice(begin, begin + size)
        check(sidecar.at(times[block], ids[block]), ids[block], np.ones(len(ids[block]), bool))


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
def test_any_rows_in_any_blocks(tmp_path_factory, data):
    """Against brute force: a sidecar in any order of rows, asked for rows that may not be there."""
    folder = tmp_path_factory.mktemp("any") / "log"
    known = set()
    for partition in range(3):
        rows = data.draw(st.integers(0, 6))
        # Ids may repeat from one partition to another.
        ids = np.array(sorted(data.draw(st.sets(st.integers(0, 9), min_size=rows, max_size=rows))), np.int64)
        manifest = publish(folder, partition, ids)
        if partition == 1 or data.draw(st.booleans()):
            write(folder, manifest, np.array(data.draw(st.permutations(ids.tolist())), np.int64))
            known |= {(partition, number) for number in ids.tolist()}
    sidecar = JoinedSidecar(folder, "teacher", COLUMNS)
    # Times may lie before, between and after the log's partitions.
    for _ in range(3):
        times = np.array(sorted(data.draw(st.lists(st.integers(0, 4 * STEP), max_size=12))), np.int64)
        ids = np.array(
            data.draw(st.lists(st.integers(0, 9), min_size=len(times), max_size=len(times))), np.int64
        )
        found = [(t // STEP, number) in known for t, number in zip(times.tolist(), ids.tolist(), strict=True)]
        check(sidecar.at(times, ids), ids, np.array(found, bool))


def test_a_student_on_part_of_the_teachers_log(log, tmp_path):
    # Fewer rows, other partitions, and one example that the teacher does not know.
    kept = np.array([1, 4, 5, 9, 10, 13, 22, 28, 29])
    sidecar = JoinedSidecar(log, "teacher", COLUMNS)
    times = all_times()[kept]
    check(sidecar.at(times[:5], kept[:5]), kept[:5], np.ones(5, bool))
    unknown = np.concatenate([kept[5:], [999]])
    check(sidecar.at(np.append(times[5:], times[-1]), unknown), unknown, unknown != 999)


def test_an_id_is_looked_for_in_the_partition_of_its_time(tmp_path):
    folder = tmp_path / "log"
    for partition, value in ((0, 1.5), (1, 2.5)):
        manifest = publish(folder, partition, np.array([7]))
        table = pa.table({"example_id": [7], "logit": pa.array([value], pa.float32())})
        write_sidecar_partition(folder, "teacher", manifest, table)
    sidecar = JoinedSidecar(folder, "teacher", ["logit"])
    result = sidecar.at(np.array([5, 105, 205]), np.array([7, 7, 7]))
    assert result["found"].tolist() == [True, True, False]
    assert result["logit"][:2].tolist() == [1.5, 2.5]


def test_times_may_go_back(log):
    sidecar = JoinedSidecar(log, "teacher", COLUMNS)
    times, ids = all_times(), np.arange(30)
    for rows in (slice(0, 30), slice(25, 30), slice(3, 8), slice(12, 22), slice(0, 30)):
        check(sidecar.at(times[rows], ids[rows]), ids[rows], np.ones(len(ids[rows]), bool))


def test_each_partition_is_read_once_and_then_forgotten(log, monkeypatch):
    reads = []
    read = joined_sidecar.read_sidecar_partition

    def counted(folder, name, partition):
        reads.append(partition.start // STEP)
        return read(folder, name, partition)

    monkeypatch.setattr(joined_sidecar, "read_sidecar_partition", counted)
    sidecar = JoinedSidecar(log, "teacher", COLUMNS)
    times, ids = all_times(), np.arange(30)
    for row in range(30):
        sidecar.at(times[row : row + 1], ids[row : row + 1])
    assert reads == [0, 1, 2]
    # The last block needed only partition 2: the others are gone.
    sidecar.at(times[25:], ids[25:])
    assert reads == [0, 1, 2]
    sidecar.at(times[8:12], ids[8:12])
    assert reads == [0, 1, 2, 0, 1]


def test_rows_in_order_are_not_sorted(log, monkeypatch):
    sidecar = JoinedSidecar(log, "teacher", COLUMNS)
    times, ids = all_times(), np.arange(30)

    def no_sort(*arguments, **keywords):
        raise AssertionError("sorted")

    monkeypatch.setattr(np, "argsort", no_sort)
    for begin in range(0, 30, 4):
        sidecar.at(times[begin : begin + 4], ids[begin : begin + 4])
    with pytest.raises(AssertionError, match="sorted"):
        sidecar.at(times[25:28], ids[25:28][::-1])


def test_an_partition_without_a_sidecar_is_not_found_until_it_is_there(tmp_path):
    folder = tmp_path / "log"
    manifests = [publish(folder, partition, np.arange(10) + 10 * partition) for partition in range(3)]
    write(folder, manifests[1], np.arange(10, 20))
    sidecar = JoinedSidecar(folder, "teacher", COLUMNS)
    ids = np.arange(30)
    check(sidecar.at(all_times(), ids), ids, ids // 10 == 1)
    write(folder, manifests[2], np.arange(20, 30))
    check(sidecar.at(all_times(), ids), ids, ids // 10 >= 1)


def test_no_rows_find_nothing(log):
    none = np.zeros(0, np.int64)
    check(JoinedSidecar(log, "teacher", COLUMNS).at(none, none), none, np.zeros(0, bool))


def test_nulls_are_missing_in_floats_and_refused_in_booleans(tmp_path):
    folder = tmp_path / "log"
    manifest = publish(folder, 0, np.arange(3))
    logit = pa.array([1.0, None, 3.0], pa.float32())
    write_sidecar_partition(folder, "floats", manifest, pa.table({"example_id": [0, 1, 2], "logit": logit}))
    result = JoinedSidecar(folder, "floats", ["logit"]).at(times_of(0, 3), np.arange(3))
    assert result["logit"].dtype == np.float32
    assert np.array_equal(result["logit"], np.array([1, np.nan, 3], np.float32), equal_nan=True)
    assert result["found"].all()
    truth = pa.table({"example_id": [0, 1, 2], "kept": [True, None, False]})
    write_sidecar_partition(folder, "truth", manifest, truth)
    with pytest.raises(InputError, match="the column kept has 1 nulls"):
        JoinedSidecar(folder, "truth", ["kept"])


def test_what_is_not_there_is_named(log, tmp_path):
    with pytest.raises(InputError, match=r"has no sidecar nobody; the sidecars beside it: teacher$"):
        JoinedSidecar(log, "nobody", ["logit"])
    with pytest.raises(InputError, match=r"has no column loss; it has logit, wide, count, kept$"):
        JoinedSidecar(log, "teacher", ["logit", "loss"])
    with pytest.raises(InputError, match="is not an example log"):
        JoinedSidecar(tmp_path / "nowhere", "teacher", ["logit"])
    with pytest.raises(InputError, match="a name consists of letters"):
        JoinedSidecar(log, "a/b", ["logit"])
    publish(tmp_path / "bare", 0, np.arange(3))
    with pytest.raises(InputError, match=r"has no sidecar teacher; the sidecars beside it: none$"):
        JoinedSidecar(tmp_path / "bare", "teacher", ["logit"])


def test_columns_must_be_the_same_in_every_partition(tmp_path):
    folder = tmp_path / "log"
    manifests = [publish(folder, partition, np.arange(3)) for partition in range(3)]
    for manifest, kind in zip(manifests, (pa.float32(), pa.float64(), pa.float32()), strict=True):
        table = pa.table({"example_id": [0, 1, 2], "logit": pa.array([0, 0, 0], kind)})
        write_sidecar_partition(folder, "mixed", manifest, table)
    sidecar = JoinedSidecar(folder, "mixed", ["logit"])
    with pytest.raises(InputError, match="the column logit is of type double, in other partitions float32"):
        sidecar.at(times_of(1, 3), np.arange(3))
    text = pa.table({"example_id": [0, 1, 2], "logit": ["a", "b", "c"]})
    write_sidecar_partition(folder, "text", manifests[0], text)
    with pytest.raises(InputError, match="is of type string; numbers or booleans are required"):
        JoinedSidecar(folder, "text", ["logit"])
    # A column that a later partition lacks is found before any row is asked for.
    write(folder, manifests[0], np.arange(3), "short")
    only = pa.table({"example_id": [0, 1, 2], "other": [1, 2, 3]})
    write_sidecar_partition(folder, "short", manifests[2], only)
    with pytest.raises(InputError, match="has no column logit; it has other"):
        JoinedSidecar(folder, "short", ["logit"])


def test_damage_is_refused(log):
    path = sorted((log / "sidecars" / "teacher").glob("*.parquet"))[1]
    sidecar = JoinedSidecar(log, "teacher", COLUMNS)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert sidecar.at(times_of(0, 10), np.arange(10))["found"].all()
    with pytest.raises(InputError, match=f"{path.name}: damaged"):
        sidecar.at(times_of(1, 10), np.arange(10, 20))


def test_it_names_itself(log):
    assert str(JoinedSidecar(log, "teacher", ["logit"])) == f"sidecar teacher of {log}"


# ---------------------------------------------------------------- rows without a value


@pytest.fixture
def student(tmp_path: Path) -> Path:
    """Three partitions like the log's, in shards of 4; the second has examples that the teacher does not know."""
    folder = tmp_path / "student"
    for partition in range(3):
        ids = np.arange(10) + 10 * partition
        ids[3:9] += 1000 * (partition == 1)
        publish(folder, partition, ids, shard_rows=4)
    return folder


def test_missing_values_are_counted_and_named(log, student):
    sidecar = JoinedSidecar(log, "teacher", ["logit"])
    seen: list[int] = []
    missing = count_missing(student, read_manifests(student), sidecar, "logit", progress=seen.append)
    assert (missing.rows, missing.missing) == (30, 6)
    assert missing.first == [(1013 + k, 13 + k) for k in range(5)]
    assert sum(seen) == 30
    assert missing.describe() == (
        "no value for 6 of 30 rows, first: example_id 1013 (row 13 of the log), example_id 1014 (row 14 of the log), "
        "example_id 1015 (row 15 of the log), example_id 1016 (row 16 of the log), example_id 1017 (row 17 of the log)"
    )
    assert count_missing(log, read_manifests(log), sidecar, "logit").missing == 0


def test_places_are_those_of_the_whole_log(log, student):
    sidecar = JoinedSidecar(log, "teacher", ["logit"])
    missing = count_missing(student, read_manifests(student)[1:2], sidecar, "logit")
    assert (missing.rows, missing.missing) == (10, 6)
    assert missing.first[0] == (1013, 13)
    none = count_missing(student, [], sidecar, "logit")
    assert (none.rows, none.missing, none.first) == (0, 0, [])


def test_rows_outside_the_time_range_are_passed_over(log, student):
    sidecar = JoinedSidecar(log, "teacher", ["logit"])
    ranges = parse_model(TimeRange, {"end": "1970-01-01T00:00:00.000105"}, "test")
    missing = count_missing(student, read_manifests(student), sidecar, "logit", ranges)
    assert (missing.rows, missing.missing) == (15, 2)


def test_values_that_are_not_finite_are_missing_and_faulty_rows_are_passed_over(tmp_path):
    folder = tmp_path / "log"
    weights = np.array([1, 1, 1, -1, np.nan, 1])
    manifest = publish(folder, 0, np.arange(6), train_weight=weights, label=[0, 1, 0, 0, 0, 7])
    logit = pa.array([0.5, np.nan, np.inf, np.nan, np.nan, np.nan], pa.float32())
    write_sidecar_partition(folder, "t", manifest, pa.table({"example_id": np.arange(6), "logit": logit}))
    missing = count_missing(folder, [manifest], JoinedSidecar(folder, "t", ["logit"]), "logit")
    assert (missing.rows, missing.missing) == (3, 2)
    assert [place[0] for place in missing.first] == [1, 2]
