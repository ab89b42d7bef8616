"""Whole ingests: against a plain-Python one, in any form, order and block size, and in parts."""

import functools
import random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import raw_logs
from ctr.data.log import list_partitions
from ctr.io.errors import InputError
from ctr.pipelines.spill import PartitionSpill
from ctr.pipelines.tables.ingest import assign_queries
from raw_logs import ingest

FEATURES = {"bucketed": raw_logs.FEATURES, "growing": raw_logs.GROWING_FEATURES}
GROUPED = {"query": raw_logs.QUERIES["session"], "features": raw_logs.GROWING_FEATURES}


def sort_by_time(rows):
    return sorted(rows, key=lambda row: (int(row["time"]), int(row["id"])))


@pytest.mark.parametrize(
    ("suffix", "query", "features"),
    [
        # Every kind of query, either kind of ids, and every format.
        ("csv", "session", "growing"),
        ("tsv", "column", "growing"),
        ("jsonl", "session", "bucketed"),
        ("parquet", "none", "bucketed"),
    ],
)
def test_the_log_is_that_of_a_plain_ingestion(tmp_path, suffix, query, features):
    rows = raw_logs.make_rows(150)
    path = raw_logs.write_rows(tmp_path / "in", rows, suffix)
    changes = {"query": raw_logs.QUERIES[query], "features": FEATURES[features]}
    mapping = raw_logs.make_mapping(input={"type": suffix}, **changes)
    content, progress = path.read_bytes(), []
    result = ingest(mapping, [path], tmp_path / "log", progress=progress.append, block_bytes=4000)
    expected = raw_logs.reference([(path.name, 0, row) for row in rows], mapping)
    assert raw_logs.read_log(tmp_path / "log") == expected
    assert (result.rows, result.examples, result.rejected, sum(progress)) == (150, 150, 0, 150)
    assert result.queries == len({(e["query_time"], e["query_id"]) for e in expected})
    assert result.clicks == sum(e["label"] for e in expected)
    times = [e["query_time"] for e in expected]
    assert (result.first_time_us, result.last_time_us) == (times[0], times[-1])
    assert result.partitions == list_partitions(tmp_path / "log")
    hours = sorted({time // raw_logs.HOUR_US for time in times})
    assert [start for start, _ in result.partitions] == [hour * raw_logs.HOUR_US for hour in hours]
    assert result.rejects_file is None
    # Inputs stay as they are.
    assert path.read_bytes() == content and len(list(path.parent.iterdir())) == 2


def test_the_log_depends_neither_on_the_format_nor_on_the_order_nor_on_blocks_nor_on_spills(
    tmp_path, monkeypatch
):
    rows = sort_by_time(raw_logs.make_rows(200, seed=3))
    logs = []
    for number, suffix in enumerate(["csv.gz", "tsv.zst", "jsonl.gz", "parquet"]):
        path = raw_logs.write_rows(tmp_path / f"in{number}", rows, suffix)
        mapping = raw_logs.make_mapping(input={"type": suffix.partition(".")[0]}, **GROUPED)
        # Rows wait in memory, some of them, or all on disk.
        spill = functools.partial(PartitionSpill, buffer_bytes=(1 << 20, 3000, 0, 0)[number])
        monkeypatch.setattr("ctr.pipelines.tables.ingest.PartitionSpill", spill)
        ingest(mapping, [path], tmp_path / f"log{number}", block_bytes=1 << 20 if number % 2 else 5000)
        logs.append(raw_logs.log_bytes(tmp_path / f"log{number}"))
        random.Random(number).shuffle(rows)
    assert all(log == logs[0] for log in logs)


def test_rows_without_an_id_get_a_hash_of_name_row_and_time(tmp_path):
    rows = raw_logs.make_rows(90, seed=5)
    parts = {"part-1": rows[:30], "part-2": rows[30:60], "part-10": rows[60:]}
    for name in reversed(parts):
        raw_logs.write_rows(tmp_path / "in", parts[name], name=name)
    form = {"type": "csv", "pattern": "part-*.csv"}
    mapping = raw_logs.make_mapping(input=form, example_id=None, query=None)
    ingest(mapping, [tmp_path / "in"], tmp_path / "log")
    # The first row of a file with a header is number 2.
    numbered = [(f"{name}.csv", 2 + n, row) for name, part in parts.items() for n, row in enumerate(part)]
    assert raw_logs.read_log(tmp_path / "log") == raw_logs.reference(numbered, mapping)


def test_row_order_counts_the_lines_of_all_files(tmp_path):
    rows = raw_logs.make_rows(25, seed=6)
    rows[3]["rating"] = "bad"
    parts = {"a": rows[:10], "b": rows[10:]}
    paths = [raw_logs.write_rows(tmp_path / "in", part, "tsv", name=name) for name, part in parts.items()]
    time = {"row_order": {"start": "2020-01-01T00:00:00Z", "step_us": 7}}
    mapping = raw_logs.make_mapping(input={"type": "tsv"}, time=time, query=None)
    result = ingest(mapping, paths, tmp_path / "log", max_reject_share=0.2, block_bytes=500)
    assert result.rejected == 1
    start = 1_577_836_800_000_000
    # Lines 2 to 11 of a (one of them bad), then 2 to 16 of b; each file's header takes its place.
    lines = [line for line in (*range(1, 11), *range(12, 27)) if line != 4]
    examples = raw_logs.read_log(tmp_path / "log")
    assert [e["timestamp"] for e in examples] == [start + 7 * line for line in lines]
    assert [e["example_id"] for e in examples] == [int(row["id"]) for row in rows if row["rating"] != "bad"]


EVENTS = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 60)), max_size=40)


