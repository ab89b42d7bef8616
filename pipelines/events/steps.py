"""Steps of every driver: from a chunk to events by partition, and from the events of a partition to its files."""

import functools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.config import load_model
from ctr.data.event_mapping import EventMapping, EventTeacher
from ctr.data.log import manifest_bytes
from ctr.data.mapping import JsonlInput
from ctr.data.reader import rows_of_table
from ctr.io.errors import InputError
from ctr.pipelines.events.accounts import UnitReport
from ctr.pipelines.events.join import join_partition, sample_joined
from ctr.pipelines.events.publish import MAPPING_FILE, stage_joined, write_late
from ctr.pipelines.events.rules import (
    partition_rules,
    route_clicks,
    route_impressions,
)
from ctr.pipelines.events.tables import (
    ARRIVAL,
    EARLIER,
    IMPRESSIONS,
    concat_events,
    last_arrival,
    prepare,
)
from ctr.pipelines.tables.input_files import Chunk

_UNUSED_SHOWN = 20
_LOADING = threading.Lock()


def route_chunk(
    mapping: EventMapping,
    log: Path,
    report: UnitReport,
    chunk: Chunk,
    clock_us: int = 0,
    stamps: np.ndarray | None = None,
) -> dict[int, pa.Table]:
    """Parses raw events (``prepare``), adds them to the report, and splits them by the partitions that need them.

    Those that are too late for their own partition are written to ``LOG/late/``.
    """
    before, form = report.last_arrival, mapping.sources[report.kind].input
    if isinstance(form, JsonlInput) and chunk.table.num_rows:
        wanted, keys = set(chunk.table.column_names), set(chunk.keys)
        absent = wanted - keys - {*form.optional} if report.absent is None else {*report.absent} - keys
        report.absent, report.unused = sorted(absent), sorted(keys - wanted)[:_UNUSED_SHOWN] if absent else []
    table, rejects = prepare(mapping, report.kind, chunk, before, clock_us, stamps)
    rules = partition_rules(mapping)
    if report.kind == IMPRESSIONS:
        routed, late = route_impressions(rules, table)
    else:
        routed, late = route_clicks(rules, table, report.kind)
    if late.num_rows:
        write_late(log, report.kind, late)
    report.add(table, late.num_rows, rejects)
    if table.num_rows:
        report.last_arrival = max(before, last_arrival(mapping, table.column(ARRIVAL).to_numpy(), before))
    return routed


def stage_events(
    log: Path, mapping: EventMapping, start: int, events: Mapping[str, Sequence[pa.Table]]
) -> bytes:
    """Joins, scores and samples the events of a partition, and writes all of it but its manifest.

    ``events`` are those of each kind, and ``EARLIER``. Returns the manifest as JSON, empty without events.
    """
    schema, rules = mapping.feature_schema, partition_rules(mapping)
    tables = {what: concat_events(what, mapping, events.get(what, ())) for what in (*mapping.kinds, EARLIER)}
    joined = join_partition(schema, rules, start, tables.pop(IMPRESSIONS), tables.pop(EARLIER), tables)
    if mapping.teacher is not None:
        joined = replace(joined, teacher_logit=_logits(mapping.teacher.model, start, joined.examples))
    if mapping.sampling is not None:
        joined = sample_joined(rules, start, joined, schema, mapping.sampling.rule)
    return b"" if joined.is_empty else manifest_bytes(stage_joined(log, mapping, start, joined))


def _logits(model: Path, start: int, examples: pa.Table) -> np.ndarray:
    """The teacher's logits, float32 [N]. A partition is a batch: its scores do not depend on its neighbors."""
    # TensorFlow loads here, in the worker.
    from ctr.serving.score import score_rows

    with _LOADING:
        teacher = _teacher(model)
    learned = int(teacher.metadata["position"]["last_query_time"])
    rows = rows_of_table(examples, teacher.schema, 0)
    if len(rows) and rows.query_time[0] <= learned:
        raise InputError(
            f"teacher {model}: it was trained on queries up to {learned} us since 1970, but the partition from {start} "
            f"on has queries from {rows.query_time[0]} on: a teacher scores only later queries"
        )
    return np.asarray(score_rows(teacher, rows), np.float32)


@functools.lru_cache(maxsize=1)
def _teacher(model: Path) -> Any:
    from ctr.serving.scorer import Scorer

    return Scorer(model)


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
    version = model_schema(read_metadata(pinned), pinned).stored.version
    if version != mapping.feature_schema.version:
        raise InputError(
            f"teacher {pinned}: the model has the features of schema {version}, the mapping those of "
            f"{mapping.feature_schema.version}: both must have the same"
        )
    teacher = EventTeacher(name=mapping.teacher.name, model=pinned.resolve())
    return mapping.model_copy(update={"teacher": teacher})
