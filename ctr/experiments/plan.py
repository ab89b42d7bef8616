"""Plan of an experiment: its arms, log and command, and the path of each run.

OUT/plan.json is written before the first run, and read again for the report. Loads no TensorFlow, which a report
does not require.
"""

from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from ctr.config import StrictModel
from ctr.io.errors import InputError

PLAN_FILE = "plan.json"
SEED = "seed"
"""Kind of pairs of an arm's runs that differ only in the seed, besides the configured retrains."""

_RecordT = TypeVar("_RecordT", bound="Record")


class Record(BaseModel):
    """Content of a file of an experiment; numbers are finite."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


def _check_inside(path: str) -> str:
    if not path or "\0" in path or PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError("must be a directory inside that of the experiment")
    return path


Inside = Annotated[str, AfterValidator(_check_inside)]  # path that cannot lead out of the experiment's folder
ArmName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.@-]+$")]  # stands in names of files


class PlannedRun(Record):
    """Run of an arm; ``folder`` is relative to the experiment's folder."""

    seed: int
    folder: Inside


class PlannedFamily(Record):
    """Family of slices that an arm measures."""

    name: str
    log: str | None = None  # the constraint log that has its rows; None: the training log
    slices: list[str]  # what each of its slices holds, by number


class ShownSliceConfig(StrictModel):
    """A slice of ``objective.bias_constraints`` that the tables show (FF table 3, S_1 bias).

    Attributes:
        title: the slice's name in the tables; empty: a description of the slice.
        family: the name of its family.
        index: the slice's number in the family, see ``ctr.objective.bias_constraints``.
    """

    title: str = ""
    family: str
    index: int = Field(ge=0)


class PlannedArm(Record):
    """Arm, or a point of an arm's sweep."""

    name: ArmName  # ``ARM``, or ``ARM@POINT``
    title: str | None = None
    note: str | None = None
    against: str | None = None  # None for the experiment's baseline
    changes: dict[str, Any] = Field(default={}, alias="set")  # by dotted keys
    paper: dict[str, Any] = {}  # by column: accuracy, training_cost, inference_cost, pd, or any other
    seeds: list[int]
    point: str | None = None  # of the sweep; None for an arm
    of: str | None = None  # the arm that a point varies; None for an arm
    runs: list[PlannedRun]  # one for each seed
    retrains: dict[str, list[PlannedRun]] = {}  # the same seeds once more, by what they differ in
    teacher: str | None = None
    sampling: str | None = None
    families: list[PlannedFamily] = []

    @property
    def label(self) -> str:
        return self.title or self.name


class Plan(Record):
    """Content of plan.json: an experiment's arms, their runs, its log and its command."""

    title: str
    note: str | None = None
    log: str  # its folder
    log_sha256: str | None = None
    command: str  # repeats the experiment
    created: str  # ISO 8601
    ctr_version: str
    baseline: str
    arms: list[PlannedArm]  # the file's arms, then the points of the sweep
    teachers: dict[str, Inside] = {}  # folder by name
    samplings: dict[str, dict[str, Any]] = {}  # configuration by name
    slices: dict[str, ShownSliceConfig] = {}  # slices that the tables show, by a short name
    scored_us: tuple[int, int] | None = None  # query times [begin, end); open ends: 0, MAX_TIME_US

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [arm.name for arm in self.arms]
        if len({*names}) < len(names):
            raise ValueError(f"arms must have distinct names, got {', '.join(names):.200}")
        for name in (self.baseline, *(name for arm in self.arms for name in (arm.against, arm.of))):
            if name and name not in names:
                raise ValueError(f"{name!r:.80} must be the name of an arm: {', '.join(names):.200}")
        return self

    def arm(self, name: str) -> PlannedArm:
        return next(arm for arm in self.arms if arm.name == name)

    def reference(self, arm: PlannedArm) -> PlannedArm | None:
        """Returns the arm that ``arm`` is compared with; None for the baseline."""
        if arm.name == self.baseline:
            return None
        return self.arm(arm.against or self.baseline)

    def points(self, arm: PlannedArm) -> list[PlannedArm]:
        """Returns the points of an arm's sweep."""
        return [other for other in self.arms if other.of == arm.name]

    def as_json(self) -> dict[str, Any]:
        """Returns the content of plan.json; dates among an arm's settings, which YAML parses, become text."""
        return self.model_dump(mode="json", by_alias=True)


def read_plan(folder: Path) -> Plan:
    """Reads plan.json. Raises InputError if it is missing or damaged, or refers to an arm that does not exist."""
    path = folder / PLAN_FILE
    if not path.exists():
        raise InputError(
            f"{folder}: no plan.json, so this is not an experiment; allowed: an output directory of `ctr replay`"
        )
    return read_record(path, Plan)


def read_record(path: Path, kind: type[_RecordT]) -> _RecordT:
    """Reads a JSON file of an experiment.

    Raises InputError, with the file and the key, if it is unreadable or invalid.
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
