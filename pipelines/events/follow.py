"""Joins the events in folders into a log, partition by partition: all existing ones at once, or as they arrive.

::

    LOG/.events/                              the spool of a job that follows folders; it outlives the process
    SPOOL/clock.json                          the arrival that the clock has reached, which closes partitions
    SPOOL/segments/START/KIND-UNIT-N.arrow    the events of chunk N of a unit for the partition
    SPOOL/units/UNIT.json                     a unit that was read to its end: its counts and rejects

A round reads files, stores their events in a spool, moves the clock to the arrival that all kinds have reached, and
publishes the partitions that are closed by it, in order. A batch is one round over all files, after which the clock
moves to the end; its spool is removed with the process. A killed round is repeated with the same result: a file is read
again, into the same files of the spool, until its report exists, and a partition is staged again until its manifest
exists. Each thread holds the partition that it joins, or the chunk that it reads, in memory.
"""

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pyarrow as pa

from ctr.data.event_mapping import EventMapping
from ctr.data.history_state import Histories
from ctr.data.kept_values import FOLDER as VALUES
from ctr.data.log import Manifest, read_manifests
from ctr.data.state_files import read_state_file, write_state_file
from ctr.data.times import format_time
from ctr.io.errors import InputError
from ctr.io.files import hold, make_folder, remove_temporaries
from ctr.pipelines.events.accounts import (
    EventCounts,
    KindCounts,
    RecentReports,
    UnitReport,
    arrivals_reached,
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
    route_chunk,
    stage_events,
    with_pinned_teacher,
)
from ctr.pipelines.events.read import (
    EventFolders,
    Unit,
    Version,
    find_events,
    looked_for,
    read_unit,
    split_units,
)
from ctr.pipelines.events.rules import known_from, partition_rules
from ctr.pipelines.events.tables import CLICKS, EARLIER, EARLIER_SCHEMA, FAR_US, IMPRESSIONS, Kind
from ctr.pipelines.spill import read_state_tables, spill_folder, write_state_tables
from ctr.pipelines.tables.input_files import Chunk, UnreadableNowError, faults_named
from ctr.pipelines.tables.rejects import Reject

_REMEDY = "restore it from a copy, or join all events anew into another output directory"
CLOCK = "clock.json"
SPOOL = ".events"  # inside a log that follows events


def list_reports(spool: Path, name: str = "*") -> list[UnitReport]:
    """Reads the reports of all units read so far, or of the unit with the digest ``name``."""
    reports = []
    for path in sorted((spool / "units").glob(f"{name}.json")):
        content = json.loads(read_state_file(path, _REMEDY).to_pybytes())
        rejects = [Reject(**reject) for reject in content.pop("rejects")]
        reports.append(UnitReport(**content, rejects=rejects))
    return reports


_FILES_A_ROUND = 32
_RECENT_FILES = 1000
_CHANGED = "changed after it was read: the added part is not read; put new events into a new file"


@dataclass(frozen=True)
class EventsResult:
    """Counts, warnings and timings of a batch."""

    counts: EventCounts
    partitions: int
    examples: int
    clicks: int  # examples with label 1
    counters: dict[str, int]  # the sums of the partitions' counters
    warnings: list[str]
    seconds: dict[str, float]  # of each stage


@dataclass
class Progress:
    """Progress of a watch; ``counts`` and ``clock_us`` continue from earlier processes."""

    counts: EventCounts
    clock_us: int = -1  # the arrival that the clock has reached, -1 before the first
    pending: int = 0  # impressions that wait in open partitions
    published: int = 0  # partitions, by this process
    rows: int = 0  # of these partitions


