"""Pace of a command, the time that is left, and how that is said in a line."""

import datetime
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

LINE_SECONDS = 60.0  # how long nothing is printed where there is no terminal

_STEPS_KEPT = 15


class BatchSizes(Protocol):
    """Rows of batches by position; see ``ctr.data.batches.BatchSize``."""

    def at(self, position: int) -> int: ...

    def plateaus(self, begin: int, end: int) -> Sequence[tuple[int, int]]: ...


class Pace:
    """Pace of a position, which begins at 0. Batches that grow take longer, and pass more rows in a second.

    Without a total the end is not known; without batches all take as long for a row. The clock returns seconds.
    """

    def __init__(
        self,
        total: int | None,
        batches: BatchSizes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._batches, self._clock = total, batches, clock
        self.begin(0)

    def begin(self, position: int) -> None:
        """Takes the time anew: what came before says nothing about the pace."""
        self.position = self._first = position
        self._begun = self._since = self._clock()
        self._seconds: dict[int, deque[float]] = {}

    def is_fresh(self) -> bool:
        return self.position == self._first

    def at(self, position: int) -> None:
        now = self._clock()
        if position <= self.position:
            return
        if self._batches is not None:
            steps = sum(count for _, count in self._batches.plateaus(self.position, position))
            size = self._batches.at(self.position)
            seen = self._seconds.setdefault(size, deque(maxlen=_STEPS_KEPT))
            seen.append((now - self._since) / steps)
        self.position, self._since = position, now

    def rate(self) -> float | None:
        """Returns the rows of a second since the beginning; None: nothing has passed."""
        seconds = self._since - self._begun
        return (self.position - self._first) / seconds if seconds > 0 else None

    def seconds_left(self) -> float | None:
        """Returns how long it takes from here; None where that cannot be said."""
        rate = self.rate()
        if self._total is None or not rate:
            return None
        if self._batches is None or not self._seconds:
            return max(self._total - self.position, 0) / rate
        # The median: a step that was compiled took longer.
        known = {size: statistics.median(seen) for size, seen in sorted(self._seconds.items())}
        return sum(
            count * _seconds_of(size, known)
            for size, count in self._batches.plateaus(self.position, self._total)
        )


def _seconds_of(size: int, known: Mapping[int, float]) -> float:
    """Returns the seconds of a batch; of sizes that are not known yet, as the two largest ones make expect."""
    if size in known:
        return known[size]
    *others, last = known
    slope = max(0.0, (known[last] - known[others[-1]]) / (last - others[-1])) if others else 0.0
    return max(known[last] + slope * (size - last), 0.0)


def progress_line(pace: Pace, total: int | None, unit: str, metrics: Sequence[str]) -> str:
    """Formats where a command stands, for a log file."""
    parts = [f"{pace.position:,} {unit}"]
    if total:
        parts = [f"{pace.position:,} of {total:,} {unit} ({pace.position / total:.0%})"]
    if rate := pace.rate():
        parts.append(f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.2g} {unit}/s")
    if (left := pace.seconds_left()) is not None:
        parts.append(f"{duration_text(left)} left")
    return ", ".join([*parts, *metrics])


def duration_text(seconds: float) -> str:
    """Formats seconds as ``1:02:03``, or with days before it."""
    return str(datetime.timedelta(seconds=round(seconds)))


def fitting(texts: Mapping[str, str], room: int, first: Sequence[str]) -> list[str]:
    """Chooses the texts, by name, that fit into a line with two characters between; the most important ``first``."""
    chosen: set[str] = set()
    for name in first:
        wanted = [text for key, text in texts.items() if key in chosen or key == name]
        if name in texts and len(", ".join(wanted)) <= room:
            chosen.add(name)
    return [text for key, text in texts.items() if key in chosen]


class Lines:
    """Lets a line pass once a minute, the first one after a minute."""

    def __init__(self, show: Callable[[str], Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._show, self._clock, self._last = show, clock, clock()

    def is_due(self) -> bool:
        return self._clock() - self._last >= LINE_SECONDS

    def __call__(self, text: str) -> None:
        if self.is_due():
            self._last = self._clock()
            self._show(text)
