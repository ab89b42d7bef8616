"""Position where a run begins that goes on from another one: behind what that one passed, in whatever log."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ctr.data.log import log_sha256
from ctr.data.schema import Schema
from ctr.data.shards import read_shard
from ctr.io.errors import InputError
from ctr.training.inputs import Inputs
from ctr.training.logs import Log
from ctr.training.run.position import Position

_LAST_ID = int(np.iinfo(np.int64).max)


def begin_position(
    inputs: Inputs, old: Position, consumed: Sequence[Mapping[str, Any]], source: Path, waits: bool
) -> Position:
    """Returns the position of a new run, with all counts at 0.

    What the old run has scored the new one does not score again, unless it learns without a delay what the old one had
    not learned yet: then it begins there, since it scores all that it learns from. ``waits``: the log may have nothing
    new yet. Raises InputError: a log ends before where the new run is to begin.
    """
    log = inputs.log
    if old.learned_until is None or old.scored_until is None:
        position = _same_place(inputs, old, consumed, source)
    else:
        scored = _reach(log, inputs.schema, old.scored_until, source, "")
        learned = _reach(log, inputs.schema, old.learned_until, source, "")
        constraint_logs = {
            name: _reach(
                other,
                inputs.schema,
                # What came before what was learned last is never read later.
                old.constraint_until.get(name, [old.learned_until[0] - 1, _LAST_ID]),
                source,
                name,
            )
            for name, other in inputs.constraint_logs.items()
        }
        position = Position(examples=scored, learned=learned, constraint_logs=constraint_logs)
        position.scored_until, position.learned_until = old.scored_until, old.learned_until
        position.constraint_until = {
            name: copy.copy(until)
            for name, until in old.constraint_until.items()
            if name in inputs.constraint_logs
        }
    if not inputs.config.label_delay:
        position.examples = position.learned
        position.scored_until = position.learned_until
    if position.examples >= log.rows and not waits:
        raise InputError(
            f"{log.path}: has no row after those that {source} was trained on, the first {position.examples}; "
            "with --follow the new run waits for more"
        )
    position.due_from = position.examples
    zeros = dict.fromkeys(inputs.constraint_logs, 0)
    position.constraint_rejected, position.constraint_read = dict(zeros), dict(zeros)
    return position


def _same_place(
    inputs: Inputs, old: Position, consumed: Sequence[Mapping[str, Any]], source: Path
) -> Position:
    """Returns the position of a run whose checkpoint lacks the last rows that it passed: only in the same logs."""
    for seen in consumed:
        log = inputs.row_logs.get(seen["log"])
        if log is not None and log_sha256(log.manifests[: seen["intervals"]]) != seen["sha256"]:
            raise InputError(
                f"--init-from {source}: its checkpoint does not record how far the run got in any log but its own, "
                f"and {log.path} is another log"
            )
    constraint_logs = {name: old.constraint_logs.get(name, 0) for name in inputs.constraint_logs}
    return Position(examples=old.examples, learned=old.learned, constraint_logs=constraint_logs)


def _reach(log: Log, schema: Schema, until: Sequence[int], source: Path, name: str) -> int:
    """Counts the rows of a log up to a query, which is given by its time and id."""
    if log.end <= until[0]:
        which = f"constraint log {name}" if name else "log"
        raise InputError(
            f"{log.path}: the {which} is published until query time {log.end}, but {source} is already at "
            f"{until[0]}: rows that are published later would be trained on twice"
        )
    return rows_until(log, schema, until[0], until[1])


def rows_until(log: Log, schema: Schema, time: int, query_id: int) -> int:
    """Counts the rows of a log before the first query after (``time``, ``query_id``), time in microseconds."""
    count = 0
    for manifest in log.manifests:
        for entry in manifest.shards:
            if entry.last_query_time < time:
                count += entry.rows
            elif entry.first_query_time <= time:
                table = read_shard(log.path, entry, schema)
                times, ids = (table.column(name).to_numpy() for name in ("query_time", "query_id"))
                count += int(np.count_nonzero((times < time) | ((times == time) & (ids <= query_id))))
    return count
