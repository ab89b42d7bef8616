"""The join one event after the other, written from what its modules say of themselves, with none of their code."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Impression(NamedTuple):
    id: int
    time: int
    shown: int
    query: int
    color: int
    arrival: int

    @property
    def content(self) -> tuple[int, ...]:
        return self[:-1]


class Click(NamedTuple):
    id: int
    time: int
    arrival: int


@dataclass
class PlainPartition:
    """What a partition has become, as plain values."""

    examples: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    labeled: set[tuple[str, int]] = field(default_factory=set)  # kinds of events, and examples that have one
    unmatched: list[tuple[str, int, int, int, str]] = field(default_factory=list)  # the first is the kind
    conflicting: list[Impression] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)


def join_plainly(
    rules: Any, impressions: Sequence[Impression], events: Mapping[str, Sequence[Click]]
) -> tuple[dict[int, PlainPartition], list[Impression], dict[str, list[Click]]]:
    """Each partition in which something happened, and the events that came too late.

    ``events`` are clicks, and what is joined like clicks, by its kind.
    """
    windows = {"clicks": (rules.window, rules.late_window), **rules.labels}
    reported: dict[int, PlainPartition] = defaultdict(PlainPartition)

    def begin(time: int) -> int:
        return time // rules.length * rules.length

    def closes(start: int) -> int:
        return start + rules.length + rules.show + max(window for window, _ in windows.values()) + rules.delay

    # A click may be this much earlier than the query of its impression.
    ahead = (2 if rules.show else 1) * rules.skew

    def home_of(found: Impression | Click) -> int:
        return begin(found.time + ahead) if isinstance(found, Click) else begin(found.time)

    def too_late(found: Impression | Click) -> bool:
        return found.arrival >= closes(home_of(found))

    there = [found for found in impressions if not too_late(found)]
    reach = ahead + rules.show + max(window + late for window, late in windows.values())
    for start in {begin(found.time) for found in there}:
        partition = reported[start]
        inside = [found for found in there if begin(found.time) == start]
        partition.counters["impressions"] = len(inside)
        for number in {found.id for found in inside}:
            copies = sorted((found for found in inside if found.id == number), key=lambda f: f[1:])
            if any(f.id == number and start - reach <= f.time < start for f in there):
                partition.conflicting += copies
                continue
            first, *others = copies
            partition.examples[number] = (first.time, first.shown, first.query, first.color)
            for other in others:
                if other.content == first.content:
                    partition.counters["duplicate_impressions"] += 1
                else:
                    partition.conflicting.append(other)
    first_arrivals: dict[tuple[str, int, int], int] = {}
    for kind, click in ((kind, click) for kind, clicks in events.items() for click in clicks):
        if too_late(click):
            continue
        partition = reported[home_of(click)]
        partition.counters[kind] += 1
        key = (kind, click.id, click.time)
        if key in first_arrivals:
            partition.counters[f"duplicate_{kind}"] += 1
        first_arrivals[key] = min(click.arrival, first_arrivals.get(key, click.arrival))
    for (kind, number, time), arrival in first_arrivals.items():
        window, late_window = windows[kind]
        start = begin(time + ahead)
        home = reported[start]
        known = [f for f in there if f.id == number and start - reach <= f.time < start + rules.length]
        # Of several with one id, that which was published: the others are duplicates or conflicts.
        first = min(known, key=lambda f: f.content, default=None)
        after = None if first is None else time - first.shown
        in_time = first is not None and arrival < closes(begin(first.time))
        if after is not None and -rules.skew <= after <= window and in_time:
            home.counters[f"{'matched' if after >= 0 else 'early'}_{kind}"] += 1
        else:
            is_late = after is not None and -rules.skew <= after <= window + late_window
            reason = "late" if is_late else "orphan"
            home.counters[f"{reason}_{kind}"] += 1
            home.unmatched.append((kind, number, time, arrival, reason))
        for partition in reported.values():
            row = partition.examples.get(number)
            if row and -rules.skew <= time - row[1] <= window and arrival < closes(begin(row[0])):
                partition.labeled.add((kind, number))
    for partition in reported.values():
        partition.counters["conflicting_impressions"] = len(partition.conflicting)
        partition.unmatched.sort()
        partition.conflicting.sort()
    late_clicks = {kind: [click for click in clicks if too_late(click)] for kind, clicks in events.items()}
    return dict(reported), [found for found in impressions if too_late(found)], late_clicks