@given(EVENTS, st.one_of(st.none(), st.integers(1, 20)), st.randoms(use_true_random=False))
@example([(0, 0), (0, 5), (0, 11)], 5, random.Random(0))  # a pause of just the gap, and of one more
def test_queries_are_those_of_a_plain_cut_in_any_order(events, gap, source):
    for _ in range(2):
        groups, times = np.array(events, np.int64).reshape(-1, 2).T
        found = zip(*(part.tolist() for part in assign_queries(groups, times, gap)), strict=True)
        assert list(found) == raw_logs.plain_sessions(events, gap)
        source.shuffle(events)


def test_a_second_ingest_adds_earlier_partitions_and_keeps_the_rejects_of_the_first(tmp_path):
    rows = sort_by_time(raw_logs.make_rows(200, seed=7))
    cut = next(p for p, row in enumerate(rows) if int(row["time"]) >= 1_600_005_600)
    rows[0]["rating"] = rows[cut]["rating"] = "x"
    parts = {"a": rows[:cut], "b": rows[cut:]}
    early, late = (raw_logs.write_rows(tmp_path / "in", part, name=name) for name, part in parts.items())
    for log, commands in {"log": [[late], [early]], "whole": [[early, late]]}.items():
        for files in commands:
            ingest(raw_logs.make_mapping(query=None), files, tmp_path / log, max_reject_share=0.1)
        rejected = [reject["file"] for reject in raw_logs.read_rejects(tmp_path / log)]
        assert sorted(rejected) == ["a.csv", "b.csv"]
    assert raw_logs.read_log(tmp_path / "log") == raw_logs.read_log(tmp_path / "whole")


def test_shards_have_the_rows_that_the_mapping_says(tmp_path):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(200, seed=11))
    ingest(raw_logs.make_mapping(query=None, partition="1d", shard_rows=50), [path], tmp_path / "log")
    assert len(list((tmp_path / "log" / "shards").iterdir())) == 4


def test_an_input_without_a_good_row_is_an_error_and_leaves_the_folder_usable(tmp_path):
    log, other = tmp_path / "log", raw_logs.make_mapping(features=raw_logs.FEATURES[:2])
    empty = raw_logs.write_rows(tmp_path / "in", [])
    with pytest.raises(InputError, match=r"nothing was added: no row in rows\.csv"):
        ingest(other, [empty], log)
    assert raw_logs.log_bytes(log) == {}
    rows = raw_logs.make_rows(20)
    bad = raw_logs.write_rows(tmp_path / "in", [{**row, "rating": "bad"} for row in rows])
    for share, message in (
        (0.01, "20 of 20 rows rejected"),
        (1, r"all 20 rows of rows\.csv were rejected, most often label: not a label"),
    ):
        with pytest.raises(InputError, match=message):
            ingest(other, [bad], log, max_reject_share=share)
        assert len(raw_logs.read_rejects(log)) == 20
    ingest(raw_logs.make_mapping(), [raw_logs.write_rows(tmp_path / "in", rows)], log)
    assert len(raw_logs.read_log(log)) == 20


def test_folders_of_other_things_and_impossible_shares_are_refused(tmp_path):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(5))
    with pytest.raises(InputError, match="neither empty nor an example log"):
        ingest(raw_logs.make_mapping(), [path], path.parent)
    for share in (-0.1, 1.5, float("nan")):
        with pytest.raises(InputError, match="max-reject-share"):
            ingest(raw_logs.make_mapping(), [path], tmp_path / "log", max_reject_share=share)


def test_a_lost_row_ends_the_run(tmp_path, monkeypatch):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(50))
    monkeypatch.setattr(PartitionSpill, "append", lambda self, table: None)
    lost = "50 rows were read and 0 were kept unpublished before, but 0 published"
    with pytest.raises(RuntimeError, match=lost):
        ingest(raw_logs.make_mapping(), [path], tmp_path / "log")
