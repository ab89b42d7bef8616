"""Beam streaming pipeline of the job, for runners such as Flink and Dataflow.

A partition is a window of Beam's event time, which here is the time of arrival. The events of a partition get the last
moment before it closes as their timestamp, so that its window ends when it closes, and fires once, when the watermark
shows that all of them have arrived. Partitions are joined, scored and written in parallel; one worker publishes their
manifests in order.

The log shows how far a job has come: a job that is started again skips what is published. It needs the events of the
first open partition, and so has to read the source again from there (``first_needed``), or to be restored from a
checkpoint of the runner.
"""

# Beam types its classes, few of its functions.
# mypy: allow-untyped-calls

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.trigger import AccumulationMode, AfterCount, AfterWatermark
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp
from apache_beam.utils.windowed_value import PaneInfoTiming

from ctr.data.event_mapping import EventMapping
from ctr.data.times import duration_us
from ctr.io.errors import InputError
from ctr.io.files import write_atomic_bytes
from ctr.io.signals import Stop
from ctr.pipelines.events.accounts import RecentReports, describe_rejects
from ctr.pipelines.events.join import join_partition
from ctr.pipelines.events.publish import begin_log, last_published, publish_staged, write_late
from ctr.pipelines.events.rules import (
    PartitionRules,
    known_from,
    partition_rules,
    route,
)
from ctr.pipelines.events.run import is_local, with_pinned_teacher
from ctr.pipelines.events.spool import UnitReport
from ctr.pipelines.events.steps import JoinedPartition, SamplePartitions, stage_sampled
from ctr.pipelines.events.stream_job import run_until_stopped
from ctr.pipelines.events.tables import EARLIER_SCHEMA, KINDS, Kind, concat_events, prepare
from ctr.pipelines.rows.chunks import Chunk
from ctr.pipelines.spill import split_by_partition

_EARLIER = "earlier"
_MILLISECOND = 1000

# How long after a partition closes its late events are still recorded; the runner drops later ones.
LATE_FOR = Duration(seconds=7 * 24 * 3600)


@dataclass(frozen=True)
class RawEvents:
    """Raw columns of events of one kind, and the name of their source."""

    kind: Kind
    name: str
    chunk: Chunk


def first_needed(mapping: EventMapping, log: Path) -> int:
    """Returns the arrival, in microseconds, from which on open partitions need the source to be read again."""
    rules, last = partition_rules(mapping), last_published(log)
    if last < 0 or mapping.future is None:
        return 0
    return max(0, known_from(rules, last + rules.length) - duration_us(mapping.future))


def check_rules(mapping: EventMapping) -> PartitionRules:
    """Returns the durations of a mapping. Raises InputError for those that Beam's windows do not hold."""
    rules = partition_rules(mapping)
    for name in ("length", "window", "late_window", "delay", "skew", "show"):
        if (value := getattr(rules, name)) % _MILLISECOND:
            raise InputError(f"mapping: a stream requires whole milliseconds; {name} is {value} us")
    return rules


class PublishStream(beam.PTransform[Any, Any]):
    """Publishes partitions of ``RawEvents`` with their arrival as Beam's timestamp.

    The mapping has its teacher pinned; all workers see the log, which was begun, under its path; the share of rejects
    is that of the latest events of a worker.
    """

    def __init__(self, mapping: EventMapping, log: Path, max_reject_share: float) -> None:
        super().__init__()
        self._mapping, self._log, self._max_reject_share = mapping, log, max_reject_share

    def expand(self, events: Any) -> Any:
        mapping, log, rules = self._mapping, self._log, check_rules(self._mapping)
        last = last_published(log)
        length, offset = Duration(micros=rules.length), Timestamp(micros=rules.closes_at(0) % rules.length)
        return (
            events
            | "Prepare and route" >> beam.ParDo(_Route(mapping, log, last, self._max_reject_share))
            | "Until closed"
            >> beam.WindowInto(
                FixedWindows(length, offset),
                trigger=AfterWatermark(late=AfterCount(1)),
                accumulation_mode=AccumulationMode.DISCARDING,
                allowed_lateness=LATE_FOR,
            )
            | "By partition" >> beam.GroupByKey()
            | "Join" >> beam.ParDo(_Join(mapping, log))
            | SamplePartitions(mapping)
            | "Write" >> beam.Map(stage_sampled, mapping, log)
            | "To one worker" >> beam.Map(_keyed).with_output_types(tuple[bytes, tuple[int, bytes]])
            | "In order" >> beam.GroupByKey()
            | "Publish" >> beam.FlatMap(_publish, log)
        )


def _keyed(staged: tuple[int, bytes]) -> tuple[bytes, tuple[int, bytes]]:
    return b"", staged


def _publish(element: tuple[bytes, Iterable[tuple[int, bytes]]], log: Path) -> Iterator[int]:
    for manifest in publish_staged(log, element[1]):
        yield manifest.start


# ---------------------------------------------------------------- from events to partitions


