"""Steps shared by all drivers: routing a chunk's events to partitions, and writing a joined partition's files.

Only its manifest is left for a later step to publish.

::

    LOG/events.yaml                       the mapping of the job
    LOG/unmatched/START-END.parquet       clicks in the partition that count for no example, with the reason
    LOG/unmatched/START-END-NAME.parquet  the same for events of the label NAME
    LOG/conflicting/START-END.parquet     impressions with the id of another one
    LOG/late/KIND-HASH.parquet            events that arrived after their partition was closed
    LOG/values/                           the raw values of the examples, if the mapping asks for them

Shards, sidecar, values and side files of a partition exist before its manifest names them. Their content depends
only on the partition's events, so any number of workers may write them any number of times.
"""

import functools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.config import load_model
from ctr.data.event_mapping import EventMapping, EventTeacher
from ctr.data.history_state import Histories
from ctr.data.kept_values import without_values
from ctr.data.log import (
    RECORD,
    Manifest,
    check_log,
    create_log,
    list_partitions,
    manifest_bytes,
    manifest_path,
    parse_manifest,
    publish_manifest,
)
from ctr.data.parquet_files import parquet_bytes, write_parquet
from ctr.data.reader import rows_of_table
from ctr.data.sample_log import SampledLog, adopt_record
from ctr.data.sidecar import write_sidecar_partition
from ctr.io.errors import InputError
from ctr.io.files import write_atomic_bytes
from ctr.pipelines.events.accounts import UnitReport
from ctr.pipelines.events.join import join_partition, sample_joined
from ctr.pipelines.events.rules import partition_rules, route_clicks, route_impressions
from ctr.pipelines.events.tables import (
    ARRIVAL,
    CLICKS,
    EARLIER,
    IMPRESSIONS,
    Kind,
    concat_events,
    last_arrival,
    prepare,
)
from ctr.pipelines.publish import stage, stage_with_histories
from ctr.pipelines.tables.input_files import Chunk

MAPPING_FILE = "events.yaml"
UNMATCHED, CONFLICTING, LATE_EVENTS = "unmatched", "conflicting", "late"


def begin_log(log: Path, mapping: EventMapping) -> None:
    """Creates the log of a mapping in a folder. Raises InputError for other content, or a log of another mapping."""
    schema = mapping.feature_schema
    check_log(log, schema)
    if not (log / MAPPING_FILE).exists() and list_partitions(log):
        raise InputError(f"{log}: this log was not made from events: use another output directory")
    create_log(log, schema)
    adopt_record(log / MAPPING_FILE, mapping)
    if mapping.sampling is not None:
        adopt_record(log / RECORD, SampledLog(name=mapping.sampling.name, config=mapping.sampling.rule))


def last_published(log: Path) -> int:
    """Returns the start of the last published partition, -1 if there is none."""
    return max((start for start, _ in list_partitions(log)), default=-1)


def publish_staged(
    log: Path, mapping: EventMapping, histories: Histories, staged: Iterable[tuple[int, bytes]]
) -> Iterator[Manifest]:
    """Publishes staged manifests (JSON; empty: no events) by time; no reader sees one before an earlier one.

    Histories are filled now, because they need the earlier partitions.
    """
    for start, content in sorted(staged):
        if content:
            manifest = parse_manifest(content, f"the staged partition from {start} on")
            if mapping.feature_schema.histories:
                manifest = stage_with_histories(log, mapping, histories, manifest)
            publish_manifest(log, manifest)
            yield manifest
    histories.save()


def unmatched_path(log: Path, manifest: Manifest, kind: Kind) -> Path:
    """Returns the path of the file with a partition's clicks, or label's events, that count for no example."""
    name = manifest.name if kind == CLICKS else f"{manifest.name}-{kind}"
    return log / UNMATCHED / f"{name}.parquet"


def write_late(log: Path, kind: Kind, table: pa.Table) -> None:
    """Writes events that arrived after their partition was closed; equal events are written to the same file."""
    write_parquet(log / LATE_EVENTS, kind, without_values(table).combine_chunks())


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

    Events that are too late for their home partition are written to ``LOG/late/``.
    """
    before, form = report.last_arrival, mapping.sources[report.kind].input
    if form.type == "jsonl" and chunk.table.num_rows:
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
    """Joins, scores and samples the events of a partition, and writes all its files but the manifest.

    ``events`` has the tables of each kind, and ``EARLIER``. Returns the manifest as JSON, empty without events.
    Raises InputError if the partition was published before with other content.
    """
    schema, rules = mapping.feature_schema, partition_rules(mapping)
    tables = {what: concat_events(what, mapping, events.get(what, ())) for what in (*mapping.kinds, EARLIER)}
    joined = join_partition(schema, rules, start, tables.pop(IMPRESSIONS), tables.pop(EARLIER), tables)
    if mapping.teacher is not None:
        joined = replace(joined, teacher_logit=_logits(mapping.teacher.model, start, joined.examples))
    if mapping.sampling is not None:
        joined = sample_joined(rules, start, joined, schema, mapping.sampling.rule)
    if joined.is_empty:
        return b""
    manifest = stage(log, mapping, start, joined.examples, counters=joined.counters)
    path, content = manifest_path(log, manifest), manifest_bytes(manifest)
    if not schema.histories and path.is_file() and path.read_bytes() != content:
        raise InputError(
            f"{log}: the partition [{manifest.start}, {manifest.end}) was published before with other content; "
            "the first version is kept: publish later events to another log"
        )
    aside = {unmatched_path(log, manifest, kind): table for kind, table in joined.unmatched.items()}
    aside[log / CONFLICTING / f"{manifest.name}.parquet"] = joined.conflicting
    for path, table in aside.items():
        if table.num_rows:
            write_atomic_bytes(path, parquet_bytes(table))
    if mapping.teacher is not None and joined.teacher_logit is not None:
        columns = {"example_id": joined.examples.column("example_id"), "logit": joined.teacher_logit}
        write_sidecar_partition(log, mapping.teacher.name, manifest, pa.table(columns))
    return content


def _logits(model: Path, start: int, examples: pa.Table) -> np.ndarray:
    """Computes the teacher's logits, float32 [N]. A partition is a batch: its neighbors do not affect its scores."""
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
    """Pins the mapping's teacher to the log's recorded model, else the newest. Raises InputError for other features."""
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
