"""Position of a run: which rows it has passed, and what went wrong on the way."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from ctr.data.batches import LargeQuery
from ctr.io.errors import InputError

# A step that is skipped again and again must not make the checkpoints grow.
_RANGES_NOTED = 100

FULL_WINDOW = 50_000
"""Examples of a window where the configuration leaves them open, but for those of the first so many."""
_SMALLEST_WINDOW = 64
_SHARE_BEFORE = 16

MOST_SET_ASIDE = 0.1
"""Share of the rows of a log that may lie in queries with too many rows, the largest one not counted."""


@dataclass
class Position:
    """Where a run stands, and what went wrong on the way. Times are query times in microseconds."""

    examples: int = 0  # rows of the log that are scored, rejects included
    learned: int = 0  # the same as far as learning goes; less only under a label delay
    # Rows of each constraint log that are behind it.
    constraint_logs: dict[str, int] = field(default_factory=dict)
    batches: int = 0  # that were scored
    scored_rows: int = 0  # good rows that were scored
    window_from: int = 0  # the same where the window began that it is in
    window_times: list[int] = field(default_factory=lambda: [0, 0])  # of the window's first and last row
    trained_examples: int = 0  # good rows in batches that were learned from, also those of weight 0
    trained_rows: int = 0  # those of them with a train weight above 0 whose step changed the weights
    skipped_steps: int = 0  # steps that changed nothing because the loss or a gradient was not finite
    skipped_rows: int = 0  # good rows of the log in such steps
    skipped_ranges: list[list[int]] = field(default_factory=list)  # rows [begin, end) of the first such steps
    rejected_rows: int = 0  # faulty rows of the log
    read: int = 0  # good and faulty rows of the log that were read
    constraint_rejected: dict[str, int] = field(default_factory=dict)
    constraint_read: dict[str, int] = field(default_factory=dict)
    nonfinite_predictions: int = 0  # rows whose prediction was not finite
    skipped_in_a_row: int = 0  # length of the streak of skipped steps that it stands in
    left_out_rows: int = 0  # good rows that were scored and not learned from, being in ``skip``
    # Row from which the examples until the next checkpoint count: that of the last one that was due.
    due_from: int = 0
    # Time and query id of the last row that was scored, rejects included.
    scored_until: list[int] | None = None
    learned_until: list[int] | None = None  # the same of the last row that was learned from, or left out
    # The same of constraint logs.
    constraint_until: dict[str, list[int]] = field(default_factory=dict)
    # Of queries with too many rows, by log ("" is that of the pass): their rows, and the first of them.
    set_aside_rows: dict[str, int] = field(default_factory=dict)
    set_aside: dict[str, list[list[int]]] = field(default_factory=dict)  # each is a ``LargeQuery``
    # By ramp, examples that counted before a warm start.
    trained_before: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        return cls(**content)

    def as_json(self) -> dict[str, Any]:
        content = copy.deepcopy(vars(self))
        for name in ("set_aside_rows", "set_aside"):
            # A checkpoint is then what it is without the key.
            if not content[name]:
                del content[name]
        return content

    @property
    def window_examples(self) -> int:
        return self.scored_rows - self.window_from

    @property
    def unlearned_rows(self) -> int:
        """Rows that were scored but not learned from, because a step was skipped or ``skip`` leaves them out."""
        return self.skipped_rows + self.left_out_rows


def note_scored(position: Position, query_time: np.ndarray) -> None:
    """Counts good rows of the log, with these times [N], at least one, in place."""
    if not position.window_examples:
        position.window_times[0] = int(query_time[0])
    position.window_times[1] = int(query_time[-1])
    position.scored_rows += len(query_time)


def open_window(begin: int) -> int:
    """Examples of a window that the configuration leaves open, from how many the run has measured before it.

    From the first 50,000 on windows have 50,000. Those before them are in parts, so that a short log has a course over
    time: of 64, and later of a sixteenth of what is before. The length of the log, which may grow, has no say.
    """
    left = FULL_WINDOW - begin
    if left <= 0:
        return FULL_WINDOW
    examples = max(_SMALLEST_WINDOW, begin // _SHARE_BEFORE)
    return examples if left >= 2 * examples else left


def note_step(position: Position, begin: int, end: int, applied: bool) -> None:
    """Counts a step of the rows [begin, end), in place."""
    if applied:
        position.skipped_in_a_row = 0
        return
    position.skipped_in_a_row += 1
    position.skipped_steps += 1
    position.skipped_ranges += [[begin, end]]
    del position.skipped_ranges[_RANGES_NOTED:]


def note_large_query(position: Position, log: str, query: LargeQuery) -> bool:
    """Counts a query that is set aside, in place; returns whether it is one of the first, which are named."""
    position.set_aside_rows[log] = position.set_aside_rows.get(log, 0) + query.rows
    noted = position.set_aside.setdefault(log, [])
    if len(noted) < _RANGES_NOTED:
        noted.append(list(query))
        return True
    return False


def set_aside_summary(position: Position) -> dict[str, Any]:
    """Returns what summary.json says of the queries that were set aside, having too many rows."""
    named = [
        {**({"log": log} if log else {}), **LargeQuery(*query)._asdict()}
        for log, queries in position.set_aside.items()
        for query in queries
    ]
    return {"set_aside_rows": sum(position.set_aside_rows.values()), "set_aside": named}


def check_rejects(position: Position, allowed: float, logs: Mapping[str, Path], rejects_file: Path) -> None:
    """Raises InputError where more than the allowed share of a log's rows is faulty; ``""`` names the first.

    A single query that is set aside never stops a run, however large it is.
    """
    for name, rows in position.set_aside_rows.items():
        read = position.constraint_read[name] if name else position.read
        others = rows - max(query[-1] for query in position.set_aside[name])
        if others > MOST_SET_ASIDE * read:
            raise InputError(
                f"{logs[name]}: {rows} of the first {read} rows that were read are in queries of more rows than "
                f"batch.max_query_rows (see {rejects_file}); allowed: a share of {MOST_SET_ASIDE} beside the largest "
                "of these queries"
            )
    counts = {"": (position.rejected_rows, position.read)}
    for name, rejected in position.constraint_rejected.items():
        counts[name] = rejected, position.constraint_read[name]
    for name, (rejected, read) in counts.items():
        if rejected > allowed * max(read, 1000):
            raise InputError(
                f"{logs[name]}: {rejected} of the first {read} rows that were read are faulty "
                f"(see {rejects_file}); allowed: a share of {allowed} (max_rejected_share)"
            )
