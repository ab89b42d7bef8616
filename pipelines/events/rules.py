"""Which intervals an event belongs to, and when each interval is closed. Times are microseconds, UTC.

An impression is published in the interval of its query time. A click is needed wherever its impression may lie, and has
one *home*, the interval of its own time, which counts it and says what became of it. An interval closes when all
that happened before its end plus the click window has had its time to arrive; what arrives from then on is too late
for it. So whether an event is too late follows from the event alone where its arrival is known: it does not
depend on what else has been seen by then.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from ctr.data.event_mapping import EventMapping
from ctr.data.times import duration_us
from ctr.pipelines.events.tables import Kind
from ctr.pipelines.spill import split_by_interval

Times = TypeVar("Times", int, np.ndarray)


@dataclass(frozen=True)
class IntervalRules:
    """The durations behind it all, in microseconds.

    Attributes:
        length: of an interval; they begin at multiples of it.
        window: from an impression, in which a click counts.
        late_window: after the window, in which a click is called late.
        delay: from an event to its arrival, at most.
        overlap: from an arrival in a file back to earlier ones in files after it, at most.
    """

    length: int
    window: int
    late_window: int
    delay: int
    overlap: int = 0

    def start_of(self, times: Times) -> Times:
        """The begin of the interval of each time."""
        return times - times % self.length

    def closes_at(self, start: Times) -> Times:
        """The arrival from which on an event is too late for the interval that begins at ``start``."""
        return start + (self.length + self.window + self.delay)

    @property
    def lookback(self) -> int:
        """How long before an interval an impression can have been whose click is told late in it."""
        return self.window + self.late_window


def interval_rules(mapping: EventMapping) -> IntervalRules:
    """The durations of a mapping."""
    window, late_window = mapping.windows_us
    overlap = 0 if mapping.overlap is None else duration_us(mapping.overlap)
    return IntervalRules(
        duration_us(mapping.partition), window, late_window, duration_us(mapping.delay), overlap
    )


def route(rules: IntervalRules, kind: Kind, table: pa.Table) -> tuple[dict[int, pa.Table], pa.Table]:
    """Events by the partitions that need them, and those that are too late for their own one."""
    return (route_impressions if kind == "impressions" else route_clicks)(rules, table)


def route_impressions(rules: IntervalRules, table: pa.Table) -> tuple[dict[int, pa.Table], pa.Table]:
    """Impressions by the interval that publishes them, and those that are too late for it."""
    starts = rules.start_of(table.column("query_time").to_numpy())
    late = table.column("arrival").to_numpy() >= rules.closes_at(starts)
    if not late.any():
        return split_by_interval(table, starts), table.slice(0, 0)
    kept = pa.array(~late)
    return split_by_interval(table.filter(kept), starts[~late]), table.filter(pa.array(late))


def route_clicks(rules: IntervalRules, table: pa.Table) -> tuple[dict[int, pa.Table], pa.Table]:
    """Clicks by each interval that may hold their impression, and those that are too late for their home."""
    times = table.column("time").to_numpy()
    arrival = table.column("arrival").to_numpy()
    home = rules.start_of(times)
    late = arrival >= rules.closes_at(home)
    parts: dict[int, list[pa.Table]] = {}
    first = rules.start_of(np.maximum(times - rules.window, 0))
    for back in range(-(-rules.window // rules.length) + 1):
        start = home - back * rules.length
        there = ~late & (start >= first)
        # Whoever is too late for an earlier interval can still be told apart at home.
        if back:
            there &= arrival < rules.closes_at(start)
        if there.any():
            for begin, part in split_by_interval(table.filter(pa.array(there)), start[there]).items():
                parts.setdefault(begin, []).append(part)
    return {start: pa.concat_tables(found) for start, found in parts.items()}, table.filter(pa.array(late))


def known_from(rules: IntervalRules, start: int) -> int:
    """The query time from which on earlier impressions matter to the interval that begins at ``start``."""
    return start - rules.lookback
