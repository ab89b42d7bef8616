"""Steps of the job as Beam transforms, and the batches that put events into the spool and closed partitions out of it.

Elements are whole tables: rows one by one would cost fifty times as much.
"""

# Beam types its classes, few of its functions.
# mypy: allow-untyped-calls

import contextlib
import pickle
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.coders import Coder
from apache_beam.coders.typecoders import registry
from apache_beam.ml.inference.base import ModelHandler, PredictionResult, RunInference
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from ctr.config import load_model
from ctr.data.event_mapping import EventMapping, EventTeacher
from ctr.data.log import manifest_bytes
from ctr.data.reader import rows_of_table
from ctr.io.errors import InputError
from ctr.io.files import write_atomic_bytes
from ctr.pipelines.beam import in_this_process, make_pipeline, read_beam_options, split_beam_options
from ctr.pipelines.collisions import Collisions
from ctr.pipelines.events.join import Joined, Sampling, join_partition, sample_joined
from ctr.pipelines.events.publish import MAPPING_FILE, make_sampling, stage_joined, write_late
from ctr.pipelines.events.read import BLOCK_BYTES, Unit, Version, read_unit
from ctr.pipelines.events.rules import partition_rules, route
from ctr.pipelines.events.spool import (
    UnitReport,
    read_partition,
    staged_path,
    write_report,
    write_segment,
    write_shared_ids,
)
from ctr.pipelines.events.tables import Prepared, prepare
from ctr.pipelines.rows.sources import Chunk, UnreadableNowError, faults_named


@dataclass(frozen=True)
class JoinedPartition:
    """Start of a partition and its joined events."""

    start: int
    joined: Joined


@dataclass(frozen=True)
class Piece:
    """Chunk of a unit; one without content is its end, with the version of the file before it was read."""

    unit: Unit
    number: int
    content: Any
    version: Version = field(default_factory=Version)
    damaged: str = ""  # why the unit could not be read to its end


class _TablesCoder(Coder):
    """Pickles; estimates sizes without pickling, because the runner does that for every few elements."""

    def encode(self, value: Any) -> bytes:
        return pickle.dumps(value, protocol=5)

    def decode(self, encoded: bytes) -> Any:
        return pickle.loads(encoded)

    def estimate_size(self, value: Any) -> int:
        return 1000

    def is_deterministic(self) -> bool:
        return False


for _kind in (Piece, JoinedPartition):
    registry.register_coder(_kind, _TablesCoder)


@beam.typehints.with_output_types(Piece)
class ReadEvents(beam.DoFn):
    """Reads units to pieces of raw columns; with ``keep_going`` a unit that cannot be read ends there, not the job."""

    def __init__(self, mapping: EventMapping, keep_going: bool, block_bytes: int = BLOCK_BYTES) -> None:
        self._mapping, self._keep_going, self._block_bytes = mapping, keep_going, block_bytes

    def process(self, unit: Unit) -> Iterator[Piece]:
        number, version, damaged = 0, Version(), ""
        try:
            # Before it is read: what is added while it is read must show as a change.
            with faults_named(unit.path):
                version = Version.read(unit.path)
            for chunk in read_unit(self._mapping, unit, self._block_bytes):
                yield Piece(unit, number, chunk)
                number += 1
        except UnreadableNowError:
            raise
        except InputError as error:
            if not self._keep_going:
                raise
            damaged = str(error)
        yield Piece(unit, number, None, version, damaged)


def prepare_piece(piece: Piece, mapping: EventMapping, clock_us: int) -> Piece:
    """Parses the events of a piece and transforms their features (``prepare``)."""
    if piece.content is None:
        return piece
    assert isinstance(piece.content, Chunk)
    now_us = time.time_ns() // 1000
    return replace(piece, content=prepare(mapping, piece.unit.kind, piece.content, now_us, clock_us))


class SpoolEvents(beam.DoFn):
    """Stores prepared pieces as segments of the spool; at the end of each unit its report.

    The pieces of a unit come in order and in one bundle, since they are made of one element.
    """

    def __init__(self, mapping: EventMapping, log: Path, spool: Path) -> None:
        self._mapping, self._log, self._spool = mapping, log, spool
        self._reports: dict[Unit, UnitReport] = {}

    def start_bundle(self) -> None:
        self._reports = {}

    def process(self, piece: Piece) -> None:
        unit = piece.unit
        report = self._reports.setdefault(unit, UnitReport(unit.kind, unit.name))
        if piece.content is not None:
            self._store(piece, piece.content, report)
            return
        report.size, report.modified_ns = piece.version.size, piece.version.modified_ns
        report.damaged = piece.damaged
        write_report(self._spool, unit, self._reports.pop(unit))

    def _store(self, piece: Piece, prepared: Prepared, report: UnitReport) -> None:
        rules = partition_rules(self._mapping)
        routed, late = route(rules, prepared.kind, prepared.table)
        for start, table in routed.items():
            write_segment(self._spool, piece.unit, piece.number, start, table)
        if late.num_rows:
            write_late(self._log, prepared.kind, late)
        report.events += prepared.count
        report.late += late.num_rows
        report.good += prepared.table.num_rows - late.num_rows
        report.last_arrival = max(report.last_arrival, prepared.last_arrival)
        report.add_rejects(prepared.rejects)


