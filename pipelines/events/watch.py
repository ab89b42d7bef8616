"""Folders of events that are being filled to a log, interval by interval, until it is asked to stop.

::

    LOG/.events/            the spool, which outlives the process (``ctr.pipelines.events.spool``)
    LOG/.events/clock.json  the arrival up to which all is known to be there, and so which intervals are closed

Each round takes the files that are new, sets their events down, moves the clock to the arrival that both kinds have
reached, and publishes the intervals that are closed by it, in order. A round that is killed is done again with the same
result: files are read again until their report is there, intervals are staged again until their manifest is.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ctr.data.event_mapping import EventMapping
from ctr.data.log import Manifest, list_intervals, read_manifests
from ctr.io.errors import InputError
from ctr.io.files import make_folder, remove_temporaries, write_atomic_bytes
from ctr.io.locks import hold
from ctr.pipelines.events.accounts import (
    ENOUGH_EVENTS,
    RECENT_EVENTS,
    EventCounts,
    check_conservation,
    check_damaged,
    check_rejects,
    sum_counters,
    write_rejects,
)
from ctr.pipelines.events.publish import CONFLICTING, LATE_EVENTS, UNMATCHED, begin_log
from ctr.pipelines.events.read import Unit, find_events
from ctr.pipelines.events.rules import interval_rules, known_from
from ctr.pipelines.events.run import (
    beam_options,
    publish_staged,
    spool_units,
    stage_spooled,
    with_pinned_teacher,
)
from ctr.pipelines.events.spool import (
    SPOOL,
    UnitReport,
    count_impressions,
    drop_intervals,
    drop_unfinished,
    list_reports,
    list_starts,
    read_report,
)
from ctr.pipelines.events.tables import KINDS, Kind

_CLOCK = "clock.json"
_FILES_A_ROUND = 32
_RECENT_FILES = 1000


@dataclass(frozen=True)
class WatchSettings:
    """How folders are watched.

    Attributes:
        poll_seconds: between two looks at the folders.
        settle_seconds: for which a file must not have changed before it is read.
        idle_seconds: after which a kind without a new file holds the clock back no longer; when both are idle the
            clock goes on with the time of day. It must be longer than the time between two files. None: each kind is
            waited for as long as it takes.
        max_reject_share: of the latest events; more of them end the job.
        drain: whether to end when there is no new file, with every interval published.
        workers: threads of the runner inside this process.
        beam_options: of another runner, whose workers see the same folders under the same paths.
    """

    poll_seconds: float = 0.5
    settle_seconds: float = 0.5
    idle_seconds: float | None = None
    max_reject_share: float = 0.01
    drain: bool = False
    workers: int = 1
    beam_options: str = ""

    def __post_init__(self) -> None:
        """Raises InputError for seconds that are none."""
        for name in ("poll_seconds", "settle_seconds", "idle_seconds"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"{name}: {value:g} is not allowed; allowed: 0 or more")


@dataclass
class Progress:
    """What a watch has done so far, also before this process.

    Attributes:
        counts: of the events that were read.
        clock_us: arrivals before it have been waited for, -1 before the first.
        pending: impressions that wait in open intervals.
        published: intervals, by this process.
        rows: of these.
    """

    counts: EventCounts = field(default_factory=EventCounts)
    clock_us: int = -1
    pending: int = 0
    published: int = 0
    rows: int = 0


def watch_events(
    mapping: EventMapping,
    folders: Sequence[Path],
    log: Path,
    settings: WatchSettings,
    stop: Callable[[], bool],
    tell: Callable[[Progress, list[Manifest]], None] = lambda progress, published: None,
) -> Progress:
    """Publishes intervals as their events arrive; returns when ``stop`` says so, or, draining, when all is published.

    Args:
        folders: with impressions and clicks (``ctr.pipelines.events.read.find_events``). The files of a kind count as
            arriving in the order of their names, and must not change once they are there under their name.
        log: the log's folder.
        stop: asked between rounds.
        tell: called after each round with what it published.

    Raises:
        InputError: too many rejects, another mapping or another process at work on the log, or wrong options.
    """
    mapping = with_pinned_teacher(mapping, log)
    options = beam_options(settings.beam_options, settings.workers)
    begin_log(log, mapping)
    with _only_process(log / SPOOL):
        state = _State(mapping, folders, log, log / SPOOL, settings)
        while not stop():
            new = state.new_units()
            if new:
                # Arrivals before the clock of now are too late for what is closed by it, whenever they are read.
                spool_units(options, mapping, log, state.spool, new, state.progress.clock_us, keep_going=True)
                state.take_in(new)
            state.move_clock(drained=settings.drain and not new)
            due = state.closed_starts()
            published: list[Manifest] = []
            if due:
                stage_spooled(options, mapping, log, state.spool, due)
                published = publish_staged(log, state.spool, due)
                state.closed(due, published)
            tell(state.progress, published)
            if settings.drain and not new:
                break
            if not new:
                time.sleep(settings.poll_seconds)
        state.finish()
        return state.progress


@contextmanager
def _only_process(spool: Path) -> Iterator[None]:
    make_folder(spool)
    with hold(spool, f"{spool.parent}: another process publishes events there"):
        yield


class _State:
    """What is known of the folders and the spool."""

    def __init__(
        self, mapping: EventMapping, folders: Sequence[Path], log: Path, spool: Path, settings: WatchSettings
    ) -> None:
        self.spool = spool
        self.progress = Progress()
        self._mapping, self._folders, self._log, self._settings = mapping, folders, log, settings
        self._rules = interval_rules(mapping)
        # Size and time of change of each file that was read.
        self._read: dict[tuple[Kind, str], tuple[int, int]] = {}
        self._unsettled: dict[tuple[Kind, str], tuple[tuple[int, int], float]] = {}
        self._recent: list[UnitReport] = []
        self._changed: set[tuple[Kind, str]] = set()
        self._arrived: dict[Kind, int] = dict.fromkeys(KINDS, -1)
        self._seen: dict[Kind, float] = dict.fromkeys(KINDS, time.monotonic())
        self._published = max((start for start, _ in list_intervals(log)), default=-1)
        clock = spool / _CLOCK
        if clock.exists():
            self.progress.clock_us = json.loads(clock.read_bytes())["clock_us"]
        elif self._published >= 0:
            # Neither would clicks find their impressions in there, nor would the counts add up.
            raise InputError(
                f"{log}: this log was not made by following events, and its events are not in its spool: use "
                "another output directory"
            )
        drop_unfinished(spool)
        for folder in ("manifests", "shards", UNMATCHED, CONFLICTING, LATE_EVENTS, "rejects"):
            remove_temporaries(log / folder)
        reports = sorted(list_reports(spool), key=lambda report: report.modified_ns)
        for report in reports:
            self._count(report)
        # A process before this one may have been killed between a report and the description of its rejects.
        write_rejects(log, [report for report in reports if report.rejected or report.damaged])
        self._judge()

    def _count(self, report: UnitReport) -> None:
        self._read[report.kind, report.name] = report.size, report.modified_ns
        self._recent.append(report)
        while (
            sum(other.events for other in self._recent[1:]) >= RECENT_EVENTS
            or len(self._recent) > _RECENT_FILES
        ):
            del self._recent[0]
        self.progress.counts = self.progress.counts.plus(report)
        self._arrived[report.kind] = max(self._arrived[report.kind], report.last_arrival)

    def _judge(self) -> None:
        check_damaged(self._recent)
        check_rejects(self._recent, self._settings.max_reject_share, ENOUGH_EVENTS)

    def new_units(self) -> list[Unit]:
        """The next files to read, some at a time; of each kind those that arrived first.

        A file that is still being written holds back those of its kind after it.
        """
        found: dict[Kind, list[Unit]] = {kind: [] for kind in KINDS}
        waiting: set[Kind] = set()
        for unit in find_events(self._mapping, self._folders):
            try:
                stat = unit.path.stat()
            except FileNotFoundError:
                continue
            found_now = stat.st_size, stat.st_mtime_ns
            if (unit.kind, unit.name) in self._read:
                if found_now != self._read[unit.kind, unit.name]:
                    self._note_change(unit)
                continue
            if not self._settings.drain and not self._is_settled(unit, found_now):
                waiting.add(unit.kind)
                # It is on its way: nobody is idle.
                self._seen[unit.kind] = time.monotonic()
            if unit.kind not in waiting:
                found[unit.kind].append(unit)
        return [unit for kind in KINDS for unit in found[kind][:_FILES_A_ROUND]]

    def _is_settled(self, unit: Unit, found: tuple[int, int]) -> bool:
        """Whether a file has not changed for long enough, by its own time or by what was seen of it."""
        limit = self._settings.settle_seconds
        if time.time_ns() - found[1] >= limit * 1e9:
            self._unsettled.pop((unit.kind, unit.name), None)
            return True
        # Its clock may not be ours.
        before, since = self._unsettled.get((unit.kind, unit.name), (None, 0.0))
        if before != found:
            self._unsettled[unit.kind, unit.name] = found, time.monotonic()
            return False
        return time.monotonic() - since >= limit

    def _note_change(self, unit: Unit) -> None:
        """Whatever was added to a file that is read already is no event of the job, and nobody shall miss that."""
        if (unit.kind, unit.name) not in self._changed:
            self._changed.add((unit.kind, unit.name))
            told = "changed after it was read: the added part is not read; put new events into a new file"
            report = read_report(self.spool, unit)
            if report is not None:
                write_rejects(self._log, [replace(report, damaged=told)])

    def take_in(self, units: Sequence[Unit]) -> None:
        """Counts units that are in the spool now, and judges their rejects.

        Raises:
            InputError: too many of them, or a runner that has set nothing down here.
        """
        reports = [read_report(self.spool, unit) for unit in units]
        for unit, report in zip(units, reports, strict=True):
            if report is None:
                raise InputError("--beam-options: workers must see the log's folder under the same path")
            self._count(report)
            self._seen[unit.kind] = time.monotonic()
            self._unsettled.pop((unit.kind, unit.name), None)
        write_rejects(self._log, [report for report in reports if report is not None])
        self._judge()

    def move_clock(self, drained: bool) -> None:
        """Moves the clock to the arrival that every kind has reached that is not idle."""
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
            # Set down before anything is closed by it: a process after this one must judge arrivals by the same clock.
            write_atomic_bytes(self.spool / _CLOCK, json.dumps({"clock_us": clock}).encode())

    def closed_starts(self) -> list[int]:
        """The intervals with events that are closed and not published, in order."""
        return [
            start
            for start in list_starts(self.spool)
            if start > self._published and self._rules.closes_at(start) <= self.progress.clock_us
        ]

    def closed(self, starts: Sequence[int], published: Sequence[Manifest]) -> None:
        """Takes note of published intervals, and deletes what no interval to come can ask for."""
        self._published = max(self._published, *starts)
        self.progress.published += len(published)
        self.progress.rows += sum(manifest.rows for manifest in published)
        # The next one to be published begins after these: all others are closed.
        drop_intervals(
            self.spool, known_from(self._rules, self._published + self._rules.length) - self._rules.length
        )

    def finish(self) -> None:
        """Counts what is pending, and checks that every impression that was ever read is accounted for.

        Raises:
            InputError: a drained job had too many rejects for so few events that nothing was said before.
        """
        open_starts = [start for start in list_starts(self.spool) if start > self._published]
        self.progress.pending = count_impressions(self.spool, open_starts)
        check_conservation(
            self.progress.counts, sum_counters(read_manifests(self._log)), self.progress.pending
        )
        if self._settings.drain:
            check_rejects(self._recent, self._settings.max_reject_share)
