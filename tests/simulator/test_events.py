"""The raw events: the traffic of the log and nothing else, late, out of order and repeated as the settings say."""

import json
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from ctr.cli import main
from ctr.config import parse_model
from ctr.data.ids.tables import transform_table
from ctr.data.log import read_manifests
from ctr.data.shards import read_shard, unpack_ids
from ctr.io.errors import InputError
from ctr.simulator.config import SimulatorConfig
from ctr.simulator.features import SCHEMA
from ctr.simulator.simulate import simulate
from log_files import digests

SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
EXAMPLES = 24_000
WORLD: dict[str, Any] = {
    "examples": EXAMPLES,
    "queries_per_day": 1_500,
    "users": 300,
    "ads": 100,
    "advertisers": 20,
    "words": 100,
    "topics": 5,
    "base_ctr": 0.2,
    "events": {"duplicate_share": 0.05, "straggler_share": 0.02},
}


def settings(**changes: Any) -> SimulatorConfig:
    return parse_model(SimulatorConfig, {**WORLD, **changes}, "test")


def small(**events: Any) -> SimulatorConfig:
    return settings(examples=2_000, queries_per_day=200, events=events)


def events_of(folder: Path, kind: str) -> pa.Table:
    """In the order of the files' names, and of the rows in them."""
    return pa.concat_tables([pq.read_table(path) for path in sorted((folder / kind).iterdir())])