# ---------------------------------------------------------------- partitions


class _Teacher(ModelHandler[JoinedPartition, PredictionResult, Any]):
    """An exported model that scores the examples of a partition by their ids."""

    def __init__(self, model: Path) -> None:
        # A partition is a batch of its own: its scores must not depend on its neighbors.
        super().__init__(min_batch_size=1, max_batch_size=1)
        self._model = model

    def load_model(self) -> Any:
        # TensorFlow loads here, in the worker.
        from ctr.serving.scorer import Scorer

        return Scorer(self._model)

    def get_num_bytes(self, batch: Sequence[JoinedPartition]) -> int:
        return sum(element.joined.examples.nbytes for element in batch)

    def run_inference(
        self, batch: Sequence[JoinedPartition], model: Any, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        from ctr.serving.score import score_rows

        learned = int(model.metadata["position"]["last_query_time"])
        for element in batch:
            rows = rows_of_table(element.joined.examples, model.schema, 0)
            if len(rows) and rows.query_time[0] <= learned:
                raise InputError(
                    f"teacher {self._model}: it was trained on queries up to {learned} us since 1970, but the "
                    f"partition from {element.start} on has queries from {rows.query_time[0]} on: a teacher "
                    "scores only later queries"
                )
            yield PredictionResult(element, score_rows(model, rows))


def _with_logit(result: PredictionResult) -> JoinedPartition:
    element: Any = result.example
    logit = np.asarray(result.inference, np.float32)
    return JoinedPartition(element.start, replace(element.joined, teacher_logit=logit))


@beam.typehints.with_output_types(JoinedPartition)
class _Sample(beam.DoFn):
    def __init__(self, mapping: EventMapping) -> None:
        self._mapping = mapping
        self._sampling: Sampling | None = None

    def setup(self) -> None:
        self._sampling = make_sampling(self._mapping)

    def process(self, element: JoinedPartition) -> Iterator[JoinedPartition]:
        rules = partition_rules(self._mapping)
        joined = sample_joined(rules, element.start, element.joined, self._sampling)
        yield JoinedPartition(element.start, joined)


class SamplePartitions(beam.PTransform[Any, Any]):
    """Scores joined partitions where the mapping has a teacher, and samples them."""

    def __init__(self, mapping: EventMapping) -> None:
        super().__init__()
        self._mapping = mapping

    def expand(self, joined: Any) -> Any:
        if self._mapping.teacher is not None:
            scored = joined | "Score" >> RunInference(_Teacher(self._mapping.teacher.model))
            joined = scored | "With logit" >> beam.Map(_with_logit)
        return joined | "Sample" >> beam.ParDo(_Sample(self._mapping))


def stage_sampled(element: JoinedPartition, mapping: EventMapping, log: Path) -> tuple[int, bytes]:
    """Writes everything of a partition but its manifest; returns its start and that as JSON, empty without events."""
    if element.joined.is_empty:
        return element.start, b""
    manifest = stage_joined(log, mapping, element.start, element.joined)
    return element.start, manifest_bytes(manifest)


class CombineIds(beam.CombineFn):
    """Combines the ids of the examples of joined partitions to ``Collisions``."""

    def __init__(self, mapping: EventMapping) -> None:
        super().__init__()
        self._mapping = mapping

    def create_accumulator(self) -> Collisions:
        return Collisions(self._mapping.feature_schema)

    def add_input(self, mutable_accumulator: Collisions, element: JoinedPartition) -> Collisions:
        mutable_accumulator.add(element.joined.examples)
        return mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[Collisions]) -> Collisions:
        merged = self.create_accumulator()
        for one in accumulators:
            merged.merge(one)
        return merged

    def extract_output(self, accumulator: Collisions) -> Collisions:
        return accumulator


def store_collisions(found: Collisions, spool: Path) -> None:
    """Stores the shares of values that share an id, and the warnings, where the driver finds them."""
    write_shared_ids(spool, found.shares(), list(found.warnings()))


def join_spooled(start: int, mapping: EventMapping, spool: Path) -> JoinedPartition:
    """Joins a partition whose events are in the spool."""
    rules = partition_rules(mapping)
    tables = read_partition(spool, mapping, rules, start)
    return JoinedPartition(start, join_partition(mapping.feature_schema, rules, start, *tables))


