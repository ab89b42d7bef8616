"""Runs the steps of the job as Beam batches: events into the spool, and closed partitions out of it."""

# mypy: allow-untyped-calls

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from ctr.config import load_model
from ctr.data.event_mapping import EventMapping, EventTeacher
from ctr.io.errors import InputError
from ctr.pipelines.beam import in_this_process, make_pipeline, read_beam_options, split_beam_options
from ctr.pipelines.events.publish import MAPPING_FILE
from ctr.pipelines.events.read import Unit
from ctr.pipelines.events.steps import (
    CombineIds,
    ReadEvents,
    SamplePartitions,
    SpoolEvents,
    join_spooled,
    prepare_piece,
    stage_sampled,
    store_collisions,
    store_staged,
)
from ctr.pipelines.rows.sources import UnreadableNowError

# What a runner reports of an error in a worker has its class and its message.
_NAMES = [re.escape(f"{error.__module__}.{error.__name__}") for error in (InputError, UnreadableNowError)]
_INPUT_ERROR = re.compile(
    rf"(?:{'|'.join(_NAMES)}|\bOSError|PermissionError): (.*?)(?: \[while running|\n|$)"
)

# The text of the system's errors, which differs from that of the command line.
_SYSTEM_ERROR = re.compile(r"^\[Errno \d+\] (.*): '(.*)'$")


def beam_options(given: str, workers: int) -> PipelineOptions:
    """Reads Beam's options; without a runner among them, that of this process with so many workers.

    Raises InputError: an option that Beam does not read.
    """
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
    """Pins the version of the teacher's model: the one that the log was started with, else the newest.

    Raises InputError: no model, or one with other features.
    """
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
