"""Joins the events of folders to a log, partition by partition: all that are there at once, or as they arrive.

::

    LOG/.events/                              the spool of a job that follows folders, which outlives the process
    SPOOL/clock.json                          the arrival that its clock has reached, and so which partitions are closed
    SPOOL/segments/START/KIND-UNIT-N.arrow    the events of chunk N of a unit for the partition
    SPOOL/units/UNIT.json                     a unit that was read to its end: its counts and rejects

A round reads files, stores their events in a spool, moves the clock to the arrival that all kinds have reached, and
publishes the partitions that are closed by it, in order. A batch is one round of all files whose clock is then moved to
the end, with a spool that is removed with the process. A round that is killed is done again with the same result: files
are read again until their report is there, and write the same files of the spool again; partitions are staged again
until their manifest is there.

Memory holds the partition that each thread joins or the chunk that it reads; the disk holds the events of partitions
that may still be needed.
"""

import hashlib
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
    RecentReports,
    UnitReport,
    arrivals_reached,
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
from ctr.pipelines.events.rules import PartitionRules, known_from, partition_rules
from ctr.pipelines.events.tables import CLICKS, EARLIER, EARLIER_SCHEMA, FAR_US, IMPRESSIONS, Kind
from ctr.pipelines.spill import read_state_tables, spill_folder, write_state_tables
from ctr.pipelines.tables.input_files import Chunk, UnreadableNowError, faults_named
from ctr.pipelines.tables.rejects import Reject

_REMEDY = "restore it from a copy, or join all events anew into another output directory"
CLOCK = "clock.json"
SPOOL = ".events"  # inside a log that is made by following events


def unit_digest(unit: Unit) -> str:
    """Makes the part of the names of a unit's files that identifies it."""
    text = f"{unit.kind}\0{unit.name}\0{unit.row_groups}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def list_reports(spool: Path, name: str = "*") -> list[UnitReport]:
    """Reads the reports of all units that were ever read, or of the unit with the digest ``name``."""
    reports = []
    for path in sorted((spool / "units").glob(f"{name}.json")):
        content = json.loads(read_state_file(path, _REMEDY).to_pybytes())
        rejects = [Reject(**reject) for reject in content.pop("rejects")]
        reports.append(UnitReport(**content, rejects=rejects))
    return reports


def list_starts(spool: Path) -> list[int]:
    """Lists the partitions that have segments, in order."""
    folder = spool / "segments"
    return sorted(int(path.name) for path in folder.iterdir()) if folder.is_dir() else []


def read_partition(spool: Path, rules: PartitionRules, start: int) -> dict[str, list[pa.Table]]:
    """Reads the events of a partition, and earlier impressions, as ``stage_events`` takes them."""
    kinds = (IMPRESSIONS, *rules.windows)
    tables: dict[str, list[pa.Table]] = {kind: _read(spool, start, kind) for kind in kinds}
    first = known_from(rules, start)
    tables[EARLIER] = [
        table.select(EARLIER_SCHEMA.names)
        for other in list_starts(spool)
        if other < start and other + rules.length > first
        for table in _read(spool, other, IMPRESSIONS)
    ]
    return tables


def count_impressions(spool: Path, starts: Sequence[int]) -> int:
    """Counts the impressions that wait in some partitions."""
    return sum(table.num_rows for start in starts for table in _read(spool, start, IMPRESSIONS))


def _read(spool: Path, start: int, kind: Kind) -> list[pa.Table]:
    paths = sorted((spool / "segments" / f"{start:019d}").glob(f"{kind}-*.arrow"))
    return [table for path in paths for table in read_state_tables(path, _REMEDY)]


def drop_unfinished(spool: Path) -> None:
    """Deletes the segments of units that were not read to their end: they are read again, maybe changed."""
    finished = {path.stem for path in (spool / "units").glob("*.json")}
    for path in (spool / "segments").glob("*/*.arrow"):
        if path.name.split("-")[1] not in finished:
            path.unlink(missing_ok=True)
    for folder in (spool / "units", *(spool / "segments").glob("*")):
        remove_temporaries(folder)


def drop_partitions(spool: Path, before: int) -> None:
    """Deletes the segments of the partitions that begin before a time."""
    for start in list_starts(spool):
        if start < before:
            shutil.rmtree(spool / "segments" / f"{start:019d}", ignore_errors=True)


