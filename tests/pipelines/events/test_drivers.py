"""Batch, watch and stream are one program: the log of a join of single events, however the events come."""

import contextlib
import functools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import event_files
import raw_logs
from ctr.data.event_mapping import EventMapping
from ctr.data.kept_values import FOLDER
from ctr.data.log import list_partitions, read_manifests
from ctr.pipelines.events.drivers import FollowSettings
from ctr.pipelines.events.follow import ingest_events, watch_events
from ctr.pipelines.events.join import NOT_PUBLISHED, fate_counters
from ctr.pipelines.events.rules import partition_rules
from ctr.pipelines.events.stream import first_needed
from fault_points import watching
from single_events import Click, Impression, join_plainly

COUNT = 120
AT_ONCE = FollowSettings(poll_seconds=0, settle_seconds=0, max_reject_share=0)
DRAIN = FollowSettings(poll_seconds=0, settle_seconds=0, max_reject_share=0, drain=True)
SKEWED = {
    "clock_skew": "2s",
    "show_window": "6s",
    "late_window": "4s",
    # So near that a stream that is started again needs but the last events.
    "future": "1ms",
    "impressions": {"timestamp": {"column": "shown_at", "unit": "us"}},
}
# Conversions count for longer than clicks, so that partitions wait for them, and calls for less long.
LABELS = {"sale": 25, "call": 2}
Events = dict[str, list[dict[str, Any]]]


def labels_of(windows: dict[str, int]) -> dict[str, Any]:
    source = event_files.content()["clicks"]
    return {"labels": {name: {**source, "window": f"{window}s"} for name, window in windows.items()}}


def read_side(log: Path, name: str, *columns: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[c] for c in columns) for row in event_files.read_side(log, name))


def read_unmatched(log: Path, kinds: Sequence[str]) -> Counter[tuple[Any, ...]]:
    """The rows of all files, each behind its kind."""
    found: Counter[tuple[Any, ...]] = Counter()
    for path in (log / "unmatched").glob("*.parquet"):
        kind = next((kind for kind in kinds if path.stem.endswith(f"-{kind}")), "clicks")
        found.update((kind, *row.values()) for row in pq.read_table(path).to_pylist())
    return found


def assert_joined(log: Path, events: Events, mapping: EventMapping) -> None:
    """The log is what one event after the other becomes."""
    shown = [
        Impression(
            *(event[name] for name in ("impression_id", "event_time")),
            event["shown_at" if mapping.impressions.timestamp else "event_time"],
            *(event["query_id"], 0, event["arrival_time"]),
        )
        for event in events["impressions"]
    ]
    clicks = {
        kind: [
            Click(*(event[name] for name in ("impression_id", "event_time", "arrival_time")))
            for event in events[kind]
        ]
        for kind in ("clicks", *mapping.labels)
    }
    reported, late_shown, late_clicks = join_plainly(partition_rules(mapping), shown, clicks)
    examples = {number: row for partition in reported.values() for number, row in partition.examples.items()}
    labeled = {pair for partition in reported.values() for pair in partition.labeled}
    found = raw_logs.read_log(log)
    assert [(e["query_time"], e["query_id"], e["example_id"], e["label"]) for e in found] == sorted(
        (time, query, number, ("clicks", number) in labeled)
        for number, (time, _, query, _) in examples.items()
    )
    for name in mapping.labels:
        assert {e["example_id"]: e[f"label:{name}"] for e in found} == {
            number: (name, number) in labeled for number in examples
        }
    source = {(e["impression_id"], e["event_time"]): e for e in events["impressions"]}
    colors = ("red", "green", "blue", "pink")
    for example in found:
        event = source[example["example_id"], example["query_time"]]
        assert example["train_weight"] == example["metric_weight"] == event["weight"]
        assert example["color"] == (0 if event["color"] is None else 1 + colors.index(event["color"]))
        assert len(example["tags"]) == min(len(event["tags"] or []), 3)
    unmatched = read_unmatched(log, list(mapping.labels))
    assert unmatched == Counter(row for partition in reported.values() for row in partition.unmatched)
    conflicting = read_side(log, "conflicting", "example_id", "query_time", "arrival")
    wanted = [(f.id, f.time, f.arrival) for partition in reported.values() for f in partition.conflicting]
    assert conflicting == Counter(wanted)
    late = [*late_shown, *(one for clicks in late_clicks.values() for one in clicks)]
    assert read_side(log, "late", "arrival") == Counter((f.arrival,) for f in late)
    manifests = read_manifests(log)
    assert {manifest.start for manifest in manifests} == set(reported)
    for manifest in manifests:
        counters = Counter({name: count for name, count in manifest.counters.items() if count})
        assert counters == +reported[manifest.start].counters


# ---------------------------------------------------------------- drivers


class Broken(BaseException):
    """Ends a process in the middle of a write."""