def log_of(folder: Path) -> pa.Table:
    shards = [entry for manifest in read_manifests(folder) for entry in manifest.shards]
    return pa.concat_tables([read_shard(folder, entry, SCHEMA) for entry in shards])


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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LOG and EVENTS of one simulation."""
    folder = tmp_path_factory.mktemp("simulated")
    counts = simulate(settings(), folder / "log", events=folder / "events")
    assert counts["examples"] == EXAMPLES
    for kind in ("impressions", "clicks"):
        assert counts[f"delivered_{kind}"] == len(events_of(folder / "events", kind))
    files = [path for path in (folder / "events").rglob("*") if path.is_file()]
    assert counts["event_files"] == len(files) - 1  # events.yaml
    return folder


@pytest.fixture(scope="module")
def impressions(folder: Path) -> pa.Table:
    return events_of(folder / "events", "impressions")


@pytest.fixture(scope="module")
def clicks(folder: Path) -> pa.Table:
    return events_of(folder / "events", "clicks")


def test_the_log_is_the_same_with_and_without_events(folder: Path, tmp_path: Path) -> None:
    simulate(settings(), tmp_path / "alone")
    assert digests(tmp_path / "alone") == digests(folder / "log")


def test_every_impression_of_the_log_arrives_with_its_raw_values(folder: Path, impressions: pa.Table) -> None:
    log = log_of(folder / "log")
    events = once(impressions)
    order = np.argsort(numbers(log, "example_id"))
    assert numbers(events, "impression_id").tolist() == numbers(log, "example_id")[order].tolist()
    log = log.take(order)
    assert numbers(events, "query_id").tolist() == numbers(log, "query_id").tolist()
    for name in ("timestamp", "query_time"):
        assert numbers(events, "event_time").tolist() == numbers(log, name).tolist()
    matrix, lists = transform_table(SCHEMA, events)
    assert np.array_equal(unpack_ids(log.column("ids").combine_chunks(), SCHEMA), matrix)
    for name, (values, lengths) in lists.items():
        of_log = log.column(name).combine_chunks()
        assert of_log.flatten().to_numpy().tolist() == values.tolist()
        assert np.diff(of_log.offsets.to_numpy()).tolist() == lengths.tolist()


def test_what_is_clicked_in_the_log_has_a_click_and_nothing_else_has(
    folder: Path, impressions: pa.Table, clicks: pa.Table
) -> None:
    log = log_of(folder / "log")
    labels = by_id(log, "example_id", "label")
    assert set(by_id(clicks)) == {number for number, label in labels.items() if label}
    served = by_id(impressions)
    assert all(time > served[number] for number, time in by_id(clicks).items())


@pytest.mark.parametrize("kind", ["impressions", "clicks"])
def test_files_are_cut_and_sorted_by_arrival(folder: Path, kind: str) -> None:
    late = 0
    for path in (folder / "events" / kind).iterdir():
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


@pytest.mark.parametrize("kind", ["impressions", "clicks"])
def test_what_comes_twice_is_a_copy_that_arrives_later(folder: Path, kind: str) -> None:
    copies: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in events_of(folder / "events", kind).to_pylist():
        copies[row["impression_id"]].append(row)
    assert_share(np.array([len(rows) == 2 for rows in copies.values()]), 0.05)
    for rows in copies.values():
        assert len(rows) <= 2
        arrivals = [row.pop("arrival_time") for row in rows]
        assert arrivals == sorted(set(arrivals))
        assert rows[0] == rows[-1]


def test_delays_are_those_of_the_settings(impressions: pa.Table, clicks: pa.Table) -> None:
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


@pytest.mark.slow
def test_the_same_settings_give_the_same_bytes_also_after_an_interruption(tmp_path: Path) -> None:
    def interrupt(position: int) -> None:
        if position > 1_000:
            raise KeyboardInterrupt

    simulate(small(), tmp_path / "log", events=tmp_path / "whole")
    broken = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        simulate(small(), tmp_path / "log", interrupt, events=broken)
    written = digests(broken)
    # What is written is final, however the simulation goes on.
    assert written.items() < digests(tmp_path / "whole").items()
    # As a kill in the middle of a file leaves it.
    (broken / "clicks" / "2026-01-05T07.parquet.partial-0123456789abcdef").write_bytes(b"half")
    simulate(small(), tmp_path / "log", events=broken)
    assert digests(broken) == digests(tmp_path / "whole")
    simulate(small(), tmp_path / "log", events=broken)
    assert digests(broken) == digests(tmp_path / "whole")


@pytest.mark.slow
def test_other_seeds_give_other_delays(tmp_path: Path) -> None:
    delays = []
    for seed in (0, 1):
        config = small().model_copy(update={"seed": seed})
        simulate(config, tmp_path / f"log{seed}", events=tmp_path / f"events{seed}")
        table = events_of(tmp_path / f"events{seed}", "impressions")
        delays.append(set((numbers(table, "arrival_time") - numbers(table, "event_time")).tolist()))
    assert len(delays[0] & delays[1]) < 20


def test_a_shorter_log_has_the_same_events_of_its_impressions(folder: Path, tmp_path: Path) -> None:
    simulate(settings(examples=7_001), tmp_path / "log", events=tmp_path / "events")
    wanted = set(numbers(log_of(tmp_path / "log"), "example_id").tolist())
    assert len(wanted) == 7_001
    for kind in ("impressions", "clicks"):
        short = events_of(tmp_path / "events", kind).to_pylist()
        long = events_of(folder / "events", kind).to_pylist()
        assert short == [row for row in long if row["impression_id"] in wanted]


@pytest.mark.slow
def test_all_formats_hold_the_same_rows(tmp_path: Path) -> None:
    for form in ("parquet", "csv", "jsonl"):
        simulate(small(format=form), tmp_path / "log", events=tmp_path / form)
    names = {
        path.relative_to(tmp_path / "parquet").with_suffix("") for path in files_in(tmp_path / "parquet")
    }
    assert len(names) > 50
    for form in ("csv", "jsonl"):
        assert {
            path.relative_to(tmp_path / form).with_suffix("") for path in files_in(tmp_path / form)
        } == names
    for name in names:
        expected = pq.read_table(tmp_path / "parquet" / f"{name}.parquet")
        assert pa_csv.read_csv(tmp_path / "csv" / f"{name}.csv").equals(expected)
        lines = (tmp_path / "jsonl" / f"{name}.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == expected.to_pylist()


def files_in(events: Path) -> list[Path]:
    return [path for kind in ("impressions", "clicks") for path in (events / kind).iterdir()]


def test_without_delays_events_come_in_the_order_of_the_log(tmp_path: Path) -> None:
    nothing = dict.fromkeys(
        ("delivery_seconds", "straggler_share", "duplicate_share", "click_seconds", "late_click_share"), 0
    )
    simulate(small(**nothing), tmp_path / "log", events=tmp_path / "events")
    log = log_of(tmp_path / "log")
    shown, clicked = (events_of(tmp_path / "events", kind) for kind in ("impressions", "clicks"))
    for table in (shown, clicked):
        assert table.column("arrival_time").equals(table.column("event_time"))
    assert numbers(shown, "impression_id").tolist() == numbers(log, "example_id").tolist()
    labels = numbers(log, "label") > 0
    assert numbers(clicked, "impression_id").tolist() == numbers(log, "example_id")[labels].tolist()
    assert numbers(clicked, "event_time").tolist() == (numbers(log, "timestamp")[labels] + 1).tolist()


def test_everything_can_come_twice_and_never_at_the_same_time(tmp_path: Path) -> None:
    config = small(duplicate_share=1, delivery_seconds=0, straggler_share=0)
    simulate(config, tmp_path / "log", events=tmp_path / "events")
    for kind in ("impressions", "clicks"):
        table = events_of(tmp_path / "events", kind)
        assert set(Counter(numbers(table, "impression_id").tolist()).values()) == {2}
        delay = numbers(table, "arrival_time") - numbers(table, "event_time")
        assert Counter(delay.tolist()) == {0: len(table) // 2, 1: len(table) // 2}


@pytest.mark.slow
def test_a_busy_day_is_written_hour_by_hour(tmp_path: Path) -> None:
    # Its queries are served in several parts, and hours are written before the day is over.
    config = settings(examples=90_000, queries_per_day=60_000)
    counts = simulate(config, tmp_path / "log", events=tmp_path / "events")
    assert counts["partitions"] == 1
    assert counts["queries"] > 17_000
    table = events_of(tmp_path / "events", "impressions")
    assert len(table) == counts["delivered_impressions"]
    assert (np.diff(numbers(table, "arrival_time")) >= 0).all()
    example_ids = np.sort(numbers(log_of(tmp_path / "log"), "example_id"))
    assert np.array_equal(np.unique(numbers(table, "impression_id")), example_ids)


@pytest.mark.slow
def test_lost_impressions_leave_their_clicks(tmp_path: Path) -> None:
    simulate(small(), tmp_path / "log", events=tmp_path / "all")
    simulate(small(lost_share=0.2), tmp_path / "log", events=tmp_path / "lossy")
    assert events_of(tmp_path / "all", "clicks").equals(events_of(tmp_path / "lossy", "clicks"))
    every, kept = (events_of(tmp_path / name, "impressions") for name in ("all", "lossy"))
    ids = numbers(every, "impression_id")
    arrived = np.isin(ids, numbers(kept, "impression_id"))
    assert kept.to_pylist() == every.filter(pa.array(arrived)).to_pylist()
    assert_share(arrived[np.unique(ids, return_index=True)[1]], 0.8)


def test_randomized_traffic_that_the_log_does_not_have_is_not_in_the_events(tmp_path: Path) -> None:
    config = settings(
        examples=2_000, queries_per_day=200, events={}, randomized_share=0.3, randomized_in_log=False
    )
    simulate(config, tmp_path / "log", randomized=tmp_path / "random", events=tmp_path / "events")
    log = log_of(tmp_path / "log")
    shown = once(events_of(tmp_path / "events", "impressions"))
    log = log.take(np.argsort(numbers(log, "example_id")))
    assert shown.column("impression_id").equals(log.column("example_id"))
    assert np.array_equal(
        transform_table(SCHEMA, shown)[0], unpack_ids(log.column("ids").combine_chunks(), SCHEMA)
    )
    clicked = set(numbers(events_of(tmp_path / "events", "clicks"), "impression_id").tolist())
    assert clicked == set(numbers(log, "example_id")[numbers(log, "label") > 0].tolist())


def test_one_example_is_delivered_once(tmp_path: Path) -> None:
    counts = simulate(
        settings(examples=1, events={"duplicate_share": 0}), tmp_path / "log", events=tmp_path / "events"
    )
    assert counts["delivered_impressions"] == 1
    assert counts["delivered_clicks"] == counts["clicks"]
    assert len(events_of(tmp_path / "events", "impressions")) == 1


def test_folders_of_something_else_are_refused(tmp_path: Path) -> None:
    simulate(small(), tmp_path / "log", events=tmp_path / "events")
    before = digests(tmp_path / "events")
    with pytest.raises(
        InputError, match=r"its events\.duplicate_share was 0\.01, is 0\.5; use another output"
    ):
        simulate(small(duplicate_share=0.5), tmp_path / "log", events=tmp_path / "events")
    shorter = settings(examples=1_000, queries_per_day=200, events={})
    with pytest.raises(InputError, match="its examples was 2000, is 1000; use another output directory"):
        simulate(shorter, tmp_path / "log2", events=tmp_path / "events")
    assert digests(tmp_path / "events") == before
    with pytest.raises(InputError, match="neither empty nor events"):
        simulate(small(), tmp_path / "log", events=tmp_path / "log")


def test_the_command_writes_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["simulate", "--examples", "300", "--out", str(tmp_path / "log"), "--json"]
    options = ["--events-format", "csv", "--set", "events.duplicate_share=0", "--set", "queries_per_day=100"]
    assert main([*command, *options]) == 1
    assert "--events-format needs --events" in capsys.readouterr().err
    options += ["--events", str(tmp_path / "events")]
    assert main([*command, *options, "--policy", str(tmp_path / "run")]) == 1
    capsys.readouterr()
    assert main([*command, *options]) == 0
    assert json.loads(capsys.readouterr().out)["delivered_impressions"] == 300
    tables = [pa_csv.read_csv(path) for path in (tmp_path / "events" / "impressions").glob("*.csv")]
    assert sum(map(len, tables)) == 300


def test_hours_in_which_nothing_is_due_have_no_file(tmp_path):
    # Few clicks, half of them a day late: at times all that wait are for later.
    content = {"days": 60, "queries_per_day": 10, "base_ctr": 0.05, "users": 50, "ads": 50, "words": 100}
    events = {"late_click_share": 0.5, "late_click_seconds": 90_000}
    config = parse_model(SimulatorConfig, {**content, "advertisers": 10, "events": events}, "test")
    result = simulate(config, tmp_path / "log", events=tmp_path / "events")
    assert result["delivered_clicks"] > 0 and (tmp_path / "events" / "clicks").is_dir()