_BATCH_THREADS = 2
_FILES_A_ROUND = 32
_RECENT_FILES = 1000
_CHANGED = "changed after it was read: the added part is not read; put new events into a new file"


@dataclass(frozen=True)
class EventsResult:
    """Result of a batch."""

    counts: EventCounts
    partitions: int
    examples: int
    clicks: int  # examples with label 1
    counters: dict[str, int]  # the sums of the partitions' counters
    warnings: list[str]
    seconds: dict[str, float]  # of each stage


@dataclass
class Progress:
    """Work of a watch so far, also before this process."""

    counts: EventCounts
    clock_us: int = -1  # the arrival that the clock has reached, -1 before the first
    pending: int = 0  # impressions that wait in open partitions
    published: int = 0  # partitions, by this process
    rows: int = 0  # of these partitions


def ingest_events(
    mapping: EventMapping,
    folders: Sequence[Path],
    log: Path,
    *,
    max_reject_share: float = 0.01,
) -> EventsResult:
    """Publishes the examples that the events of ``folders`` make as the log ``log``, in one round.

    Every partition with events is closed: it cannot be published with others later.
    A job that was killed can be run again: it publishes the same bytes. Raises InputError: no events, a damaged file,
    a missing column, too many rejects, a log of something else, or not a single example.
    """
    begun = time.perf_counter()
    mapping = with_pinned_teacher(mapping, log)
    files = find_events(mapping, folders)
    if not files:
        looked = [path for kind in mapping.kinds for path in looked_for(mapping, folders, kind)]
        raise InputError(f"no files of impressions or clicks found; looked for {', '.join(looked)}")
    if (log / SPOOL / "units").is_dir():
        raise InputError(f"{log}: this log was made by following events: continue it with --follow")
    units = split_units(files)
    begin_log(log, mapping)
    seconds: dict[str, float] = {}
    with spill_folder(log) as spool:
        job = _Job(mapping, log, spool, RecentReports(max_reject_share, max_events=math.inf), _BATCH_THREADS)
        job.read(units, keep_going=False)
        seconds["spool"] = time.perf_counter() - begun
        job.reports.check(at_least=1)
        job.progress.clock_us = job.drained_clock()
        published = job.publish()
        left = job.open_starts()
        pending = count_impressions(spool, left)
    counts = job.progress.counts
    seconds["join"] = time.perf_counter() - begun - seconds["spool"]
    seconds["total"] = time.perf_counter() - begun
    counters, examples = sum_counters(published), sum(manifest.rows for manifest in published)
    check_conservation(counts, counters, pending)
    if not examples:
        shown = counts.impressions
        fate = f"{shown.rejected} were rejected and {shown.late} came too late"
        see = f"see {log / 'rejects'} and {log / LATE_EVENTS}"
        raise InputError(f"{log}: none of {shown.read} impressions became an example: {fate}; {see}")
    return EventsResult(
        counts,
        len(published),
        examples,
        sum(manifest.clicks for manifest in published),
        counters,
        [
            f"no files of {kind} found; looked for {', '.join(looked_for(mapping, folders, kind))}"
            for kind in mapping.kinds
            if not any(unit.kind == kind for unit in files)
        ]
        # They stay open, see ``arrivals_reached``.
        + [
            f"the events from {format_time(start)} on are left out: few, and more than a year after all others"
            for start in left[:1]
        ],
        seconds,
    )


def watch_events(
    mapping: EventMapping,
    folders: Sequence[Path],
    log: Path,
    settings: FollowSettings,
    stop: Callable[[], bool],
    report: Callable[[Progress, list[Manifest]], None] = lambda progress, published: None,
) -> Progress:
    """Publishes partitions as their events arrive; returns when ``stop`` says so, or, draining, when all is published.

    ``stop`` is called between rounds, ``report`` after each round with what it published. Raises InputError: too many
    rejects, or another mapping or another process at work on the log.
    """
    mapping = with_pinned_teacher(mapping, log)
    begin_log(log, mapping)
    make_folder(log / SPOOL)
    with hold(log / SPOOL, f"{log}: another process publishes events there"):
        job = _Job(mapping, log, log / SPOOL, RecentReports(settings.max_reject_share, _RECENT_FILES))
        watch = _Watch(job, EventFolders(mapping, folders, settings), settings)
        while not stop():
            new = watch.new_units()
            if new:
                watch.read(new)
            watch.move_clock(drained=settings.drain and not new)
            report(job.progress, job.publish())
            if settings.drain and not new:
                break
            if not new:
                time.sleep(settings.poll_seconds)
        watch.finish()
        return job.progress