def store_staged(staged: tuple[int, bytes], spool: Path) -> None:
    """Stores a partition's manifest where the driver finds it."""
    write_atomic_bytes(staged_path(spool, staged[0]), staged[1])


# What a runner reports of an error in a worker has its class and its message.
_NAMES = [re.escape(f"{error.__module__}.{error.__name__}") for error in (InputError, UnreadableNowError)]
_INPUT_ERROR = re.compile(
    rf"(?:{'|'.join(_NAMES)}|\bOSError|PermissionError): (.*?)(?: \[while running|\n|$)"
)

# The text of the system's errors, which differs from that of the command line.
_SYSTEM_ERROR = re.compile(r"^\[Errno \d+\] (.*): '(.*)'$")


def beam_options(given: str, workers: int) -> PipelineOptions:
    """Reads Beam's options (or InputError); without a runner among them, that of this process with so many workers."""
    arguments = split_beam_options(given)
    if not any(argument.startswith("--runner") for argument in arguments):
        arguments += in_this_process(workers)
    return read_beam_options(arguments, f"--beam-options {given}")


@contextlib.contextmanager
def input_errors_of_workers() -> Iterator[None]:
    """Turns a runner's report of an InputError in a worker into that InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        found = _INPUT_ERROR.search(str(error))
        if found is None:
            raise
        raise InputError(_SYSTEM_ERROR.sub(r"\2: \1", found[1])) from None


def run_pipeline(options: PipelineOptions, build: Callable[[Any], object]) -> None:
    """Builds a pipeline and waits until it is done; InputError of a worker, or of options that fit no runner."""
    pipeline = make_pipeline(options)
    build(pipeline)
    with input_errors_of_workers():
        pipeline.run().wait_until_finish()


def runner_name(options: PipelineOptions) -> str:
    """Returns the name of the runner's class."""
    return str(options.view_as(StandardOptions).runner).rpartition(".")[2]


def spool_units(
    options: PipelineOptions,
    mapping: EventMapping,
    log: Path,
    spool: Path,
    units: Sequence[Unit],
    clock_us: int = 0,
    keep_going: bool = False,
) -> None:
    """Reads units and stores their events in the spool by partition, with a report of each unit.

    Arrivals before ``clock_us`` count as this one. With ``keep_going`` a unit that cannot be read is recorded as
    damaged instead of ending the job.
    """

    def build(pipeline: Any) -> object:
        return (
            pipeline
            | "Units" >> beam.Create(list(units), reshuffle=False)
            | "Spread" >> beam.Reshuffle()
            | "Read" >> beam.ParDo(ReadEvents(mapping, keep_going))
            | "Prepare" >> beam.Map(prepare_piece, mapping, clock_us)
            | "Store" >> beam.ParDo(SpoolEvents(mapping, log, spool))
        )

    run_pipeline(options, build)


def stage_spooled(
    options: PipelineOptions,
    mapping: EventMapping,
    log: Path,
    spool: Path,
    starts: Sequence[int],
    count_ids: bool = False,
) -> None:
    """Joins, scores, samples and writes partitions whose events are in the spool, but publishes none of them.

    With ``count_ids``, also estimates how many values share an id (``read_shared_ids``).
    """

    def build(pipeline: Any) -> object:
        sampled = (
            pipeline
            | "Partitions" >> beam.Create(list(starts), reshuffle=False)
            | "Spread" >> beam.Reshuffle()
            | "Join" >> beam.Map(join_spooled, mapping, spool)
            | SamplePartitions(mapping)
        )
        if count_ids:
            combined = sampled | "Combine ids" >> beam.CombineGlobally(CombineIds(mapping))
            _ = combined | "Store collisions" >> beam.Map(store_collisions, spool)
        written = sampled | "Write" >> beam.Map(stage_sampled, mapping, log)
        return written | "Store" >> beam.Map(store_staged, spool)

    run_pipeline(options, build)


def with_pinned_teacher(mapping: EventMapping, log: Path) -> EventMapping:
    """Pins the teacher's model: that which the log began with, else the newest; InputError for other features."""
    if mapping.teacher is None:
        return mapping
    from ctr.serving.metadata import find_model, model_schema, read_metadata

    model, record = mapping.teacher.model.resolve(), log / MAPPING_FILE
    before = load_model(EventMapping, record, "record of events") if record.exists() else None
    recorded = None if before is None or before.teacher is None else before.teacher.model
    pinned = find_model(model)
    if recorded is not None and model in (recorded, *recorded.parents):
        pinned = recorded
    version = model_schema(read_metadata(pinned), pinned).version
    if version != mapping.feature_schema.version:
        raise InputError(
            f"teacher {pinned}: the model has the features of schema {version}, the mapping those of "
            f"{mapping.feature_schema.version}: both must have the same"
        )
    teacher = EventTeacher(name=mapping.teacher.name, model=pinned.resolve())
    return mapping.model_copy(update={"teacher": teacher})
