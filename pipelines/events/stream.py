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

import contextlib
import hashlib
import os
import shlex
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import grpc
import numpy as np
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, StandardOptions
from apache_beam.transforms.trigger import AccumulationMode, AfterCount, AfterWatermark
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp
from apache_beam.utils.windowed_value import PaneInfoTiming

from ctr.data.event_mapping import EventMapping
from ctr.data.history_state import Histories
from ctr.data.times import duration_us
from ctr.io.errors import InputError
from ctr.io.files import write_atomic_bytes
from ctr.io.signals import Stop
from ctr.pipelines.beam import input_errors_of_workers, make_pipeline, options_or_threads, runner_name
from ctr.pipelines.events.accounts import RecentReports, UnitReport, describe_rejects
from ctr.pipelines.events.parts import parts_of, tables_of
from ctr.pipelines.events.publish import begin_log, last_published, publish_staged, write_late
from ctr.pipelines.events.rules import PartitionRules, known_from, partition_rules
from ctr.pipelines.events.steps import route_chunk, stage_events, with_pinned_teacher
from ctr.pipelines.events.tables import KINDS, Kind
from ctr.pipelines.rows.sources import Chunk

_MILLISECOND = 1000

# How long after a partition closes its late events are still recorded; the runner drops later ones.
LATE_FOR = Duration(seconds=7 * 24 * 3600)


@dataclass(frozen=True)
class RawEvents:
    """Raw columns of events of one kind, and the name of their source."""

    kind: Kind
    name: str
    chunk: Chunk
    before: int = -1  # the last arrival of the files before
    stamps: np.ndarray | None = None  # [N] int64, the timestamps of records, in microseconds


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

    The mapping has its teacher pinned; all workers see the log, which was begun, under its path or address; the share
    of rejects is that of the latest events of a worker.
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
            | "Stage" >> beam.ParDo(_Stage(mapping, log))
            | "To one worker" >> beam.Map(_keyed).with_output_types(tuple[bytes, tuple[int, bytes]])
            | "In order" >> beam.GroupByKey()
            | "Publish" >> beam.ParDo(_Publish(mapping, log))
        )


def _keyed(staged: tuple[int, bytes]) -> tuple[bytes, tuple[int, bytes]]:
    return b"", staged


@beam.typehints.with_output_types(int)
class _Publish(beam.DoFn):
    # Publishes staged partitions; returns their starts.

    def __init__(self, mapping: EventMapping, log: Path) -> None:
        self._mapping, self._log = mapping, log

    def setup(self) -> None:
        self._histories = Histories(self._log, self._mapping.feature_schema)

    def process(self, element: tuple[bytes, Iterable[tuple[int, bytes]]]) -> Iterator[int]:
        for manifest in publish_staged(self._log, self._mapping, self._histories, element[1]):
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
        report = UnitReport(element.kind, element.name, last_arrival=element.before)
        routed = route_chunk(self._mapping, self._log, report, element.chunk, stamps=element.stamps)
        self._check_rejects(report)
        for start, part in parts_of(self._rules, element.kind, routed):
            if start > self._last:
                last_moment = Timestamp(micros=self._rules.closes_at(start) - _MILLISECOND)
                yield TimestampedValue((start, part), last_moment)

    def _check_rejects(self, report: UnitReport) -> None:
        self._recent.add(report)
        self._recent.check_columns()
        if report.rejected:
            content = describe_rejects(report)
            name = f"{hashlib.sha256(content).hexdigest()[:16]}.jsonl"
            write_atomic_bytes(self._log / "rejects" / name, content)
            self._recent.check_rejects()