@beam.typehints.with_output_types(tuple[int, tuple[str, bytes]])
class _Route(beam.DoFn):
    # Parses events, transforms features, and sends each partition the events that it needs, as an Arrow stream.

    def __init__(self, mapping: EventMapping, log: Path, last: int, max_reject_share: float) -> None:
        self._mapping, self._log, self._last = mapping, log, last
        self._rules = partition_rules(mapping)
        self._recent = RecentReports(max_reject_share)

    def process(self, element: RawEvents) -> Iterator[Any]:
        prepared = prepare(self._mapping, element.kind, element.chunk, time.time_ns() // 1000)
        report = UnitReport(element.kind, element.name, events=prepared.count)
        report.add_rejects(prepared.rejects)
        self._check_rejects(report)
        routed, late = route(self._rules, element.kind, prepared.table)
        if late.num_rows:
            write_late(self._log, element.kind, late)
        for start, table in routed.items():
            yield from self._send(start, element.kind, table)
        if element.kind == "impressions":
            yield from self._earlier(routed)

    def _earlier(self, routed: dict[int, pa.Table]) -> Iterator[Any]:
        # Ids and times for the later partitions whose clicks may be those of these impressions.
        for table in routed.values():
            known = table.select(EARLIER_SCHEMA.names)
            times = known.column("query_time").to_numpy()
            begins = self._rules.start_of(times)
            reach = self._rules.lookback + self._rules.ahead
            for ahead in range(1, -(-reach // self._rules.length) + 1):
                starts = begins + ahead * self._rules.length
                there = times >= known_from(self._rules, starts)
                parts = split_by_partition(known.filter(pa.array(there)), starts[there])
                for start, part in parts.items():
                    yield from self._send(start, _EARLIER, part)

    def _send(self, start: int, what: str, table: pa.Table) -> Iterator[Any]:
        if start > self._last:
            last_moment = Timestamp(micros=self._rules.closes_at(start) - _MILLISECOND)
            yield TimestampedValue((start, (what, _to_bytes(table))), last_moment)

    def _check_rejects(self, report: UnitReport) -> None:
        self._recent.add(report)
        if report.rejected:
            content = describe_rejects(report)
            name = f"{hashlib.sha256(content).hexdigest()[:16]}.jsonl"
            write_atomic_bytes(self._log / "rejects" / name, content)
            self._recent.check_rejects()


def _to_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _from_bytes(content: bytes) -> pa.Table:
    with pa.ipc.open_stream(content) as reader:
        return reader.read_all()


@beam.typehints.with_output_types(JoinedPartition)
class _Join(beam.DoFn):
    # Joins a partition when its window fires; events that come after that are too late, and are written apart.

    def __init__(self, mapping: EventMapping, log: Path) -> None:
        self._mapping, self._log = mapping, log

    def process(
        self, element: tuple[int, Iterable[tuple[str, bytes]]], pane: Any = beam.DoFn.PaneInfoParam
    ) -> Iterator[JoinedPartition]:
        start, parts = element
        found: dict[str, list[pa.Table]] = {}
        for what, content in parts:
            found.setdefault(what, []).append(_from_bytes(content))
        if not found:
            # A runner may fire once more, with nothing, when it forgets a window.
            return
        if pane.timing == PaneInfoTiming.LATE:
            self._write_late(start, found)
            return
        mapping, rules = self._mapping, partition_rules(self._mapping)
        impressions, clicks = (concat_events(kind, mapping, found.get(kind, [])) for kind in KINDS)
        earlier = pa.concat_tables([EARLIER_SCHEMA.empty_table(), *found.get(_EARLIER, [])])
        yield JoinedPartition(
            start, join_partition(mapping.feature_schema, rules, start, impressions, earlier, clicks)
        )

    def _write_late(self, start: int, found: dict[str, list[pa.Table]]) -> None:
        rules = partition_rules(self._mapping)
        for kind in KINDS:
            for table in found.get(kind, []):
                if kind == "clicks":
                    # Other partitions than its own get the same click too.
                    at_home = rules.home_of(table.column("time").to_numpy()) == start
                    table = table.filter(pa.array(np.asarray(at_home)))
                if table.num_rows:
                    write_late(self._log, kind, table)


def stream_events(
    mapping: EventMapping,
    log: Path,
    source: Callable[[EventMapping], Any],
    options: PipelineOptions,
    max_reject_share: float = 0.01,
    stop: Stop = lambda: None,
) -> None:
    """Runs the job on a streaming runner until its source ends, or it is canceled.

    ``source`` makes the transform that gives ``RawEvents``, of the mapping with its teacher pinned; all workers see the
    log under its path; a signal of ``stop``, called ten times a second, cancels the job.

    Raises:
        InputError: a runner that cannot do it, another mapping's log, or too many rejects.
    """
    if is_local(options):
        raise InputError(
            "--stream requires a runner that waits for watermarks: --beam-options='--runner=FlinkRunner ...'; without "
            "one, --follow does the same on this machine"
        )
    check_rules(mapping)
    mapping = with_pinned_teacher(mapping, log)
    events = source(mapping)
    begin_log(log, mapping)
    publish = PublishStream(mapping, log, max_reject_share)
    run_until_stopped(options, lambda pipeline: pipeline | "Events" >> events | publish, stop)
