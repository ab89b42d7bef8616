"""Folders that are being filled become the log that all of their events at once become, however they are filled."""

import os
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

import event_files
import raw_logs
from ctr.config import parse_model
from ctr.data.event_mapping import EventMapping
from ctr.data.log import Manifest, read_manifests
from ctr.io.errors import InputError
from ctr.pipelines.events import follow as follow_module
from ctr.pipelines.events.follow import Progress, WatchSettings, ingest_events, watch_events
from ctr.pipelines.rows import jsonl

COUNT = 150
FILES = 4
File = tuple[str, bytes]
AT_ONCE = WatchSettings(poll_seconds=0, settle_seconds=0, max_reject_share=0)
DRAIN = WatchSettings(poll_seconds=0, settle_seconds=0, max_reject_share=0, drain=True)


def follow(
    mapping: EventMapping,
    folder: Path,
    log: Path,
    rounds: Iterable[Sequence[File]],
    settings: WatchSettings = AT_ONCE,
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


def drain(mapping: EventMapping, folder: Path, log: Path, settings: WatchSettings = DRAIN) -> Progress:
    return watch_events(mapping, [folder], log, settings, lambda: False)


def interleave(files: Sequence[File], seed: int) -> list[list[File]]:
    """The files one or some at a time; those of each kind in order, one kind now and then far ahead."""
    source = random.Random(seed)
    queues = [[file for file in files if file[0].startswith(kind)] for kind in ("impressions", "clicks")]
    ahead = source.random()
    rounds: list[list[File]] = [[]]
    while any(queues):
        queue = queues[source.random() < ahead]
        if queue:
            rounds[-1].append(queue.pop(0))
        if source.random() < 0.5:
            rounds.append([])
    return rounds


@pytest.fixture(scope="module")
def events() -> dict[str, list[dict[str, Any]]]:
    drawn: dict[str, list[dict[str, Any]]] = event_files.draw_events(COUNT)
    return drawn


@pytest.fixture(scope="module")
def files(events: Any) -> list[File]:
    found: list[File] = event_files.encode_files(events, FILES)
    return found


@pytest.fixture(scope="module")
def batch(files: list[File], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the log of all events at once."""
    folder = tmp_path_factory.mktemp("batch")
    event_files.write_files(folder / "events", files)
    ingest_events(event_files.mapping(), [folder / "events"], folder / "log", max_reject_share=0)
    found: dict[str, bytes] = event_files.published(folder / "log")
    assert any(name.startswith("late/") for name in found)
    return found


def assert_conserved(log: Path, progress: Progress) -> None:
    inside = sum(manifest.counters["impressions"] for manifest in read_manifests(log))
    counts = progress.counts.impressions
    assert counts.read == inside + counts.late + counts.rejected + progress.pending


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("seed", range(2))
def test_files_in_any_interleaving_become_the_log_of_the_batch(
    seed: int, files: list[File], batch: dict[str, bytes], tmp_path: Path
) -> None:
    names: list[str] = []

    def report(progress: Progress, published: list[Manifest]) -> None:
        names.extend(manifest.name for manifest in published)

    folder, log = tmp_path / "events", tmp_path / "log"
    rounds = interleave(files, seed)
    half = next(number for number in range(len(rounds)) if sum(map(len, rounds[:number])) > FILES)
    before = follow(event_files.mapping(), folder, log, rounds[:half], report=report)
    assert before.pending > 0
    assert before.published == len(names)
    assert_conserved(log, before)
    follow(event_files.mapping(), folder, log, rounds[half:], report=report)
    after = drain(event_files.mapping(), folder, log)
    assert after.pending == 0
    assert_conserved(log, after)
    assert names == sorted(names)
    assert event_files.published(log) == batch


def test_a_drain_reads_all_there_is_and_one_more_finds_nothing(
    files: list[File], batch: dict[str, bytes], tmp_path: Path
) -> None:
    folder = event_files.write_files(tmp_path / "events", files)
    first = drain(event_files.mapping(), folder, tmp_path / "log")
    again = drain(event_files.mapping(), folder, tmp_path / "log")
    assert event_files.published(tmp_path / "log") == batch
    assert (first.published, again.published) == (len(read_manifests(tmp_path / "log")), 0)
    assert again.counts == first.counts
    assert again.clock_us == first.clock_us


@pytest.mark.soak
def test_many_files_are_read_in_the_order_of_their_names(
    events: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More than a round takes, so that the order of 2 and 10 matters to the clock.
    monkeypatch.setattr("ctr.pipelines.events.follow._FILES_A_ROUND", 5)
    folder = event_files.write_events(tmp_path / "events", events, files=11)
    drain(event_files.mapping(), folder, tmp_path / "log")
    ingest_events(event_files.mapping(), [folder], tmp_path / "at once", max_reject_share=0)
    assert event_files.published(tmp_path / "log") == event_files.published(tmp_path / "at once")


@pytest.mark.soak
def test_what_comes_after_a_drain_is_too_late_for_what_is_published(
    files: list[File], tmp_path: Path
) -> None:
    folder, log = tmp_path / "events", tmp_path / "log"
    event_files.write_files(folder, files[:4])
    drain(event_files.mapping(), folder, log)
    shards = {
        name: data
        for name, data in event_files.published(log).items()
        if name.startswith(("shards", "manifests"))
    }
    event_files.write_files(folder, files[4:])
    progress = drain(event_files.mapping(), folder, log)
    assert progress.counts.impressions.late > 10
    found = event_files.published(log)
    assert shards.items() < {k: v for k, v in found.items() if k.startswith(("shards", "manifests"))}.items()
    assert_conserved(log, progress)
    late = progress.counts.impressions.late + progress.counts.clicks.late
    assert len(event_files.read_side(log, "late")) == late


def test_nothing_is_published_before_both_kinds_have_reached_its_end(
    files: list[File], batch: dict[str, bytes], tmp_path: Path
) -> None:
    folder, log = tmp_path / "events", tmp_path / "log"
    shown = [file for file in files if file[0].startswith("impressions")]
    progress = follow(event_files.mapping(), folder, log, [shown, [], []])
    assert (progress.published, progress.clock_us) == (0, -1)
    assert progress.pending == progress.counts.impressions.read - progress.counts.impressions.late > 0
    follow(event_files.mapping(), folder, log, [[file for file in files if file not in shown]])
    drain(event_files.mapping(), folder, log)
    assert event_files.published(log) == batch


@pytest.mark.parametrize(("after_us", "published"), [(-1, 0), (0, 1)])
def test_a_partition_is_published_when_the_clock_reaches_its_close(
    after_us: int, published: int, tmp_path: Path
) -> None:
    event = event_files.draw_events(3)["impressions"][0]
    partition, window_and_delay = 20 * event_files.SECOND_US, 15 * event_files.SECOND_US
    closes = event["event_time"] // partition * partition + partition + window_and_delay
    later = {**event, "impression_id": 1, "event_time": closes + after_us, "arrival_time": closes + after_us}
    first = {**event, "arrival_time": event["event_time"]}
    click = {name: later[name] for name in ("impression_id", "event_time", "arrival_time")}
    files = [("impressions/0.jsonl", [first, later]), ("clicks/0.jsonl", [click])]
    rounds = [[(name, event_files.encode(events, "jsonl")) for name, events in files]]
    progress = follow(event_files.mapping(), tmp_path / "events", tmp_path / "log", rounds)
    assert progress.published == published


def test_a_kind_that_is_silent_for_long_holds_nothing_back(files: list[File], tmp_path: Path) -> None:
    folder, log = tmp_path / "events", tmp_path / "log"
    shown = [file for file in files if file[0].startswith("impressions")]
    settings = WatchSettings(poll_seconds=0.02, settle_seconds=0, max_reject_share=0, idle_seconds=0.4)
    looks = iter(range(500))
    published: list[Manifest] = []

    def report(progress: Progress, more: list[Manifest]) -> None:
        published.extend(more)

    def rest() -> bool:
        return bool(published) or next(looks, None) is None

    progress = follow(event_files.mapping(), folder, log, [shown], settings, rest, report)
    assert published
    last = max(event["arrival_time"] for event in event_files.draw_events(COUNT)["impressions"])
    # As far as the impressions reach, or the moments after them in which both kinds were silent.
    assert last <= progress.clock_us < last + 60_000_000
    assert sum(manifest.clicks for manifest in published) == 0
    assert_conserved(log, progress)


def test_when_all_are_silent_time_goes_on(tmp_path: Path) -> None:
    mapping = event_files.mapping(partition="100ms", click_window="50ms", delay="50ms")
    event = event_files.draw_events(3)["impressions"][0]
    settings = WatchSettings(poll_seconds=0.02, settle_seconds=0, idle_seconds=0.1)
    published: list[Manifest] = []
    looks = iter(range(500))

    def report(progress: Progress, more: list[Manifest]) -> None:
        published.extend(more)

    event["arrival_time"] = event["event_time"]
    rounds = [[("impressions/0.jsonl", event_files.encode([event], "jsonl"))]]
    follow(
        *(mapping, tmp_path / "events", tmp_path / "log", rounds, settings),
        *(lambda: bool(published) or next(looks, None) is None, report),
    )
    assert [manifest.rows for manifest in published] == [1]


@pytest.mark.soak
def test_without_arrivals_events_arrive_at_their_times(events: Any, tmp_path: Path) -> None:
    content = event_files.content(delay="100s")
    for kind in ("impressions", "clicks"):
        del content[kind]["arrival"]
    mapping = parse_model(EventMapping, content, "test")
    files = event_files.encode_files(events, FILES)
    follow(mapping, tmp_path / "events", tmp_path / "log", interleave(files, 3))
    drain(mapping, tmp_path / "events", tmp_path / "log")
    ingest_events(mapping, [tmp_path / "events"], tmp_path / "at once")
    # The side files say when events arrived, which is another matter here: not before the clock.
    sides = ("rejects", "unmatched", "conflicting")
    assert event_files.published(tmp_path / "log", sides) == event_files.published(
        tmp_path / "at once", sides
    )


# ---------------------------------------------------------------- files that are not as they should be


@pytest.mark.slow
def test_a_file_that_changes_after_it_was_read_is_told(
    files: list[File], batch: dict[str, bytes], tmp_path: Path
) -> None:
    folder, log = tmp_path / "events", tmp_path / "log"
    name, data = files[0]
    follow(event_files.mapping(), folder, log, [files[:4], [(name, data + data)], files[4:]])
    drain(event_files.mapping(), folder, log)
    (reported,) = raw_logs.read_rejects(log)
    assert reported["file"] == name
    assert "changed after it was read" in reported["damaged"]
    assert event_files.published(log) == batch


@pytest.mark.soak
def test_a_file_that_changes_while_it_is_read_is_told(
    files: list[File], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_and_add(mapping: EventMapping, unit: Any) -> Any:
        yield from read_unit(mapping, unit)
        if unit.name == files[0][0]:
            with unit.path.open("ab") as file:
                file.write(b"{}\n")

    read_unit = follow_module.read_unit
    monkeypatch.setattr(follow_module, "read_unit", read_and_add)
    follow(event_files.mapping(), tmp_path / "events", tmp_path / "log", [files[:2], [], files[2:]])
    (reported,) = raw_logs.read_rejects(tmp_path / "log")
    assert "changed after it was read" in reported["damaged"]


@pytest.mark.slow
def test_a_damaged_file_is_set_aside_and_the_job_goes_on(events: Any, tmp_path: Path) -> None:
    mapping = event_files.mapping("parquet")
    folder, log = tmp_path / "events", tmp_path / "log"
    files = event_files.encode_files(events, FILES, "parquet")
    damaged = [(name, data[:-30] if name == "impressions/2.parquet" else data) for name, data in files]
    follow(mapping, folder, log, interleave(damaged, 1))
    progress = drain(mapping, folder, log)
    assert progress.counts.damaged == 1
    (reported,) = raw_logs.read_rejects(log)
    assert reported["file"] == "impressions/2.parquet"
    assert "damaged, truncated or not of this format" in reported["damaged"]
    (folder / "impressions/2.parquet").unlink()
    ingest_events(mapping, [folder], tmp_path / "without", max_reject_share=0)
    assert event_files.published(log) == event_files.published(tmp_path / "without")
    assert_conserved(log, progress)


def test_a_file_that_vanishes_before_it_is_read_is_told(
    files: list[File], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish_first(unit: Any, *given: Any) -> None:
        if unit.name == "clicks/1.jsonl":
            unit.path.unlink()
        spool_unit(unit, *given)

    spool_unit = follow_module._spool_unit
    folder = event_files.write_files(tmp_path / "events", files)
    monkeypatch.setattr(follow_module, "_spool_unit", vanish_first)
    progress = drain(event_files.mapping(), folder, tmp_path / "log")
    assert progress.counts.damaged == 1
    assert [reported["file"] for reported in raw_logs.read_rejects(tmp_path / "log")] == ["clicks/1.jsonl"]


def test_a_file_that_is_being_written_holds_back_those_after_it(
    files: list[File], batch: dict[str, bytes], tmp_path: Path
) -> None:
    folder, log = tmp_path / "events", tmp_path / "log"
    settled = WatchSettings(poll_seconds=0, settle_seconds=1_000, max_reject_share=0)

    def age(names: Sequence[str]) -> None:
        for name in names:
            os.utime(folder / name, ns=(0, 0))

    event_files.write_files(folder, files)
    age([name for name, _ in files if name != "impressions/1.jsonl"])
    rounds = iter([False, False, True])
    progress = watch_events(event_files.mapping(), [folder], log, settled, lambda: next(rounds))
    first = event_files.encode_files(event_files.draw_events(COUNT), FILES)[0][1].count(b"\n")
    assert progress.counts.impressions.read == first
    assert progress.counts.clicks.read == sum(data.count(b"\n") for name, data in files if name[0] == "c")
    age(["impressions/1.jsonl"])
    rounds = iter([False, False, True])
    watch_events(event_files.mapping(), [folder], log, settled, lambda: next(rounds))
    drain(event_files.mapping(), folder, log)
    assert event_files.published(log) == batch


# ---------------------------------------------------------------- events that are not as they should be


@pytest.mark.slow
def test_a_clock_from_the_future_closes_nothing(
    files: list[File], batch: dict[str, bytes], tmp_path: Path
) -> None:
    folder, log = tmp_path / "events", tmp_path / "log"
    event = event_files.draw_events(1)["impressions"][0]
    future = {**event, "event_time": 10**17, "arrival_time": 10**17}
    settings = WatchSettings(poll_seconds=0, settle_seconds=0, max_reject_share=1)
    bad = [(f"{kind}/00.jsonl", event_files.encode([future], "jsonl")) for kind in ("impressions", "clicks")]
    progress = follow(event_files.mapping(), folder, log, [bad, [], []], settings)
    assert progress.clock_us == -1
    assert progress.counts.impressions.rejected == progress.counts.clicks.rejected == 1
    assert {reported["reason"] for reported in raw_logs.read_rejects(log)} == {"in the future"}
    follow(event_files.mapping(), folder, log, interleave(files, 2), settings)
    drain(event_files.mapping(), folder, log, WatchSettings(poll_seconds=0, max_reject_share=1, drain=True))
    assert event_files.published(log) == batch


@pytest.mark.soak
def test_too_many_bad_events_end_the_job_and_a_few_do_not(files: list[File], tmp_path: Path) -> None:
    folder, log = tmp_path / "events", tmp_path / "log"
    allowed = WatchSettings(poll_seconds=0, settle_seconds=0, max_reject_share=0.5)
    some = ("impressions/90.jsonl", b"no JSON\n" * 100)
    progress = follow(event_files.mapping(), folder, log, [files, [some]], allowed)
    assert progress.counts.impressions.rejected == 100
    many = ("impressions/91.jsonl", b"no JSON\n" * 1_000)
    with pytest.raises(
        InputError, match=r"^1\d\d\d of 1\d\d\d events rejected, more than the allowed share of 0\.5"
    ) as caught:
        follow(event_files.mapping(), folder, log, [[many]] * 3, allowed)
    assert "line: malformed JSON" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_drain_judges_few_events_too(files: list[File], tmp_path: Path) -> None:
    bad = ("impressions/9.jsonl", b"no JSON\n" * 20)
    folder = event_files.write_files(tmp_path / "events", [*files, bad])
    with pytest.raises(InputError, match=r"20 of .* events rejected, more than the allowed share of 0\.01"):
        drain(event_files.mapping(), folder, tmp_path / "log", WatchSettings(settle_seconds=0, drain=True))


def test_rejects_are_described_also_after_a_kill_that_came_before(files: list[File], tmp_path: Path) -> None:
    folder, log = tmp_path / "events", tmp_path / "log"
    bad = [("impressions/00.jsonl", b"no JSON\n")]
    settings = WatchSettings(poll_seconds=0, settle_seconds=0, max_reject_share=1)
    follow(event_files.mapping(), folder, log, [bad], settings)
    reported = raw_logs.read_rejects(log)
    assert len(reported) == 1
    for path in (log / "rejects").iterdir():
        path.unlink()
    follow(event_files.mapping(), folder, log, [[]], settings)
    assert raw_logs.read_rejects(log) == reported


def test_too_many_bad_events_end_the_job_again_when_it_is_started_again(tmp_path: Path) -> None:
    folder, log = tmp_path / "events", tmp_path / "log"
    many = ("impressions/0.jsonl", b"no JSON\n" * 2_000)
    for _ in range(2):
        with pytest.raises(InputError, match="2000 of 2000 events rejected"):
            follow(event_files.mapping(), folder, log, [[many]])


@pytest.mark.soak
def test_when_most_files_are_damaged_the_job_ends(tmp_path: Path) -> None:
    rounds = [[(f"impressions/{number}.parquet", b"no Parquet")] for number in range(12)]
    with pytest.raises(
        InputError, match=r"8 of the latest 8 files could not be read, .*impressions/7\.parquet"
    ):
        follow(event_files.mapping("parquet"), tmp_path / "events", tmp_path / "log", rounds)


def test_a_file_that_cannot_be_read_now_is_read_by_the_next_process(
    files: list[File], batch: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, log = tmp_path / "events", tmp_path / "log"

    def refuse(*arguments: object) -> Any:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(jsonl, "open_bytes", refuse)
        with pytest.raises(InputError, match=r"cannot be read now: .*Permission denied"):
            follow(event_files.mapping(), folder, log, [files])
    drain(event_files.mapping(), folder, log)
    assert event_files.published(log) == batch


def test_what_a_killed_reading_set_down_of_a_file_that_is_another_now_does_not_count(
    files: list[File], batch: dict[str, bytes], tmp_path: Path
) -> None:
    folder, log = tmp_path / "events", tmp_path / "log"
    name, content = files[0]
    half = content[: content.index(b"\n", len(content) // 2) + 1]
    follow(event_files.mapping(), folder, log, [[(name, content.replace(b": 10", b": 20") + half)]])
    for path in (log / ".events" / "units").iterdir():
        path.unlink()
    event_files.write_files(folder, files)
    drain(event_files.mapping(), folder, log)
    assert event_files.published(log) == batch


# ---------------------------------------------------------------- arrivals across files


@pytest.mark.soak
@pytest.mark.parametrize("allowed", [False, True])
def test_arrivals_may_lie_before_those_of_files_before_them_as_far_as_they_overlap(
    allowed: bool, events: Any, tmp_path: Path
) -> None:
    # Two collectors: each has every second event, and the second one is a file behind.
    rounds, back = [], 0
    for kind, found in events.items():
        parts = []
        for part in range(8):
            cut = slice(len(found) * part // 8, len(found) * (part + 1) // 8)
            parts += [(part + collector, collector, found[cut][collector::2]) for collector in range(2)]
        latest = 0
        for number, collector, part_of in sorted(parts, key=lambda part: part[:2]):
            arrivals = [event["arrival_time"] for event in part_of]
            back = max(back, latest - min(arrivals))
            latest = max(latest, *arrivals)
            file = f"{kind}/{number:02d}-{collector}.jsonl", event_files.encode(part_of, "jsonl")
            rounds.append((number, collector, [file]))
    mapping = event_files.mapping(overlap=f"{back}us" if allowed else None)
    in_turn = [files for *_, files in sorted(rounds, key=lambda part: part[:2])]
    folder, log = tmp_path / "events", tmp_path / "log"
    published = follow(mapping, folder, log, in_turn).published
    assert published
    drain(mapping, folder, log)
    ingest_events(mapping, [folder], tmp_path / "batch", max_reject_share=0)
    assert (event_files.published(log) == event_files.published(tmp_path / "batch")) == allowed


# ---------------------------------------------------------------- logs of others


@pytest.mark.soak
def test_a_batch_leaves_a_log_alone_that_is_followed_and_what_is_published(
    files: list[File], tmp_path: Path
) -> None:
    folder = event_files.write_files(tmp_path / "events", files)
    drain(event_files.mapping(), folder, tmp_path / "followed")
    with pytest.raises(InputError, match="continue it with --follow"):
        ingest_events(event_files.mapping(), [folder], tmp_path / "followed", max_reject_share=0)
    log = tmp_path / "log"
    ingest_events(event_files.mapping(), [folder], log, max_reject_share=0)
    before = event_files.published(log)
    fewer = event_files.write_files(tmp_path / "fewer", [file for file in files if "clicks/2" not in file[0]])
    with pytest.raises(InputError, match="published before with other content"):
        ingest_events(event_files.mapping(), [fewer], log, max_reject_share=0)
    after = event_files.published(log)
    assert {name: after[name] for name in before if not name.startswith("late/")} == {
        name: data for name, data in before.items() if not name.startswith("late/")
    }


@pytest.mark.parametrize("name", ["poll_seconds", "settle_seconds", "idle_seconds"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_seconds_that_are_none_are_refused(name: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{name}: .* is not allowed"):
        WatchSettings(**{name: value})


def test_a_second_process_is_refused(files: list[File], tmp_path: Path) -> None:
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


def test_a_log_that_was_made_at_once_is_not_followed(
    files: list[File], batch: dict[str, bytes], tmp_path: Path
) -> None:
    folder = event_files.write_files(tmp_path / "events", files)
    ingest_events(event_files.mapping(), [folder], tmp_path / "log")
    with pytest.raises(
        InputError, match="its events are not in its spool: use another output directory"
    ) as caught:
        drain(event_files.mapping(), folder, tmp_path / "log")
    assert len(str(caught.value).splitlines()) == 1
    assert event_files.published(tmp_path / "log") == batch


def test_no_events_are_no_partition(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    progress = drain(event_files.mapping(), tmp_path / "events", tmp_path / "log")
    assert progress == Progress()
    assert read_manifests(tmp_path / "log") == []