class _Job:
    """Rounds of a batch or a watch over a spool."""

    def __init__(
        self, mapping: EventMapping, log: Path, spool: Path, reports: RecentReports, threads: int = 1
    ) -> None:
        self.mapping, self.log, self.spool, self._threads = mapping, log, spool, threads
        self.reports = reports
        self.arrived: dict[Kind, int] = dict.fromkeys(mapping.kinds, -1)
        self.rules = partition_rules(mapping)
        self.progress = Progress(EventCounts.of(mapping.labels))
        self.last_published = -1  # the start of that partition
        self._histories = Histories(log, mapping.feature_schema)

    def read(self, units: Sequence[Unit], keep_going: bool) -> list[UnitReport]:
        """Stores the events of units in the spool; returns their reports.

        Arrivals before the present clock are too late for what is closed by it, whenever they are read. With
        ``keep_going`` a unit that cannot be read is recorded as damaged instead of ending the job.
        """
        with ThreadPoolExecutor(self._threads) as pool:
            reports = list(pool.map(lambda unit: self._spool(unit, keep_going), units))
        self.add(reports, reports)
        return reports

    def add(self, reports: Sequence[UnitReport], described: Sequence[UnitReport]) -> None:
        """Counts units that are in the spool, and describes the rejects of some."""
        for report in reports:
            self.progress.counts.add(report)
            self.reports.add(report)
        self.arrived = arrivals_reached(reports, self.arrived)
        write_rejects(self.log, described)

    def _spool(self, unit: Unit, keep_going: bool) -> UnitReport:
        """Stores the events of a unit in the spool by partition, and at its end its report."""
        report = UnitReport(unit.kind, unit.name)
        for number, chunk in enumerate(_chunks(unit, self.mapping, report, keep_going)):
            routed = route_chunk(self.mapping, self.log, report, chunk, self.progress.clock_us)
            for start, table in routed.items():
                name = f"{unit.kind}-{unit_digest(unit)}-{number:06d}.arrow"
                path = self.spool / "segments" / f"{start:019d}" / name
                write_state_tables(path, table.schema, [table])
        path = self.spool / "units" / f"{unit_digest(unit)}.json"
        write_state_file(path, json.dumps(asdict(report)).encode())
        return report

    def _stage(self, start: int) -> bytes:
        return stage_events(self.log, self.mapping, start, read_partition(self.spool, self.rules, start))

    def drained_clock(self) -> int:
        """Returns the arrival at which all partitions with events are closed, -1 without any.

        A partition that begins more than a year, plus the windows, after the last impression or click stays open: its
        few events have wrong clocks, and no later partition could be published after it. A label may be silent for
        longer.
        """
        reached = [self.arrived[kind] for kind in (IMPRESSIONS, CLICKS) if self.arrived[kind] >= 0]
        last = min(reached, default=-1) + FAR_US + self.rules.lookback
        starts = (start for start in list_starts(self.spool) if start <= last)
        return max((int(self.rules.closes_at(start)) for start in starts), default=-1)

    def open_starts(self) -> list[int]:
        """Lists the partitions with events that are not published."""
        return [start for start in list_starts(self.spool) if start > self.last_published]

    def publish(self) -> list[Manifest]:
        """Publishes the partitions that are closed by the clock, in order, and deletes what no later one needs."""
        starts = [
            start
            for start in list_starts(self.spool)
            if start > self.last_published and self.rules.closes_at(start) <= self.progress.clock_us
        ]
        if not starts:
            return []
        with ThreadPoolExecutor(self._threads) as pool:
            staged = list(zip(starts, pool.map(self._stage, starts), strict=True))
        published = list(publish_staged(self.log, self.mapping, self._histories, staged))
        self.last_published = max([self.last_published, *starts])
        self.progress.published += len(published)
        self.progress.rows += sum(manifest.rows for manifest in published)
        # The next partition to be published begins after these.
        length = self.rules.length
        drop_partitions(self.spool, known_from(self.rules, self.last_published + length) - length)
        return published


def _chunks(unit: Unit, mapping: EventMapping, report: UnitReport, keep_going: bool) -> Iterator[Chunk]:
    try:
        # Before reading, so that rows added meanwhile show as a change.
        with faults_named(unit.path):
            version = Version.read(unit.path)
        report.size, report.modified_ns = version.size, version.modified_ns
        yield from read_unit(mapping, unit)
    except UnreadableNowError:
        raise
    except InputError as error:
        if not keep_going:
            raise
        report.damaged = str(error)


