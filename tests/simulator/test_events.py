"""The raw events: the traffic of the log and nothing else, late, out of order and repeated as the settings say."""

import json
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from ctr.cli import main
from ctr.data.ids.tables import transform_table
from ctr.data.log import read_manifests
from ctr.data.shards import unpack_ids
from ctr.io.errors import InputError
from ctr.simulator import auction
from ctr.simulator.features import SCHEMA
from ctr.simulator.simulate import simulate
from log_files import digests, rows_of

SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
KINDS = ("impressions", "clicks")


def events_of(folder: Path, kind: str) -> pa.Table:
    """In the order of the files' names, and of the rows in them."""
    return pa.concat_tables([pq.read_table(path) for path in sorted((folder / kind).iterdir())])


def log_of(folder: Path) -> pa.Table:
    return pa.concat_tables([rows_of(folder, manifest) for manifest in read_manifests(folder)])


def numbers(table: pa.Table, name: str) -> np.ndarray:
    return table.column(name).to_numpy()


def by_id(table: pa.Table, key: str = "impression_id", value: str = "event_time") -> dict[int, int]:
    return dict(zip(table.column(key).to_pylist(), table.column(value).to_pylist(), strict=True))


def once(table: pa.Table) -> pa.Table:
    """The first delivery of each event, by its id."""
    return table.take(np.unique(numbers(table, "impression_id"), return_index=True)[1])


def assert_share(hits: np.ndarray, share: float) -> None:
    assert abs(hits.mean() - share) < 4 * np.sqrt(share * (1 - share) / len(hits))


@pytest.fixture(scope="module")
def impressions(simulated):
    return events_of(simulated.events, "impressions")


@pytest.fixture(scope="module")
def clicks(simulated):
    return events_of(simulated.events, "clicks")


def test_the_events_are_the_traffic_of_the_log(simulated, impressions, clicks):
    log, events = log_of(simulated.log), once(impressions)
    log = log.take(np.argsort(numbers(log, "example_id")))
    # Every impression of the log arrives with its raw values.
    times = (("timestamp", "event_time"), ("query_time", "event_time"))
    for name, own in (("example_id", "impression_id"), ("query_id", "query_id"), *times):
        assert np.array_equal(numbers(events, own), numbers(log, name))
    matrix, lists = transform_table(SCHEMA, events)
    assert np.array_equal(unpack_ids(log.column("ids").combine_chunks(), SCHEMA), matrix)
    for name, (values, lengths) in lists.items():
        of_log = log.column(name).combine_chunks()
        assert np.array_equal(of_log.flatten().to_numpy(), values)
        assert np.array_equal(np.diff(of_log.offsets.to_numpy()), lengths)
    # What is clicked in the log has a click, and nothing else has.
    clicked = numbers(log, "example_id")[numbers(log, "label") > 0]
    assert np.array_equal(np.unique(numbers(clicks, "impression_id")), np.sort(clicked))
    served = by_id(impressions)
    assert all(time > served[number] for number, time in by_id(clicks).items())
    for kind, table in (("impressions", impressions), ("clicks", clicks)):
        assert simulated.counts[f"delivered_{kind}"] == len(table)
    files = [path for path in simulated.events.rglob("*") if path.is_file()]
    assert simulated.counts["event_files"] == len(files) - 1  # events.yaml


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_cut_and_sorted_by_arrival(simulated, kind):
    late = 0
    for path in (simulated.events / kind).iterdir():
        table = pq.read_table(path)
        hour = datetime.strptime(path.stem, "%Y-%m-%dT%H").replace(tzinfo=UTC)
        begin = int(hour.timestamp()) * SECOND_US
        arrival, event = numbers(table, "arrival_time"), numbers(table, "event_time")
        assert len(arrival)
        assert arrival[0] >= begin
        assert arrival[-1] < begin + HOUR_US
        assert (np.diff(arrival) >= 0).all()
        assert (arrival >= event).all()
        late += (np.diff(event) < 0).sum()
    assert late > 100  # out of order


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_twice_is_a_copy_that_arrives_later(simulated, kind):
    copies: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in events_of(simulated.events, kind).to_pylist():
        copies[row["impression_id"]].append(row)
    assert_share(np.array([len(rows) == 2 for rows in copies.values()]), 0.05)
    for rows in copies.values():
        assert len(rows) <= 2
        arrivals = [row.pop("arrival_time") for row in rows]
        assert arrivals == sorted(set(arrivals))
        assert rows[0] == rows[-1]


