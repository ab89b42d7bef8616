"""Beam streaming pipeline that makes a log from events, for runners such as Flink and Dataflow.

A partition is a window of Beam's event time, which here is the time of arrival. The events of a partition get the last
moment before it closes as their timestamp, so that its window ends when it closes, and fires once, when the watermark
shows that all of them have arrived. Partitions are joined, scored and written in parallel; one worker publishes their
manifests in order.

::

    LOG/.stream-counts.json   the impressions that a draining job has read for each partition, until they are compared
                              with the published ones

The log shows a job's progress: a job that is started again skips published partitions. It needs the events of the
first open partition, and so has to read the source again from there (``first_needed``), or to be restored from a
checkpoint of the runner.
"""

# Beam has types for its classes, but only for few of its functions.
# mypy: allow-untyped-calls

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.transforms.trigger import AccumulationMode, AfterCount, AfterWatermark
from apache_beam.transforms.window import FixedWindows, GlobalWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp
from apache_beam.utils.windowed_value import PaneInfoTiming

from ctr.data.event_mapping import EventMapping
from ctr.data.history_state import Histories
from ctr.data.log import RECORD, parse_manifest, partition_name
from ctr.data.times import duration_us
from ctr.io.errors import InputError
from ctr.io.files import write_atomic_bytes
from ctr.io.signals import Stop
from ctr.pipelines.beam import read_beam_options, run_pipeline, runs_in_this_process, split_beam_options
from ctr.pipelines.events.accounts import RecentReports, UnitReport, describe_rejects
from ctr.pipelines.events.addresses import MANIFESTS, local_log, match_files
from ctr.pipelines.events.drivers import Location
from ctr.pipelines.events.publish import (
    MAPPING_FILE,
    begin_log,
    last_published,
    publish_staged,
    route_chunk,
    stage_events,
    with_pinned_teacher,
    write_late,
)
from ctr.pipelines.events.rules import PartitionRules, known_from, partition_rules
from ctr.pipelines.events.tables import EARLIER, EARLIER_SCHEMA, IMPRESSIONS, Kind
from ctr.pipelines.spill import split_by_partition
from ctr.pipelines.tables.input_files import Chunk

_MILLISECOND = 1000

_COUNTS = ".stream-counts.json"
_READ = "read"  # counts of impressions by the partition that they were read for

# How long late events are still recorded after a partition closes; the runner drops later ones.
LATE_FOR = Duration(seconds=7 * 24 * 3600)


@dataclass(frozen=True)
class RawEvents:
    """Raw columns of events of one kind, and the name of their source."""

    kind: Kind
    name: str
    chunk: Chunk
    before: int = -1  # the last arrival in the files before it
    stamps: np.ndarray | None = None  # [N] int64, the timestamps of records, in microseconds


def first_needed(mapping: EventMapping, log: Location) -> int:
    """Returns the arrival, in microseconds, from which the source must be read for open partitions; 0: all of it."""
    rules = partition_rules(mapping)
    with local_log(log, names=MANIFESTS) as folder:
        last = last_published(folder)
    if last < 0 or mapping.future is None:
        return 0
    return max(0, known_from(rules, last + rules.length) - duration_us(mapping.future))


def check_rules(mapping: EventMapping) -> PartitionRules:
    """Returns the rules of a mapping. Raises InputError for fractions of milliseconds, which Beam does not have."""
    rules = partition_rules(mapping)
    values = vars(rules) | {f"the window of {name}": window for name, (window, _) in rules.labels.items()}
    for name, value in values.items():
        if name not in ("labels", "overlap") and value % _MILLISECOND:
            raise InputError(f"mapping: a stream requires whole milliseconds; {name} is {value} us")
    return rules


