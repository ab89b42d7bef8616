"""The log as arrays: faults, slices, and nothing of a damaged shard."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.data.log import create_log, read_manifests
from ctr.data.reader import FAULTS, Rows, join_rows, read_rows, rows_of_table
from ctr.data.schema import Category, Schema
from ctr.data.shards import pack_ids, publish_partition, unpack_ids
from ctr.io.errors import InputError

SCHEMA = Schema(
    features=(
        Category(name="a", source="a", buckets=10),
        Category(name="m", source="m", buckets=6, multivalent=True),
        Category(name="b", source="b", buckets=4),
        Category(name="n", source="n", buckets=8, multivalent=True),
    )
)
# The ids of half of the features grow.
MIXED = Schema(
    features=(
        Category(name="a", source="a"),
        Category(name="m", source="m", multivalent=True),
        Category(name="b", source="b", buckets=4),
        Category(name="n", source="n", buckets=8, multivalent=True),
    )
)
BOTH = pytest.mark.parametrize("schema", [SCHEMA, MIXED], ids=["bucketed", "mixed"])
LISTS = ("m", "n")


def make_table(count: int, seed: int = 0, first: int = 0, schema: Schema = SCHEMA) -> pa.Table:
    """Good rows ``first`` to ``first + count`` of a log with two rows a query and a query a millisecond."""
    rng = np.random.default_rng([seed, first])
    row = np.arange(first, first + count)

    def draw(name: str, count: int) -> np.ndarray:
        buckets = schema.by_name[name].buckets
        if buckets is None:
            return rng.integers(-(2**63), 2**63 - 1, count, endpoint=True)
        return rng.integers(0, buckets, count).astype(schema.id_type)

    columns = {
        "query_time": row // 2 * 1000,
        "timestamp": row * 500,
        "query_id": row // 2 + 7,
        "example_id": row + 50,
        "label": rng.integers(0, 2, count).astype(np.int8),
        "train_weight": rng.random(count).astype(np.float32),
        "metric_weight": rng.random(count).astype(np.float32),
        "ids": pack_ids(np.stack([draw("a", count), draw("b", count)], axis=1)),
    }
    for name in LISTS:
        lengths = rng.integers(0, 4, count)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        columns[name] = pa.ListArray.from_arrays(offsets, draw(name, offsets[-1]))
    return pa.table(columns)


def with_column(table: pa.Table, name: str, values: object) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)


def as_records(rows: Rows) -> list[dict]:
    records = []
    for index in range(len(rows)):
        names = (
            "query_time",
            "timestamp",
            "query_id",
            "example_id",
            "label",
            "train_weight",
            "metric_weight",
        )
        record = {name: getattr(rows, name)[index].item() for name in (*names, "fault")}
        record["ids"] = rows.ids[index].tolist()
        for name in LISTS:
            values, offsets = rows.multivalent[name]
            record[name] = values[offsets[index] : offsets[index + 1]].tolist()
        records.append(record)
    return records


def as_written(table: pa.Table) -> list[dict]:
    """What ``as_records`` should give for a table of good rows, by way of Arrow's own conversion."""
    records = table.to_pylist()
    for record in records:
        # Of two features.
        record["ids"] = np.frombuffer(record["ids"], f"<i{len(record['ids']) // 2}").tolist()
        record["fault"] = 0
    return records


def make_log(folder: Path, schema: Schema) -> Path:
    """60 rows in two partitions and five shards."""
    create_log(folder, schema)
    publish_partition(folder, schema, 0, 20_000, make_table(40, schema=schema), shard_rows=15)
    publish_partition(folder, schema, 20_000, 30_000, make_table(20, first=40, schema=schema), shard_rows=15)
    assert [len(manifest.shards) for manifest in read_manifests(folder)] == [3, 2]
    return folder


@pytest.fixture
def log(tmp_path) -> Path:
    return make_log(tmp_path / "log", SCHEMA)


@BOTH
def test_rows_hold_what_was_written(schema):
    table = make_table(30, schema=schema)
    rows = rows_of_table(table, schema, first=5)
    assert as_records(rows) == as_written(table)
    assert rows.position.tolist() == list(range(5, 35))
    assert rows.ids.dtype == (np.int32 if schema is SCHEMA else np.int64)
    assert {values.dtype for values, _ in rows.multivalent.values()} == {rows.ids.dtype}
    assert {rows.label.dtype, rows.train_weight.dtype, rows.metric_weight.dtype} == {np.dtype(np.float32)}


@BOTH
def test_a_sliced_table_has_its_own_rows_only(schema):
    table = make_table(30, schema=schema)
    assert as_records(rows_of_table(table.slice(11, 9), schema, 0)) == as_written(table.slice(11, 9))