def ingest_events(
    mapping: EventMapping, folders: Sequence[Path], log: Path, *, max_reject_share: float = 0.01
) -> EventsResult:
    """Publishes the examples from the events of ``folders`` as the log ``log``, in one round.

    Closes every partition that has events, so later events cannot be added to these.
    A killed job can be run again: it publishes the same bytes. Raises InputError for no events, a damaged file,
    a missing column, too many rejects, a log from another source, or no examples at all.
    """
    begun = time.perf_counter()
    mapping = with_pinned_teacher(mapping, log)
    files = find_events(mapping, folders)
    looked = {kind: ", ".join(looked_for(mapping, folders, kind)) for kind in mapping.kinds}
    if not files:
        raise InputError(f"no files of impressions or clicks found; looked for {', '.join(looked.values())}")
    if (log / SPOOL / "units").is_dir():
        raise InputError(f"{log}: this log was made by following events: continue it with --follow")
    units = split_units(files)
    begin_log(log, mapping)
    seconds: dict[str, float] = {}
    with spill_folder(log) as spool:
        job = _Job(mapping, log, spool, RecentReports(max_reject_share, max_events=math.inf))
        job.read(units)
        seconds["spool"] = time.perf_counter() - begun
        job.reports.check(at_least=1)
        job.progress.clock_us = job.drained_clock()
        published = job.publish()
        job.count_pending(published)
        left = job.open_starts()
    counts = job.progress.counts
    seconds["join"] = time.perf_counter() - begun - seconds["spool"]
    seconds["total"] = time.perf_counter() - begun
    counters, examples = sum_counters(published), sum(manifest.rows for manifest in published)
    if not examples:
        impressions = counts.impressions
        fate = f"{impressions.rejected} were rejected and {impressions.late} came too late"
        see = f"see {log / 'rejects'} and {log / LATE_EVENTS}"
        raise InputError(f"{log}: none of {impressions.read} impressions became an example: {fate}; {see}")
    absent = [kind for kind in mapping.kinds if not any(unit.kind == kind for unit in files)]
    warnings = [f"no files of {kind} found; looked for {looked[kind]}" for kind in absent]
    # They stay open, see ``drained_clock``.
    warnings += [
        f"the events from {format_time(start)} on are left out: few, and more than a year after all others"
        for start in left[:1]
    ]
    clicks = sum(manifest.clicks for manifest in published)
    return EventsResult(counts, len(published), examples, clicks, counters, warnings, seconds)


def watch_events(
    mapping: EventMapping,
    folders: Sequence[Path],
    log: Path,
    settings: FollowSettings,
    stop: Callable[[], bool],
    report: Callable[[Progress, list[Manifest]], None] = lambda progress, published: None,
) -> Progress:
    """Publishes partitions as their events arrive, until ``stop`` returns true or, if draining, all is published.

    ``stop`` is called between rounds, ``report`` after each one with the published partitions. Raises InputError for
    more rejects than allowed, a log of another mapping, or another process that publishes there.
    """
    mapping = with_pinned_teacher(mapping, log)
    begin_log(log, mapping)
    make_folder(log / SPOOL)
    with hold(log / SPOOL, f"{log}: another process publishes events there"):
        watch = _Watch(mapping, folders, log, settings)
        while not stop():
            new = watch.new_units()
            if new:
                watch.read(new)
            watch.move_clock(drained=settings.drain and not new)
            report(watch.progress, watch.publish())
            if settings.drain and not new:
                break
            if not new:
                time.sleep(settings.poll_seconds)
        watch.count_pending(read_manifests(log))
        return watch.progress


