"""Joins all events of some folders to a log at once: in any order, and of any size.

Memory holds the partition that each worker joins and the chunk that it reads; the disk holds a copy of all events
inside the log until they are published. A job that was killed can be run again: it publishes the same bytes.
"""

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ctr.data.event_mapping import EventMapping
from ctr.io.errors import InputError
from ctr.pipelines.events.accounts import (
    EventCounts,
    check_conservation,
    check_rejects,
    sum_counters,
    write_rejects,
)
from ctr.pipelines.events.publish import LATE_EVENTS, begin_log, publish_staged
from ctr.pipelines.events.read import find_events, split_units
from ctr.pipelines.events.spool import is_followed, list_starts, read_report, read_shared_ids, read_staged
from ctr.pipelines.events.steps import beam_options, spool_units, stage_spooled, with_pinned_teacher
from ctr.pipelines.spill import spill_folder

_WORKERS = 2


@dataclass(frozen=True)
class EventsResult:
    """Result of a batch."""

    counts: EventCounts
    partitions: int
    examples: int
    clicks: int  # examples with label 1
    counters: dict[str, int]  # the sums of the partitions' counters
    # Of each feature with ``buckets`` the estimated share of its values that share their id.
    shared_ids: dict[str, float]
    warnings: list[str]
    seconds: dict[str, float]  # of each stage


def ingest_events(
    mapping: EventMapping,
    folders: Sequence[Path],
    log: Path,
    *,
    max_reject_share: float = 0.01,
    options: str = "",
) -> EventsResult:
    """Publishes the examples that the events of ``folders`` make as the log ``log``.

    Every partition with events is closed: it cannot be published with others later. The workers of another runner,
    given by Beam's ``options``, must see the same folders under the same paths. Raises InputError: no events, a damaged
    file, a missing column, too many rejects, a log of something else, or not a single example.
    """
    begun = time.perf_counter()
    mapping = with_pinned_teacher(mapping, log)
    beam = beam_options(options, _WORKERS)
    files = find_events(mapping, folders)
    if not files:
        raise InputError(f"events {', '.join(map(str, folders))}: no files of impressions or clicks found")
    if is_followed(log):
        raise InputError(f"{log}: this log was made by following events: continue it with --follow")
    units = split_units(files)
    begin_log(log, mapping)
    seconds = {}
    with spill_folder(log) as spool:
        spool_units(beam, mapping, log, spool, units)
        reports = [report for unit in units if (report := read_report(spool, unit)) is not None]
        if len(reports) != len(units):
            raise InputError("--beam-options: workers must see the log's folder under the same path")
        counts = functools.reduce(EventCounts.plus, reports, EventCounts())
        write_rejects(log, reports)
        check_rejects(reports, max_reject_share)
        seconds["spool"] = time.perf_counter() - begun
        starts = list_starts(spool)
        stage_spooled(beam, mapping, log, spool, starts, count_ids=True)
        shared_ids, warnings = read_shared_ids(spool)
        seconds["join"] = time.perf_counter() - begun - seconds["spool"]
        published = list(publish_staged(log, read_staged(spool, starts)))
    seconds["total"] = time.perf_counter() - begun
    counters = sum_counters(published)
    check_conservation(counts, counters, 0)
    if not any(manifest.rows for manifest in published):
        shown = counts.impressions
        fate = f"{shown.rejected} were rejected and {shown.late} came too late"
        see = f"see {log / 'rejects'} and {log / LATE_EVENTS}"
        raise InputError(f"{log}: none of {shown.read} impressions became an example: {fate}; {see}")
    return EventsResult(
        counts,
        len(published),
        sum(manifest.rows for manifest in published),
        sum(manifest.clicks for manifest in published),
        counters,
        shared_ids,
        warnings,
        seconds,
    )
