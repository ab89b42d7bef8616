"""Folders that are being filled: when partitions close, and files and events that are not as they should be.

That they become the log that all of their events at once become is shown in ``test_drivers``.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import event_files
import raw_logs
from ctr.data.event_mapping import EventMapping
from ctr.data.log import Manifest, read_manifests
from ctr.io.errors import InputError
from ctr.pipelines.events import follow as follow_module
from ctr.pipelines.events.accounts import RECENT_EVENTS, RecentReports, UnitReport
from ctr.pipelines.events.drivers import FollowSettings
from ctr.pipelines.events.follow import Progress, ingest_events, watch_events
from ctr.pipelines.tables import jsonl
from ctr.pipelines.tables.rejects import make_reject

COUNT = 150
FILES = 4
File = tuple[str, bytes]
AT_ONCE = FollowSettings(poll_seconds=0, settle_seconds=0, max_reject_share=0)
DRAIN = FollowSettings(poll_seconds=0, settle_seconds=0, max_reject_share=0, drain=True)


def follow(
    mapping: EventMapping,
    folder: Path,
    log: Path,
    rounds: Iterable[Sequence[File]],
    settings: FollowSettings = AT_ONCE,
    rest: Callable[[], bool] = lambda: True,
    report: Callable[[Progress, list[Manifest]], None] = lambda progress, published: None,
) -> Progress:
    """Watches a folder in which some files appear before each round; after these ``rest`` says when to stop."""
    waiting = iter(rounds)
    folder.mkdir(exist_ok=True)

    def stop() -> bool:
        files = next(waiting, None)
        if files is None:
            return rest()
        event_files.write_files(folder, files)
        return False

    return watch_events(mapping, [folder], log, settings, stop, report)


def drain(mapping: EventMapping, folder: Path, log: Path, settings: FollowSettings = DRAIN) -> Progress:
    return watch_events(mapping, [folder], log, settings, lambda: False)


@pytest.fixture(scope="module")
def events():
    return event_files.draw_events(COUNT)


@pytest.fixture(scope="module")
def files(events):
    return event_files.encode_files(events, FILES)


@pytest.fixture(scope="module")
def batch(files, tmp_path_factory):
    """The files of the log of all events at once."""
    folder = tmp_path_factory.mktemp("batch")
    event_files.write_files(folder / "events", files)
    ingest_events(event_files.mapping(), [folder / "events"], folder / "log", max_reject_share=0)
    found: dict[str, str] = event_files.published(folder / "log")
    assert any(name.startswith("late/") for name in found)
    return found


def assert_conserved(log: Path, progress: Progress) -> None:
    inside = sum(manifest.counters["impressions"] for manifest in read_manifests(log))
    counts = progress.counts.impressions
    assert counts.read == inside + counts.late + counts.rejected + progress.pending


@pytest.mark.parametrize(("after_us", "published"), [(-1, 0), (0, 1)])
def test_a_partition_is_published_when_the_clock_reaches_its_close(after_us, published, tmp_path):
    closes = event_files.CLOSES + after_us / 1e6
    shown = [event_files.impression(1, 5), event_files.impression(2, closes, closes)]
    files = [("impressions/0.jsonl", shown), ("clicks/0.jsonl", [event_files.click(2, closes, closes)])]
    rounds = [[(name, event_files.encode(events, "jsonl")) for name, events in files]]
    progress = follow(event_files.mapping(), tmp_path / "events", tmp_path / "log", rounds)
    assert progress.published == published


def test_what_comes_for_a_closed_partition_is_late_also_for_the_next_process(tmp_path):
    """Though it says that it had arrived in time: its file came after the clock had closed the partition."""
    closes = event_files.CLOSES
    shown = [event_files.impression(1, 5), event_files.impression(2, closes, closes)]
    clicks = [event_files.click(2, closes, closes)]
    late = [event_files.impression(3, 6)]
    made = {"impressions/0.jsonl": shown, "clicks/0.jsonl": clicks, "impressions/1.jsonl": late}
    first, second, third = [(name, event_files.encode(events, "jsonl")) for name, events in made.items()]
    given = (event_files.mapping(), tmp_path / "events", tmp_path / "log")
    assert follow(*given, [[first, second]]).published == 1
    assert follow(*given, [[third]]).counts.impressions.late == 1


@pytest.mark.parametrize("kind", ["impressions", None])
def test_a_kind_that_is_silent_for_long_holds_nothing_back(kind, tmp_path):
    """Or both are, and time goes on."""
    mapping = event_files.mapping(partition="100ms", click_window="50ms", delay="50ms")
    shown = [event_files.impression(1, 5, 5), *([event_files.impression(2, 6, 6)] if kind else [])]
    settings = FollowSettings(poll_seconds=0.02, settle_seconds=0, max_reject_share=0, idle_seconds=0.2)
    published: list[Manifest] = []
    looks = iter(range(1_000))
    progress = follow(
        *(mapping, tmp_path / "events", tmp_path / "log"),
        [[("impressions/0.jsonl", event_files.encode(shown, "jsonl"))]],
        settings,
        rest=lambda: bool(published) or next(looks, None) is None,
        report=lambda progress, more: published.extend(more),
    )
    assert published[0].rows == 1
    assert progress.clock_us >= shown[-1]["arrival_time"]
    assert_conserved(tmp_path / "log", progress)


# ---------------------------------------------------------------- files that are not as they should be


def test_files_that_are_not_as_they_should_be_are_told_and_the_job_goes_on(files, tmp_path, monkeypatch):
    folder, log = tmp_path / "events", tmp_path / "log"
    changed_later, changed_now, vanished = files[0], files[2], files[3][0]
    chunks, read_unit = follow_module._Job._chunks, follow_module.read_unit

    def chunks_or_vanish(job: Any, unit: Any, report: UnitReport) -> Any:
        if unit.name == vanished:
            unit.path.unlink()
        return chunks(job, unit, report)

    def read_and_add(mapping: EventMapping, unit: Any) -> Any:
        yield from read_unit(mapping, unit)
        if unit.name == changed_now[0]:
            with unit.path.open("ab") as file:
                file.write(b"{}\n")

    monkeypatch.setattr(follow_module._Job, "_chunks", chunks_or_vanish)
    monkeypatch.setattr(follow_module, "read_unit", read_and_add)
    name, data = changed_later
    damaged = ("impressions/9.jsonl.gz", b"no gzip")
    follow(event_files.mapping(), folder, log, [files[:4], [(name, data + data)], [*files[4:], damaged]])
    progress = drain(event_files.mapping(), folder, log)
    assert progress.counts.damaged == 2
    assert_conserved(log, progress)
    text = {reported["file"]: reported["damaged"] for reported in raw_logs.read_rejects(log)}
    for file, why in (
        (name, "changed after it was read"),
        (changed_now[0], "changed after it was read"),
        (vanished, "No such file"),
        (damaged[0], "not compressed with gzip"),
    ):
        assert why in text.pop(file)
    assert not text
    # The log is that of what could be read.
    (folder / damaged[0]).unlink()
    event_files.write_files(folder, [changed_later, changed_now])
    monkeypatch.undo()
    ingest_events(event_files.mapping(), [folder], tmp_path / "without", max_reject_share=0)
    assert event_files.published(log) == event_files.published(tmp_path / "without")


def test_a_kind_whose_file_is_being_written_is_not_silent(tmp_path, monkeypatch):
    folder, looks = tmp_path / "events", [0]
    events = {"impressions": event_files.impression(1, 5), "clicks": event_files.click(1, 50)}
    for kind, event in events.items():
        event_files.write_files(folder, [(f"{kind}/0.jsonl", event_files.encode([event], "jsonl"))])
    os.utime(folder / "clicks" / "0.jsonl", (0, 0))
    # A second passes from look to look.
    clock = SimpleNamespace(monotonic=lambda: len(looks), sleep=lambda _: None, time_ns=time.time_ns)
    monkeypatch.setattr(follow_module, "time", clock)
    settings = FollowSettings(poll_seconds=0, settle_seconds=1_000, max_reject_share=0, idle_seconds=3)
    given = (event_files.mapping(), [folder], tmp_path / "log", settings)
    progress = watch_events(*given, lambda: looks.append(0) or len(looks) > 20)
    counts = progress.counts
    assert (counts.clicks.read, counts.impressions.read, progress.clock_us) == (1, 0, -1)


def test_when_most_files_are_damaged_the_job_ends(tmp_path):
    rounds = [[(f"impressions/{number}.parquet", b"no Parquet")] for number in range(12)]
    message = r"8 of the latest 8 files could not be read, .*impressions/7\.parquet"
    with pytest.raises(InputError, match=message):
        follow(event_files.mapping("parquet"), tmp_path / "events", tmp_path / "log", rounds)


def test_a_file_that_cannot_be_read_now_is_read_by_the_next_process(files, batch, tmp_path, monkeypatch):
    folder, log = tmp_path / "events", tmp_path / "log"

    def refuse(*arguments: object) -> Any:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(jsonl, "open_bytes", refuse)
        with pytest.raises(InputError, match=r"cannot be read now: .*Permission denied"):
            follow(event_files.mapping(), folder, log, [files])
    drain(event_files.mapping(), folder, log)
    assert event_files.published(log) == batch


def test_what_a_killed_reading_set_down_of_a_file_that_is_another_now_does_not_count(files, batch, tmp_path):
    folder, log = tmp_path / "events", tmp_path / "log"
    name, content = files[0]
    # Another number of events, and one in a partition that has none now.
    other = event_files.encode([event_files.impression(5_000, 500)], "jsonl")
    follow(event_files.mapping(), folder, log, [[(name, other + content.replace(b": 10", b": 20"))]])
    for path in (log / ".events" / "units").iterdir():
        path.unlink()
    event_files.write_files(folder, files)
    drain(event_files.mapping(), folder, log)
    assert event_files.published(log) == batch


# ---------------------------------------------------------------- events that are not as they should be


def test_a_clock_from_the_future_closes_nothing(tmp_path):
    """Neither one of another century, which is refused, nor one that is an hour ahead, nor either of them alone."""
    makers = {"impressions": event_files.impression, "clicks": event_files.click}
    ahead, far = 3600, 10**9
    rounds = [
        [(f"{kind}/{number}.jsonl", event_files.encode([make(n, at) for n, at in enumerate(times)], "jsonl"))]
        for number, times in enumerate(([5] * 20 + [ahead, far], [far]))
        for kind, make in makers.items()
    ]
    settings = FollowSettings(poll_seconds=0, settle_seconds=0, max_reject_share=1)
    progress = follow(event_files.mapping(), tmp_path / "events", tmp_path / "log", [*rounds, []], settings)
    assert progress.clock_us == event_files.microseconds(6)
    assert (progress.published, progress.pending) == (0, 22)
    assert progress.counts.impressions.rejected == progress.counts.clicks.rejected == 1
    assert {reported["reason"] for reported in raw_logs.read_rejects(tmp_path / "log")} == {"in the future"}


def test_too_many_bad_events_end_the_job_and_end_it_again(tmp_path):
    mapping, folder, log = event_files.mapping(), tmp_path / "events", tmp_path / "log"
    # Few events say nothing of the share, until there are no more.
    progress = follow(mapping, folder, log, [[("impressions/0.jsonl", b"no JSON\n" * 100)]])
    assert progress.counts.impressions.rejected == 100
    reported = raw_logs.read_rejects(log)
    assert len(reported) == 100
    # As a kill leaves it that came before they were described.
    for path in (log / "rejects").iterdir():
        path.unlink()
    follow(mapping, folder, log, [[]])
    assert raw_logs.read_rejects(log) == reported
    with pytest.raises(InputError, match="100 of 100 events rejected, more than the allowed share of 0;"):
        drain(mapping, folder, log)
    many = [("impressions/1.jsonl", b"no JSON\n" * 2_000)]
    for _ in range(2):
        with pytest.raises(InputError, match=r"^2100 of 2100 events rejected.*line: malformed") as caught:
            follow(mapping, folder, log, [many])
        assert len(str(caught.value).splitlines()) == 1


def test_a_job_without_end_is_judged_by_its_latest_events():
    lenient, strict = RecentReports(max_reject_share=0.5), RecentReports(max_reject_share=0.2)
    rejects = [make_reject(0, 1, "a", "b", None, "")]
    for recent in (lenient, strict):
        recent.add(UnitReport("clicks", "bad", events=60_000, rejected=60_000, rejects=rejects))
        recent.add(UnitReport("clicks", "good", events=RECENT_EVENTS - 1))
    lenient.check()
    with pytest.raises(InputError, match=r"60000 of 159999 events rejected, more than .* share of 0\.2"):
        strict.check()
    strict.add(UnitReport("clicks", "more", events=1))
    strict.check()


# ---------------------------------------------------------------- arrivals across files


@pytest.mark.parametrize(("overlap", "late"), [(None, 1), ("44s", 0)])
def test_arrivals_may_lie_before_those_of_files_before_them_as_far_as_they_overlap(overlap, late, tmp_path):
    shown = {f"impressions/{n}.jsonl": event_files.impression(n, at, at) for n, at in enumerate((50, 6))}
    ahead, behind = ((name, event_files.encode([event], "jsonl")) for name, event in shown.items())
    clicks = ("clicks/0.jsonl", event_files.encode([event_files.click(0, 50, 50)], "jsonl"))
    mapping, folder, log = event_files.mapping(overlap=overlap), tmp_path / "events", tmp_path / "log"
    follow(mapping, folder, log, [[ahead], [clicks], [behind]])
    progress = drain(mapping, folder, log)
    assert set(event_files.labels(log)) == ({0} if late else {0, 1})
    assert progress.counts.impressions.late == len(event_files.read_side(log, "late")) == late


# ---------------------------------------------------------------- logs of others


def test_a_batch_and_a_watch_leave_the_logs_of_each_other_alone(files, batch, tmp_path):
    mapping, folder, log = event_files.mapping(), tmp_path / "events", tmp_path / "log"
    event_files.write_files(folder, files)
    drain(mapping, folder, tmp_path / "followed")
    with pytest.raises(InputError, match="continue it with --follow"):
        ingest_events(mapping, [folder], tmp_path / "followed", max_reject_share=0)
    assert event_files.published(tmp_path / "followed") == batch
    ingest_events(mapping, [folder], log, max_reject_share=0)
    with pytest.raises(InputError, match="its events are not in its spool: use another output") as caught:
        drain(mapping, folder, log)
    assert len(str(caught.value).splitlines()) == 1
    fewer = event_files.write_files(tmp_path / "fewer", [file for file in files if "clicks/2" not in file[0]])
    with pytest.raises(InputError, match="published before with other content"):
        ingest_events(mapping, [fewer], log, max_reject_share=0)
    assert event_files.published(log).items() >= batch.items()


def test_a_second_process_is_refused(files, tmp_path):
    folder = event_files.write_files(tmp_path / "events", files)
    refused = []

    def stop() -> bool:
        with pytest.raises(InputError, match="another process publishes events there") as caught:
            drain(event_files.mapping(), folder, tmp_path / "log")
        refused.append(caught.value)
        return True

    watch_events(event_files.mapping(), [folder], tmp_path / "log", AT_ONCE, stop)
    assert len(refused) == 1
    drain(event_files.mapping(), folder, tmp_path / "log")
