"""Labels from events of their own: against a loop over all pairs, at once or day by day."""

import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr.cli import main
from ctr.config import parse_model
from ctr.data.label_mapping import LabelMapping
from ctr.data.labels import SIDECAR
from ctr.data.log import read_manifests
from ctr.data.mapping import Mapping
from ctr.data.sidecar import read_sidecar_partition
from ctr.io.errors import InputError
from ctr.pipelines.ingest.run import ingest
from ctr.pipelines.labels import label_log
from raw_logs import log_bytes

HOUR_US, DAY_US = 3_600_000_000, 86_400_000_000
FIRST_US = 1_600_041_600_000_000
ROWS, DAYS = 300, 4
END_US = FIRST_US + (DAYS + 9) * DAY_US


def label_mapping(**changes):
    own = {"time": {"column": "at", "unit": "us"}, "example_id": "row", **changes}
    forms = {"sale": ("parquet", "2d"), "call": ("jsonl", "5h")}
    labels = {
        name: {"input": {"type": form}, "window": window, **own} for name, (form, window) in forms.items()
    }
    return parse_model(LabelMapping, {"labels": labels}, "test")


def make_log(folder):
    """Rows over some days; returns their times by id."""
    source = random.Random(3)
    times = {f"r{n}": FIRST_US + source.randrange(DAYS * DAY_US) for n in range(ROWS)}
    lines = ["id,time,user,clicked", *(f"{name},{time},{time % 7},0" for name, time in times.items())]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    content = {
        "input": {"type": "csv"},
        "time": {"column": "time", "unit": "us"},
        "example_id": "id",
        "label": "clicked",
        "partition": "6h",
        "features": [{"name": "user", "kind": "category", "source": "user", "buckets": 20}],
    }
    ingest(parse_model(Mapping, content, "test"), [folder / "rows.csv"], folder / "log", now_us=END_US)
    return times


def write_events(folder, times):
    """Sales in two Parquet files, calls as JSON lines: some twice, before their row, too late, of no row."""
    source, found = random.Random(4), {}
    for name, window in (("sale", 2 * DAY_US), ("call", 5 * HOUR_US)):
        drawn = [(row, time + source.randrange(-window // 4, window * 5 // 4)) for row, time in times.items()]
        drawn += [(row, at + source.randrange(HOUR_US)) for row, at in drawn[::5]] + [("nobody", FIRST_US)]
        # One at the row's own time, one at the end of the window, and one a microsecond later.
        rows = list(times)[:3]
        drawn = [pair for pair in drawn if pair[0] not in rows]
        drawn += zip(
            rows, (times[rows[0]], times[rows[1]] + window, times[rows[2]] + window + 1), strict=True
        )
        source.shuffle(drawn)
        found[name] = drawn
        (folder / name).mkdir(parents=True)
    for part in range(2):
        row, at = zip(*found["sale"][part::2], strict=True)
        pq.write_table(pa.table({"row": row, "at": at}), folder / f"sale/{part}.parquet")
    lines = [json.dumps({"row": row, "at": at}) for row, at in found["call"]]
    (folder / "call/a.jsonl").write_text("\n".join(lines) + "\n")
    return found


def read_labels(log):
    tables = [read_sidecar_partition(log, SIDECAR, manifest) for manifest in read_manifests(log)]
    return pa.concat_tables(tables)


def test_the_first_event_within_the_window_counts(tmp_path):
    times = make_log(tmp_path)
    events = write_events(tmp_path / "events", times)
    result = label_log(tmp_path / "log", [tmp_path / "events"], label_mapping(), END_US)
    table = read_labels(tmp_path / "log")
    assert (result.rows, result.labels["sale"].events) == (ROWS, len(events["sale"]))
    for name, window in (("sale", 2 * DAY_US), ("call", 5 * HOUR_US)):
        expected = []
        for row, time in times.items():
            later = [at - time for one, at in events[name] if one == row and 0 <= at - time <= window]
            if later:
                expected.append(min(later) / 1e6)
        assert sorted(table.column(f"after:{name}").drop_null().to_pylist()) == sorted(expected)
        assert {0.0, window / 1e6} <= set(expected)
        assert result.labels[name].rows == len(expected) > 100
        assert set(table.column(f"known:{name}").to_pylist()) == {window / 1e6}


def test_day_by_day_each_partition_is_labeled_once_with_the_same_bytes(tmp_path):
    times = make_log(tmp_path)
    write_events(tmp_path / "events", times)
    log, whole = tmp_path / "log", tmp_path / "whole"
    label_log(log, [tmp_path / "events"], label_mapping(), END_US)
    at_once = log_bytes(log)
    log.rename(whole)
    make_log(tmp_path)
    rows = []
    for day in (0, 3, 4, 5, 13):
        until = FIRST_US + day * DAY_US
        rows.append(label_log(log, [tmp_path / "events"], label_mapping(), until).rows)
    assert rows[0] == 0 and rows[-1] > 0 and sum(rows) == ROWS
    assert log_bytes(log) == at_once


def test_events_that_cannot_be_read_are_counted_and_stop_it_if_they_are_many(tmp_path):
    times = make_log(tmp_path)
    write_events(tmp_path / "events", times)
    with (tmp_path / "events/call/a.jsonl").open("a") as file:
        file.write('{"row": "r1", "at": "soon"}\n{"at": 5}\n')
    given = tmp_path / "log", [tmp_path / "events"], label_mapping(), END_US
    with pytest.raises(InputError, match=r"2 of \d+ rows rejected.*call/a.jsonl row \d+"):
        label_log(*given, max_reject_share=0.001)
    assert not (tmp_path / "log/sidecars").exists()
    assert label_log(*given, max_reject_share=0.1).labels["call"].rejected == 2
    lines = (tmp_path / "log/label_rejects/call.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["time", "example_id"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"labels": {}}, "labels"),
        ({"labels": {"sale": {"input": {"type": "csv"}, "example_id": "row", "window": "1d"}}}, "time"),
        ({"labels": {"1": {}}}, "labels.1"),
    ],
)
def test_mappings_that_are_refused(content, message):
    with pytest.raises(InputError, match=message):
        parse_model(LabelMapping, content, "test")


def test_the_command_with_one_file_and_what_it_refuses(tmp_path, capsys):
    times = make_log(tmp_path)
    write_events(tmp_path / "events", times)
    both = tmp_path / "both.yaml"
    both.write_text(json.dumps(label_mapping().model_dump(mode="json")))
    one = tmp_path / "one.yaml"
    content = label_mapping().model_dump(mode="json")
    del content["labels"]["sale"]
    one.write_text(json.dumps(content))
    words = ["label", str(tmp_path / "log"), str(tmp_path / "events/call/a.jsonl"), "--until", "2020-12-01"]
    assert main([*words, "--mapping", str(both)]) == 1
    assert "with several labels, folders are required" in capsys.readouterr().err
    assert main([*words[:-1], "soon", "--mapping", str(one)]) == 1
    assert "--until" in capsys.readouterr().err
    assert main([*words, "--mapping", str(one), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["rows"] == ROWS and result["labels"]["call"]["rows"] > 100
    known = read_labels(tmp_path / "log").column("known:call").to_numpy()
    assert np.array_equal(known, np.full(ROWS, 5 * 3600.0))