def broken_off(source: random.Random, run: Callable[[], object]) -> None:
    """Runs a job that breaks off at one of its calls of fsync, unless it has ended before."""
    left = iter(range(source.randrange(1, 80)))

    def sync(descriptor: int) -> None:
        if next(left, None) is None:
            raise Broken

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ctr.io.files.os.fsync", sync)
        # Beam names an error of a worker in one of its own.
        with contextlib.suppress(Broken, RuntimeError):
            run()


def cut(source: random.Random, rows: Sequence[Any], count: int = 5) -> list[Sequence[Any]]:
    """Pieces of a few sizes, of which some are empty."""
    places = [source.randrange(len(rows) + 1) for _ in range(count - 2)]
    places = sorted([*places, places[0]])
    return [rows[a:b] for a, b in zip([0, *places], [*places, len(rows)], strict=True)]


def encoded(kind: str, pieces: Sequence[Any]) -> list[tuple[str, bytes]]:
    return [(f"{kind}/{n}.jsonl", event_files.encode(piece, "jsonl")) for n, piece in enumerate(pieces)]


def batch(source: random.Random, events: Events, mapping: EventMapping, log: Path) -> None:
    """Events in any order, in files of two folders; the job breaks off, and is run again."""
    folders = [log.parent / "one", log.parent / "other"]
    for kind in events:
        shuffled = source.sample(events[kind], len(events[kind]))
        for number, file in enumerate(encoded(kind, cut(source, shuffled))):
            event_files.write_files(folders[number % 2], [file])
    broken_off(source, lambda: ingest_events(mapping, folders, log, max_reject_share=0))
    result = ingest_events(mapping, folders, log, max_reject_share=0)
    manifests = read_manifests(log)
    assert (result.partitions, result.examples) == (len(manifests), sum(one.rows for one in manifests))
    assert result.clicks == sum(manifest.clicks for manifest in manifests) > 0
    for kind, counts in result.counts.by_kind.items():
        assert counts.read == len(events[kind]) == result.counters[kind] + counts.late


def watch(source: random.Random, events: Events, mapping: EventMapping, log: Path) -> None:
    """Files one or some at a time, one kind now and then far ahead; the process changes, and breaks off."""
    folder = log.parent / "events"
    folder.mkdir()
    # More of them than a round takes, so that 2 must come before 10.
    waiting = {kind: encoded(kind, cut(source, events[kind], 12)) for kind in events}
    ahead = source.random()

    def follow(rounds: int) -> None:
        turns = iter(range(rounds))

        def stop() -> bool:
            for _ in range(source.randrange(3)):
                kind = "impressions" if source.random() >= ahead else source.choice([*events][1:])
                if files := waiting[kind]:
                    event_files.write_files(folder, [files.pop(0)])
            return next(turns, None) is None

        progress = watch_events(mapping, [folder], log, AT_ONCE, stop)
        inside = sum(manifest.counters["impressions"] for manifest in read_manifests(log))
        counts = progress.counts.impressions
        assert counts.read == inside + counts.late + counts.rejected + progress.pending

    follow(source.randrange(1, 4))
    broken_off(source, lambda: follow(4))
    follow(source.randrange(1, 4))
    for files in waiting.values():
        event_files.write_files(folder, files)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ctr.pipelines.events.follow._FILES_A_ROUND", 4)
        done = watch_events(mapping, [folder], log, DRAIN, lambda: False)
    assert done.pending == 0
    assert done.counts.impressions.read == len(events["impressions"])
    # One more finds nothing.
    again = watch_events(mapping, [folder], log, DRAIN, lambda: False)
    assert (again.published, again.counts, again.clock_us) == (0, done.counts, done.clock_us)


def stream(source: random.Random, events: Events, mapping: EventMapping, log: Path) -> None:
    """Elements in any order behind a watermark; the job is started again when it has published a part."""

    def steps(since: int) -> list[Any]:
        found = [
            (min(event["arrival_time"] for event in piece), event_files.raw(kind, *piece, made=mapping))
            for kind in events
            for piece in cut(source, [event for event in events[kind] if event["arrival_time"] >= since])
            if piece
        ]
        source.shuffle(found)
        made: list[Any] = []
        for place, (_, element) in enumerate(found):
            # As far as the first arrival that is still to come.
            ahead = min(arrival for arrival, _ in found[place:])
            made += [(ahead - event_files.BEGIN_US) / 1e6] if source.random() < 0.7 else []
            made.append(element)
        return made

    order = event_files.run_stream(log, steps(0), mapping)
    assert order == sorted(order)
    partitions = list_partitions(log)
    for start, end in partitions[source.randrange(1, len(partitions)) :]:
        (log / "manifests" / f"{start:019d}-{end:019d}.json").unlink()
    left = set(partitions) - set(list_partitions(log))
    # A source need not give what arrived before.
    order = event_files.run_stream(log, steps(first_needed(mapping, log)), mapping)
    assert order == [(start - event_files.BEGIN_US) // event_files.SECOND_US for start, _ in sorted(left)]


DRIVERS = {"batch": batch, "watch": watch, "stream": stream}
CHANGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "skewed": SKEWED,
    "short": {"partition": "5s", "click_window": "12s", "late_window": "30s"},
    # Also the dictionaries of values.
    "labels": {**labels_of(LABELS), "keep_values": ["tags"]},
    "skewed labels": {**SKEWED, **labels_of(LABELS), "keep_values": ["tags"]},
}