class _Watch:
    """State of a watch beside its job: the files that were read, and when the last one of each kind was seen."""

    def __init__(self, job: _Job, folders: EventFolders, settings: FollowSettings) -> None:
        self._job, self._folders, self._settings = job, folders, settings
        self._versions: dict[tuple[Kind, str], Version] = {}
        self._changed: set[tuple[Kind, str]] = set()
        self._seen: dict[Kind, float] = dict.fromkeys(job.mapping.kinds, time.monotonic())
        job.last_published = last_published(job.log)
        self._restore(job.log, job.spool)

    def _restore(self, log: Path, spool: Path) -> None:
        """Continues where the process before this one has stopped, or was killed."""
        if (spool / CLOCK).exists():
            content = json.loads(read_state_file(spool / CLOCK, _REMEDY).to_pybytes())
            self._job.progress.clock_us = content["clock_us"]
        elif self._job.last_published >= 0:
            # Clicks would not find their impressions in the spool, and the counts would not add up.
            raise InputError(
                f"{log}: this log was not made by following events, and its events are not in its spool: use another "
                "output directory"
            )
        drop_unfinished(spool)
        for folder in ("manifests", "shards", VALUES, UNMATCHED, CONFLICTING, LATE_EVENTS, "rejects"):
            remove_temporaries(log / folder)
        reports = sorted(list_reports(spool), key=lambda report: report.modified_ns)
        # A process may have been killed between a report and the description of its rejects.
        self._job.add(reports, [report for report in reports if report.rejected or report.damaged])
        self._check(reports)

    def _check(self, reports: Sequence[UnitReport]) -> None:
        for report in reports:
            self._versions[report.kind, report.name] = Version(report.size, report.modified_ns)
        self._job.reports.check()

    def new_units(self) -> list[Unit]:
        """Returns the next files to read, some at a time, each kind's earliest arrivals first."""
        unread = [unit for unit in self._folders.scan() if not self._is_read(unit)]
        units: list[Unit] = []
        for kind in self._seen:
            of_kind = [unit for unit in unread if unit.kind == kind]
            files, unsettled = self._folders.complete_files(kind, of_kind)
            if unsettled:
                # A file is on its way: its kind is not idle.
                self._seen[kind] = time.monotonic()
            units += [unit for unit, _ in files[:_FILES_A_ROUND]]
        return units

    def _is_read(self, unit: Unit) -> bool:
        key = unit.kind, unit.name
        if key not in self._versions:
            return False
        if key not in self._changed and Version.of(unit.path) not in (None, self._versions[key]):
            # Lines added to a file later are not read; a reject says so.
            self._changed.add(key)
            reports = list_reports(self._job.spool, unit_digest(unit))
            write_rejects(self._job.log, [replace(report, damaged=_CHANGED) for report in reports])
        return True

    def read(self, units: Sequence[Unit]) -> None:
        """Stores the events of units in the spool; InputError for too many rejects."""
        reports = self._job.read(units, keep_going=True)
        self._seen |= {report.kind: time.monotonic() for report in reports}
        self._check(reports)

    def move_clock(self, drained: bool) -> None:
        """Moves the clock to the arrival that every kind but the idle ones has reached."""
        now = time.monotonic()
        limit = self._settings.idle_seconds
        idle = {kind: limit is not None and now - seen > limit for kind, seen in self._seen.items()}
        reached = [arrival for kind, arrival in self._job.arrived.items() if not idle[kind]]
        if drained:
            self._job.reports.check(at_least=1)
            clock = self._job.drained_clock()
        elif reached:
            clock = min(reached) - self._job.rules.overlap
        else:
            since = now - max(self._seen.values())
            clock = max(self._job.arrived.values()) + round(since * 1e6)
        if clock > self._job.progress.clock_us:
            self._job.progress.clock_us = clock
            # Before anything is closed by it: a process after this one must judge arrivals by the same clock.
            write_state_file(self._job.spool / CLOCK, json.dumps({"clock_us": clock}).encode())

    def finish(self) -> None:
        """Checks that every impression ever read is accounted for."""
        job = self._job
        job.progress.pending = count_impressions(job.spool, job.open_starts())
        check_conservation(job.progress.counts, sum_counters(read_manifests(job.log)), job.progress.pending)
