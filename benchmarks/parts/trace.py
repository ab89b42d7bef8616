"""To which part of the step the operations of a trace belong, and how long they took by themselves."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

SCOPES = (
    "gather",
    "look_up",
    "crosses",
    "deep",
    "loss",
    "row_update",
    "dense_update",
    "statistics",
    "precondition",
)
OTHER = "none of them"
_OPERATION = re.compile(r"^([\w./>-]+):(\w+)$")
_NUMBER = re.compile(r"_\d+$")
_GRADIENT = "gradient_tape"


def is_operation(name: str) -> bool:
    """Whether an event of a trace is an operation of the graph: its name, a colon, and its type."""
    return _OPERATION.match(name) is not None


def part_of(name: str) -> tuple[str, str]:
    """The innermost part that an operation's name is of, and ``forward`` or ``backward``."""
    scopes = name.rpartition(":")[0].split("/")
    way = "backward" if _GRADIENT in scopes else "forward"
    for scope in reversed(scopes[:-1]):
        plain = _NUMBER.sub("", scope)
        if plain in SCOPES:
            return plain, way
    return OTHER, way


def own_times(events: Iterable[tuple[int, int, str]]) -> Iterator[tuple[str, int]]:
    """Each event's time without that of events of the same thread that lie within it.

    Args:
        events: begin, duration and name of each.
    """
    open_events: list[list[Any]] = []
    for begin, duration, name in sorted(events, key=lambda event: (event[0], -event[1])):
        while open_events and open_events[-1][0] <= begin:
            _, inner, closed = open_events.pop()
            yield closed, inner
        if open_events:
            open_events[-1][1] -= duration
        open_events.append([begin + duration, duration, name])
    yield from ((name, inner) for _, inner, name in open_events)


def by_part(operations: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Milliseconds of the parts, forward and backward, and their share of all."""
    parts = {name: {"forward_ms": 0.0, "backward_ms": 0.0} for name in (*SCOPES, OTHER)}
    for operation, spent in operations.items():
        part, way = part_of(operation)
        parts[part][f"{way}_ms"] += spent
    total = sum(operations.values())
    return {name: {**one, "share": sum(one.values()) / total} for name, one in parts.items()}
