"""A clock that steps back, within an input and from one to the next: no row is lost, and none is added in silence."""

import random

import pytest

import raw_logs
from ctr.io.errors import InputError
from ctr.pipelines.ingest.run import ingest


def by_hour(rows):
    hours = {}
    for row in rows:
        hours.setdefault(int(row["time"]) // 3600, []).append(row)
    return [hours[hour] for hour in sorted(hours)]


@pytest.mark.slow
def test_hours_that_come_after_later_ones(tmp_path):
    rows = raw_logs.make_rows(240, seed=3)
    mapping = raw_logs.make_mapping(query=None)
    hours = by_hour(rows)
    assert len(hours) >= 6
    whole = raw_logs.write_rows(tmp_path / "in", rows, name="whole")
    ingest(mapping, [whole], tmp_path / "whole")
    # Into one file with a clock that steps back by hours, and into one log after another, the latest first.
    random.Random(1).shuffle(hours)
    steps = raw_logs.write_rows(tmp_path / "steps", [row for hour in hours for row in hour], name="whole")
    ingest(mapping, [steps], tmp_path / "log", block_bytes=2000)
    assert raw_logs.log_bytes(tmp_path / "log") == raw_logs.log_bytes(tmp_path / "whole")
    for number, hour in enumerate(reversed(by_hour(rows))):
        path = raw_logs.write_rows(tmp_path / f"part{number}", hour, name="whole")
        ingest(mapping, [path], tmp_path / "late")
    assert raw_logs.log_bytes(tmp_path / "late") == raw_logs.log_bytes(tmp_path / "whole")


def test_rows_of_an_hour_that_is_published_are_refused(tmp_path):
    hours = by_hour(raw_logs.make_rows(240, seed=4))
    mapping = raw_logs.make_mapping(query=None)
    kept, late = [row for hour in hours for row in hour[:-1]], hours[2][-1:]
    path = raw_logs.write_rows(tmp_path / "in", kept, name="kept")
    ingest(mapping, [path], tmp_path / "log")
    before = raw_logs.read_log(tmp_path / "log")
    with pytest.raises(InputError, match=r"1 of 1 rows fall into 1 published partition: late\.csv \(1\)"):
        ingest(mapping, [raw_logs.write_rows(tmp_path / "in", late, name="late")], tmp_path / "log")
    assert raw_logs.read_log(tmp_path / "log") == before
