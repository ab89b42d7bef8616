"""Files of an experiment beside its plan: the costs, and how each run ended.

Every fault of a file becomes an `InputError` that names the file and the key.
"""

import glob
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ctr.eval.run_files import Run, read_run
from ctr.experiments.plan import Plan, PlannedRun, Record, read_record
from ctr.io.errors import InputError

Amount = Annotated[float, Field(ge=0)]
Quartiles = tuple[Amount, Amount, Amount]


class ArmCosts(Record):
    """Costs of an arm; None where it was not measured."""

    train_flops: Amount | None = None  # for each example learned from
    inference_flops: Amount | None = None  # for each example scored
    dense_parameters: Amount | None = None
    embedding_parameters: Amount | None = None
    step_ms: Amount | None = None  # median of a training step
    step_ratio: Quartiles | None = None  # quartiles, of the baseline's in the same round
    batch_rows: Amount | None = None
    inference_ms: Amount | None = None  # median of a forward pass over a batch
    inference_ratio: Quartiles | None = None  # as step_ratio
    learned_share: Amount | None = None  # rows learned from, of the log's


class Costs(Record):
    """Costs of the arms, by name; ``rounds`` of timing, and FLOPs of the teachers."""

    arms: dict[str, ArmCosts] = {}
    rounds: int | None = None
    teacher_flops: dict[str, Any] | None = None


@dataclass(frozen=True)
class Ending:
    """Ending of a planned run."""

    seed: int
    folder: str  # relative to the experiment's
    state: str  # finished, failed, missing, or unreadable
    reason: str = ""  # why it is not finished; else empty


def read_costs(folder: Path) -> Costs:
    """Reads costs.json; nothing is known without one."""
    path = folder / "costs.json"
    return read_record(path, Costs) if path.exists() else Costs()


def open_run(folder: Path, owner: str, planned: PlannedRun) -> tuple[Run | None, Ending]:
    """Reads a run of an arm, or ``ARM~RETRAIN``; there is none unless it is finished."""
    run_dir = folder / planned.folder
    if (run_dir / "summary.json").exists():
        try:
            run = read_run(run_dir)
        except InputError as error:
            return None, Ending(planned.seed, planned.folder, "unreadable", str(error))
        cause = run.summary.get("learning_failure")
        if cause is None:
            return run, Ending(planned.seed, planned.folder, "finished")
        return None, Ending(planned.seed, planned.folder, "failed", str(cause))
    failure = folder / "failures" / f"{owner}-seed-{planned.seed}.txt"
    if failure.exists():
        return None, Ending(planned.seed, planned.folder, "failed", _last_line(failure))
    return None, Ending(
        planned.seed, planned.folder, "missing", f"{planned.folder}: not run, or not finished"
    )


def shared_failures(folder: Path, plan: Plan) -> dict[str, str]:
    """Returns why teachers and samplings failed, by name; runs that need them are missing."""
    files = {
        f"teacher {teacher.name}": f"teacher-{glob.escape(teacher.name)}-seed-*.txt"
        for teacher in plan.teachers
        if not (folder / teacher.folder / "summary.json").exists()
    }
    files |= {f"sampling {item.name}": f"sampling-{glob.escape(item.name)}.txt" for item in plan.samplings}
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
