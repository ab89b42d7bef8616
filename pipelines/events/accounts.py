"""Counts of the events that were read, their rejects, and the limit on the share of rejects."""

import hashlib
import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from ctr.data.log import Manifest
from ctr.io.errors import InputError
from ctr.io.files import write_atomic_bytes
from ctr.pipelines.events.tables import CLICKS, ENOUGH_ARRIVALS, FAR_US, IMPRESSIONS, Kind
from ctr.pipelines.tables.input_files import natural_order
from ctr.pipelines.tables.rejects import Reject, json_line, reject_line, reject_reasons

ENOUGH_EVENTS = 1_000  # the share of rejects is not judged from fewer events before the end of a job
RECENT_EVENTS = 100_000  # a job that does not end is judged by its latest units with this many events

_MANY_DAMAGED = 8
_REJECTS_KEPT = 1000


@dataclass
class UnitReport:
    """Event counts of a unit: ``good`` events are stored, ``late`` ones arrived too late, the others are rejected."""

    kind: Kind
    name: str
    size: int = 0  # of the file when it was read
    modified_ns: int = 0
    events: int = 0
    good: int = 0
    late: int = 0
    last_arrival: int = -1  # the last arrival that moves the clock; -1 without good events
    absent: list[str] | None = None  # of JSON lines: columns of the mapping that no line has; None: unknown
    unused: list[str] = field(default_factory=list)  # some of their other keys, where any is absent
    rejected: int = 0
    rejects: list[Reject] = field(default_factory=list)  # the first of them
    damaged: str = ""  # why the unit could not be read to its end

    def add(self, table: pa.Table, late: int, rejects: Sequence[Reject]) -> None:
        """Adds parsed events, of which ``late`` were too late, and rejects."""
        self.events += table.num_rows + len(rejects)
        self.late += late
        self.good += table.num_rows - late
        self.rejected += len(rejects)
        self.rejects += rejects[: _REJECTS_KEPT - len(self.rejects)]


def arrivals_reached(reports: Iterable[UnitReport], before: Mapping[Kind, int]) -> dict[Kind, int]:
    """Returns each kind's latest arrival after more files, starting from ``before``; -1 before the first event.

    A file of few events that jumps by more than a year is ignored: its clock is wrong. Files count in the order of
    their names, so the result does not depend on how many are read at a time.
    """
    arrived = dict(before)
    for report in sorted(reports, key=lambda report: natural_order(report.name)):
        last = arrived[report.kind]
        jumps = 0 <= last < report.last_arrival - FAR_US
        if not jumps or report.good + report.late >= ENOUGH_ARRIVALS:
            arrived[report.kind] = max(last, report.last_arrival)
    return arrived


@dataclass
class KindCounts:
    """Counts of the events of one kind; ``read`` includes the late and the rejected ones."""

    read: int = 0
    late: int = 0
    rejected: int = 0


@dataclass
class EventCounts:
    """Counts of the events that were read, by kind, and of units that could not be read to their end."""

    impressions: KindCounts = field(default_factory=KindCounts)
    clicks: KindCounts = field(default_factory=KindCounts)
    labels: dict[str, KindCounts] = field(default_factory=dict)
    damaged: int = 0

    @property
    def by_kind(self) -> dict[Kind, KindCounts]:
        return {IMPRESSIONS: self.impressions, CLICKS: self.clicks, **self.labels}

    def add(self, report: UnitReport) -> None:
        counts = self.by_kind[report.kind]
        counts.read += report.events
        counts.late += report.late
        counts.rejected += report.rejected
        self.damaged += bool(report.damaged)