@beam.typehints.with_output_types(tuple[int, bytes])
class _Stage(beam.DoFn):
    # Stages a partition when its window fires; events that come after that are too late, and are written apart.

    def __init__(self, mapping: EventMapping, log: Path) -> None:
        self._mapping, self._log = mapping, log

    def process(
        self, element: tuple[int, Iterable[tuple[str, bytes]]], pane: Any = beam.DoFn.PaneInfoParam
    ) -> Iterator[tuple[int, bytes]]:
        start, parts = element
        found = tables_of(parts)
        # A runner may fire once more, with nothing, when it forgets a window.
        if found and pane.timing == PaneInfoTiming.LATE:
            self._write_late(start, found)
        elif found:
            yield start, stage_events(self._log, self._mapping, start, found)[1]

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
    log under its path or address; a signal of ``stop``, called ten times a second, cancels the job. Raises InputError:
    a runner that cannot do it, another mapping's log, or too many rejects.
    """
    if runner_name(options) == "FnApiRunner":
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


_FLINK = ("FlinkRunner", "PortableRunner")
_CHECKPOINTING = "--checkpointing_interval"
_CANCEL_SECONDS = 60
_CONNECT_SECONDS = 10

_WITH_CHECKPOINTS = {
    # Without it the output of a bundle that a checkpoint ends waits for the next bundle, which may never come.
    "--finish_bundle_before_checkpointing": "",
    # By default Flink restarts a failing job forever.
    "--number_of_execution_retries": "=3",
}
# How long finished sources stay; Flink's own default depends on whether there are checkpoints. Without these sources
# the watermark of Kafka no longer moves; with them a job that has read everything does not end.
_SOURCES_STAY = "--shutdown_sources_after_idle_ms"
_FOR_EVER = 2**63 - 1
# A watermark moves when a bundle ends, so that partitions are published this much late; by default a second.
_ALWAYS = {"--max_bundle_time_mills": "=100"}


def streaming_options(given: str, drain: bool) -> PipelineOptions:
    """Reads Beam's options, or raises InputError; for Flink adds those that such a job needs where they are absent."""
    options = options_or_threads(given, 1)
    options.view_as(StandardOptions).streaming = True
    if runner_name(options) not in _FLINK:
        return options
    arguments = shlex.split(given)
    names = {argument.partition("=")[0] for argument in arguments}
    stay = {_SOURCES_STAY: f"={1 if drain else _FOR_EVER}"}
    needed = _ALWAYS | stay | (_WITH_CHECKPOINTS if _CHECKPOINTING in names else {})
    added = [name + value for name, value in needed.items() if name not in names]
    options = options_or_threads(shlex.join([*arguments, *added]), 1)
    options.view_as(StandardOptions).streaming = True
    return options


def run_until_stopped(options: PipelineOptions, build: Callable[[Any], object], stop: Stop) -> None:
    """Runs a pipeline until it is done, or canceled; InputError of a worker or a runner that cannot be reached."""
    _check_endpoint(options)
    pipeline = make_pipeline(options)
    build(pipeline)
    with _runner_errors(), input_errors_of_workers():
        _run(pipeline, stop)


def _check_endpoint(options: PipelineOptions) -> None:
    """Refuses a job server that does not answer; Beam itself would wait minutes for it."""
    endpoint = str(options.view_as(PortableOptions).job_endpoint or "")
    host, colon, port = endpoint.rpartition(":")
    if runner_name(options) not in _FLINK or not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise InputError(f"--beam-options: no job server at {endpoint}: {error.strerror or error}") from None


def _run(pipeline: Any, stop: Stop) -> None:
    submitted: list[Any] = []
    failures: list[Exception] = []
    ended = threading.Event()

    def run() -> None:
        try:
            submitted.append(pipeline.run())
            submitted[0].wait_until_finish()
        except Exception as error:
            failures.append(error)
        finally:
            ended.set()

    # A thread of its own: a signal must not interrupt Beam.
    threading.Thread(target=run, daemon=True).start()
    while not ended.wait(0.1):
        if stop() is not None:
            for result in submitted:
                result.cancel()
                ended.wait(_CANCEL_SECONDS)
            return
    if failures:
        raise failures[0]


@contextlib.contextmanager
def _runner_errors() -> Iterator[None]:
    # A runner that cannot be reached, or cannot run the job, gives an error of one line.
    try:
        yield
    except (grpc.RpcError, grpc.FutureTimeoutError) as error:
        details = error.details() if hasattr(error, "details") else "no answer"
        raise InputError(f"--beam-options: the runner cannot be reached (any more): {details}") from None
    except RuntimeError as error:
        if "Traceback" in str(error):
            raise
        # Not from a worker: the runner itself has failed.
        raise InputError(f"--beam-options: {error}") from None


@contextlib.contextmanager
def silent_workers() -> Iterator[None]:
    """Hides what workers inside this process print, in each try and thread again: the error of the job has it all."""
    # Also after the block: threads of a worker that has lost its runner end some time later.
    threading.excepthook = lambda failure: None
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield
