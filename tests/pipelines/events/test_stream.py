"""The streaming job under a watermark that is moved by hand: when a partition is published, and what of it.

That it publishes what the batch job does, in any order of delivery and started again, is shown in ``test_drivers``.
"""

from pathlib import Path

import pytest

import event_files
from ctr.data.log import list_partitions
from ctr.pipelines.events.rules import partition_rules
from ctr.pipelines.events.stream import first_needed, last_published
from event_files import (
    CLOSES,
    DELAY,
    LENGTH,
    click,
    impression,
    labels,
    mapping,
    microseconds,
    raw,
    read_side,
    run_stream,
)
from raw_logs import read_rejects


def late_ids(log: Path, name: str) -> list[int]:
    return [row[name] for row in read_side(log, "late")]


@pytest.mark.parametrize(("early", "label"), [(0.001, 1), (0, 0)])
def test_a_partition_waits_until_the_very_moment_at_which_it_closes(tmp_path, early, label):
    # The click lies about its arrival: it says that it came long before the watermark that it stands behind.
    steps = [raw("impressions", impression(1, 5)), CLOSES - early]
    run_stream(tmp_path / "log", [*steps, raw("clicks", click(1, 6, 7))])
    assert labels(tmp_path / "log") == {1: label}
    assert late_ids(tmp_path / "log", "impression_id") == ([] if label else [1])


def test_bad_events_are_described_and_too_many_end_the_job(tmp_path):
    # Few events say nothing of the share.
    run_stream(tmp_path / "one", [raw("impressions", content=b"no JSON\n")])
    assert [reject["reason"] for reject in read_rejects(tmp_path / "one")] == ["malformed JSON"]
    good = event_files.encode([impression(number, 1.0) for number in range(999)], "jsonl")
    few = raw("impressions", content=good + b'{"impression_id": "x"}\n')
    run_stream(tmp_path / "few", [few], max_reject_share=0.001)
    assert len(labels(tmp_path / "few")) == 999
    assert [reject["row"] for reject in read_rejects(tmp_path / "few")] == [1000]
    with pytest.raises(Exception, match="1 of 1000 events rejected, more than the allowed share of 0"):
        run_stream(tmp_path / "many", [few], max_reject_share=0.0)
    assert list_partitions(tmp_path / "many") == []


def test_a_source_keeps_what_is_read_again_by_the_formula_that_users_are_told(tmp_path):
    """Until the partition after the last published one closes, records are needed: see docs/howto/events.md."""
    timestamp = {"timestamp": {"column": "shown_at", "unit": "us"}}
    sale = {**event_files.content()["clicks"], "window": "25s"}
    durations = {"show_window": "6s", "late_window": "4s", "clock_skew": "2s", "future": "7s"}
    made = mapping(impressions=timestamp, labels={"sale": sale}, **durations)
    shown = {**impression(1, 5), "shown_at": microseconds(5)}
    run_stream(tmp_path / "log", [raw("impressions", shown, made=made)], made)
    assert last_published(tmp_path / "log") == event_files.BEGIN_US
    assert first_needed(made.model_copy(update={"future": None}), tmp_path / "log") == 0
    closes = partition_rules(made).closes_at(event_files.BEGIN_US + LENGTH * event_files.SECOND_US)
    kept = LENGTH + 2 * 6 + 2 * 25 + 4 + DELAY + 2 * 2 + 7
    assert closes - first_needed(made, tmp_path / "log") == kept * event_files.SECOND_US