class RecentReports:
    """Latest units of a job: enough for ``max_events`` events, at most ``max_units``; limits their share of rejects.

    Also checks, over all units, for columns of the mapping that no JSON object of a kind has: a table that lacks one in
    its header is refused at once, but only all objects together show that a name is misspelled.
    """

    def __init__(
        self, max_reject_share: float, max_units: float = math.inf, max_events: float = RECENT_EVENTS
    ) -> None:
        self._max_reject_share, self._max_units, self._max_events = max_reject_share, max_units, max_events
        self._reports: deque[UnitReport] = deque()
        self._events = 0
        self._all_events: Counter[Kind] = Counter()
        self._absent: dict[Kind, tuple[UnitReport, list[str]]] = {}  # the first unit of a kind, and columns

    def add(self, report: UnitReport) -> None:
        if report.good + report.late:
            absent = report.absent or []
            first, before = self._absent.get(report.kind, (report, absent))
            self._absent[report.kind] = first, [name for name in before if name in absent]
            self._all_events[report.kind] += report.good + report.late
        self._reports.append(report)
        self._events += report.events
        while (
            self._events - self._reports[0].events >= self._max_events or len(self._reports) > self._max_units
        ):
            self._events -= self._reports.popleft().events

    def check(self, at_least: int = ENOUGH_EVENTS) -> None:
        """Raises InputError for damaged units or, from ``at_least`` events on, too many rejects or an absent column.

        Damage counts only if at least 8 units, and most of the latest, are damaged: then the mapping or disk is bad.
        """
        damaged = [report for report in self._reports if report.damaged]
        if len(damaged) >= _MANY_DAMAGED and 2 * len(damaged) > len(self._reports):
            raise InputError(
                f"{len(damaged)} of the latest {len(self._reports)} files could not be read, the last one because of "
                f"{damaged[-1].damaged}"
            )
        rejected = sum(report.rejected for report in self._reports)
        if self._events >= at_least and rejected > self._max_reject_share * self._events:
            rejects = [(report.name, reject) for report in self._reports for reject in report.rejects]
            reason, most = next(iter(reject_reasons(reject for _, reject in rejects).items()))
            name, first = next(pair for pair in rejects if f"{pair[1].key}: {pair[1].reason}" == reason)
            raise InputError(
                f"{rejected} of {self._events} events rejected, more than the allowed share of "
                f"{self._max_reject_share:g}; most often {reason} ({most} described, first {name} row {first.row}, "
                f"value {first.value!r}; allowed: {first.allowed})"
            )
        for kind, (unit, names) in self._absent.items():
            if names and self._all_events[kind] >= at_least:
                raise InputError(
                    f"{unit.name}: no column {', '.join(names)} in any line, nor in those of the files after it; the "
                    f"columns found are also {', '.join(unit.unused) or 'none'}; what may be missing is listed in "
                    f"{kind}.input.optional of the mapping"
                )


def write_rejects(log: Path, reports: Sequence[UnitReport]) -> None:
    """Writes rejects to ``LOG/rejects/``: a file for each kind and file of events, a JSON line for each reject.

    Describes the first thousand rejects of a unit; one more line counts the others. Deletes files without rejects.
    """
    by_file: dict[str, list[bytes]] = {}
    for report in reports:
        by_file.setdefault(f"{report.kind}\0{report.name}", []).append(describe_rejects(report))
    for name, described in by_file.items():
        path = log / "rejects" / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.jsonl"
        if any(described):
            write_atomic_bytes(path, b"".join(described))
        else:
            path.unlink(missing_ok=True)


def describe_rejects(report: UnitReport) -> bytes:
    """Formats the rejects of a unit as JSON lines; empty if there are none."""
    lines = [reject_line(reject, report.name) for reject in report.rejects]
    if more := report.rejected - len(report.rejects):
        lines.append(json_line({"file": report.name, "more": more}))
    if report.damaged:
        lines.append(json_line({"file": report.name, "damaged": report.damaged}))
    return b"".join(lines)


def sum_counters(manifests: Sequence[Manifest]) -> dict[str, int]:
    """Sums the counters of partitions."""
    total: Counter[str] = Counter()
    for manifest in manifests:
        total.update(manifest.counters)
    return dict(total)