class PublishStream(beam.PTransform[Any, Any]):
    """Joins ``RawEvents``, whose Beam timestamps are their arrivals, and publishes partitions; yields their starts.

    The mapping's teacher must be pinned. All workers must see the existing log under its path or address. The share
    of rejects is over a worker's latest events. With ``counts`` the number of impressions read for each partition is
    written when the watermark reaches the end of time.
    """

    def __init__(
        self, mapping: EventMapping, log: Location, max_reject_share: float, counts: bool = False
    ) -> None:
        super().__init__()
        self._mapping, self._log = mapping, log
        self._max_reject_share, self._counts = max_reject_share, counts

    def expand(self, events: Any) -> Any:
        mapping, log, rules = self._mapping, self._log, check_rules(self._mapping)
        with local_log(log, names=MANIFESTS) as folder:
            last = last_published(folder)
        length, offset = Duration(micros=rules.length), Timestamp(micros=rules.closes_at(0) % rules.length)
        route = beam.ParDo(_Route(mapping, log, last, self._max_reject_share))
        routed = events | "Prepare and route" >> route.with_outputs(_READ, main="parts")
        staged = (
            routed.parts
            | "Until closed"
            >> beam.WindowInto(
                FixedWindows(length, offset),
                trigger=AfterWatermark(late=AfterCount(1)),
                accumulation_mode=AccumulationMode.DISCARDING,
                allowed_lateness=LATE_FOR,
            )
            | "By partition" >> beam.GroupByKey()
            | "Stage" >> beam.ParDo(_Stage(mapping, log)).with_outputs(_READ, main="staged")
        )
        if self._counts:
            at_the_end = beam.WindowInto(
                GlobalWindows(), trigger=AfterWatermark(), accumulation_mode=AccumulationMode.DISCARDING
            )
            read = enumerate((routed[_READ], staged[_READ]))
            _ = (
                [counts | f"To the end {number}" >> at_the_end for number, counts in read]
                | "All counts" >> beam.Flatten()
                | "By their partition" >> beam.CombinePerKey(sum)
                | "Counts to one worker" >> beam.Map(lambda count: (b"", count))
                | "At the end" >> beam.GroupByKey()
                | "Write counts" >> beam.Map(_write_counts, log)
            )
        return (
            staged.staged
            | "To one worker"
            >> beam.Map(lambda staged: (b"", staged)).with_output_types(tuple[bytes, tuple[int, bytes]])
            | "In order" >> beam.GroupByKey()
            | "Publish" >> beam.ParDo(_Publish(mapping, log))
        )


def _write_counts(element: tuple[bytes, Iterable[tuple[int, int]]], location: Location) -> None:
    with local_log(location) as log:
        write_atomic_bytes(log / _COUNTS, json.dumps(dict(element[1])).encode())


class _Step(beam.DoFn):
    def __init__(self, mapping: EventMapping, log: Location) -> None:
        self._mapping, self._log, self._rules = mapping, log, partition_rules(mapping)


@beam.typehints.with_output_types(int)
class _Publish(_Step):
    # Publishes staged partitions; returns their starts.

    def setup(self) -> None:
        # A log at an address has no histories.
        self._histories = Histories(Path(self._log), self._mapping.feature_schema)

    def process(self, element: tuple[bytes, Iterable[tuple[int, bytes]]]) -> Iterator[int]:
        staged = list(element[1])
        with local_log(self._log, *(_manifest_name(self._rules, start) for start, _ in staged)) as log:
            published = list(publish_staged(log, self._mapping, self._histories, staged))
        yield from (manifest.start for manifest in published)


# ---------------------------------------------------------------- from events to partitions


