"""What a replayed experiment leaves in its folder: the plan, the costs, and how each run ended.

Every fault of a file becomes an `InputError` that names the file and the key.
"""

import glob
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ctr.eval.run_files import Run, read_run
from ctr.experiments.plan import Plan, PlannedArm, PlannedRun, Record, read_record
from ctr.io.errors import InputError

Amount = Annotated[float, Field(ge=0)]
Quartiles = tuple[Amount, Amount, Amount]


class ArmCosts(Record):
    """What an arm costs; None where it was not measured.

    Attributes:
        train_flops: for each example learned from.
        inference_flops: for each example scored.
        dense_parameters: weights of the dense part.
        embedding_parameters: weights of the embeddings.
        step_ms: median of a training step.
        step_ratio: quartiles of the step's time as a multiple of the baseline's in the same round.
        batch_rows: rows of a step.
        inference_ms: median of a forward pass over a batch.
        inference_ratio: its quartiles as a multiple of the baseline's in the same round.
        learned_share: rows learned from, as a share of the log's.
    """

    train_flops: Amount | None = None
    inference_flops: Amount | None = None
    dense_parameters: Amount | None = None
    embedding_parameters: Amount | None = None
    step_ms: Amount | None = None
    step_ratio: Quartiles | None = None
    batch_rows: Amount | None = None
    inference_ms: Amount | None = None
    inference_ratio: Quartiles | None = None
    learned_share: Amount | None = None


class Costs(Record):
    """What the arms cost, by name; ``rounds`` of timing, and FLOPs of the teachers."""

    arms: dict[str, ArmCosts] = {}
    rounds: int | None = None
    teacher_flops: dict[str, Any] | None = None


class LoopDay(Record):
    """What a day of a loop showed: ``examples`` are ads; ``revenue`` is in the bids' currency."""

    queries: int
    examples: int
    clicks: int
    revenue: Amount


class Loop(Record):
    """What a loop showed, day by day."""

    days: list[LoopDay]


def read_costs(folder: Path) -> Costs:
    """Read costs.json; nothing is known without one.

    Raises:
        InputError: it is damaged.
    """
    path = folder / "costs.json"
    return read_record(path, Costs) if path.exists() else Costs()


def open_run(folder: Path, arm: PlannedArm, planned: PlannedRun) -> tuple[Run | None, str, str]:
    """Read a run of an arm, if it can be.

    Returns:
        The run or None; its state: finished, failed, missing, or unreadable; and, but for finished, why.
    """
    where = folder / planned.folder
    failure = folder / "failures" / f"{arm.name}-seed-{planned.seed}.txt"
    if (where / "summary.json").exists():
        try:
            run = read_run(where)
        except InputError as error:
            return None, "unreadable", str(error)
        cause = run.summary.get("learning_failure")
        return (run, "finished", "") if cause is None else (None, "failed", str(cause))
    if failure.exists():
        return None, "failed", _last_line(failure)
    return None, "missing", f"{planned.folder}: not run, or not finished"


def open_loop(
    folder: Path, arm: PlannedArm, planned: PlannedRun, days: int | None
) -> tuple[Loop | None, str, str]:
    """Read what the loop of a run showed, if it has served its days; as `open_run`."""
    assert planned.loop is not None
    path = folder / planned.loop / "loop.json"
    failure = folder / "failures" / f"{arm.name}-seed-{planned.seed}-loop.txt"
    if path.exists():
        try:
            loop = read_record(path, Loop)
        except InputError as error:
            return None, "unreadable", str(error)
        if days is None or len(loop.days) == days:
            return loop, "finished", ""
    if failure.exists():
        return None, "failed", _last_line(failure)
    return None, "missing", f"{planned.loop}: not run, or not finished"


def shared_failures(folder: Path, plan: Plan) -> dict[str, str]:
    """Why teachers and samplings are not there, by a name for people; runs that need one are missing."""
    files = {
        f"teacher {teacher.name}": f"teacher-{glob.escape(teacher.name)}-seed-*.txt"
        for teacher in plan.teachers
        if not (folder / teacher.folder / "summary.json").exists()
    }
    files |= {f"sampling {one.name}": f"sampling-{glob.escape(one.name)}.txt" for one in plan.samplings}
    return {
        name: _last_line(path)
        for name, pattern in files.items()
        for path in sorted((folder / "failures").glob(pattern))
    }


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return next(
        (line.strip() for line in reversed(lines) if line.strip()), "no reason was recorded"
    ).removeprefix("error: ")