class _Job:
    """Batch job: reads units into a spool, and publishes the closed partitions, in rounds."""

    threads = 2

    def __init__(self, mapping: EventMapping, log: Path, spool: Path, reports: RecentReports) -> None:
        self.mapping, self.log, self.spool, self.reports = mapping, log, spool, reports
        self.arrived: dict[Kind, int] = dict.fromkeys(mapping.kinds, -1)
        self.rules = partition_rules(mapping)
        self.progress = Progress(EventCounts(labels={name: KindCounts() for name in mapping.labels}))
        self.last_published = -1  # the start of that partition
        self._histories = Histories(log, mapping.feature_schema)

    def read(self, units: Sequence[Unit]) -> None:
        """Stores the events of units in the spool.

        An arrival before the current clock counts as the clock, so its event is too late for the closed partitions.
        """
        with ThreadPoolExecutor(self.threads) as pool:
            reports = list(pool.map(self._spool, units))
        self.add(reports, reports)

    def add(self, reports: Sequence[UnitReport], described: Sequence[UnitReport]) -> None:
        """Adds the reports of spooled units to the counts, and writes the rejects of ``described``."""
        for report in reports:
            self.progress.counts.add(report)
            self.reports.add(report)
        self.arrived = arrivals_reached(reports, self.arrived)
        write_rejects(self.log, described)

    def _spool(self, unit: Unit) -> UnitReport:
        """Stores a unit's events in the spool by partition, then its report."""
        report = UnitReport(unit.kind, unit.name)
        for number, chunk in enumerate(self._chunks(unit, report)):
            routed = route_chunk(self.mapping, self.log, report, chunk, self.progress.clock_us)
            for start, table in routed.items():
                name = f"{unit.kind}-{unit.digest}-{number:06d}.arrow"
                write_state_tables(self._segments(start) / name, table.schema, [table])
        write_state_file(self.spool / "units" / f"{unit.digest}.json", json.dumps(asdict(report)).encode())
        return report

    def _chunks(self, unit: Unit, report: UnitReport) -> Iterator[Chunk]:
        path = Path(unit.path)
        # Before reading, so that rows added meanwhile show as a change.
        with faults_named(path):
            version = Version.read(path)
        report.size, report.modified_ns = version.size, version.modified_ns
        yield from read_unit(self.mapping, unit)

    def _segments(self, start: int) -> Path:
        return self.spool / "segments" / f"{start:019d}"

    def _starts(self) -> list[int]:
        """Lists the starts of the partitions that have segments, ascending."""
        folder = self.spool / "segments"
        return sorted(int(path.name) for path in folder.iterdir()) if folder.is_dir() else []

    def _read(self, start: int, kind: Kind) -> list[pa.Table]:
        paths = sorted(self._segments(start).glob(f"{kind}-*.arrow"))
        return [table for path in paths for table in read_state_tables(path, _REMEDY)]

    def _stage(self, start: int) -> bytes:
        tables = {kind: self._read(start, kind) for kind in self.mapping.kinds}
        first = known_from(self.rules, start)
        tables[EARLIER] = [
            table.select(EARLIER_SCHEMA.names)
            for other in self._starts()
            if other < start and other + self.rules.length > first
            for table in self._read(other, IMPRESSIONS)
        ]
        return stage_events(self.log, self.mapping, start, tables)

    def drained_clock(self) -> int:
        """Returns the arrival at which all partitions with events are closed, -1 without any.

        A partition that begins more than a year, plus the windows, after the last impression or click stays open: its
        few events have wrong clocks, and no later partition could be published after it. The events of labels do not
        count, as they may be absent for longer.
        """
        reached = [self.arrived[kind] for kind in (IMPRESSIONS, CLICKS) if self.arrived[kind] >= 0]
        last = min(reached, default=-1) + FAR_US + self.rules.lookback
        return max(
            (int(self.rules.closes_at(start)) for start in self._starts() if start <= last), default=-1
        )

    def open_starts(self) -> list[int]:
        """Lists the starts of the partitions with events that are not published, ascending."""
        return [start for start in self._starts() if start > self.last_published]

    def count_pending(self, published: Sequence[Manifest]) -> None:
        """Counts the impressions that wait in open partitions. Raises RuntimeError if the counts do not add up."""
        waiting = (table for start in self.open_starts() for table in self._read(start, IMPRESSIONS))
        self.progress.pending = pending = sum(table.num_rows for table in waiting)
        inside, count = sum_counters(published).get("impressions", 0), self.progress.counts.impressions
        if count.read != inside + count.late + count.rejected + pending:
            raise RuntimeError(
                f"{count.read} impressions were read, but {inside} are in partitions, {count.late} late, "
                f"{count.rejected} rejected and {pending} pending"
            )

    def publish(self) -> list[Manifest]:
        """Publishes the partitions closed by the clock, in order; deletes segments that no later partition needs."""
        rules, clock = self.rules, self.progress.clock_us
        starts = [start for start in self.open_starts() if rules.closes_at(start) <= clock]
        if not starts:
            return []
        with ThreadPoolExecutor(self.threads) as pool:
            staged = list(zip(starts, pool.map(self._stage, starts), strict=True))
        published = list(publish_staged(self.log, self.mapping, self._histories, staged))
        self.last_published = starts[-1]
        self.progress.published += len(published)
        self.progress.rows += sum(manifest.rows for manifest in published)
        # The next partition to be published begins after these.
        first = known_from(rules, self.last_published + rules.length) - rules.length
        for start in self._starts():
            if start < first:
                shutil.rmtree(self._segments(start), ignore_errors=True)
        return published


