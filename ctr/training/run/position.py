"""Position of a run: the number of processed rows, with counts of faults and skipped steps."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from ctr.data.batches import LargeQuery
from ctr.io.errors import InputError

# Repeatedly skipped steps must not make the checkpoints grow.
_RANGES_NOTED = 100

FULL_WINDOW = 50_000
"""Examples of an ``auto`` window after the first 50,000 examples."""
_SMALLEST_WINDOW = 64
_SHARE_BEFORE = 16

MOST_SET_ASIDE = 0.1
"""Maximum share of a log's rows in queries with too many rows, not counting the largest query."""


@dataclass
class Passed:
    """Progress of a run in one log, with the rows that it could not use."""

    rows: int = 0  # rows of the log that are processed, rejects included
    until: list[int] | None = None  # time and query id of the last of these rows
    read: int = 0  # good and faulty rows that were read
    rejected: int = 0  # faulty rows
    # Number of rows in queries with too many rows, and the first such queries, as ``LargeQuery``.
    set_aside_rows: int = 0
    set_aside: list[list[int]] = field(default_factory=list)


@dataclass
class Position:
    """Position of a run in its logs, with counts of skipped and faulty rows. Times are query times in microseconds."""

    logs: dict[str, Passed] = field(default_factory=dict)  # "" is the log of the pass, the others constrain
    # Rows of the log that were learned from or left out; fewer than scored rows only with a label delay.
    learned: int = 0
    learned_until: list[int] | None = None  # time and query id of the last of these rows
    batches: int = 0  # scored batches
    scored_rows: int = 0  # good rows that were scored
    window_from: int = 0  # ``scored_rows`` at the beginning of the current window
    window_times: list[int] = field(default_factory=lambda: [0, 0])  # of the window's first and last row
    trained_examples: int = 0  # good rows in batches that were learned from, also those of weight 0
    trained_rows: int = 0  # rows with a train weight above 0 whose step changed the weights
    skipped_steps: int = 0  # steps that changed nothing because the loss or a gradient was not finite
    skipped_rows: int = 0  # good rows of the log in such steps
    skipped_ranges: list[list[int]] = field(default_factory=list)  # rows [begin, end) of the first such steps
    skipped_in_a_row: int = 0  # length of the current streak of skipped steps
    left_out_rows: int = 0  # good rows that were scored and not learned from, being in ``skip``
    nonfinite_predictions: int = 0  # rows whose prediction was not finite
    # Row of the last checkpoint that was due, from which the examples until the next one are counted.
    due_from: int = 0
    # By ramp or schedule, examples that were trained on before a warm start.
    trained_before: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        logs = {name: Passed(**passed) for name, passed in content["logs"].items()}
        return cls(**{**content, "logs": logs})

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def of(self, log: str = "") -> Passed:
        """Returns the progress in the training log (""), or in a constraint log."""
        return self.logs.setdefault(log, Passed())

    @property
    def examples(self) -> int:
        """Returns the number of processed rows of the training log, rejects included."""
        return self.of().rows

    @property
    def window_examples(self) -> int:
        return self.scored_rows - self.window_from

    @property
    def unlearned_rows(self) -> int:
        """Returns the number of rows scored but not learned from: in skipped steps, or excluded by ``skip``."""
        return self.skipped_rows + self.left_out_rows


def note_scored(position: Position, query_time: np.ndarray) -> None:
    """Counts N good rows of the log, at least one, with these query times, [N] in microseconds."""
    if not position.window_examples:
        position.window_times[0] = int(query_time[0])
    position.window_times[1] = int(query_time[-1])
    position.scored_rows += len(query_time)


def open_window(begin: int) -> int:
    """Returns the number of examples of an ``auto`` window that begins after ``begin`` examples.

    After the first 50,000 examples, windows have 50,000. Earlier ones are smaller, so that a short log has several:
    64, and later a sixteenth of the examples before. The length of the log, which may grow, does not matter.
    """
    left = FULL_WINDOW - begin
    if left <= 0:
        return FULL_WINDOW
    examples = max(_SMALLEST_WINDOW, begin // _SHARE_BEFORE)
    return examples if left >= 2 * examples else left


def note_step(position: Position, begin: int, end: int, applied: bool) -> None:
    """Counts a step with the rows [begin, end); ``applied``: whether it changed the weights."""
    if applied:
        position.skipped_in_a_row = 0
        return
    position.skipped_in_a_row += 1
    position.skipped_steps += 1
    position.skipped_ranges += [[begin, end]]
    del position.skipped_ranges[_RANGES_NOTED:]


def note_large_query(passed: Passed, query: LargeQuery) -> bool:
    """Counts a query as set aside instead of faulty; returns whether it is among the first, which are named."""
    passed.rejected -= query.rows
    passed.set_aside_rows += query.rows
    is_named = len(passed.set_aside) < _RANGES_NOTED
    if is_named:
        passed.set_aside.append(list(query))
    return is_named


def set_aside_summary(position: Position) -> dict[str, Any]:
    """Returns the entries of summary.json about queries set aside for having too many rows; empty without any."""
    rows = sum(passed.set_aside_rows for passed in position.logs.values())
    named = [
        {**({"log": log} if log else {}), **LargeQuery(*query)._asdict()}
        for log, passed in position.logs.items()
        for query in passed.set_aside
    ]
    return {"set_aside_rows": rows, "set_aside": named} if rows else {}


def check_rejects(position: Position, allowed: float, logs: Mapping[str, Path], rejects_file: Path) -> None:
    """Raises InputError if too many rows of a log are faulty or set aside; ``logs`` has the training log as "".

    ``allowed`` is the maximum share of faulty rows. The largest query that is set aside does not count.
    """
    for name, passed in position.logs.items():
        others = passed.set_aside_rows - max((query[-1] for query in passed.set_aside), default=0)
        if others > MOST_SET_ASIDE * passed.read:
            raise InputError(
                f"{logs[name]}: {passed.set_aside_rows} of the first {passed.read} rows that were read are in queries "
                f"of more rows than batch.max_query_rows (see {rejects_file}); allowed: a share of {MOST_SET_ASIDE} "
                "beside the largest of these queries"
            )
        if passed.rejected > allowed * max(passed.read, 1000):
            raise InputError(
                f"{logs[name]}: {passed.rejected} of the first {passed.read} rows that were read are faulty "
                f"(see {rejects_file}); allowed: a share of {allowed} (max_rejected_share)"
            )