@given(st.data(), st.sampled_from([SCHEMA, MIXED]))
def test_slices_selections_and_joins(data, schema):
    count = data.draw(st.integers(0, 12))
    rows = rows_of_table(make_table(count, schema=schema), schema, first=3)
    records = as_records(rows)
    begin = data.draw(st.integers(0, count))
    end = data.draw(st.integers(begin, count))
    part = rows.slice(begin, end)
    assert as_records(part) == records[begin:end]
    assert part.position.tolist() == list(range(3 + begin, 3 + end))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=end - begin, max_size=end - begin)), bool)
    kept = part.keep(mask)
    assert as_records(kept) == [record for record, good in zip(records[begin:end], mask, strict=True) if good]
    assert kept.position.tolist() == (3 + begin + np.flatnonzero(mask)).tolist()
    # A selection can be sliced again, and slices put together.
    assert as_records(kept.slice(0, len(kept) // 2)) == as_records(kept)[: len(kept) // 2]
    parts = [rows.slice(0, begin), rows.slice(begin, end), rows.slice(end, count)]
    assert as_records(join_rows(parts)) == records
    assert join_rows(parts).position.tolist() == list(range(3, 3 + count))


def test_queries_begin_where_time_or_id_changes():
    rows = rows_of_table(make_table(6), SCHEMA, 0)
    assert rows.query_begins().tolist() == [0, 2, 4]
    table = with_column(make_table(6), "query_id", pa.array([1, 1, 2, 2, 2, 2]))
    table = with_column(table, "query_time", pa.array([0, 0, 0, 0, 1, 1]))
    assert rows_of_table(table, SCHEMA, 0).query_begins().tolist() == [0, 2, 4]
    assert rows.slice(0, 0).query_begins().tolist() == []


def with_id(column: int, value: int, schema: Schema = SCHEMA) -> pa.Table:
    table = make_table(6, schema=schema)
    ids = unpack_ids(table.column("ids").combine_chunks(), schema).copy()
    ids[4, column] = value
    return with_column(table, "ids", pack_ids(ids))


def with_value(column: str, value: object, dtype: type) -> pa.Table:
    values = make_table(6).column(column).to_numpy().astype(dtype)
    values[4] = value
    return with_column(make_table(6), column, pa.array(values))


def with_list(column: str, values: list[int], schema: Schema = SCHEMA) -> pa.Table:
    lists = pa.array([[1], [], [2, 3], [], values, [1]], pa.list_(pa.from_numpy_dtype(schema.id_type)))
    return with_column(make_table(6, schema=schema), column, lists)


LABEL, TRAIN, METRIC, OUTSIDE = FAULTS[1:]


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (with_value("label", 2, np.int8), LABEL),
        (with_value("label", -1, np.int8), LABEL),
        (with_value("train_weight", np.nan, np.float32), TRAIN),
        (with_value("train_weight", np.inf, np.float32), TRAIN),
        (with_value("train_weight", -0.5, np.float32), TRAIN),
        (with_value("train_weight", 1.1e9, np.float32), TRAIN),
        (with_value("metric_weight", np.nan, np.float32), METRIC),
        (with_value("metric_weight", np.inf, np.float32), METRIC),
        (with_value("metric_weight", -1e-30, np.float32), METRIC),
        (with_value("metric_weight", 1e38, np.float32), METRIC),
        (with_id(0, 10), OUTSIDE),
        (with_id(0, -1), OUTSIDE),
        (with_id(1, 4), OUTSIDE),
        (with_list("m", [5, 6]), OUTSIDE),
        (with_list("m", [-1]), OUTSIDE),
        (with_list("n", [0, 0, 8]), OUTSIDE),
    ],
)
def test_a_faulty_row_is_marked_with_its_reason_and_no_other_row_is(table, reason):
    rows = rows_of_table(table, SCHEMA, 0)
    assert [FAULTS[code] for code in rows.fault] == ["", "", "", "", reason, ""]


# Some are 0 or 1 in their low 32 bits.
@pytest.mark.parametrize("value", [4, -1, 2**32, -(2**32) + 1, 2**63 - 1, -(2**63)])
def test_beside_ids_that_grow_those_with_buckets_lie_within_them(value):
    for table in (with_id(1, value, MIXED), with_list("n", [0, value * 2 if value == 4 else value], MIXED)):
        rows = rows_of_table(table, MIXED, 0)
        assert [FAULTS[code] for code in rows.fault] == ["", "", "", "", OUTSIDE, ""]
    for table in (with_id(0, value, MIXED), with_list("m", [value, 0], MIXED)):
        assert not rows_of_table(table, MIXED, 0).fault.any()


