"""Rows come back by partition, in the order of arrival; nothing is left behind."""

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctr.pipelines.spill import PartitionSpill, spill_folder

SCHEMA = pa.schema([pa.field("query_time", pa.int64()), pa.field("place", pa.int64())])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    chunks=st.lists(st.lists(st.integers(0, 99), max_size=12), max_size=8),
    partition=st.integers(1, 40),
    buffer_bytes=st.sampled_from([0, 200, 1 << 20]),
)
def test_rows_come_back_by_partition_in_order_of_arrival(tmp_path, chunks, partition, buffer_bytes):
    with spill_folder(tmp_path) as folder:
        spill = PartitionSpill(folder, partition, buffer_bytes)
        expected = {}
        count = 0
        for chunk in chunks:
            places = list(range(count, count + len(chunk)))
            count += len(chunk)
            spill.append(
                pa.table({"query_time": pa.array(chunk, pa.int64()), "place": places}, schema=SCHEMA)
            )
            for time, place in zip(chunk, places, strict=True):
                expected.setdefault(time // partition * partition, []).append((time, place))
        assert spill.starts() == sorted(expected)
        assert buffer_bytes or len(list(folder.iterdir())) == len(expected)
        for start, rows in expected.items():
            table = spill.pop(start)
            assert [(row["query_time"], row["place"]) for row in table.to_pylist()] == rows
        assert list(folder.iterdir()) == []


def test_a_folder_in_use_stays_and_what_a_dead_process_left_does_not(tmp_path):
    dead = tmp_path / ".spill-dead"
    dead.mkdir()
    (dead / "0").write_bytes(b"rows")
    with spill_folder(tmp_path) as first:
        assert [*tmp_path.iterdir()] == [first]
        with spill_folder(tmp_path) as second:
            assert {*tmp_path.iterdir()} == {first, second}
        assert [*tmp_path.iterdir()] == [first]
    assert [*tmp_path.iterdir()] == []
