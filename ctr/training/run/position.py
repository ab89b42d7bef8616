"""Where a run stands in its logs, and what went wrong on the way: plain numbers, kept in every checkpoint."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from ctr.io.errors import InputError

# A step that is skipped again and again must not make the checkpoints grow.
_RANGES_NOTED = 100


class Mark(NamedTuple):
    """Position of the newest checkpoint outside of streaks of skipped steps; 0 also for the beginning."""

    examples: int = 0
    learned: int = 0
    applied_begin: int = -1


@dataclass
class Position:
    """Where a run stands, and what went wrong on the way. Times are query times in microseconds."""

    examples: int = 0  # rows of the log that are scored, rejects included
    learned: int = 0  # the same as far as learning goes; less only under a label delay
    # Rows of each constraint log that are behind it.
    constraint_logs: dict[str, int] = field(default_factory=dict)
    batches: int = 0  # that were scored
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
    streak_predicts: bool = True  # whether all predictions of these steps are such as sound weights give
    applied_in_a_row: int = 0  # steps since the last one that was skipped
    applied_begin: int = -1  # first row of the last batch whose step was applied; -1: none yet
    # Good rows that were scored and not learned from, being quarantined by a rollback.
    quarantined_rows: int = 0
    mark: list[int] = field(default_factory=lambda: list(Mark()))
    # Row from which the examples until the next checkpoint count: that of the last one that was due.
    due_from: int = 0
    # Time and query id of the last row that was scored, rejects included.
    scored_until: list[int] | None = None
    learned_until: list[int] | None = None  # the same of the last row that was learned from, or quarantined
    constraint_until: dict[str, list[int]] = field(default_factory=dict)
    # By ramp, examples that counted before a warm start.
    trained_before: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        return cls(**content)

    def as_json(self) -> dict[str, Any]:
        return copy.deepcopy(vars(self))

    @property
    def unlearned_rows(self) -> int:
        """Rows that were scored but not learned from, because a step was skipped or they were quarantined."""
        return self.skipped_rows + self.quarantined_rows


def note_step(position: Position, begin: int, end: int, applied: bool, predicts: bool) -> None:
    """Counts a step of the rows [begin, end), in place; ``predicts``: all its predictions are sound."""
    if applied:
        position.skipped_in_a_row, position.streak_predicts = 0, True
        position.applied_in_a_row += 1
        position.applied_begin = begin
        return
    position.skipped_in_a_row += 1
    position.streak_predicts = position.streak_predicts and predicts
    position.applied_in_a_row = 0
    position.skipped_steps += 1
    position.skipped_ranges += [[begin, end]]
    del position.skipped_ranges[_RANGES_NOTED:]


def mark_here(position: Position) -> Mark:
    """Notes a checkpoint of this position unless within a streak; returns where a rollback goes from now on."""
    if not position.skipped_in_a_row:
        position.mark = list(Mark(position.examples, position.learned, position.applied_begin))
    return Mark(*position.mark)


def check_rejects(position: Position, allowed: float, logs: Mapping[str, Path], rejects_file: Path) -> None:
    """Raises InputError where more than the allowed share of a log's rows is faulty; ``""`` names the first."""
    counts = {"": (position.rejected_rows, position.read)}
    for name, rejected in position.constraint_rejected.items():
        counts[name] = rejected, position.constraint_read[name]
    for name, (rejected, read) in counts.items():
        if rejected > allowed * max(read, 1000):
            raise InputError(
                f"{logs[name]}: {rejected} of the first {read} rows that were read are faulty "
                f"(see {rejects_file}); allowed: a share of {allowed} (max_rejected_share)"
            )
