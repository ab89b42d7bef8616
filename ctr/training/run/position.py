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
    """Where the newest checkpoint stands that was not written within a streak of skipped steps.

    Attributes:
        examples: ``Position.examples`` there, which is the checkpoint's name; 0 also for the beginning.
        learned: ``Position.learned`` there.
        applied_begin: ``Position.applied_begin`` there.
    """

    examples: int = 0
    learned: int = 0
    applied_begin: int = -1


@dataclass
class Position:
    """Where a run stands, and what went wrong on the way.

    Attributes:
        examples: rows of the log that are behind it as far as scoring goes, rejects included.
        learned: the same as far as learning goes; less only under a label delay.
        constraint_logs: rows of each constraint log that are behind it.
        batches: batches that were scored.
        trained_examples: good rows in batches that were learned from, also those of weight 0.
        trained_rows: those of them with a train weight above 0 whose step changed the weights.
        skipped_steps: steps that changed nothing because the loss or a gradient was not finite.
        skipped_rows: good rows of the log in such steps.
        skipped_ranges: the rows [begin, end) of the log of the first such steps.
        rejected_rows: faulty rows of the log.
        read: good and faulty rows of the log that were read.
        constraint_rejected, constraint_read: the same of each constraint log.
        nonfinite_predictions: rows whose prediction was not finite.
        skipped_in_a_row: the length of the streak of skipped steps that it stands in.
        streak_predicts: whether all predictions of these steps are such as sound weights give.
        applied_in_a_row: the number of steps since the last one that was skipped.
        applied_begin: the first row of the last batch whose step was applied; -1: none yet.
        quarantined_rows: good rows that were scored and, being quarantined by a rollback, not learned from.
        mark: a ``Mark``, as a list.
        due_from: the row from which the examples until the next checkpoint count: that of the last one that was due.
        scored_until: query time, in microseconds, and query id of the last row that was scored, rejects included.
        learned_until: the same of the last row that was learned from, or quarantined.
        constraint_until: the same in each constraint log.
        trained_before: by a ramp's name, examples that counted for it before a warm start.
    """

    examples: int = 0
    learned: int = 0
    constraint_logs: dict[str, int] = field(default_factory=dict)
    batches: int = 0
    trained_examples: int = 0
    trained_rows: int = 0
    skipped_steps: int = 0
    skipped_rows: int = 0
    skipped_ranges: list[list[int]] = field(default_factory=list)
    rejected_rows: int = 0
    read: int = 0
    constraint_rejected: dict[str, int] = field(default_factory=dict)
    constraint_read: dict[str, int] = field(default_factory=dict)
    nonfinite_predictions: int = 0
    skipped_in_a_row: int = 0
    streak_predicts: bool = True
    applied_in_a_row: int = 0
    applied_begin: int = -1
    quarantined_rows: int = 0
    mark: list[int] = field(default_factory=lambda: list(Mark()))
    due_from: int = 0
    scored_until: list[int] | None = None
    learned_until: list[int] | None = None
    constraint_until: dict[str, list[int]] = field(default_factory=dict)
    trained_before: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Returns the position of a checkpoint. Raises TypeError: it has other keys."""
        return cls(**content)

    def as_json(self) -> dict[str, Any]:
        """Returns a copy of the position, as plain dicts and lists."""
        return copy.deepcopy(vars(self))

    @property
    def unlearned_rows(self) -> int:
        """The rows that were scored but not learned from, because a step was skipped or they were quarantined."""
        return self.skipped_rows + self.quarantined_rows


def note_step(position: Position, begin: int, end: int, applied: bool, predicts: bool) -> None:
    """Counts a step, in place.

    Args:
        begin, end: the rows of its batch, [begin, end).
        applied: whether it changed the weights.
        predicts: whether all its predictions are such as sound weights give.
    """
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
    """Notes, in place, that a checkpoint of this position is written, unless within a streak of skipped steps.

    Returns:
        Where a rollback goes back to from now on.
    """
    if not position.skipped_in_a_row:
        position.mark = list(Mark(position.examples, position.learned, position.applied_begin))
    return Mark(*position.mark)


def check_rejects(position: Position, allowed: float, logs: Mapping[str, Path], rejects_file: Path) -> None:
    """Checks that not too large a share of a log's rows is faulty.

    Args:
        allowed: the share.
        logs: by name, "" the first one.
        rejects_file: names these rows; named in the error.

    Raises:
        InputError: it is.
    """
    counts = {"": (position.rejected_rows, position.read)}
    for name, rejected in position.constraint_rejected.items():
        counts[name] = rejected, position.constraint_read[name]
    for name, (rejected, read) in counts.items():
        if rejected > allowed * max(read, 1000):
            raise InputError(
                f"{logs[name]}: {rejected} of the first {read} rows that were read are faulty "
                f"(see {rejects_file}); allowed: a share of {allowed} (max_rejected_share)"
            )