@BOTH
def test_of_many_rows_those_with_ids_outside_are_marked(schema):
    count, wrong = 20_000, [0, 4095, 4096, 12_345, 19_999]
    ids = np.tile(np.array([9, 3], schema.id_type), (count, 1))
    ids[wrong, [0, 1, 0, 1, 0]] = [10, 4, -1, -(2**31), 2**31 - 1]
    table = with_column(make_table(count, schema=schema), "ids", pack_ids(ids))
    rows = rows_of_table(table, schema, 0)
    if schema is MIXED:
        wrong = [4095, 12_345]
    assert np.flatnonzero(rows.fault).tolist() == wrong
    assert {FAULTS[code] for code in rows.fault[wrong]} == {OUTSIDE}


@pytest.mark.parametrize(
    "table",
    [
        with_value("label", 1, np.int8),
        with_value("train_weight", 0, np.float32),
        with_value("metric_weight", 0, np.float32),
        with_value("train_weight", 1e9, np.float32),
        with_id(0, 9),
        with_id(1, 0),
        with_list("m", []),
        with_list("n", [7, 0, 7]),
    ],
)
def test_values_at_the_edge_are_no_faults(table):
    assert not rows_of_table(table, SCHEMA, 0).fault.any()


def test_the_first_of_several_faults_counts():
    table = with_value("label", 9, np.int8)
    table = with_column(table, "train_weight", pa.array(np.full(6, -1, np.float32)))
    rows = rows_of_table(table, SCHEMA, 0)
    assert [FAULTS[code] for code in rows.fault] == [TRAIN] * 4 + [LABEL, TRAIN]


def test_features_of_one_kind_only():
    single = Schema(features=(SCHEMA.features[0],))
    rows = rows_of_table(with_column(make_table(4), "ids", pack_ids(np.full((4, 1), 3, np.int32))), single, 0)
    assert (rows.ids.tolist(), dict(rows.multivalent)) == ([[3]] * 4, {})
    multivalent = Schema(features=(SCHEMA.features[1],))
    rows = rows_of_table(make_table(4).drop_columns(["ids"]), multivalent, 0)
    assert rows.ids.shape == (4, 0)
    assert not rows.fault.any()


@BOTH
def test_a_log_is_read_in_its_order_from_any_row(tmp_path, schema):
    log = make_log(tmp_path / "log", schema)
    manifests = read_manifests(log)
    expected = as_written(make_table(40, schema=schema))
    expected += as_written(make_table(20, first=40, schema=schema))
    for start in range(0, 61):
        blocks = list(read_rows(log, schema, manifests, start))
        assert [record for block in blocks for record in as_records(block)] == expected[start:]
        position = start
        for block in blocks:
            assert block.position.tolist() == list(range(position, position + len(block)))
            position += len(block)


def test_a_range_of_times_is_cut_out_and_what_lies_outside_is_not_read(log):
    manifests = read_manifests(log)
    expected = [(int(t), p) for p, t in enumerate(read_times(log, manifests))]
    times = sorted({time for time, _ in expected})
    for begin in (0, times[3], times[-2] + 1):
        for end in (times[5], times[-1], times[-1] + 1):
            for start in (0, 7, 33):
                blocks = list(read_rows(log, SCHEMA, manifests, start, (begin, end)))
                found = [int(position) for block in blocks for position in block.position]
                assert found == [p for time, p in expected if begin <= time < end and p >= start]
    (log / "shards" / manifests[0].shards[0].file).unlink()
    later = manifests[0].shards[1].first_query_time
    assert sum(len(block) for block in read_rows(log, SCHEMA, manifests, 0, (later, 10**9))) > 0


def read_times(log, manifests):
    return np.concatenate([block.query_time for block in read_rows(log, SCHEMA, manifests)])


def test_a_shard_before_the_start_is_not_read(log):
    (log / "shards" / read_manifests(log)[0].shards[0].file).unlink()
    assert sum(len(block) for block in read_rows(log, SCHEMA, read_manifests(log), 16)) == 44
    with pytest.raises(InputError, match="missing"):
        list(read_rows(log, SCHEMA, read_manifests(log), 15))


@settings(max_examples=30)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_nothing_of_a_damaged_shard_is_used(tmp_path_factory, place, bit):
    folder = tmp_path_factory.mktemp("damaged") / "log"
    create_log(folder, SCHEMA)
    manifest = publish_partition(folder, SCHEMA, 0, 20_000, make_table(40), shard_rows=15)
    path = folder / "shards" / manifest.shards[1].file
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    path.write_bytes(content)
    found = []
    with pytest.raises(InputError) as caught:
        found.extend(read_rows(folder, SCHEMA, read_manifests(folder)))
    assert str(path) in str(caught.value)
    assert [(block.position[0], len(block)) for block in found] == [(0, manifest.shards[0].rows)]