def test_delays_are_those_of_the_settings(impressions, clicks):
    for table in map(once, (impressions, clicks)):
        delay = (numbers(table, "arrival_time") - numbers(table, "event_time")) / SECOND_US
        # Of those that take an hour in the mean; exp(-20) of the others.
        assert_share(delay > 200, 0.02 * np.exp(-200 / 3600))
        assert_share(delay > 10, 0.98 * np.exp(-1) + 0.02 * np.exp(-10 / 3600))
    served = by_id(impressions)
    delay = np.array([time - served[number] for number, time in by_id(clicks).items()]) / SECOND_US
    day = 24 * 3600
    for limit in (30, 60, 3600, day):
        assert_share(delay > limit, 0.95 * np.exp(-limit / 60) + 0.05 * np.exp(-limit / (8 * 3600)))
    assert (delay > day).any()


def test_all_formats_hold_the_same_rows(small, tmp_path):
    for form in ("parquet", "csv", "jsonl"):
        simulate(small({"format": form}, examples=100), tmp_path / "log", events=tmp_path / form)
    paths = [path for kind in KINDS for path in (tmp_path / "parquet" / kind).iterdir()]
    assert len(paths) > 10
    for path in paths:
        name, expected = f"{path.parent.name}/{path.stem}", pq.read_table(path)
        assert pa_csv.read_csv(tmp_path / "csv" / f"{name}.csv").equals(expected)
        lines = (tmp_path / "jsonl" / f"{name}.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == expected.to_pylist()
    for form in ("csv", "jsonl"):
        assert len([path for kind in KINDS for path in (tmp_path / form / kind).iterdir()]) == len(paths)


def test_a_busy_day_is_written_hour_by_hour(small, tmp_path, monkeypatch):
    # Its queries are served in several parts, and hours are written before the day is over.
    monkeypatch.setattr(auction, "_CHUNK", 20)
    config = small(examples=400, queries_per_day=300)
    counts = simulate(config, tmp_path / "log", events=tmp_path / "events")
    assert counts["partitions"] == 1
    assert counts["queries"] > 60
    table = events_of(tmp_path / "events", "impressions")
    assert len(table) == counts["delivered_impressions"]
    assert (np.diff(numbers(table, "arrival_time")) >= 0).all()
    example_ids = np.sort(numbers(log_of(tmp_path / "log"), "example_id"))
    assert np.array_equal(np.unique(numbers(table, "impression_id")), example_ids)


def test_lost_impressions_leave_their_clicks(small, tmp_path):
    for name, lost in (("all", 0), ("lossy", 0.2)):
        config = small({"lost_share": lost}, examples=800, queries_per_day=1_000)
        simulate(config, tmp_path / "log", events=tmp_path / name)
    assert events_of(tmp_path / "all", "clicks").equals(events_of(tmp_path / "lossy", "clicks"))
    every, kept = (events_of(tmp_path / name, "impressions") for name in ("all", "lossy"))
    ids = numbers(every, "impression_id")
    arrived = np.isin(ids, numbers(kept, "impression_id"))
    assert kept.to_pylist() == every.filter(pa.array(arrived)).to_pylist()
    assert_share(arrived[np.unique(ids, return_index=True)[1]], 0.8)


def test_folders_of_something_else_are_refused(small, tmp_path):
    # A log of one example has its events.
    counts = simulate(small({"duplicate_share": 0}, examples=1), tmp_path / "log", events=tmp_path / "events")
    assert (counts["delivered_impressions"], counts["delivered_clicks"]) == (1, counts["clicks"])
    before = digests(tmp_path / "events")
    for changes, out, events, message in (
        ({"events": {"duplicate_share": 0.5}}, "log", "events", r"duplicate_share was 0\.0, is 0\.5"),
        ({"examples": 2}, "log2", "events", "examples was 1, is 2.*use another output directory"),
        ({}, "log", "log", "neither empty nor events"),
    ):
        config = small(**{"events": {"duplicate_share": 0}, "examples": 1, **changes})
        with pytest.raises(InputError, match=message):
            simulate(config, tmp_path / out, events=tmp_path / events)
    assert digests(tmp_path / "events") == before


def test_the_command_writes_events(tmp_path, capsys):
    command = ["simulate", "--examples", "300", "--out", str(tmp_path / "log"), "--json"]
    options = ["--events-format", "csv", "--set", "events.duplicate_share=0", "--set", "queries_per_day=100"]
    assert main([*command, *options]) == 1
    assert "--events-format needs --events" in capsys.readouterr().err
    # Half of the clicks come a day late: there are hours in which nothing is due, which have no file.
    options += ["--events", str(tmp_path / "events"), "--set", "events.late_click_share=0.5"]
    assert main([*command, *options, "--set", "events.late_click_seconds=90000"]) == 0
    counts = json.loads(capsys.readouterr().out)
    for kind in KINDS:
        tables = [pa_csv.read_csv(path) for path in (tmp_path / "events" / kind).glob("*.csv")]
        assert counts[f"delivered_{kind}"] == sum(map(len, tables))
        assert min(map(len, tables)) > 0
    assert counts["delivered_impressions"] == 300