@functools.cache
def drawn(name: str, seed: int) -> Events:
    events = event_files.draw_events(COUNT, seed)
    labels = CHANGES[name].get("labels", {})
    shown = events["impressions"]
    conversions = {name: event_files.draw_conversions(shown, LABELS[name], seed) for name in labels}
    return events | conversions


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The log of a batch of all events in one file, once for each mapping and seed."""

    @functools.cache
    def make(name: str, seed: int) -> Path:
        folder = tmp_path_factory.mktemp("whole")
        event_files.write_events(folder / "events", drawn(name, seed), files=1)
        mapping = event_files.mapping(**CHANGES[name])
        ingest_events(mapping, [folder / "events"], folder / "log", max_reject_share=0)
        assert_joined(folder / "log", drawn(name, seed), mapping)
        return folder / "log"

    return make


FAST = [("batch", "plain", 0), ("watch", "skewed labels", 1), ("stream", "labels", 2)]
SLOW = [("batch", "skewed labels", 1), ("watch", "short", 2), ("stream", "skewed", 1)]
SOAK = [(driver, name, seed) for driver in DRIVERS for name in CHANGES for seed in range(3, 6)]


@pytest.mark.parametrize(
    ("driver", "name", "seed"),
    [
        *FAST,
        *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
        *(pytest.param(*case, marks=pytest.mark.soak) for case in SOAK),
    ],
)
def test_every_driver_publishes_the_join_of_single_events(driver, name, seed, whole, tmp_path):
    events, log = drawn(name, seed), tmp_path / "log"
    DRIVERS[driver](random.Random(f"{driver} {seed}"), events, event_files.mapping(**CHANGES[name]), log)
    if (driver, name, seed) == FAST[0]:
        # Nothing that can become of an event is absent.
        met = Counter[str]()
        for manifest in read_manifests(log):
            met.update(manifest.counters)
        names = (*fate_counters("clicks"), *NOT_PUBLISHED)
        assert all(met[name] for name in names if name != "sampled_out")
        assert {"impressions", "clicks"} <= {path.name.split("-")[0] for path in (log / "late").iterdir()}
    aside = ("rejects", "late")
    files = event_files.published(log, aside)
    assert files == event_files.published(whole(name, seed), aside)
    assert any(file.startswith(f"{FOLDER}/") for file in files) == ("keep_values" in CHANGES[name])
    # Events that are too late lie in files of their own for each piece of the input; workers may set one aside twice.
    late, wanted = (event_files.read_side(one, "late") for one in (log, whole(name, seed)))
    if driver == "stream":
        assert set(map(repr, late)) == set(map(repr, wanted))
    else:
        assert late == wanted


def test_all_that_a_job_writes_is_durable_before_it_has_its_name(tmp_path):
    """Of a power cut: a file appears by a rename or link after its own fsync, and its folder is synced after that.

    A manifest appears once all before it is so.
    """
    synced: set[str] = set()
    named: set[str] = set()
    unsettled: set[str] = set()

    def reach(point: str, path: str) -> None:
        if point == "fsync.after":
            synced.add(path)
            unsettled.difference_update({name for name in unsettled if str(Path(name).parent) == path})
        elif point in ("rename.before", "link.before"):
            assert any(one.startswith(f"{path}.partial-") for one in synced), f"{path} was not synced"
            assert not unsettled or "/manifests/" not in path, f"{path} came before {unsettled}"
            synced.difference_update({one for one in synced if one.startswith(f"{path}.partial-")})
        elif point in ("rename.after", "link.after"):
            named.add(path)
            unsettled.add(path)

    events = drawn("plain", 0)
    folder = event_files.write_events(tmp_path / "events", events, files=2)
    rounds = iter([False, False, True])
    with watching(reach, training=False):
        watch_events(event_files.mapping(), [folder], tmp_path / "log", AT_ONCE, lambda: next(rounds))
    assert not unsettled
    found = {str(path) for path in (tmp_path / "log").rglob("*") if path.is_file() and path.name != ".lock"}
    assert found <= named
    parts = {Path(path).relative_to(tmp_path / "log").parts[:2] for path in found}
    spooled = {(".events", name) for name in ("segments", "units", "clock.json")}
    assert spooled | {("events.yaml",)} <= parts
    assert {"shards", "manifests", "late"} <= {part[0] for part in parts}
