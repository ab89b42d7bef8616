"""Warm start: starts a run of a new configuration from another run's weights and position in the log.

The run directory is created under a temporary name, with a first checkpoint and ``init_from.json``, and renamed at the
end. So it is never incomplete, and is resumed like any other run, without the other run.
"""

import copy
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ctr.data.log import Manifest, read_manifests
from ctr.data.schema import Schema
from ctr.data.shards import read_shard
from ctr.io.errors import InputError, joined
from ctr.io.files import make_folder, sync_folder
from ctr.training.compiled_step import fresh_state
from ctr.training.config import TrainConfig
from ctr.training.device import describe_environment
from ctr.training.inputs import Inputs, open_inputs
from ctr.training.logs import Log
from ctr.training.run import checkpoint
from ctr.training.run.directory import (
    INIT_FROM,
    adopt_config,
    adopt_environment,
    adopt_schema,
    only_process,
    read_run_model,
    write_json,
)
from ctr.training.run.position import Passed, Position
from ctr.training.run.run import open_run
from ctr.training.state import check_shapes, first_broken
from ctr.training.validate import needs_warm_start
from ctr.training.warm_start.weights import Side, take_ramps, take_state

_PARTS = {
    "feature": "features",
    "weight": "dense weights",
    "optimizer": "optimizer state",
    "slices": "constrained slices",
    "ramp": "ramps",
    "schedule": "schedules",
}
_OTHER_ODDS = 3
"""A change of the odds of a positive by more than this factor suggests another label."""
_WORDS = {"taken": "taken", "fresh": "fresh", "left": "left behind"}


class InitFrom(NamedTuple):
    """The run to start from, which is only read and may be in training."""

    run_dir: Path | str
    # Called with a table of the parts taken, as text, when the new run starts.
    report: Callable[[str], object] = lambda text: None


class _Old(NamedTuple):
    side: Side
    position: Position
    state: dict[str, Any]
    arrays: dict[str, np.ndarray]


def warm_start(
    log: Path,
    config: TrainConfig,
    run_dir: Path,
    source: InitFrom,
    waits: bool = False,
    workers: int = 1,
) -> None:
    """Creates ``run_dir`` as a run that starts from another run's weights and position, unless it exists already.

    Raises InputError if ``run_dir`` has another run, or ``source`` has no sound checkpoint or no feature of the log.
    """
    old_dir = Path(source.run_dir)
    if not needs_warm_start(run_dir, old_dir):
        return
    inputs = open_inputs(log, config)
    old = _read_old(old_dir)
    position = begin_position(inputs, old.position, old_dir, waits)
    folder = run_dir.resolve().with_name(f".{run_dir.resolve().name}.launching")
    make_folder(folder)
    with only_process(folder):
        try:
            for path in folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.name != ".lock":
                    path.unlink()
            environment = describe_environment(config, workers)
            content = _make(folder, inputs, old, position, old_dir, environment)
            sync_folder(folder)
            try:
                folder.rename(run_dir.resolve())
            except OSError as error:
                raise InputError(f"{run_dir}: cannot be created: {error}") from None
            sync_folder(run_dir.resolve().parent)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    source.report(table_text(content))


def _read_old(run_dir: Path) -> _Old:
    config, schema = read_run_model(run_dir)
    arrays, state = checkpoint.read(run_dir / "checkpoints")
    weights = checkpoint.weights_of(arrays)
    try:
        position = Position.from_json(state["position"])
        check_shapes(weights, config, config.table_layouts(schema))
        broken = first_broken(weights.items())
    except (KeyError, TypeError, ValueError) as error:
        raise _mismatch(run_dir, error) from None
    if position.learned_until is None:
        raise InputError(
            f"--init-from {run_dir}: the run has not learned anything yet; start without --init-from"
        )
    if broken is not None:
        raise InputError(
            f"--init-from {run_dir}: the newest checkpoint, of row {position.examples}, is not sound: {broken}"
        )
    return _Old(Side(config, schema), position, state, weights)


def _mismatch(run_dir: Path, error: Exception) -> InputError:
    return InputError(f"--init-from {run_dir}: the checkpoint is not one of its config.yaml: {error}")