@beam.typehints.with_output_types(tuple[int, tuple[str, bytes]])
class _Route(_Step):
    # Parses events, transforms features, and sends each partition the events that it needs: its start, and a kind or
    # ``EARLIER`` with the events as an Arrow stream.

    def __init__(self, mapping: EventMapping, log: Location, last: int, max_reject_share: float) -> None:
        super().__init__(mapping, log)
        self._last, self._recent = last, RecentReports(max_reject_share)

    def process(self, element: RawEvents) -> Iterator[Any]:
        report = UnitReport(element.kind, element.name, last_arrival=element.before)
        with local_log(self._log) as log:
            routed = route_chunk(self._mapping, log, report, element.chunk, stamps=element.stamps)
            if report.rejected:
                content = describe_rejects(report)
                name = f"{hashlib.sha256(content).hexdigest()[:16]}.jsonl"
                write_atomic_bytes(log / "rejects" / name, content)
        self._recent.add(report)
        self._recent.check()
        parts = [(start, element.kind, table) for start, table in routed.items()]
        if element.kind == IMPRESSIONS:
            for table in routed.values():
                parts += self._candidates(table)
            for start, table in routed.items():
                if start > self._last:
                    yield beam.pvalue.TaggedOutput(_READ, (start, table.num_rows))
        for start, what, table in parts:
            if start > self._last:
                last_moment = Timestamp(micros=self._rules.closes_at(start) - _MILLISECOND)
                yield TimestampedValue((start, (what, _to_bytes(table))), last_moment)

    def _candidates(self, impressions: pa.Table) -> Iterator[tuple[int, str, pa.Table]]:
        """Yields ids and times for later partitions that may have clicks on these impressions."""
        rules, candidates = self._rules, impressions.select(EARLIER_SCHEMA.names)
        times = candidates.column("query_time").to_numpy()
        reach = rules.lookback + rules.ahead
        for ahead in range(1, -(-reach // rules.length) + 1):
            starts = rules.start_of(times) + ahead * rules.length
            there = times >= known_from(rules, starts)
            parts = split_by_partition(candidates.filter(pa.array(there)), starts[there])
            yield from ((start, EARLIER, part) for start, part in parts.items())


@beam.typehints.with_output_types(tuple[int, bytes])
class _Stage(_Step):
    # Stages a partition when its window fires; events that come after that are too late, and are written apart.

    def process(
        self, element: tuple[int, Iterable[tuple[str, bytes]]], pane: Any = beam.DoFn.PaneInfoParam
    ) -> Iterator[Any]:
        start, parts = element
        tables: dict[str, list[pa.Table]] = {}
        for what, content in parts:
            with pa.ipc.open_stream(content) as reader:
                tables.setdefault(what, []).append(reader.read_all())
        # A runner may fire once more, without events, when it discards a window.
        if tables and pane.timing == PaneInfoTiming.LATE:
            with local_log(self._log) as log:
                for kind, table in ((k, table) for k in self._mapping.kinds for table in tables.get(k, [])):
                    if kind != IMPRESSIONS:
                        # Partitions besides its home get the same click.
                        at_home = self._rules.home_of(table.column("time").to_numpy()) == start
                        table = table.filter(pa.array(np.asarray(at_home)))
                    if table.num_rows:
                        write_late(log, kind, table)
            late = sum(table.num_rows for table in tables.get(IMPRESSIONS, []))
            yield beam.pvalue.TaggedOutput(_READ, (start, -late))
        elif tables:
            with local_log(self._log, "schema.json", _manifest_name(self._rules, start)) as log:
                manifest = stage_events(log, self._mapping, start, tables)
            yield start, manifest


def _to_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def stream_events(
    mapping: EventMapping,
    log: Location,
    source: Callable[[EventMapping], Any],
    options: PipelineOptions,
    max_reject_share: float = 0.01,
    stop: Stop = lambda: None,
    *,
    drain: bool = False,
) -> None:
    """Runs the job on a streaming runner until its source ends, or it is canceled.

    ``source`` makes the transform that yields ``RawEvents`` from the mapping with a pinned teacher. All workers must
    see the log by its path or address. ``stop``, called ten times a second, cancels the job. Set ``drain`` if the
    source ends. Raises InputError for an unsuitable runner, another mapping's log, many rejects, or lost impressions.
    """
    if runs_in_this_process(options) and not drain:
        raise InputError(
            "--stream requires a runner that waits for watermarks: --beam-options='--runner=PortableRunner ...', or "
            "--drain; without one, --follow does the same on this machine"
        )
    check_rules(mapping)
    if isinstance(log, str) and mapping.feature_schema.histories:
        raise InputError(
            f"{log}: histories are made of earlier partitions, which must be on the workers' own file system; "
            "allowed: a path, or a mapping without histories"
        )
    with local_log(log, "schema.json", MAPPING_FILE, RECORD, _COUNTS, names=MANIFESTS) as folder:
        mapping = with_pinned_teacher(mapping, folder)
        events = source(mapping)
        if isinstance(log, str) and not any(folder.iterdir()) and (names := match_files(log, ["**"], 1)):
            raise InputError(
                f"{log} is neither empty nor an example log (it holds {min(names)})",
                "use another output directory",
            )
        begin_log(folder, mapping)
        (folder / _COUNTS).unlink(missing_ok=True)
    publish = PublishStream(mapping, log, max_reject_share, drain)
    run_pipeline(options, lambda pipeline: pipeline | "Events" >> events | publish, stop)
    if drain and stop() is None:
        _check_nothing_lost(log, partition_rules(mapping))


def _manifest_name(rules: PartitionRules, start: int) -> str:
    return f"manifests/{partition_name(start, start + rules.length)}.json"


def _check_nothing_lost(location: Location, rules: PartitionRules) -> None:
    """Raises InputError if a drained job did not publish all impressions that it has read for a partition."""
    with local_log(location, _COUNTS, MANIFESTS) as log:
        # Without events nothing is counted. A job that was resumed from a checkpoint has counted those since then.
        read = json.loads((log / _COUNTS).read_bytes()) if (log / _COUNTS).is_file() else {}
        published = dict.fromkeys(read, 0)
        for start in read:  # by name: a listing may be old
            path = log / _manifest_name(rules, int(start))
            if path.is_file():
                published[start] = parse_manifest(path.read_bytes(), str(path)).counters["impressions"]
        (log / _COUNTS).unlink(missing_ok=True)
    if lost := [start for start, count in read.items() if count > published[start]]:
        raise InputError(
            f"{location}: the runner lost events: {sum(read.values())} impressions were read for partitions that had "
            f"not been published, but {sum(published.values())} are in them; {len(lost)} partitions are incomplete or "
            "missing; use another runner and another output directory"
        )


def streaming_options(text: str, drain: bool) -> PipelineOptions:
    """Parses Beam's options and adds options that Flink requires. Raises InputError if one is invalid."""
    arguments = split_beam_options(text)
    options = read_beam_options(arguments)
    if str(options.view_as(StandardOptions).runner).rpartition(".")[2] in ("FlinkRunner", "PortableRunner"):
        names = {argument.partition("=")[0] for argument in arguments}
        needed = {
            # A watermark moves when a bundle ends, which delays partitions by this much; the default is a second.
            "--max_bundle_time_mills": "=100",
            # How long finished sources stay; Flink's default depends on whether there are checkpoints. Without
            # these sources the watermark of Kafka no longer moves; with them a job that has read everything does not
            # end.
            "--shutdown_sources_after_idle_ms": f"={1 if drain else 2**63 - 1}",
        }
        if "--checkpointing_interval" in names:
            needed |= {
                # Without it the output of a bundle that a checkpoint ends waits for the next one, which may never come.
                "--finish_bundle_before_checkpointing": "",
                # By default Flink restarts a failing job forever.
                "--number_of_execution_retries": "=3",
            }
        added = [name + value for name, value in needed.items() if name not in names]
        options = read_beam_options([*arguments, *added])
    options.view_as(StandardOptions).streaming = True
    FileSystems.set_options(options)
    return options


@contextlib.contextmanager
def silent_workers() -> Iterator[None]:
    """Hides the output of in-process workers, repeated per try and thread; the job's error contains it anyway."""
    # Also after the block: threads of a worker that has lost its runner end some time later.
    threading.excepthook = lambda failure: None
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield
