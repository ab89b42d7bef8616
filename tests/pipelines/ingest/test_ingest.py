"""Whole ingests: against a plain-Python one, in any order and block size, again and after a kill."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import raw_logs
from ctr.data.log import list_partitions
from ctr.data.mapping import Mapping
from ctr.io.errors import InputError
from ctr.pipelines.ingest import examples as examples_module
from ctr.pipelines.ingest import partitions as partitions_module
from ctr.pipelines.ingest import state as state_module
from ctr.pipelines.ingest.run import ingest
from ctr.pipelines.spill import PartitionSpill

QUERIES = {
    "none": None,
    "column": {"column": "user"},
    "session": {"session": {"by": "user", "gap": "1800s"}},
}
FEATURES = {"bucketed": raw_logs.FEATURES, "growing": raw_logs.GROWING_FEATURES}


def sort_by_time(rows):
    return sorted(rows, key=lambda row: (int(row["time"]), int(row["id"])))


@pytest.mark.slow(first=8)
@pytest.mark.parametrize("features", ["bucketed", "growing"])
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_the_log_is_that_of_a_plain_ingestion(tmp_path, suffix, query, features):
    rows = raw_logs.make_rows(150)
    path = raw_logs.write_rows(tmp_path / "in", rows, suffix)
    mapping = raw_logs.make_mapping(input={"type": suffix}, query=QUERIES[query], features=FEATURES[features])
    progress = []
    result = ingest(mapping, [path], tmp_path / "log", progress=progress.append, block_bytes=4000)
    expected = raw_logs.reference([(path.name, 0, row) for row in rows], mapping)
    assert raw_logs.read_log(tmp_path / "log") == expected
    assert (result.rows, result.examples, result.rejected, sum(progress)) == (150, 150, 0, 150)
    assert result.queries == len({(e["query_time"], e["query_id"]) for e in expected})
    assert result.clicks == sum(e["label"] for e in expected)
    assert (result.first_time_us, result.last_time_us) == (
        expected[0]["query_time"],
        expected[-1]["query_time"],
    )
    assert result.partitions == list_partitions(tmp_path / "log")
    hours = {e["query_time"] // raw_logs.HOUR_US for e in expected}
    assert [start for start, _ in result.partitions] == [hour * raw_logs.HOUR_US for hour in sorted(hours)]
    assert result.rejects_file is None


@pytest.mark.parametrize("suffix", ["csv.gz", "tsv.zst", "jsonl.gz"])
def test_compressed_files_give_the_same_log(tmp_path, suffix):
    rows = raw_logs.make_rows(60)
    kind = suffix.partition(".")[0]
    logs = []
    for number, form in enumerate((kind, suffix)):
        path = raw_logs.write_rows(tmp_path / f"in{number}", rows, form)
        ingest(raw_logs.make_mapping(input={"type": kind}), [path], tmp_path / f"log{number}")
        logs.append(raw_logs.log_bytes(tmp_path / f"log{number}"))
    assert logs[0] == logs[1]


@pytest.mark.parametrize("block_bytes", [1 << 10, 1 << 20])
@pytest.mark.parametrize(("suffix", "separator"), [("csv", ","), ("tsv", "\t")])
def test_categories_that_are_read_as_dictionaries_give_the_same_log(
    tmp_path, monkeypatch, suffix, separator, block_bytes
):
    rows = raw_logs.make_rows(200, seed=6)
    # Bytes that are no UTF-8 in a category, a line with too many fields, and an empty value.
    assert "color" in raw_logs.make_mapping().value_sources
    rows[40]["color"], rows[41]["color"], rows[120]["color"] = "\udcff", "", "\udcc3"
    rows[77]["id"] = f"{rows[77]['id']}{separator}"
    lines = [
        separator.join("" if row[name] is None else str(row[name]) for name in raw_logs.COLUMNS)
        for row in rows
    ]
    path = tmp_path / "in" / f"rows.{suffix}"
    path.parent.mkdir()
    path.write_text("\n".join([separator.join(raw_logs.COLUMNS), *lines]), errors="surrogateescape")
    raw_logs.write_shops(path.parent)
    found = []
    for number, encoded in enumerate((True, False)):
        with monkeypatch.context() as patch:
            if not encoded:
                patch.setattr(Mapping, "value_sources", ())
            mapping = raw_logs.make_mapping(input={"type": suffix}, keep_values="all")
            log = tmp_path / f"log{number}"
            result = ingest(mapping, [path], log, block_bytes=block_bytes, max_reject_share=0.5)
        content = {file.relative_to(log): file.read_bytes() for file in log.rglob("*") if file.is_file()}
        found.append((content, result.rejected, result.reject_reasons))
    assert found[0] == found[1]
    assert found[0][1] == 3


@pytest.mark.parametrize("query", QUERIES)
def test_the_order_of_the_input_does_not_matter(tmp_path, query):
    rows = sort_by_time(raw_logs.make_rows(200, seed=3))
    mapping = raw_logs.make_mapping(query=QUERIES[query])
    logs = []
    for number in range(3):
        path = raw_logs.write_rows(tmp_path / f"in{number}", rows)
        ingest(mapping, [path], tmp_path / f"log{number}", block_bytes=5000)
        logs.append(raw_logs.log_bytes(tmp_path / f"log{number}"))
        random.Random(number).shuffle(rows)
    assert logs[0] == logs[1] == logs[2]


@pytest.mark.slow(first=3)
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_the_size_of_blocks_does_not_matter(tmp_path, suffix, query):
    rows = raw_logs.make_rows(120, seed=4)
    rows[17]["rating"] = rows[90]["weight"] = "-1"
    path = raw_logs.write_rows(tmp_path / "in", rows, suffix)
    if suffix == "jsonl":
        path.write_text(path.read_text().replace("}\n", "}\n\n", 40) + '{"id": 5,\n')
    else:
        path.write_text(path.read_text() + "a,b\n")
    mapping = raw_logs.make_mapping(input={"type": suffix}, query=QUERIES[query], example_id=None)
    logs = []
    for number, block_bytes in enumerate((600, 3001, 1 << 20)):
        log = tmp_path / f"log{number}"
        result = ingest(mapping, [path], log, block_bytes=block_bytes, max_reject_share=0.5)
        logs.append(raw_logs.log_bytes(log))
        assert (result.examples, result.rejected) == (119, 2)
    assert logs[0] == logs[1] == logs[2]


def test_rows_without_an_id_get_a_hash_of_name_row_and_time(tmp_path):
    folder = tmp_path / "in"
    rows = raw_logs.make_rows(90, seed=5)
    for name, part in (("part-10", rows[60:]), ("part-2", rows[30:60]), ("part-1", rows[:30])):
        raw_logs.write_rows(folder, part, name=name)
    mapping = raw_logs.make_mapping(
        input={"type": "csv", "pattern": "part-*.csv"}, example_id=None, query=None
    )
    ingest(mapping, [folder], tmp_path / "log")
    # The first row of a file with a header is number 2.
    numbered = [(f"part-{n}.csv", 2 + place, row) for n, part in ((1, rows[:30]), (2, rows[30:60]), (10, rows[60:]))
                for place, row in enumerate(part)]  # fmt: skip
    assert raw_logs.read_log(tmp_path / "log") == raw_logs.reference(numbered, mapping)


def test_row_order_counts_the_lines_of_all_files(tmp_path):
    rows = raw_logs.make_rows(25, seed=6)
    rows[3]["rating"] = "bad"
    paths = [raw_logs.write_rows(tmp_path / "in", part, "tsv", name=name)
             for name, part in (("a", rows[:10]), ("b", rows[10:]))]  # fmt: skip
    time_from_order = {"row_order": {"start": "2020-01-01T00:00:00Z", "step_us": 7}}
    mapping = raw_logs.make_mapping(input={"type": "tsv"}, time=time_from_order, query=None, derive={
        "hour": {"from": "time", "part": "hour"}, "zone": {"from": "code", "prefix": 2}})  # fmt: skip
    result = ingest(mapping, paths, tmp_path / "log", max_reject_share=0.2, block_bytes=500)
    assert result.rejected == 1
    start = 1_577_836_800_000_000
    # Lines 2 to 11 of a (one of them bad), then 2 to 16 of b; each file's header takes its place.
    lines = [line for line in (*range(1, 11), *range(12, 27)) if line != 4]
    examples = raw_logs.read_log(tmp_path / "log")
    assert [e["timestamp"] for e in examples] == [start + 7 * line for line in lines]
    assert [e["example_id"] for e in examples] == [int(row["id"]) for row in rows if row["rating"] != "bad"]


def test_a_second_ingest_adds_other_partitions_and_keeps_its_own_rejects(tmp_path):
    rows = sort_by_time(raw_logs.make_rows(200, seed=7))
    cut = next(p for p, row in enumerate(rows) if int(row["time"]) >= 1_600_005_600)
    early, late = rows[:cut], rows[cut:]
    early[0]["rating"] = late[0]["rating"] = "x"
    mapping = raw_logs.make_mapping(query=None)
    paths = [
        raw_logs.write_rows(tmp_path / "in", part, name=name) for name, part in (("a", early), ("b", late))
    ]
    for path in paths:
        ingest(mapping, [path], tmp_path / "log", max_reject_share=0.1)
    ingest(mapping, paths, tmp_path / "whole", max_reject_share=0.1)
    assert raw_logs.read_log(tmp_path / "log") == raw_logs.read_log(tmp_path / "whole")
    assert [reject["file"] for reject in raw_logs.read_rejects(tmp_path / "log")] in (
        ["a.csv", "b.csv"],
        ["b.csv", "a.csv"],
    )


def test_ingesting_again_changes_nothing(tmp_path):
    rows = raw_logs.make_rows(100, seed=8)
    rows[5]["rating"] = ""
    path = raw_logs.write_rows(tmp_path / "in", rows)
    mapping = raw_logs.make_mapping()
    results = []
    logs = []
    for _ in range(2):
        results.append(ingest(mapping, [path], tmp_path / "log", max_reject_share=0.02))
        logs.append(raw_logs.log_bytes(tmp_path / "log"))
    assert logs[0] == logs[1]
    assert results[0].partitions == results[1].partitions
    # A later run without rejects does not leave the old ones standing.
    rows[5]["rating"] = "1"
    raw_logs.write_rows(tmp_path / "in", rows)
    with pytest.raises(InputError, match=r"fall into 1 published partition.*rows.csv was added before"):
        ingest(mapping, [path], tmp_path / "log")
    assert raw_logs.read_rejects(tmp_path / "log") == []


@pytest.mark.slow(first=2)
@pytest.mark.parametrize("stage", ["transform", "spill", "load", "stage", "publish"])
def test_a_failure_anywhere_is_made_good_by_the_next_run(tmp_path, monkeypatch, stage):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(200, seed=9))
    mapping = raw_logs.make_mapping()
    ingest(mapping, [path], tmp_path / "whole", block_bytes=5000)
    target, name = {
        "transform": (examples_module, "make_examples"),
        "spill": (PartitionSpill, "append"),
        "load": (PartitionSpill, "pop"),
        "stage": (partitions_module, "stage_partition"),
        "publish": (state_module, "publish_manifest"),
    }[stage]
    original = getattr(target, name)
    calls = []

    def fail_third(*arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            raise OSError("no space left on device")
        return original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(target, name, fail_third)
        with pytest.raises(OSError, match="no space"):
            ingest(mapping, [path], tmp_path / "log", block_bytes=5000)
    assert not list((tmp_path / "log").glob(".spill-*"))
    ingest(mapping, [path], tmp_path / "log", block_bytes=5000)
    assert raw_logs.log_bytes(tmp_path / "log") == raw_logs.log_bytes(tmp_path / "whole")


KILLED = """
import sys, time
from pathlib import Path
from ctr.data.mapping import load_mapping
from ctr.pipelines.ingest import state as module
from ctr.pipelines.ingest.run import ingest
original = module.publish_manifest
def slow(*arguments):
    original(*arguments)
    print("published", flush=True)
    time.sleep(0.5)
module.publish_manifest = slow
ingest(load_mapping(Path(sys.argv[1])), [Path(sys.argv[2])], Path(sys.argv[3]))
"""


@pytest.mark.slow
def test_a_killed_run_is_simply_run_again(root, tmp_path):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(200, seed=10))
    mapping = raw_logs.make_mapping()
    (tmp_path / "mapping.yaml").write_text(json.dumps(raw_logs.base_content()))
    ingest(mapping, [path], tmp_path / "whole")
    log = tmp_path / "log"
    command = [sys.executable, "-c", KILLED, tmp_path / "mapping.yaml", path, log]
    process = subprocess.Popen([str(part) for part in command], cwd=root, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "published\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert list(log.glob(".spill-*"))
    assert 1 <= len(list_partitions(log)) < len(list_partitions(tmp_path / "whole"))
    ingest(mapping, [path], log)
    assert raw_logs.log_bytes(log) == raw_logs.log_bytes(tmp_path / "whole")


def test_half_written_files_of_a_killed_run_go_and_those_of_others_stay(tmp_path):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(60, seed=12))
    log = tmp_path / "log"
    ingest(raw_logs.make_mapping(), [path], log)
    before = raw_logs.log_bytes(log)
    shard = next((log / "shards").iterdir())
    manifest = next((log / "manifests").iterdir())
    for place in (shard, manifest):
        place.with_name(place.name + ".partial-0123456789abcdef").write_bytes(b"half")
    other = log / "shards" / f"{5:019d}-{6:019d}-0000-00.parquet.partial-0123456789abcdef"
    other.write_bytes(b"half")
    ingest(raw_logs.make_mapping(), [path], log)
    assert raw_logs.log_bytes(log) == {**before, str(other.relative_to(log)): b"half"}


def test_shards_follow_the_mapping(tmp_path):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(200, seed=11))
    ingest(raw_logs.make_mapping(query=None, partition="1d", shard_rows=50), [path], tmp_path / "log")
    assert len(list((tmp_path / "log" / "shards").iterdir())) == 4


def test_a_file_with_only_a_header_is_an_error_and_makes_no_log(tmp_path):
    path = raw_logs.write_rows(tmp_path / "in", [])
    with pytest.raises(InputError, match=r"nothing was added: no row in rows\.csv"):
        ingest(raw_logs.make_mapping(), [path], tmp_path / "log")
    assert raw_logs.log_bytes(tmp_path / "log") == {}


def test_an_input_of_which_every_row_is_rejected_is_an_error(tmp_path):
    rows = raw_logs.make_rows(20)
    for row in rows:
        row["rating"] = "bad"
    path = raw_logs.write_rows(tmp_path / "in", rows)
    with pytest.raises(
        InputError, match=r"all 20 rows of rows\.csv were rejected, most often label: not a label"
    ):
        ingest(raw_logs.make_mapping(), [path], tmp_path / "log", max_reject_share=1)
    assert len(raw_logs.read_rejects(tmp_path / "log")) == 20


def test_a_log_of_other_features_is_refused_before_reading(tmp_path):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(20))
    ingest(raw_logs.make_mapping(), [path], tmp_path / "log")
    with pytest.raises(InputError, match="written under schema"):
        ingest(raw_logs.make_mapping(features=raw_logs.FEATURES[:2]), [path], tmp_path / "log")


def test_a_failed_first_try_leaves_the_folder_usable_with_other_features(tmp_path):
    rows = raw_logs.make_rows(20)
    for row in rows:
        row["rating"] = "bad"
    path = raw_logs.write_rows(tmp_path / "in", rows)
    with pytest.raises(InputError, match="20 of 20 rows rejected"):
        ingest(raw_logs.make_mapping(features=raw_logs.FEATURES[:2]), [path], tmp_path / "log")
    assert len(raw_logs.read_rejects(tmp_path / "log")) == 20
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(20))
    ingest(raw_logs.make_mapping(), [path], tmp_path / "log")
    assert len(raw_logs.read_log(tmp_path / "log")) == 20


def test_an_existing_folder_of_something_else_is_refused(tmp_path):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(5))
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "thesis.txt").write_text("x")
    with pytest.raises(InputError, match="neither empty nor an example log"):
        ingest(raw_logs.make_mapping(), [path], tmp_path / "log")


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_outside_0_to_1_is_refused(tmp_path, share):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(5))
    with pytest.raises(InputError, match="max-reject-share"):
        ingest(raw_logs.make_mapping(), [path], tmp_path / "log", max_reject_share=share)


def test_a_lost_row_ends_the_run(tmp_path, monkeypatch):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(50))
    monkeypatch.setattr(PartitionSpill, "append", lambda self, table: None)
    with pytest.raises(
        RuntimeError, match="50 rows were read and 0 were kept unpublished before, but 0 published"
    ):
        ingest(raw_logs.make_mapping(), [path], tmp_path / "log")


def test_inputs_are_unchanged(tmp_path):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(5))
    before = path.read_bytes()
    ingest(raw_logs.make_mapping(), [path], tmp_path / "log")
    assert path.read_bytes() == before
    assert sorted(Path(p).name for p in (tmp_path / "in").iterdir()) == ["rows.csv", "shops.csv"]
