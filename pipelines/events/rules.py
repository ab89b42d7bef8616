"""Rules that assign events to partitions and determine when each is closed. Times are microseconds, UTC.

An impression is published in the partition of its query time. A click is needed in every partition that may have its
impression, and has one *home*, which counts it and reports whether it was matched: the partition of the click's time
plus the allowed difference of clocks, so that no impression of a click is in a partition after its home. The events
of further labels, such as conversions, are clicks with separate windows. A partition closes when the clicks and
conversions on all of its impressions have had time to arrive; later events are too late for it. So an event's
time and arrival alone determine whether it is too late: it does not depend on what else has been read by then.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa

from ctr.data.event_mapping import EventMapping
from ctr.data.times import duration_us
from ctr.pipelines.events.tables import CLICKS, Kind
from ctr.pipelines.spill import split_by_partition

Times = TypeVar("Times", int, np.ndarray)


@dataclass(frozen=True)
class PartitionRules:
    """Durations of the join, in microseconds."""

    length: int  # of a partition; they begin at multiples of it
    window: int  # from an impression to its click, at most
    late_window: int  # after the window, in which a click is called late
    delay: int  # from an event to its arrival, at most
    overlap: int = 0  # by which arrivals in a file may precede those in the file before it, at most
    skew: int = 0  # from a click to a later impression, and from an impression to a later query, at most: clocks differ
    show: int = 0  # from a query to its impressions, at most; 0 where they share one time
    # The window and the late window of each further label's events, by its name.
    labels: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def windows(self) -> dict[Kind, tuple[int, int]]:
        """Returns the window and the late window of clicks, and of the events of each label."""
        return {CLICKS: (self.window, self.late_window), **self.labels}

    def start_of(self, times: Times) -> Times:
        """Returns the start of the partition of each time."""
        return times - times % self.length

    def home_of(self, times: Times) -> Times:
        """Returns the start of the partition that counts clicks of these times."""
        return self.start_of(times + self.ahead)

    def closes_at(self, start: Times) -> Times:
        """Returns the first arrival that is too late for the partition that begins at ``start``."""
        longest = max(window for window, _ in self.windows.values())
        return start + (self.length + self.show + longest + self.delay)

    @property
    def ahead(self) -> int:
        """Returns the longest time by which a click may precede its impression's query."""
        return 2 * self.skew if self.show else self.skew

    @property
    def lookback(self) -> int:
        """Returns the longest time from an impression's query to a late click or conversion."""
        return self.show + max(map(sum, self.windows.values()))


def partition_rules(mapping: EventMapping) -> PartitionRules:
    """Returns the rules of a mapping, its durations converted to microseconds."""
    labels = mapping.windows_us
    window, late_window = labels.pop(CLICKS)
    overlap = 0 if mapping.overlap is None else duration_us(mapping.overlap)
    return PartitionRules(
        length=duration_us(mapping.partition),
        window=window,
        late_window=late_window,
        delay=duration_us(mapping.delay),
        overlap=overlap,
        skew=mapping.clock_skew_us,
        show=mapping.show_window_us,
        labels=labels,
    )


def route_impressions(rules: PartitionRules, table: pa.Table) -> tuple[dict[int, pa.Table], pa.Table]:
    """Splits impressions by the partition that publishes them; also returns the impressions that are too late."""
    starts = rules.start_of(table.column("query_time").to_numpy())
    late = table.column("arrival").to_numpy() >= rules.closes_at(starts)
    return split_by_partition(table.filter(pa.array(~late)), starts[~late]), table.filter(pa.array(late))


def route_clicks(
    rules: PartitionRules, table: pa.Table, kind: Kind = CLICKS
) -> tuple[dict[int, pa.Table], pa.Table]:
    """Copies clicks, or a label's events, to each partition that may hold their impression.

    Also returns the clicks that are too late for their home.
    """
    times = table.column("time").to_numpy()
    arrival = table.column("arrival").to_numpy()
    home = rules.home_of(times)
    late = arrival >= rules.closes_at(home)
    parts: dict[int, list[pa.Table]] = {}
    reach = rules.show + rules.windows[kind][0]
    first = rules.start_of(np.maximum(times - reach, 0))
    for back in range(-(-(reach + rules.ahead) // rules.length) + 1):
        start = home - back * rules.length
        there = ~late & (start >= first)
        # A click that is too late for an earlier partition can still be counted as late at home.
        if back:
            there &= arrival < rules.closes_at(start)
        if there.any():
            for begin, part in split_by_partition(table.filter(pa.array(there)), start[there]).items():
                parts.setdefault(begin, []).append(part)
    return {start: pa.concat_tables(tables) for start, tables in parts.items()}, table.filter(pa.array(late))


def known_from(rules: PartitionRules, start: int) -> int:
    """Returns the earliest query time of the impressions that the partition beginning at ``start`` needs."""
    return start - rules.ahead - rules.lookback
