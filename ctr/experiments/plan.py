"""The plan of an experiment: which arms, over which log, by which command, and where each run lies.

OUT/plan.json is written before the first run, and read again for the report. Needs no TensorFlow, as a report is made
without it.
"""

import re
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ctr.io.errors import InputError

PLAN_FILE = "plan.json"

_NAME = re.compile(r"[A-Za-z0-9_.@-]+")
_RecordT = TypeVar("_RecordT", bound="Record")


class Record(BaseModel):
    """What a file of an experiment holds; numbers are finite."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


def _check_inside(path: str) -> str:
    if not path or "\0" in path or PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError("must be a directory inside that of the experiment")
    return path


Inside = Annotated[str, AfterValidator(_check_inside)]
"""A path that cannot lead out of the experiment's folder."""


class PlannedRun(Record):
    """A run of an arm; ``folder`` and that of its ``loop``, if any, are relative to the experiment's."""

    seed: int
    folder: Inside
    loop: Inside | None = None


class PlannedFamily(Record):
    """A family of slices that an arm measures.

    Attributes:
        name: the name of the family.
        log: the constraint log whose rows it is about; None: the training log.
        slices: what each of its slices holds, by number.
    """

    name: str
    log: str | None = None
    slices: list[str]


class ShownSlice(Record):
    """A slice that the tables show under a short ``name``: number ``index`` of a ``family``."""

    name: str
    title: str | None = None
    family: str
    index: int


class PlannedArm(Record):
    """An arm, or a point of an arm's sweep.

    Attributes:
        name: ``ARM``, or ``ARM@POINT``.
        title: the name for people; ``name`` when empty.
        note: a remark for the report.
        against: the arm to compare with; None for the experiment's baseline.
        changes: the values by dotted keys that replace those of the experiment's configuration.
        paper: what a paper reports, by column: ``accuracy``, ``training_cost``, ``inference_cost``, ``pd``, or any
            other.
        seeds: the seeds of its runs.
        point: the name of a point of the sweep; None for an arm.
        of: the arm that a point varies; None for an arm.
        runs: one for each seed.
        teacher: the teacher whose predictions it distills.
        sampling: the sampling whose kept rows it learns from.
        families: the slices of its bias constraints.
    """

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


class PlannedTeacher(Record):
    """A model that arms learn from; ``sidecar`` is the name under which the log has its predictions."""

    name: str
    folder: Inside
    sidecar: str | None = None


class PlannedSampling(Record):
    """Rows that arms learn from; ``sidecar`` is the name under which the log has the decisions."""

    name: str
    sidecar: str | None = None
    config: dict[str, Any] = {}


class Plan(Record):
    """An experiment.

    Attributes:
        title: the title of the report.
        note: the text below the title.
        log: the folder of the log.
        log_sha256: identifies what the log holds.
        command: the command that repeats the experiment.
        created: when the experiment was begun, ISO 8601.
        ctr_version: the version that planned it.
        baseline: the name of the arm that the others are compared with.
        arms: the arms, each with its runs, then the points of the sweep.
        teachers: the teachers that an arm needs.
        samplings: the samplings that an arm needs.
        slices: the slices that the tables show.
        loop_days: the number of days that runs serve after the log; None: they end with the log.
        scored_us: the query times whose predictions count, in microseconds: the first one, and the first one behind
            them. Open ends are 0 and ``ctr.data.log.MAX_TIME_US``. None: all.
    """

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
    scored_us: tuple[int, int] | None = None

    def arm(self, name: str) -> PlannedArm:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)

    def reference(self, arm: PlannedArm) -> PlannedArm | None:
        """The arm that ``arm`` is compared with; None for the baseline."""
        if arm.name == self.baseline:
            return None
        return self.arm(arm.against or self.baseline)

    def points(self, arm: PlannedArm) -> list[PlannedArm]:
        """The points of an arm's sweep."""
        return [other for other in self.arms if other.of == arm.name]

    def as_json(self) -> dict[str, Any]:
        """The content of plan.json; a date that YAML found among an arm's settings is text there."""
        return self.model_dump(mode="json", by_alias=True)


def read_plan(folder: Path) -> Plan:
    """Reads plan.json.

    Raises:
        InputError: it is missing or damaged, or names an arm that is not there.
    """
    path = folder / PLAN_FILE
    if not path.exists():
        raise InputError(
            f"{folder}: no plan.json, so this is not an experiment; allowed: an output directory of `ctr replay`"
        )
    plan = read_record(path, Plan)
    names = [arm.name for arm in plan.arms]
    for place, name in enumerate(names):
        if not _NAME.fullmatch(name):
            raise InputError(f"{path}: arms.{place}.name must be letters, digits and _.@-, got {name!r:.80}")
        if name in names[:place]:
            raise InputError(
                f"{path}: arms.{place}.name must differ from the others', got {name!r:.80} twice"
            )
    references = [("baseline", plan.baseline)]
    for place, arm in enumerate(plan.arms):
        references += [
            (f"arms.{place}.{key}", name) for key in ("against", "of") if (name := getattr(arm, key))
        ]
    for key, name in references:
        if name not in names:
            raise InputError(f"{path}: {key} must be the name of an arm, got {name!r:.80}")
    return plan


def read_record(path: Path, kind: type[_RecordT]) -> _RecordT:
    """Reads a JSON file of an experiment.

    Raises:
        InputError: it cannot be read, or is not as described; names the file and the key.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: not readable: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        got = f", got {first['input']!r:.80}" if key and first["type"] != "missing" else ""
        raise InputError(f"{path}: {key + ': ' if key else ''}{first['msg']}{got}") from None
