"""A batch on workers that share nothing but the log: a runner carries events to their partitions, not a spool.

::

    LOG/.outcome-HASH    what the workers report to the command: there between the end of the job and publishing
"""

# Beam types its classes, few of its functions.
# mypy: allow-untyped-calls

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions

from ctr.data.event_mapping import EventMapping
from ctr.io.errors import InputError
from ctr.io.files import write_atomic_bytes
from ctr.pipelines.beam import run_pipeline
from ctr.pipelines.events.accounts import UnitReport, report_bytes, report_of
from ctr.pipelines.events.read import Unit, read_unit
from ctr.pipelines.events.rules import partition_rules
from ctr.pipelines.events.steps import parts_of, route_chunk, stage_events, tables_of

_MANIFEST, _REPORT = "manifest", "report"
_OUTCOME = pa.schema([("what", pa.string()), ("place", pa.int64()), ("content", pa.large_binary())])

Finding = tuple[str, int, bytes]  # what it is, the number of its unit or begin of its partition, its content


def run_elsewhere(
    mapping: EventMapping, log: Path, units: Sequence[Unit], options: PipelineOptions
) -> tuple[list[UnitReport], list[tuple[int, bytes]]]:
    """Reads units, and joins and stages their partitions; no manifest is published yet.

    Returns the reports of all units, in their order, and what ``publish_staged`` takes. The log was begun. Its workers
    see it under its path. Raises InputError: of a worker, or of a runner; or the workers write elsewhere.
    """
    names = [f"{unit.kind}\0{unit.name}\0{unit.row_groups}" for unit in units]
    path = log / f".outcome-{hashlib.sha256(repr(names).encode()).hexdigest()[:16]}"
    path.unlink(missing_ok=True)
    run_pipeline(options, lambda pipeline: pipeline | JoinElsewhere(mapping, log, units, path))
    if not path.is_file():
        raise InputError("--beam-options: workers must see the log's folder under the same path")
    with pa.ipc.open_file(pa.BufferReader(path.read_bytes())) as reader:
        found: list[Finding] = [tuple(row.values()) for row in reader.read_all().to_pylist()]
    path.unlink(missing_ok=True)
    reports = [report_of(content) for what, _, content in found if what == _REPORT]
    staged = [(start, content) for what, start, content in found if what == _MANIFEST]
    return reports, staged


class JoinElsewhere(beam.PTransform[Any, Any]):
    """Joins the events of units, stages all partitions, and writes what became of them to ``outcome``."""

    def __init__(self, mapping: EventMapping, log: Path, units: Sequence[Unit], outcome: Path) -> None:
        super().__init__()
        self._mapping, self._log, self._units, self._outcome = mapping, log, list(enumerate(units)), outcome

    def expand(self, begin: Any) -> Any:
        read = (
            begin.pipeline
            | "Units" >> beam.Create(self._units, reshuffle=False)
            | "Spread" >> beam.Reshuffle()
            | "Read and route"
            >> beam.ParDo(_Route(self._mapping, self._log)).with_outputs(_REPORT, main="parts")
        )
        joined = (
            read.parts
            | "By partition" >> beam.GroupByKey()
            | "Stage" >> beam.ParDo(_Stage(self._mapping, self._log))
        )
        return (
            (read[_REPORT], joined)
            | "All findings" >> beam.Flatten()
            | "To one worker" >> beam.Map(_keyed).with_output_types(tuple[bytes, Finding])
            | "At the end" >> beam.GroupByKey()
            | "Write" >> beam.Map(_write_outcome, self._outcome)
        )


@beam.typehints.with_output_types(tuple[int, tuple[str, bytes]])
class _Route(beam.DoFn):
    # The events of a unit for each partition; beside them its report.

    def __init__(self, mapping: EventMapping, log: Path) -> None:
        self._mapping, self._log, self._rules = mapping, log, partition_rules(mapping)

    def process(self, element: tuple[int, Unit]) -> Iterator[Any]:
        number, unit = element
        report = UnitReport(unit.kind, unit.name)
        for chunk in read_unit(self._mapping, unit):
            yield from parts_of(self._rules, unit.kind, route_chunk(self._mapping, self._log, report, chunk))
        yield beam.pvalue.TaggedOutput(_REPORT, (_REPORT, number, report_bytes(report)))


@beam.typehints.with_output_types(Finding)
class _Stage(beam.DoFn):
    # A partition's manifest, whose shards are complete.

    def __init__(self, mapping: EventMapping, log: Path) -> None:
        self._mapping, self._log, self._rules = mapping, log, partition_rules(mapping)

    def process(self, element: tuple[int, Iterable[tuple[str, bytes]]]) -> Iterator[Finding]:
        start, parts = element
        found = tables_of(parts)
        if manifest := stage_events(self._log, self._mapping, start, found):
            yield _MANIFEST, start, manifest


def _keyed(finding: Finding) -> tuple[bytes, Finding]:
    return b"", finding


def _write_outcome(element: tuple[bytes, Iterable[Finding]], path: Path) -> None:
    rows = [dict(zip(_OUTCOME.names, finding, strict=True)) for finding in sorted(element[1])]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _OUTCOME) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema=_OUTCOME))
    write_atomic_bytes(path, sink.getvalue().to_pybytes())
