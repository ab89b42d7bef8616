"""The log as arrays: faults, slices, ranges of rows and times."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctr.data.features import Category
from ctr.data.log import create_log, read_manifests
from ctr.data.reader import FAULTS, Rows, read_rows, rows_of_table
from ctr.data.schema import Schema
from ctr.data.shards import pack_ids, publish_partition
from ctr.io.errors import InputError
from hashed_rows import hashed_rows

LISTS = ("m", "n")
BUCKETS = {"a": 10, "m": 6, "b": 4, "n": 8}


def make_schema(*growing: str) -> Schema:
    features = []
    for name, buckets in BUCKETS.items():
        bound = None if name in growing else buckets
        features.append(Category(name=name, source=name, buckets=bound, multivalent=name in LISTS))
    return Schema(features=tuple(features))


# The ids of half of the features grow.
SCHEMA, MIXED = make_schema(), make_schema("a", "m")
BOTH = pytest.mark.parametrize("schema", [SCHEMA, MIXED], ids=["bucketed", "mixed"])
ONE_VALUE = ("query_time", "timestamp", "query_id", "example_id", "label", "train_weight", "metric_weight")


def as_records(rows: Rows) -> list[dict[str, Any]]:
    records = []
    for index in range(len(rows)):
        record = {name: getattr(rows, name)[index].item() for name in (*ONE_VALUE, "fault")}
        record["ids"] = rows.ids[index].tolist()
        for name in LISTS:
            values, offsets = rows.multivalent[name]
            record[name] = values[offsets[index] : offsets[index + 1]].tolist()
        records.append(record)
    return records


def as_written(table: pa.Table) -> list[dict[str, Any]]:
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
    for start, end in ((0, 20_000), (20_000, 30_000)):
        rows = hashed_rows(schema, (end - start) // 500, start // 500)
        publish_partition(folder, schema, start, end, rows, shard_rows=15)
    assert [len(manifest.shards) for manifest in read_manifests(folder)] == [3, 2]
    return folder


def with_fifth(schema: Schema = SCHEMA, **values: Any) -> pa.Table:
    """Six rows that are good but for the fifth, in which these columns hold these values."""
    columns: dict[str, Any] = {}
    for name, value in values.items():
        if name in LISTS:
            columns[name] = [[1], [], [2, 3], [], value, [1]]
        elif name in BUCKETS:
            ids = columns.setdefault("ids", np.zeros((6, 2), schema.id_type))
            ids[4, schema.single_valued.index(name)] = value
        else:
            columns[name] = [0, 1, 0, 1, value, 0] if name == "label" else [1, 0.5, 1e9, 0, value, 2]
    if "ids" in columns:
        columns["ids"] = pack_ids(columns["ids"])
    return hashed_rows(schema, 6, **columns)


LABEL, TRAIN, METRIC, OUTSIDE = FAULTS[1:5]


@pytest.mark.parametrize(
    ("column", "bad", "good", "reason"),
    [
        ("label", [2, -1], [1, 0], LABEL),
        ("train_weight", [np.nan, np.inf, -0.5, 1.1e9], [0, 1e9], TRAIN),
        ("metric_weight", [np.nan, np.inf, -1e-30, 1e38], [0, 1e9], METRIC),
        ("a", [10, -1], [9, 0], OUTSIDE),
        ("b", [4], [0, 3], OUTSIDE),
        ("m", [[5, 6], [-1]], [[], [5]], OUTSIDE),
        ("n", [[0, 0, 8]], [[7, 0, 7]], OUTSIDE),
    ],
)
def test_a_faulty_row_is_marked_with_its_reason_and_no_other_row_is(column, bad, good, reason):
    for values, expected in ((bad, reason), (good, "")):
        for value in values:
            rows = rows_of_table(with_fifth(**{column: value}), SCHEMA, 0)
            assert [FAULTS[code] for code in rows.fault] == ["", "", "", "", expected, ""], value


def test_beside_ids_that_grow_those_with_buckets_lie_within_them():
    # Some are 0 or 1 in their low 32 bits.
    for value in (8, -1, 2**32, -(2**32) + 1, 2**63 - 1, -(2**63)):
        for outside in (with_fifth(MIXED, b=value), with_fifth(MIXED, n=[0, value])):
            assert np.flatnonzero(rows_of_table(outside, MIXED, 0).fault).tolist() == [4]
        for inside in (with_fifth(MIXED, a=value), with_fifth(MIXED, m=[value, 0])):
            assert not rows_of_table(inside, MIXED, 0).fault.any()


@BOTH
def test_a_log_is_read_in_its_order_from_any_row_and_within_any_times(tmp_path, schema):
    log = make_log(tmp_path / "log", schema)
    manifests = read_manifests(log)
    expected = as_written(hashed_rows(schema, 40)) + as_written(hashed_rows(schema, 20, 40))
    times = [(begin, end) for begin in (0, 3000, 28_001) for end in (5000, 29_000, 29_001)]
    # Two rows of each millisecond.
    for start, (begin, end) in [*((start, (0, 10**9)) for start in range(61)), *product((0, 7, 33), times)]:
        blocks = list(read_rows(log, schema, manifests, start, (begin, end)))
        rows = [row for row in range(start, 60) if begin <= row // 2 * 1000 < end]
        assert [position for block in blocks for position in block.position.tolist()] == rows
        found = [record for block in blocks for record in as_records(block)]
        assert found == [expected[row] for row in rows]
    # A shard before the position or the times is not read.
    (log / "shards" / manifests[0].shards[0].file).unlink()
    later = manifests[0].shards[1].first_query_time
    assert sum(len(block) for block in read_rows(log, schema, manifests, 0, (later, 10**9))) == 44
    assert sum(len(block) for block in read_rows(log, schema, manifests, 16)) == 44
    with pytest.raises(InputError, match="missing"):
        list(read_rows(log, schema, manifests, 15))
