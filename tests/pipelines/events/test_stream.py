"""The streaming job under a watermark that is moved by hand: when a partition is published, and what of it."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ctr.data.log import list_partitions
from ctr.io.errors import InputError
from ctr.pipelines.events.publish import begin_log
from ctr.pipelines.events.stream import check_rules, first_needed, last_published
from stream_helpers import (
    BEGIN,
    CLOSES,
    LENGTH,
    SECOND,
    WINDOW,
    click,
    impression,
    labels,
    lines,
    mapping,
    microseconds,
    published,
    raw,
    rejects,
    run_batch,
    run_stream,
    side_rows,
)

MILLISECOND = 1000


def starts(log: Path, begin: int) -> list[int]:
    return [start - begin for start, _ in list_partitions(log)]


# ---------------------------------------------------------------- when


@pytest.mark.slow
def test_a_partition_is_the_batch_jobs_and_all_are_published_in_order(tmp_path):
    impressions = [impression(number, 3.0 * number) for number in range(40)]
    clicks = [click(number, 3.0 * number + number % 12) for number in range(0, 40, 2)]
    steps = [raw("clicks", *clicks), raw("impressions", *impressions[20:])]
    order = run_stream(tmp_path / "log", [*steps, raw("impressions", *impressions[:20])])
    assert order == [at * LENGTH * SECOND for at in range(6)]
    assert published(tmp_path / "log") == published(run_batch(tmp_path / "b", impressions, clicks))


@pytest.mark.parametrize(("early", "label"), [(MILLISECOND, 1), (0, 0)])
def test_a_partition_waits_until_the_very_moment_at_which_it_closes(tmp_path, early, label):
    closes = CLOSES * SECOND
    # The click lies about its arrival: it says that it came long before the watermark that it stands behind.
    steps = [raw("impressions", impression(1, 5)), closes - early]
    run_stream(tmp_path / "log", [*steps, raw("clicks", click(1, 6, 7))])
    assert labels(tmp_path / "log") == {1: label}
    late = side_rows(tmp_path / "log", "late")
    assert [row["impression_id"] for row in late] == ([] if label else [1])


def test_a_partition_is_published_once_whatever_comes_later(tmp_path):
    first = raw("impressions", impression(1, 5))
    steps = [
        first,
        CLOSES * SECOND,
        raw("impressions", impression(2, 6, 7)),
    ]
    order = run_stream(tmp_path / "log", [*steps, raw("impressions", impression(3, 41))])
    assert order == [0, 2 * LENGTH * SECOND]
    assert labels(tmp_path / "log") == {1: 0, 3: 0}
    assert [row["example_id"] for row in side_rows(tmp_path / "log", "late")] == [2]


def test_the_watermark_may_pass_many_partitions_at_once(tmp_path):
    impressions = [impression(number, 20.0 * number) for number in (0, 1, 50, 51)]
    order = run_stream(tmp_path / "log", [raw("impressions", *impressions), 3000 * SECOND])
    assert order == [20 * SECOND * number for number in (0, 1, 50, 51)]


def test_without_events_nothing_is_published(tmp_path):
    assert run_stream(tmp_path / "log", [100 * SECOND]) == []
    assert list_partitions(tmp_path / "log") == []


# ---------------------------------------------------------------- what is late


def test_an_event_whose_arrival_is_too_late_is_set_aside_even_before_the_watermark(tmp_path):
    impressions = [
        impression(1, 5),
        impression(2, 6, CLOSES),
        impression(3, 6, 34.999),
    ]
    clicks = [click(1, 7, CLOSES), click(3, 8, 34.999)]
    steps = [raw("clicks", *clicks), raw("impressions", *impressions)]
    run_stream(tmp_path / "log", steps)
    batch = run_batch(tmp_path / "b", impressions, clicks)
    assert labels(tmp_path / "log") == {1: 0, 3: 1}
    assert published(tmp_path / "log") == published(batch)
    assert side_rows(tmp_path / "log", "late") == side_rows(batch, "late")
    assert len(side_rows(batch, "late")) == 2


def test_a_click_that_is_late_for_its_impressions_partition_is_told_of_in_its_own(tmp_path):
    # It happened in the second partition, and arrives when the first one is closed.
    impressions, clicks = [impression(1, 19)], [click(1, 22, 36)]
    steps = [
        raw("impressions", *impressions),
        36 * SECOND,
        raw("clicks", *clicks),
    ]
    run_stream(tmp_path / "log", steps)
    batch = run_batch(tmp_path / "b", impressions, clicks)
    assert published(tmp_path / "log") == published(batch)
    assert side_rows(tmp_path / "log", "unmatched")[0]["reason"] == "late"
    assert side_rows(tmp_path / "log", "late") == []


def test_a_late_click_is_set_aside_once_though_several_partitions_had_wanted_it(tmp_path):
    steps = [
        raw("impressions", impression(1, 19), impression(2, 25)),
        60 * SECOND,
    ]
    run_stream(tmp_path / "log", [*steps, raw("clicks", click(1, 22, 23))])
    assert labels(tmp_path / "log") == {1: 0, 2: 0}
    files = list((tmp_path / "log" / "late").iterdir())
    assert len(files) == 1
    assert [row["impression_id"] for row in side_rows(tmp_path / "log", "late")] == [1]


# ---------------------------------------------------------------- bad events


def test_bad_events_are_described_and_too_many_end_the_job(tmp_path):
    good = lines([impression(number, 1.0) for number in range(999)])
    few = raw("impressions", content=good + b'{"id": "x"}\n')
    run_stream(tmp_path / "few", [few], max_reject_share=0.001)
    assert len(labels(tmp_path / "few")) == 999
    assert [reject["row"] for reject in rejects(tmp_path / "few")] == [1000]
    with pytest.raises(Exception, match="1 of 1000 events rejected, more than the allowed share of 0"):
        run_stream(tmp_path / "many", [few], max_reject_share=0.0)
    assert list_partitions(tmp_path / "many") == []


def test_few_events_say_nothing_of_the_share_of_rejects(tmp_path):
    run_stream(tmp_path / "log", [raw("impressions", content=b"no JSON\n")])
    assert [reject["reason"] for reject in rejects(tmp_path / "log")] == ["malformed JSON"]


# ---------------------------------------------------------------- again


def test_a_job_that_is_started_again_publishes_what_is_left_with_the_same_bytes(tmp_path):
    impressions = [impression(number, 1.5 * number, color="blue") for number in range(80)]
    impressions += [impression(number, 1.5 * number + 25, color="blue") for number in range(0, 80, 9)]
    clicks = [click(number, 1.5 * number + number % 25) for number in range(0, 80, 2)]
    log = tmp_path / "log"
    run_stream(
        log,
        [raw("impressions", *impressions), raw("clicks", *clicks)],
        future="1ms",
    )
    whole = published(log)
    assert len(list_partitions(log)) == 7
    for kept in (5, 3, 0):
        for start, end in list_partitions(log)[kept:]:
            (log / "manifests" / f"{start:019d}-{end:019d}.json").unlink()
        since = first_needed(mapping(future="1ms"), log)
        # A source need not give what arrived before, and more than is needed does no harm.
        needed = [event for event in impressions if event["arrival"] >= since]
        assert (len(needed) < len(impressions)) == (kept > 0)
        order = run_stream(
            log,
            [raw("impressions", *needed), raw("clicks", *clicks)],
            future="1ms",
        )
        assert order == [at * LENGTH * SECOND for at in range(kept, 7)]
        assert published(log) == whole


def test_what_is_needed_again_begins_as_far_back_as_a_click_is_told_late(tmp_path):
    begin_log(tmp_path / "log", mapping())
    assert last_published(tmp_path / "log") == -1
    assert first_needed(mapping(), tmp_path / "log") == 0
    run_stream(tmp_path / "log", [raw("impressions", impression(1, 5))])
    assert last_published(tmp_path / "log") == BEGIN
    behind = LENGTH - 2 * WINDOW - 1  # the last by which clocks may differ
    ahead = 300  # by which an event may lie beyond its arrival
    assert first_needed(mapping(), tmp_path / "log") == microseconds(behind - ahead)
    assert first_needed(mapping(future=None), tmp_path / "log") == 0
    near = mapping(late_window="1s", future="1s")
    assert first_needed(near, tmp_path / "log") == microseconds(7)


def test_durations_that_a_window_does_not_hold_are_refused():
    with pytest.raises(InputError, match="whole milliseconds; delay is 1500 us"):
        check_rules(mapping(delay="1500us"))


# ---------------------------------------------------------------- any order


@st.composite
def deliveries(draw):
    """Events with their delays, in an order in which they could come, and how far behind the watermark stays."""
    events = []
    for number in range(draw(st.integers(1, 12))):
        shown = draw(st.integers(0, 70_000)) / 1000
        for _ in range(draw(st.integers(1, 2))):
            events.append(("impressions", number, shown, draw(st.integers(0, 20_000)) / 1000))
        for _ in range(draw(st.integers(0, 2))):
            clicked = shown + draw(st.sampled_from([0.0, 0.5, 9.999, 10.0, 10.001, 15.0, 31.0]))
            events.append(("clicks", number, clicked, draw(st.integers(0, 20_000)) / 1000))
    order = draw(st.permutations(range(len(events))))
    cuts = draw(st.lists(st.booleans(), min_size=len(events), max_size=len(events)))
    return events, order, cuts


@pytest.mark.soak
@given(deliveries())
@settings(
    max_examples=12,
    phases=[Phase.generate],  # an example takes a second: there is no time to make it smaller
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_any_order_of_delivery_makes_the_log_of_the_batch_job(tmp_path_factory, drawn):
    events, order, cuts = drawn
    folder = tmp_path_factory.mktemp("drawn")
    content = {
        at: (impression if kind == "impressions" else click)(number, moment, moment + delay)
        for at, (kind, number, moment, delay) in enumerate(events)
    }
    steps = []
    # Behind each element the watermark may be as far as the first arrival that is still to come.
    for place, at in enumerate(order):
        if cuts[place]:
            ahead = min(content[later]["arrival"] for later in order[place:])
            steps.append((ahead - BEGIN) // MILLISECOND * MILLISECOND)
        steps.append(raw(events[at][0], content[at]))
    run_stream(folder / "log", steps)
    kinds = [
        [content[at] for at in range(len(events)) if events[at][0] == kind]
        for kind in ("impressions", "clicks")
    ]
    batch = run_batch(folder / "batch", *kinds)
    assert published(folder / "log") == published(batch)
    assert side_rows(folder / "log", "late") == side_rows(batch, "late")