def _make(
    folder: Path, inputs: Inputs, old: _Old, position: Position, source: Path, environment: dict[str, Any]
) -> dict[str, Any]:
    """Writes the initial files of the new run; returns the content of init_from.json."""
    config, schema = inputs.config, inputs.schema
    adopt_config(folder, config)
    adopt_schema(folder, schema)
    adopt_environment(folder, environment)
    # Parts that are not taken start as in a new run.
    state = fresh_state(config, schema, inputs.families)
    side = Side(config, schema)
    try:
        arrays, lines = take_state(state, old.arrays, side, old.side)
    except (KeyError, ValueError) as error:
        raise _mismatch(source, error) from None
    features = [line for line in lines if line.part == "feature"]
    if not any(line.status == "taken" for line in features):
        reasons = joined([f"{line.name}: {line.why}" for line in features if line.why])
        raise InputError(
            f"--init-from {source}: no feature of the log is the same as in this run ({reasons}), so nothing could be "
            "taken over",
            "start without --init-from",
        )
    examples = old.position.trained_examples, old.position.trained_before
    ramps, before = take_ramps(side, old.side, *examples, lines)
    state.restore(arrays)
    with open_run(folder, inputs, state) as run:
        run.position = position
        run.position.trained_before = before
        run.save()
        run.background.wait()
    content = {
        "run": str(source.resolve()),
        "checkpoint": old.position.examples,
        "checkpoint_sha256": old.state["state_sha256"],
        "begins_at": {
            "log": position.examples,
            "learned": position.learned,
            "constraint_logs": {name: position.of(name).rows for name in inputs.constraint_logs},
        },
        "table": [line._asdict() for line in (*lines, *ramps)],
    }
    if warning := _other_label(inputs, old.state, position):
        content["warning"] = warning
    write_json(folder / INIT_FROM, content)
    return content


def _other_label(inputs: Inputs, state: Mapping[str, Any], position: Position) -> str:
    """Returns a warning if the new rows' share of positives differs clearly from the earlier rows', otherwise ""."""
    intervals = next(seen["intervals"] for seen in state["consumed"] if not seen["log"])
    try:
        before = _positives(read_manifests(Path(state["log"]))[:intervals])
    except InputError:
        return ""
    ends = np.cumsum([manifest.rows for manifest in inputs.log.manifests])
    after = _positives(inputs.log.manifests[int(np.searchsorted(ends, position.examples, side="right")) :])
    (rows, positives), (more_rows, more) = before, after
    if not rows or not more_rows:
        return ""
    shares, both = (positives / rows, more / more_rows), (positives + more) / (rows + more_rows)
    noise = math.sqrt(both * (1 - both) * (1 / rows + 1 / more_rows))
    odds = sorted((count + 1) / (all_rows - count + 1) for all_rows, count in (before, after))
    if abs(shares[1] - shares[0]) <= 5 * noise or odds[1] <= _OTHER_ODDS * odds[0]:
        return ""
    return (
        f"of the rows to come {shares[1]:.1%} are positive, of those that the run of --init-from has learned "
        f"{shares[0]:.1%}: is the label the same?"
    )


def _positives(manifests: Sequence[Manifest]) -> tuple[int, int]:
    return sum(manifest.rows for manifest in manifests), sum(manifest.clicks for manifest in manifests)


def table_text(content: Mapping[str, Any]) -> str:
    """Formats the content of init_from.json as lines; parts with the same outcome and reason share a line."""
    begins = content["begins_at"]["log"]
    lines = [
        f"begins at row {begins} of the log, from checkpoint {content['checkpoint']} of {content['run']}"
    ]
    groups: dict[tuple[str, str, str], list[str]] = {}
    for line in content["table"]:
        key = _PARTS[line["part"]], _WORDS[line["status"]], line["why"]
        groups.setdefault(key, []).append(line["name"])
    for (part, status, why), names in groups.items():
        lines.append(f"  {part:<19}{status:<12} {', '.join(names)}" + (f"  ({why})" if why else ""))
    return "\n".join(lines)


_LAST_ID = int(np.iinfo(np.int64).max)


def begin_position(inputs: Inputs, old: Position, source: Path, waits: bool) -> Position:
    """Returns the position at which a new run starts, with all counts at 0.

    Rows that the old run scored are not scored again, except the rows that it scored but did not learn from because of
    a label delay, if the new run has none. ``waits``: the log may have no new rows yet. Raises InputError if a log ends
    before the position. ``old`` must have learned from at least one row.
    """
    log, learned_until = inputs.log, old.learned_until
    assert learned_until is not None
    position = Position(learned_until=learned_until)
    position.learned = _rows_reached(log, inputs.schema, learned_until, source, "")
    # Rows before the last learned row are never read again.
    before = [learned_until[0] - 1, _LAST_ID]
    for name, other in inputs.row_logs.items():
        until = old.of(name).until
        position.logs[name] = Passed(
            _rows_reached(other, inputs.schema, until or before, source, name), copy.copy(until)
        )
    if not inputs.config.label_delay:
        position.logs[""] = Passed(position.learned, learned_until)
    if position.examples >= log.rows and not waits:
        raise InputError(
            f"{log.path}: has no row after those that {source} was trained on, the first {position.examples}; "
            "with --follow the new run waits for more"
        )
    position.due_from = position.examples
    return position


def _rows_reached(log: Log, schema: Schema, until: Sequence[int], source: Path, name: str) -> int:
    """Counts the rows of a log up to the query ``until``, (time, id). Raises InputError if the log ends before it."""
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
