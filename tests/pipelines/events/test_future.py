"""Events of the future, of no known column, and of no impression: which are refused, and what the command says."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import event_files
from ctr.cli import main
from ctr.config import dump_yaml
from ctr.data.log import Manifest, read_manifests
from ctr.pipelines.events.unmatched import unmatched_warnings
from event_files import SECOND_US, click, impression
from raw_logs import read_rejects

DRIVERS = {
    "batch": (),
    "follow": ("--follow", "--drain", "--poll", "0"),
    "stream": ("--stream", "--drain", "--beam-options=--runner=DirectRunner"),
}
YEAR = 365 * 86_400
Ingest = Callable[..., dict[str, Any]]


@pytest.fixture
def ingest(tmp_path, capsys) -> Ingest:
    """Runs the command over a folder, as a driver does it; returns its result."""
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text(dump_yaml(event_files.mapping()))

    def run(events: Path, log: Path, driver: str, *options: str) -> dict[str, Any]:
        given = [str(events), "--mapping", str(mapping), "--out", str(log), *DRIVERS[driver], *options]
        status = main(["ingest", "events", *given, "--json"])
        message = capsys.readouterr()
        result: dict[str, Any] = json.loads(message.out) if not status else {"error": message.err}
        assert status in (0, None) or (status == 1 and len(message.err.splitlines()) <= 2)
        return result

    return run


def moved(events: Sequence[event_files.Event], seconds: int) -> list[event_files.Event]:
    times = ("event_time", "arrival_time", "shown_at")
    return [
        {name: value + seconds * SECOND_US if name in times else value for name, value in event.items()}
        for event in events
    ]


def jsonl(folder: Path, **files: Sequence[event_files.Event]) -> Path:
    """Sets files down; ``clicks_1`` becomes ``clicks/1.jsonl``."""
    named = {f"{name.replace('_', '/')}.jsonl": events for name, events in files.items()}
    encoded = [(name, event_files.encode(events, "jsonl")) for name, events in named.items()]
    return event_files.write_files(folder, encoded)


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_event_of_the_year_2099_among_others_is_refused_and_moves_nothing(driver, ingest, tmp_path):
    drawn = event_files.draw_events(120)
    event_files.write_events(tmp_path / "without", drawn, files=2)
    ingest(tmp_path / "without", tmp_path / "plain", "batch")
    for events in drawn.values():
        # Neither last nor first, and twice in one of three hundred: a maximum, or a mean, would follow it.
        events[5:5] = moved(events[:1], 73 * YEAR)
    event_files.write_events(tmp_path / "with", drawn, files=2)
    ingest(tmp_path / "with", tmp_path / "log", driver, "--max-reject-share", "0.05")
    assert event_files.published(tmp_path / "log") == event_files.published(tmp_path / "plain")
    rejects = read_rejects(tmp_path / "log")
    assert {(message["file"], message["row"], message["key"], message["reason"]) for message in rejects} == {
        (f"{kind}/0.jsonl", 6, "arrival", "in the future") for kind in drawn
    }
    assert all(message["allowed"].startswith("up to 2026-01-0") for message in rejects)


def test_a_file_of_the_year_2099_alone_waits_and_a_log_goes_on_without_it(ingest, tmp_path):
    """In one folder that is drained twice, and in a batch of all of it: the same bytes."""
    events = [impression(number, 5) for number in range(20)]
    clicks = [click(number, 6) for number in range(20)]
    folder, log = tmp_path / "events", tmp_path / "log"
    jsonl(folder, impressions_0=events, clicks_0=clicks)
    jsonl(folder, impressions_1=moved(events[:1], 73 * YEAR), clicks_1=moved(clicks[:1], 73 * YEAR))
    assert ingest(folder, log, "follow")["pending"] == 1
    jsonl(folder, impressions_2=moved(events, 86_400), clicks_2=moved(clicks, 86_400))
    result = ingest(folder, log, "follow")
    assert (result["pending"], result["counts"]["impressions"]["late"]) == (1, 0)
    assert [manifest.rows for manifest in read_manifests(log)] == [20, 20]
    result = ingest(folder, tmp_path / "batch", "batch")
    assert "the events from 2098-12-" in result["warnings"][0]
    assert event_files.published(log) == event_files.published(tmp_path / "batch")


SALE = {"sale": {**event_files.content()["clicks"], "window": "20s"}}


def test_a_rare_label_holds_no_partition_back(ingest, tmp_path):
    """Its last event comes long before the last impression: any driver publishes all partitions, of the same bytes."""
    (tmp_path / "mapping.yaml").write_text(yaml.safe_dump(event_files.content(labels=SALE)))
    shown, clicks = ([make(number, 5) for number in range(20)] for make in (impression, click))
    for number in range(3):
        seconds = number * 300 * 86_400
        later = {"impressions": moved(shown, seconds), "clicks": moved(clicks, seconds)}
        jsonl(tmp_path / "events", **{f"{kind}_{number}": events for kind, events in later.items()})
    jsonl(tmp_path / "events", sale_0=[click(3, 9)])
    for driver in DRIVERS:
        result = ingest(tmp_path / "events", tmp_path / driver, driver)
        assert result["warnings"] == []
        assert [manifest.rows for manifest in read_manifests(tmp_path / driver)] == [20, 20, 20]
        assert event_files.published(tmp_path / driver) == event_files.published(tmp_path / "batch")


def test_the_last_event_of_a_window_of_years_is_counted(ingest, tmp_path):
    """It is no event of the future, though it comes more than a year after all others."""
    sale = {"sale": {**SALE["sale"], "window": "500d"}}
    (tmp_path / "mapping.yaml").write_text(yaml.safe_dump(event_files.content(labels=sale, partition="30d")))
    sold = [click(3, 499 * 86_400)]
    jsonl(tmp_path / "events", impressions_0=[impression(3, 5)], clicks_0=[click(3, 6)], sale_0=sold)
    assert ingest(tmp_path / "events", tmp_path / "log", "batch")["warnings"] == []
    matched = [manifest.counters["matched_sale"] for manifest in read_manifests(tmp_path / "log")]
    assert (sum(matched), matched[-1]) == (1, 1)


def test_a_column_that_no_event_has_is_refused_unless_it_may_be_missing(ingest, tmp_path):
    """As the reader of a table does; that a key is there suffices, its values may all be missing."""
    events = [{**impression(number, 5), "colour": "red"} for number in range(3)]
    for event in events[:2]:
        del event["price"]
    jsonl(tmp_path / "events", impressions_0=events[:1], impressions_1=events[1:], clicks_0=[click(1, 6)])
    ingest(tmp_path / "events", tmp_path / "good", "batch")
    for event in events:
        del event["color"]
    jsonl(tmp_path / "events", impressions_0=events[:1], impressions_1=events[1:])
    for driver in ("batch", "follow"):
        log = tmp_path / driver
        message = ingest(tmp_path / "events", log, driver)["error"]
        assert "impressions/0.jsonl: no column color in any line" in message
        assert "found are also colour" in message
        assert not read_manifests(log)
    changed = event_files.content(impressions={"input": {"type": "jsonl", "optional": ["color"]}})
    (tmp_path / "mapping.yaml").write_text(yaml.safe_dump(changed))
    ingest(tmp_path / "events", tmp_path / "optional", "batch")
    assert len(event_files.labels(tmp_path / "optional")) == 3


def test_clicks_that_miss_their_impression_are_told_with_what_would_match_them(ingest, tmp_path):
    shown = [impression(number, 18.5) for number in range(400)]
    clicks = [click(number, 18.6) for number in range(394)]
    # Two come before, as another clock has it, one long after, two too late, and one is of no impression.
    clicks += [click(394, 17.1), click(395, 15), click(396, 75), click(397, 19.5, 50), click(398, 19.5, 40)]
    clicks += [click(5_000, 9)]
    jsonl(tmp_path / "events", impressions_0=shown, clicks_0=clicks)
    said = ingest(tmp_path / "events", tmp_path / "log", "batch")["warnings"][-1]
    assert said == (
        "0 of 400 clicks are early, which matches, 2 late, 4 orphans; 2 would match with clock_skew: 5s (now 1s); "
        "1 would match with click_window: 1m (now 10s); 2 would match with delay: 30s (now 5s); "
        "1 have no impression in the log"
    )
    # A longer window closes a partition later, too.
    for key, value, left in (("clock_skew", "5s", 4), ("click_window", "1m", 3), ("delay", "30s", 4)):
        (tmp_path / "mapping.yaml").write_text(yaml.safe_dump(event_files.content(**{key: value})))
        counters = ingest(tmp_path / "events", tmp_path / key, "batch")["counters"]
        assert counters["orphan_clicks"] + counters["late_clicks"] == left
    few = [*(click(number, 18.6) for number in range(199)), click(5_000, 9)]
    jsonl(tmp_path / "events", clicks_0=few)
    assert ingest(tmp_path / "events", tmp_path / "few", "batch")["warnings"] == []


def test_conversions_that_miss_their_impression_are_told_as_clicks_are(ingest, tmp_path):
    (tmp_path / "mapping.yaml").write_text(yaml.safe_dump(event_files.content(labels=SALE)))
    shown = [impression(number, 18.5) for number in range(100)]
    clicks, sales = [click(number, 18.6) for number in range(100)], [(0, 38.5), (1, 38.51), (5_000, 9)]
    jsonl(tmp_path / "events", impressions_0=shown, clicks_0=clicks, sale_0=[click(*one) for one in sales])
    result = ingest(tmp_path / "events", tmp_path / "log", "batch")
    assert result["warnings"] == [
        "0 of 3 events of sale are early, which matches, 1 late, 1 orphans; "
        "1 would match with labels.sale.window: 30s (now 20s); 1 have no impression in the log"
    ]
    assert result["counts"]["labels"] == {"sale": {"read": 3, "late": 0, "rejected": 0}}
    unmatched = {path.stem.split("-")[-1] for path in (tmp_path / "log/unmatched").iterdir()}
    assert unmatched == {"sale"}


def test_a_kind_without_files_is_counted_and_a_batch_says_where_they_were_looked_for(ingest, tmp_path):
    (tmp_path / "mapping.yaml").write_text(yaml.safe_dump(event_files.content(labels=SALE)))
    files = {"impressions_0": [impression(1, 5)], "clicks_0": [click(1, 6)], "sales_0": [click(1, 7)]}
    jsonl(tmp_path / "events", **files)
    for driver in ("batch", "follow"):
        result = ingest(tmp_path / "events", tmp_path / driver, driver)
        assert result["counts"]["labels"] == {"sale": {"read": 0, "late": 0, "rejected": 0}}
        looked = ", ".join(f"{tmp_path}/events/sale/*.jsonl{packed}" for packed in ("", ".gz", ".zst"))
        warned = [f"no files of sale found; looked for {looked}"] if driver == "batch" else []
        assert result["warnings"] == warned


def test_unmatched_events_are_judged_by_a_thousand_partitions_at_most(tmp_path, monkeypatch):
    mapping, hour = event_files.mapping(labels=SALE), 3600 * SECOND_US

    def warned(place: int) -> list[str]:
        """The only orphan is in the partition ``place``, counted from the latest."""
        empty = {"schema_version": "", "shards": (), **dict.fromkeys(("rows", "queries", "clicks"), 0)}
        starts = range(0, 1_500 * hour, hour)
        manifests = [Manifest(start=start, end=start + hour, counters={}, **empty) for start in starts]
        manifests[-1 - place].counters.update(sale=1, orphan_sale=1)
        monkeypatch.setattr("ctr.pipelines.events.unmatched.read_manifests", lambda log: manifests)
        return unmatched_warnings(mapping, tmp_path)

    said = "0 of 1 events of sale are early, which matches, 0 late, 1 orphans"
    assert [warned(place) for place in (0, 999, 1_000)] == [[said], [said], []]
