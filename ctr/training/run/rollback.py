"""Position of a run, rollback to its last checkpoint, and rows then quarantined: scored, but not learned from.

A skipped step leaves the weights as they are; so when many are skipped in a row, what broke the weights, if anything
did, is something finite that was learned before. The rows since the checkpoint are gone over again:

    first time   without the rows from the last batch that was applied on, up to the end of the streak
    second time  from the same checkpoint: without any row from there up to the end of the streak
    after that   the weights are those of the checkpoint, or else the run ends with an error

Weights of the checkpoint under which predictions are what they should be are sound: then it is the examples that
cannot be learned from, however many there are, and the pass goes on behind them without going back again.

What is quarantined is decided from positions alone and written to RUN/quarantine.json, one entry a rollback, before
anything else is changed. A resume reads it, so that a run that is killed at any moment ends in the bits of one that
was not.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from pydantic import model_validator

from ctr.config import StrictModel, parse_model
from ctr.data.batches import LargeQuery
from ctr.data.log import Manifest
from ctr.data.reader import read_rows
from ctr.data.schema import Schema
from ctr.io.documents import read_sealed, sealed_bytes
from ctr.io.errors import InputError
from ctr.io.files import write_atomic_bytes
from ctr.training.run import checkpoint
from ctr.training.run.directory import drop_models_after

# A step that is skipped again and again must not make the checkpoints grow.
_RANGES_NOTED = 100

MOST_SET_ASIDE = 0.1
"""Share of the rows of a log that may lie in queries with too many rows, the largest one not counted."""


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
    # Rows of the log that are behind it among those that come again for a label, by the return.
    returned: dict[str, int] = field(default_factory=dict)
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
    mark: list[int] = field(default_factory=lambda: list(Mark()))  # a ``Mark``
    # Row from which the examples until the next checkpoint count: that of the last one that was due.
    due_from: int = 0
    # Time and query id of the last row that was scored, rejects included.
    scored_until: list[int] | None = None
    learned_until: list[int] | None = None  # the same of the last row that was learned from, or quarantined
    # The same of constraint logs, and of rows that come again.
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
        for name in ("returned", "set_aside_rows", "set_aside"):
            # A checkpoint is then what it is without the key.
            if not content[name]:
                del content[name]
        return content

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


QUARANTINE_FILE = "quarantine.json"

# Of a logit or a weight, either way. What lies beyond it has not been learned: the weights are broken, though finite.
_LARGEST = 1e6

# Of the variables by name: what predicts,
_WEIGHTS = ("rows/", "dense/")
# and what else a step changes by its gradient. Statistics and roots are certified instead.
_CHECKED = (
    *_WEIGHTS,
    "rows_accumulator/",
    "rows_prior/",
    "rows_variance_slope/",
    "rows_weight_slope/",
    "prior_precision/",
    "forgetting/",
    "rows_moment/",
    "rows_linear_accumulator/",
    "columns_moment/",
    "newton/",
    "shampoo/tensor",
    "adafactor/tensor",
    "duals/",
    "slices_seen/",
)


class Rollback(StrictModel):
    """One rollback."""

    checkpoint: int  # position that the run went back to; 0: its beginning
    rows: tuple[int, int]  # [begin, end) of the log that are quarantined
    # Of the first and the last of them, in microseconds; None without rows.
    query_times: tuple[int, int] | None
    reason: str


class _Quarantine(StrictModel):
    rollbacks: tuple[Rollback, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for one in self.rollbacks:
            if one.checkpoint < 0 or not 0 <= one.rows[0] <= one.rows[1]:
                raise ValueError(
                    f"rows [{one.rows[0]}, {one.rows[1]}) after {one.checkpoint} are not a range of rows"
                )
        return self


class RollbackNeeded(Exception):  # noqa: N818  (not an error: the run goes on)
    """Raised within a pass to leave it, with the rows [begin, end) to quarantine and the reason in a few words."""

    def __init__(self, rows: tuple[int, int], reason: str) -> None:
        super().__init__(reason)
        self.rows, self.reason = rows, reason


def predicts_soundly(logit: np.ndarray) -> bool:
    """Tells whether logits (float [N]) are such as sound weights give."""
    # False also for NaN.
    return bool((np.abs(logit) <= _LARGEST).all())


def rows_of_streak(
    limit: int | None, position: Position, past: Sequence[Rollback], run_dir: Path
) -> tuple[int, int] | None:
    """Finds the rows to quarantine because of the streak of skipped steps that a run stands in; None: it goes on.

    ``limit``: so many steps make a rollback; None: none do. Raises InputError: two rollbacks there did not help.
    """
    if limit is None or position.skipped_in_a_row < limit:
        return None
    mark = Mark(*position.mark)
    attempts = _rollbacks_to(mark, past)
    is_checkpoint = position.applied_begin == mark.applied_begin
    if attempts and is_checkpoint and position.streak_predicts:
        return None
    if attempts == 0:
        return max(position.applied_begin, mark.learned), position.learned
    if attempts == 1:
        return mark.learned, position.learned
    raise _rollbacks_failed(
        run_dir, mark, position, f"{position.skipped_in_a_row} steps in a row were skipped"
    )


def rows_of_broken_weights(
    position: Position, past: Sequence[Rollback], run_dir: Path, predicts: bool
) -> tuple[int, int]:
    """Finds the rows to quarantine because weights are broken, though steps may have been applied until now.

    The first time those since the last batch that was applied, or none where the weights still predict well for it:
    then the memory may have failed. The second time all since the checkpoint. Raises InputError: see
    ``rows_of_streak``.
    """
    mark = Mark(*position.mark)
    attempts = _rollbacks_to(mark, past)
    if attempts == 0:
        if position.skipped_in_a_row or not predicts:
            return max(position.applied_begin, mark.learned), position.learned
        return position.learned, position.learned
    if attempts == 1:
        return mark.learned, position.learned
    raise _rollbacks_failed(run_dir, mark, position, "weights are broken")


def _rollbacks_to(mark: Mark, past: Sequence[Rollback]) -> int:
    return sum(one.checkpoint == mark.examples for one in past)


def _rollbacks_failed(run_dir: Path, mark: Mark, position: Position, what: str) -> InputError:
    return InputError(
        f"{run_dir}: {what} up to row {position.learned} of the log, after two rollbacks to the checkpoint of row "
        f"{mark.examples} that quarantined the rows from {mark.learned} on ({QUARANTINE_FILE})",
        "look at these rows, or start anew with lower learning rates or rollback.after_skipped_steps: null, which "
        "skips such steps only",
    )


def is_checkpoint_due(limit: int | None, every: int, position: Position, past: Sequence[Rollback]) -> bool:
    """Tells whether the next checkpoint, one each ``every`` rows, is to be written; ``limit``: see ``rows_of_streak``.

    None is within a streak of skipped steps, when weights are in doubt. After a rollback one is written early, when
    as many steps as would have made another were applied in a row behind what was quarantined: the trouble is over.
    """
    if limit is not None and position.skipped_in_a_row:
        return False
    if position.examples - position.due_from >= every:
        return True
    if limit is None or not past or past[-1].checkpoint != Mark(*position.mark).examples:
        return False
    return position.applied_in_a_row >= limit and position.applied_begin >= past[-1].rows[1]


def is_quarantined(begin: int, end: int, past: Iterable[Rollback]) -> bool:
    """Tells whether a batch of the rows [begin, end) is not to be learned from: if only a row of it is quarantined."""
    return any(max(begin, one.rows[0]) < min(end, one.rows[1]) for one in past)


def is_export_due(limit: int | None, every: int, before: int, position: Position) -> bool:
    """Tells whether a model is to be exported: the run came past a multiple of ``every`` since ``before``.

    None is within a streak of skipped steps; it is left out. So the position alone decides, wherever a run was killed.
    """
    if limit is not None and position.skipped_in_a_row:
        return False
    return before // every < position.examples // every


def drop_after(run_dir: Path, examples: int) -> None:
    """Deletes what a run has published of later positions, exports first: beside them it could not learn otherwise."""
    drop_models_after(run_dir / "exports", examples)
    checkpoint.drop_after(run_dir / "checkpoints", examples)


def first_broken(arrays: Iterable[tuple[str, np.ndarray]]) -> str | None:
    """Names the first variable, whole or in pieces, that is not finite or too large for a weight, and what is wrong."""
    for name, array in arrays:
        if not name.startswith(_CHECKED) or not array.size:
            continue
        # NaN is neither within nor beyond, and comes out of either.
        low, high = float(array.min()), float(array.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            return f"{name} is not finite"
        if name.startswith(_WEIGHTS) and max(-low, high) > _LARGEST:
            return f"{name} has weights beyond {_LARGEST:g}"
    return None


def query_times(
    log: Path, schema: Schema, manifests: Sequence[Manifest], rows: tuple[int, int]
) -> tuple[int, int] | None:
    """Reads the query times of the first and the last of the rows [begin, end) of a log; None without rows."""
    begin, end = rows
    if begin >= end:
        return None
    first, last = (
        int(next(read_rows(log, schema, manifests, row)).query_time[0]) for row in (begin, end - 1)
    )
    return first, last


def read_rollbacks(run_dir: Path) -> list[Rollback]:
    """Reads the rollbacks of the run in ``run_dir``. Raises InputError: the file that records them is damaged."""
    path = run_dir / QUARANTINE_FILE
    if not path.exists():
        return []
    try:
        return list(parse_model(_Quarantine, read_sealed(path, f"{path}: no such file"), str(path)).rollbacks)
    except InputError as error:
        raise InputError(
            f"{path}: damaged ({str(error).removeprefix(f'{path}: ')[:200]}); it decides which rows are trained on: "
            "restore it, or use another output directory to start again"
        ) from None


def write_rollbacks(run_dir: Path, rollbacks: Sequence[Rollback]) -> None:
    """Writes all rollbacks of a run, durably."""
    write_atomic_bytes(run_dir / QUARANTINE_FILE, sealed_bytes({"rollbacks": as_json(rollbacks)}))


def as_json(rollbacks: Sequence[Rollback]) -> list[dict[str, Any]]:
    """Converts rollbacks to plain lists and dicts."""
    return [one.model_dump(mode="json") for one in rollbacks]


def from_json(rollbacks: Sequence[Mapping[str, Any]]) -> list[Rollback]:
    """Makes rollbacks of what ``as_json`` returned, also after a way through JSON."""
    return [Rollback.model_validate(one) for one in rollbacks]


def check_kept(run_dir: Path, seen: Sequence[Mapping[str, Any]], found: Sequence[Rollback]) -> None:
    """Raises InputError unless the rollbacks that a checkpoint has seen are the first of those ``found``."""
    if list(seen) != as_json(found)[: len(seen)]:
        raise InputError(
            f"{run_dir / QUARANTINE_FILE}: does not have the {len(seen)} rollbacks that the checkpoint was made "
            "after; restore it, or use another output directory to start again"
        )
