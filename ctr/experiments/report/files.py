"""What a replayed experiment leaves in its folder: the plan, the costs, and how each run ended.

Every fault of a file becomes an `InputError` that names the file and the key.
"""

import glob
import re
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ctr.eval.run_files import Run, read_run
from ctr.io.errors import InputError

_NAME = re.compile(r"[A-Za-z0-9_.@-]+")
_Content = TypeVar("_Content", bound=BaseModel)
_ENTRY = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


def _check_inside(path: str) -> str:
    if not path or "\0" in path or PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError("must be a directory inside that of the experiment")
    return path


Inside = Annotated[str, AfterValidator(_check_inside)]
"""A path that cannot lead out of the experiment's folder."""

Amount = Annotated[float, Field(ge=0)]
Quartiles = tuple[Amount, Amount, Amount]


class PlannedRun(BaseModel):
    """A run that the plan asks for; ``folder`` is relative to the experiment's, as that of its ``loop``, if any."""

    model_config = _ENTRY

    seed: int
    folder: Inside
    loop: Inside | None = None


class PlannedFamily(BaseModel):
    """A family of slices that an arm measures.

    Attributes:
        name: its own.
        log: the constraint log whose rows it is about; None: the training log.
        slices: what each of its slices holds, by number.
    """

    model_config = _ENTRY

    name: str
    log: str | None = None
    slices: list[str]


class ShownSlice(BaseModel):
    """A slice that the tables show under a short ``name``: number ``index`` of a ``family``."""

    model_config = _ENTRY

    name: str
    title: str | None = None
    family: str
    index: int


class PlannedArm(BaseModel):
    """An arm, or a point of an arm's sweep.

    Attributes:
        name: distinguishes it from the others.
        title: for people; the name when empty.
        note: what it is about.
        against: name of the arm to compare with; None for the experiment's baseline.
        changes: settings by dotted key, changed from the experiment's own.
        paper: texts of a paper by column: ``accuracy``, ``training_cost``, ``inference_cost``, ``pd``, or any other.
        seeds: one run each.
        point: of a point, its name in the sweep.
        of: of a point, the arm that it varies.
        runs: where the runs are.
        teacher: name of the model it learns from.
        sampling: name of the sample it learns from.
        families: slices that it measures.
    """

    model_config = _ENTRY

    name: str
    title: str | None = None
    note: str | None = None
    against: str | None = None
    changes: dict[str, Any] = Field(default={}, alias="set")
    paper: dict[str, Any] = {}
    seeds: list[int]
    point: str | None = None
    of: str | None = None
    runs: list[PlannedRun]
    teacher: str | None = None
    sampling: str | None = None
    families: list[PlannedFamily] = []

    @property
    def shown(self) -> str:
        """The title, or the name where there is none."""
        return self.title or self.name


class PlannedTeacher(BaseModel):
    """A model that arms learn from; ``sidecar`` is the name under which the log has its predictions."""

    model_config = _ENTRY

    name: str
    folder: Inside
    sidecar: str | None = None


class PlannedSampling(BaseModel):
    """Rows that arms learn from; ``sidecar`` is the name under which the log has the decisions."""

    model_config = _ENTRY

    name: str
    sidecar: str | None = None
    config: dict[str, Any] = {}


class Plan(BaseModel):
    """An experiment: which arms, over which log, by which command."""

    model_config = _ENTRY

    title: str
    note: str | None = None
    log: str
    log_sha256: str | None = None
    command: str
    created: str
    ctr_version: str
    baseline: str
    arms: list[PlannedArm]
    teachers: list[PlannedTeacher] = []
    samplings: list[PlannedSampling] = []
    slices: list[ShownSlice] = []
    loop_days: int | None = None

    def arm(self, name: str) -> PlannedArm:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)

    def reference(self, arm: PlannedArm) -> PlannedArm | None:
        """The arm that `arm` is compared with; None for the baseline."""
        if arm.name == self.baseline:
            return None
        return self.arm(arm.against or self.baseline)

    def points(self, arm: PlannedArm) -> list[PlannedArm]:
        """The points of an arm's sweep."""
        return [other for other in self.arms if other.of == arm.name]


class ArmCosts(BaseModel):
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

    model_config = _ENTRY

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


class Costs(BaseModel):
    """What the arms cost, by name; ``rounds`` of timing, and FLOPs of the teachers."""

    model_config = _ENTRY

    arms: dict[str, ArmCosts] = {}
    rounds: int | None = None
    teacher_flops: dict[str, Any] | None = None


class LoopDay(BaseModel):
    """What a day of a loop showed: ``examples`` are ads; ``revenue`` is in the bids' currency."""

    model_config = _ENTRY

    queries: int
    examples: int
    clicks: int
    revenue: Amount


class Loop(BaseModel):
    """What a loop showed, day by day."""

    model_config = _ENTRY

    days: list[LoopDay]


def read_plan(folder: Path) -> Plan:
    """Read plan.json.

    Raises:
        InputError: it is missing or damaged, or names an arm that is not there.
    """
    path = folder / "plan.json"
    if not path.exists():
        raise InputError(
            f"{folder}: no plan.json, so this is not an experiment; allowed: an output directory of `ctr replay`"
        )
    plan = _parsed(path, Plan)
    names = [arm.name for arm in plan.arms]
    for place, name in enumerate(names):
        if not _NAME.fullmatch(name):
            raise InputError(f"{path}: arms.{place}.name must be letters, digits and _.@-, got {name!r:.80}")
        if name in names[:place]:
            raise InputError(
                f"{path}: arms.{place}.name must differ from the others', got {name!r:.80} twice"
            )
    wanted = [("baseline", plan.baseline)]
    for place, arm in enumerate(plan.arms):
        wanted += [(f"arms.{place}.{key}", name) for key in ("against", "of") if (name := getattr(arm, key))]
    for key, name in wanted:
        if name not in names:
            raise InputError(f"{path}: {key} must be the name of an arm, got {name!r:.80}")
    return plan


def read_costs(folder: Path) -> Costs:
    """Read costs.json; nothing is known without one.

    Raises:
        InputError: it is damaged.
    """
    path = folder / "costs.json"
    return _parsed(path, Costs) if path.exists() else Costs()


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
            loop = _parsed(path, Loop)
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


def _parsed(path: Path, kind: type[_Content]) -> _Content:
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: not readable: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        got = f", got {first['input']!r:.80}" if key and first["type"] != "missing" else ""
        raise InputError(f"{path}: {key + ': ' if key else ''}{first['msg']}{got}") from None