class _Watch(_Job):
    """Watch job: also remembers the files that were read, and when the last one of each kind was seen."""

    threads = 1

    def __init__(
        self, mapping: EventMapping, folders: Sequence[Path], log: Path, settings: FollowSettings
    ) -> None:
        super().__init__(mapping, log, log / SPOOL, RecentReports(settings.max_reject_share, _RECENT_FILES))
        self._folders, self._settings = EventFolders(mapping, folders, settings), settings
        self._versions: dict[tuple[Kind, str], Version] = {}
        self._changed: set[tuple[Kind, str]] = set()
        self._seen: dict[Kind, float] = dict.fromkeys(mapping.kinds, time.monotonic())
        self.last_published = last_published(log)
        # Continues where the process before this one has stopped, or was killed.
        if (self.spool / CLOCK).exists():
            content = json.loads(read_state_file(self.spool / CLOCK, _REMEDY).to_pybytes())
            self.progress.clock_us = content["clock_us"]
        elif self.last_published >= 0:
            # Clicks would not find their impressions in the spool, and the counts would not add up.
            raise InputError(
                f"{self.log}: this log was not made by following events, and its events are not in its spool: use "
                "another output directory"
            )
        # Units that were not read to their end are read again, maybe changed.
        finished = {path.stem for path in (self.spool / "units").glob("*.json")}
        for path in (self.spool / "segments").glob("*/*.arrow"):
            if path.name.split("-")[1] not in finished:
                path.unlink(missing_ok=True)
        written = ("manifests", "shards", VALUES, UNMATCHED, CONFLICTING, LATE_EVENTS, "rejects")
        folders = (self.spool / "units", *(self.spool / "segments").glob("*"))
        for folder in (*folders, *(self.log / name for name in written)):
            remove_temporaries(folder)
        reports = sorted(list_reports(self.spool), key=lambda report: report.modified_ns)
        # A process may have been killed between a report and the description of its rejects.
        self.add(reports, [report for report in reports if report.rejected or report.damaged])

    def add(self, reports: Sequence[UnitReport], described: Sequence[UnitReport]) -> None:
        """Adds reports as a batch does, and remembers their files. Raises InputError for too many rejects."""
        super().add(reports, described)
        for report in reports:
            self._versions[report.kind, report.name] = Version(report.size, report.modified_ns)
            self._seen[report.kind] = time.monotonic()
        self.reports.check()

    def _chunks(self, unit: Unit, report: UnitReport) -> Iterator[Chunk]:
        """Yields the chunks before any damage, which is reported instead of ending the job."""
        try:
            yield from super()._chunks(unit, report)
        except UnreadableNowError:
            raise
        except InputError as error:
            report.damaged = str(error)

    def new_units(self) -> list[Unit]:
        """Returns the next files to read, at most 32 of each kind, the earliest arrivals first."""
        unread = [unit for unit in self._folders.scan() if not self._is_read(unit)]
        units: list[Unit] = []
        for kind in self._seen:
            of_kind = [unit for unit in unread if unit.kind == kind]
            files, unsettled = self._folders.complete_files(kind, of_kind)
            if unsettled:
                # A file is on its way: its kind is not idle.
                self._seen[kind] = time.monotonic()
            units += files[:_FILES_A_ROUND]
        return units

    def _is_read(self, unit: Unit) -> bool:
        key = unit.kind, unit.name
        if key not in self._versions:
            return False
        if key not in self._changed and unit.version != self._versions[key]:
            # Lines added to a file later are not read; a reject says so.
            self._changed.add(key)
            reports = list_reports(self.spool, unit.digest)
            write_rejects(self.log, [replace(report, damaged=_CHANGED) for report in reports])
        return True

    def move_clock(self, drained: bool) -> None:
        """Moves the clock to the arrival that every kind but the idle ones has reached."""
        now = time.monotonic()
        limit = self._settings.idle_seconds
        idle = {kind: limit is not None and now - seen > limit for kind, seen in self._seen.items()}
        reached = [arrival for kind, arrival in self.arrived.items() if not idle[kind]]
        if drained:
            self.reports.check(at_least=1)
            clock = self.drained_clock()
        elif reached:
            clock = min(reached) - self.rules.overlap
        else:
            since = now - max(self._seen.values())
            clock = max(self.arrived.values()) + round(since * 1e6)
        if clock > self.progress.clock_us:
            self.progress.clock_us = clock
            # Written before any partition is closed: a later process must judge arrivals by the same clock.
            write_state_file(self.spool / CLOCK, json.dumps({"clock_us": clock}).encode())
