"""The streaming job under a watermark that is moved by hand: when a partition is published, and what of it."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ctr.data.log import list_partitions
from ctr.io.errors import InputError
from ctr.pipelines.events.publish import begin_log
from ctr.pipelines.events.stream import check_rules, first_needed, last_published

MILLISECOND = 1000


@pytest.fixture(scope="module")
def made() -> ModuleType:
    folder = str(Path(__file__).resolve().parent)
    sys.path.insert(0, folder)
    try:
        import stream_helpers
    finally:
        sys.path.remove(folder)
    return stream_helpers


def starts(log: Path, begin: int) -> list[int]:
    return [start - begin for start, _ in list_partitions(log)]


# ---------------------------------------------------------------- when


def test_an_partition_is_the_batch_jobs_and_all_are_published_in_order(made, tmp_path):
    impressions = [made.impression(number, 3.0 * number) for number in range(40)]
    clicks = [made.click(number, 3.0 * number + number % 12) for number in range(0, 40, 2)]
    steps = [made.raw("clicks", *clicks), made.raw("impressions", *impressions[20:])]
    order = made.run_stream(tmp_path / "log", [*steps, made.raw("impressions", *impressions[:20])])
    assert order == [at * made.LENGTH * made.SECOND for at in range(6)]
    assert made.published(tmp_path / "log") == made.published(
        made.run_batch(tmp_path / "b", impressions, clicks)
    )


@pytest.mark.parametrize(("early", "label"), [(MILLISECOND, 1), (0, 0)])
def test_an_partition_waits_until_the_very_moment_at_which_it_closes(made, tmp_path, early, label):
    closes = made.CLOSES * made.SECOND
    # The click lies about its arrival: it says that it came long before the watermark that it stands behind.
    steps = [made.raw("impressions", made.impression(1, 5)), closes - early]
    made.run_stream(tmp_path / "log", [*steps, made.raw("clicks", made.click(1, 6, 7))])
    assert made.labels(tmp_path / "log") == {1: label}
    late = made.side_rows(tmp_path / "log", "late")
    assert [row["impression_id"] for row in late] == ([] if label else [1])


def test_an_partition_is_published_once_whatever_comes_later(made, tmp_path):
    first = made.raw("impressions", made.impression(1, 5))
    steps = [first, made.CLOSES * made.SECOND, made.raw("impressions", made.impression(2, 6, 7))]
    order = made.run_stream(tmp_path / "log", [*steps, made.raw("impressions", made.impression(3, 41))])
    assert order == [0, 2 * made.LENGTH * made.SECOND]
    assert made.labels(tmp_path / "log") == {1: 0, 3: 0}
    assert [row["example_id"] for row in made.side_rows(tmp_path / "log", "late")] == [2]


def test_the_watermark_may_pass_many_partitions_at_once(made, tmp_path):
    impressions = [made.impression(number, 20.0 * number) for number in (0, 1, 50, 51)]
    order = made.run_stream(tmp_path / "log", [made.raw("impressions", *impressions), 3000 * made.SECOND])
    assert order == [20 * made.SECOND * number for number in (0, 1, 50, 51)]


def test_without_events_nothing_is_published(made, tmp_path):
    assert made.run_stream(tmp_path / "log", [100 * made.SECOND]) == []
    assert list_partitions(tmp_path / "log") == []


# ---------------------------------------------------------------- what is late


def test_an_event_whose_arrival_is_too_late_is_set_aside_even_before_the_watermark(made, tmp_path):
    impressions = [made.impression(1, 5), made.impression(2, 6, made.CLOSES), made.impression(3, 6, 34.999)]
    clicks = [made.click(1, 7, made.CLOSES), made.click(3, 8, 34.999)]
    steps = [made.raw("clicks", *clicks), made.raw("impressions", *impressions)]
    made.run_stream(tmp_path / "log", steps)
    batch = made.run_batch(tmp_path / "b", impressions, clicks)
    assert made.labels(tmp_path / "log") == {1: 0, 3: 1}
    assert made.published(tmp_path / "log") == made.published(batch)
    assert made.side_rows(tmp_path / "log", "late") == made.side_rows(batch, "late")
    assert len(made.side_rows(batch, "late")) == 2


def test_a_click_that_is_late_for_its_impressions_partition_is_told_of_in_its_own(made, tmp_path):
    # It happened in the second partition, and arrives when the first one is closed.
    impressions, clicks = [made.impression(1, 19)], [made.click(1, 22, 36)]
    steps = [made.raw("impressions", *impressions), 36 * made.SECOND, made.raw("clicks", *clicks)]
    made.run_stream(tmp_path / "log", steps)
    batch = made.run_batch(tmp_path / "b", impressions, clicks)
    assert made.published(tmp_path / "log") == made.published(batch)
    assert made.side_rows(tmp_path / "log", "unmatched")[0]["reason"] == "late"
    assert made.side_rows(tmp_path / "log", "late") == []


def test_a_late_click_is_set_aside_once_though_several_partitions_had_wanted_it(made, tmp_path):
    steps = [made.raw("impressions", made.impression(1, 19), made.impression(2, 25)), 60 * made.SECOND]
    made.run_stream(tmp_path / "log", [*steps, made.raw("clicks", made.click(1, 22, 23))])
    assert made.labels(tmp_path / "log") == {1: 0, 2: 0}
    files = list((tmp_path / "log" / "late").iterdir())
    assert len(files) == 1
    assert [row["impression_id"] for row in made.side_rows(tmp_path / "log", "late")] == [1]


# ---------------------------------------------------------------- bad events


def test_bad_events_are_described_and_too_many_end_the_job(made, tmp_path):
    good = made.lines([made.impression(number, 1.0) for number in range(999)])
    few = made.raw("impressions", content=good + b'{"id": "x"}\n')
    made.run_stream(tmp_path / "few", [few], max_reject_share=0.001)
    assert len(made.labels(tmp_path / "few")) == 999
    assert [reject["row"] for reject in made.rejects(tmp_path / "few")] == [1000]
    with pytest.raises(Exception, match="1 of 1000 events rejected, more than the allowed share of 0"):
        made.run_stream(tmp_path / "many", [few], max_reject_share=0.0)
    assert list_partitions(tmp_path / "many") == []


def test_few_events_say_nothing_of_the_share_of_rejects(made, tmp_path):
    made.run_stream(tmp_path / "log", [made.raw("impressions", content=b"no JSON\n")])
    assert [reject["reason"] for reject in made.rejects(tmp_path / "log")] == ["malformed JSON"]


# ---------------------------------------------------------------- again


def test_a_job_that_is_started_again_publishes_what_is_left_with_the_same_bytes(made, tmp_path):
    impressions = [made.impression(number, 1.5 * number, color="blue") for number in range(80)]
    impressions += [made.impression(number, 1.5 * number + 25, color="blue") for number in range(0, 80, 9)]
    clicks = [made.click(number, 1.5 * number + number % 25) for number in range(0, 80, 2)]
    log = tmp_path / "log"
    made.run_stream(log, [made.raw("impressions", *impressions), made.raw("clicks", *clicks)], future="1ms")
    whole = made.published(log)
    assert len(list_partitions(log)) == 7
    for kept in (5, 3, 0):
        for start, end in list_partitions(log)[kept:]:
            (log / "manifests" / f"{start:019d}-{end:019d}.json").unlink()
        since = first_needed(made.mapping(future="1ms"), log)
        # A source need not give what arrived before, and more than is needed does no harm.
        needed = [event for event in impressions if event["arrival"] >= since]
        assert (len(needed) < len(impressions)) == (kept > 0)
        order = made.run_stream(
            log, [made.raw("impressions", *needed), made.raw("clicks", *clicks)], future="1ms"
        )
        assert order == [at * made.LENGTH * made.SECOND for at in range(kept, 7)]
        assert made.published(log) == whole


def test_what_is_needed_again_begins_as_far_back_as_a_click_is_told_late(made, tmp_path):
    begin_log(tmp_path / "log", made.mapping())
    assert last_published(tmp_path / "log") == -1
    assert first_needed(made.mapping(), tmp_path / "log") == 0
    made.run_stream(tmp_path / "log", [made.raw("impressions", made.impression(1, 5))])
    assert last_published(tmp_path / "log") == made.BEGIN
    behind = made.LENGTH - 2 * made.WINDOW
    ahead = 300  # by which an event may lie beyond its arrival
    assert first_needed(made.mapping(), tmp_path / "log") == made.microseconds(behind - ahead)
    assert first_needed(made.mapping(future=None), tmp_path / "log") == 0
    near = made.mapping(late_window="1s", future="1s")
    assert first_needed(near, tmp_path / "log") == made.microseconds(8)


def test_durations_that_a_window_does_not_hold_are_refused(made):
    with pytest.raises(InputError, match="whole milliseconds; delay is 1500 us"):
        check_rules(made.mapping(delay="1500us"))


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


@pytest.mark.slow
@given(deliveries())
@settings(
    max_examples=12,
    phases=[Phase.generate],  # an example takes a second: there is no time to make it smaller
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_any_order_of_delivery_makes_the_log_of_the_batch_job(made, tmp_path_factory, drawn):
    events, order, cuts = drawn
    folder = tmp_path_factory.mktemp("drawn")
    content = {
        at: (made.impression if kind == "impressions" else made.click)(number, moment, moment + delay)
        for at, (kind, number, moment, delay) in enumerate(events)
    }
    steps = []
    # Behind each element the watermark may be as far as the first arrival that is still to come.
    for place, at in enumerate(order):
        if cuts[place]:
            ahead = min(content[later]["arrival"] for later in order[place:])
            steps.append((ahead - made.BEGIN) // MILLISECOND * MILLISECOND)
        steps.append(made.raw(events[at][0], content[at]))
    made.run_stream(folder / "log", steps)
    kinds = [
        [content[at] for at in range(len(events)) if events[at][0] == kind]
        for kind in ("impressions", "clicks")
    ]
    batch = made.run_batch(folder / "batch", *kinds)
    assert made.published(folder / "log") == made.published(batch)
    assert made.side_rows(folder / "log", "late") == made.side_rows(batch, "late")
