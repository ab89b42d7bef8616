"""Joins the events of folders that are being filled to a log, partition by partition, until it is stopped.

::

    LOG/.events/            the spool, which outlives the process (``ctr.pipelines.events.spool``)
    LOG/.events/clock.json  the arrival that the clock has reached, and so which partitions are closed

Each round reads the files that are new, stores their events in the spool, moves the clock to the arrival that both
kinds have reached, and publishes the partitions that are closed by it, in order. A round that is killed is done again
with the same result: files are read again until their report is there, partitions are staged again until their
manifest is.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ctr.data.event_mapping import EventMapping
from ctr.data.kept_values import FOLDER as VALUES
from ctr.data.log import Manifest, read_manifests
from ctr.io.errors import InputError
from ctr.io.files import make_folder, remove_temporaries, write_atomic_bytes
from ctr.io.locks import hold
from ctr.pipelines.events.accounts import (
    EventCounts,
    RecentReports,
    check_conservation,
    sum_counters,
    write_rejects,
)
from ctr.pipelines.events.drivers import FollowSettings
from ctr.pipelines.events.publish import (
    CONFLICTING,
    LATE_EVENTS,
    UNMATCHED,
    begin_log,
    last_published,
    publish_staged,
)
from ctr.pipelines.events.read import EventFolders, FilesRead, Unit, Version
from ctr.pipelines.events.rules import known_from, partition_rules
from ctr.pipelines.events.spool import (
    SPOOL,
    UnitReport,
    count_impressions,
    drop_partitions,
    drop_unfinished,
    list_reports,
    list_starts,
    read_report,
    read_staged,
)
from ctr.pipelines.events.steps import beam_options, spool_units, stage_spooled, with_pinned_teacher
from ctr.pipelines.events.tables import KINDS, Kind

_CLOCK = "clock.json"
_FILES_A_ROUND = 32
_RECENT_FILES = 1000
_CHANGED = "changed after it was read: the added part is not read; put new events into a new file"


@dataclass(frozen=True)
class WatchSettings(FollowSettings):
    """Settings of a watch; ``beam_options`` are of another runner, whose workers see the folders under their paths."""

    max_reject_share: float = 0.01  # of the latest events; more of them end the job
    workers: int = 1  # threads of the runner inside this process
    beam_options: str = ""


@dataclass
class Progress:
    """Work of a watch so far, also before this process."""

    counts: EventCounts = field(default_factory=EventCounts)
    clock_us: int = -1  # the arrival that the clock has reached, -1 before the first
    pending: int = 0  # impressions that wait in open partitions
    published: int = 0  # partitions, by this process
    rows: int = 0  # of these partitions


def watch_events(
    mapping: EventMapping,
    folders: Sequence[Path],
    log: Path,
    settings: WatchSettings,
    stop: Callable[[], bool],
    report: Callable[[Progress, list[Manifest]], None] = lambda progress, published: None,
) -> Progress:
    """Publishes partitions as their events arrive; returns when ``stop`` says so, or, draining, when all is published.

    ``stop`` is called between rounds, ``report`` after each round with what it published. Raises InputError: too many
    rejects, another mapping or another process at work on the log, or wrong options.
    """
    mapping = with_pinned_teacher(mapping, log)
    options = beam_options(settings.beam_options, settings.workers)
    begin_log(log, mapping)
    make_folder(log / SPOOL)
    with hold(log / SPOOL, f"{log}: another process publishes events there"):
        watch = _Watch(mapping, folders, log, settings)
        while not stop():
            new = watch.new_units()
            if new:
                # Arrivals before the present clock are too late for what is closed by it, whenever they are read.
                spool_units(options, mapping, log, watch.spool, new, watch.progress.clock_us, keep_going=True)
                watch.add_units(new)
            watch.move_clock(drained=settings.drain and not new)
            due = watch.due_starts()
            published: list[Manifest] = []
            if due:
                stage_spooled(options, mapping, log, watch.spool, due)
                published = list(publish_staged(log, read_staged(watch.spool, due)))
                watch.add_published(due, published)
            report(watch.progress, published)
            if settings.drain and not new:
                break
            if not new:
                time.sleep(settings.poll_seconds)
        watch.finish()
        return watch.progress


class _Watch:
    """State of a watch: the files that were read, the arrivals and the clock, and what is published."""

    def __init__(
        self, mapping: EventMapping, folders: Sequence[Path], log: Path, settings: WatchSettings
    ) -> None:
        self.spool = log / SPOOL
        self.progress = Progress()
        self._log, self._settings = log, settings
        self._rules = partition_rules(mapping)
        self._folders = EventFolders(mapping, folders, settings)
        self._files = FilesRead(self._report_change)
        self._recent = RecentReports(settings.max_reject_share, _RECENT_FILES)
        self._arrived: dict[Kind, int] = dict.fromkeys(KINDS, -1)
        self._seen: dict[Kind, float] = dict.fromkeys(KINDS, time.monotonic())
        self._published = last_published(log)
        self._restore()

    def _restore(self) -> None:
        """Continues where the process before this one has stopped, or was killed."""
        clock = self.spool / _CLOCK
        if clock.exists():
            self.progress.clock_us = json.loads(clock.read_bytes())["clock_us"]
        elif self._published >= 0:
            # Clicks would not find their impressions in the spool, and the counts would not add up.
            raise InputError(
                f"{self._log}: this log was not made by following events, and its events are not in its spool: use "
                "another output directory"
            )
        drop_unfinished(self.spool)
        for folder in ("manifests", "shards", VALUES, UNMATCHED, CONFLICTING, LATE_EVENTS, "rejects"):
            remove_temporaries(self._log / folder)
        reports = sorted(list_reports(self.spool), key=lambda report: report.modified_ns)
        # A process may have been killed between a report and the description of its rejects.
        self._add_reports(reports, [report for report in reports if report.rejected or report.damaged])

    def _add_reports(self, reports: Sequence[UnitReport], described: Sequence[UnitReport]) -> None:
        """Counts units, describes the rejects of some of them, and checks that there are not too many."""
        for report in reports:
            self._files.add(report.kind, report.name, Version(report.size, report.modified_ns))
            self._recent.add(report)
            self.progress.counts = self.progress.counts.plus(report)
            self._arrived[report.kind] = max(self._arrived[report.kind], report.last_arrival)
        write_rejects(self._log, described)
        self._recent.check_damaged()
        self._recent.check_rejects()

    def _report_change(self, unit: Unit) -> None:
        # What was added to a file is not read; that is among the rejects.
        report = read_report(self.spool, unit)
        if report is not None:
            write_rejects(self._log, [replace(report, damaged=_CHANGED)])

    def new_units(self) -> list[Unit]:
        """Returns the next files to read, some at a time; of each kind those that arrived first."""
        unread = self._files.unread(self._folders.scan())
        units: list[Unit] = []
        for kind in KINDS:
            of_kind = [unit for unit in unread if unit.kind == kind]
            files, unsettled = self._folders.complete_files(kind, of_kind)
            if unsettled:
                # A file is on its way: its kind is not idle.
                self._seen[kind] = time.monotonic()
            units += [file.unit for file in files[:_FILES_A_ROUND]]
        return units

    def add_units(self, units: Sequence[Unit]) -> None:
        """Counts units that are in the spool now; InputError for too many rejects, or no reports of the runner here."""
        reports = [report for unit in units if (report := read_report(self.spool, unit)) is not None]
        if len(reports) != len(units):
            raise InputError("--beam-options: workers must see the log's folder under the same path")
        for unit in units:
            self._seen[unit.kind] = time.monotonic()
        self._add_reports(reports, reports)

    def move_clock(self, drained: bool) -> None:
        """Moves the clock to the arrival that every kind but the idle ones has reached."""
        now = time.monotonic()
        limit = self._settings.idle_seconds
        idle = {kind: limit is not None and now - self._seen[kind] > limit for kind in KINDS}
        reached = [self._arrived[kind] for kind in KINDS if not idle[kind]]
        if drained:
            clock = max((int(self._rules.closes_at(start)) for start in list_starts(self.spool)), default=-1)
        elif reached:
            clock = min(reached) - self._rules.overlap
        else:
            since = now - max(self._seen.values())
            clock = max(self._arrived.values()) + round(since * 1e6)
        if clock > self.progress.clock_us:
            self.progress.clock_us = clock
            # Before anything is closed by it: a process after this one must judge arrivals by the same clock.
            write_atomic_bytes(self.spool / _CLOCK, json.dumps({"clock_us": clock}).encode())

    def due_starts(self) -> list[int]:
        """Returns the starts of the partitions with events that are closed and not published, in order."""
        return [
            start
            for start in list_starts(self.spool)
            if start > self._published and self._rules.closes_at(start) <= self.progress.clock_us
        ]

    def add_published(self, starts: Sequence[int], published: Sequence[Manifest]) -> None:
        """Counts published partitions, and deletes what no later partition needs."""
        self._published = max(self._published, *starts)
        self.progress.published += len(published)
        self.progress.rows += sum(manifest.rows for manifest in published)
        # The next partition to be published begins after these.
        length = self._rules.length
        drop_partitions(self.spool, known_from(self._rules, self._published + length) - length)

    def finish(self) -> None:
        """Checks that every impression ever read is accounted for, and in a drained job the share of rejects."""
        open_starts = [start for start in list_starts(self.spool) if start > self._published]
        self.progress.pending = count_impressions(self.spool, open_starts)
        counters = sum_counters(read_manifests(self._log))
        check_conservation(self.progress.counts, counters, self.progress.pending)
        if self._settings.drain:
            self._recent.check_rejects(at_least=1)
