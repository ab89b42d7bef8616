"""Configuration of an experiment: arms that are trained on one log, and their comparisons (FF 3).

Names are parts of file names, where ``@`` joins an arm and a point of the sweep, and ``~`` an arm and the kind of its
retrains; so no name may contain these two characters.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from ctr.config import AnyPath, StrictModel, load_model, parse_model, read_yaml
from ctr.data.sampling import SamplingConfig
from ctr.data.time_range import TimeRange
from ctr.experiments.calls import read_object
from ctr.experiments.plan import PLAN_FILE, SEED, ShownSliceConfig
from ctr.io.files import check_output_folder
from ctr.training.config import TrainConfig

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]+$")]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
ValueT = TypeVar("ValueT")


def _without_seed(changes: dict[str, Any]) -> dict[str, Any]:
    if "seed" in changes:
        raise ValueError("seed is not allowed here: set seeds, or the seed of a teacher")
    return changes


def _once(values: tuple[ValueT, ...]) -> tuple[ValueT, ...]:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ValueError(f"{value} appears twice")
    return values


Changes = Annotated[dict[str, Any], AfterValidator(_without_seed)]
"""Values by dotted keys of the training configuration, see ``ctr train --set``: each replaces the earlier value."""
Seeds = Annotated[tuple[Seed, ...], Field(min_length=1), AfterValidator(_once)]

BASELINE = "baseline"  # name of the arm that every other one is compared with


class TeacherConfig(StrictModel):
    """The baseline with changes, trained once; arms and samplings read its recorded progressive predictions.

    Attributes:
        set: values by dotted keys of the training configuration.
        seed: the seed of the teacher.
    """

    set: Changes = {}
    seed: Seed = 1


class BaselineConfig(StrictModel):
    """Baseline of the other arms: the training configuration with changes.

    Attributes:
        title: the arm's name in tables and plots.
        note: a remark for the report.
        set: values by dotted keys of the training configuration.
        teacher: the teacher whose predictions the arm distills (FF 4.1.2), one of ``teachers``. Null: none.
        sampling: the sampling of the rows that the arm is trained on (FF 3.3), one of ``samplings``. Null: none.
        score: which rows are scored with a sampling, as ``sampling.score`` of a training configuration.
    """

    title: str = "Baseline"
    note: str = ""
    set: Changes = {}
    teacher: str | None = None
    sampling: str | None = None
    score: Literal["all", "kept"] = "all"


class ArmConfig(BaselineConfig):
    """The baseline's ``set`` with one change or several; it does not inherit the baseline's teacher and sampling.

    Attributes:
        title: the arm's name in tables and plots; empty: its key.
        retrain: the names in the experiment's ``retrain`` for which the arm's runs are retrained. Null: all of them.
        against: the arm that this one is compared with.
        paper: numbers that a paper reports for the arm: short texts by name of the column (accuracy, training_cost,
            ...).
    """

    title: str = ""
    retrain: tuple[str, ...] | None = None
    against: str = BASELINE
    paper: dict[str, str] = {}


class SweepConfig(StrictModel):
    """The cost curve of arms (FF 3): each arm also with the changes of each point. Null: none.

    Attributes:
        points: for each point its changes: values by dotted keys of the training configuration.
        arms: the arms of the sweep.
        seeds: the seeds of these runs; each must be one of the experiment's.
    """

    points: dict[Name, Changes] = Field(min_length=1)
    arms: Annotated[tuple[str, ...], AfterValidator(_once)] = Field(min_length=1)
    seeds: Seeds = (1,)


class ExperimentConfig(StrictModel):
    """Experiment on a log.

    Attributes:
        title: the title of the report.
        note: the text below the title.
        base: the file of a training configuration, relative to the experiment's file. Null: ``config`` is the
            complete configuration.
        config: changes to the training configuration as nested keys; without ``base``, the complete
            configuration.
        seeds: each arm is trained with each of these seeds.
        retrain: differences of an arm's retrains from its runs, by name: each run is trained once more, with the same
            seed, for each name, with its values by dotted keys of the training configuration (FF 5; see ``retrain`` of
            a training configuration).
        teachers: teachers that arms refer to, by name.
        samplings: samplings that arms refer to, by name.
        baseline: the arm that the others change.
        arms: arms by name.
        sweep: some of the arms at several sizes.
        slices: slices that the tables show, each by a short name.
        scored: the query times whose predictions count in the tables. With a start, arms whose ``time_range``
            begin at different times are compared on the same examples (FF 3.3).
    """

    title: str = "Experiment"
    note: str = ""
    base: AnyPath | None = None
    config: dict[str, Any] = {}
    seeds: Seeds = (1, 2, 3)
    retrain: dict[Name, Changes] = {}
    teachers: dict[Name, TeacherConfig] = {}
    samplings: dict[Name, SamplingConfig] = {}
    baseline: BaselineConfig = BaselineConfig()
    arms: dict[Name, ArmConfig] = {}
    sweep: SweepConfig | None = None
    slices: dict[Name, ShownSliceConfig] = {}
    scored: TimeRange = TimeRange()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if BASELINE in self.arms:
            raise ValueError(
                f"arms.{BASELINE}: this name is reserved for the arm that the others are compared with"
            )
        if SEED in self.retrain:
            raise ValueError(f"retrain.{SEED}: this name is reserved for pairs of seeds, which every arm has")
        arms = (BASELINE, *self.arms)
        for key, entry in (
            ("baseline", self.baseline),
            *((f"arms.{name}", arm) for name, arm in self.arms.items()),
        ):
            _check_name(f"{key}.teacher", entry.teacher, self.teachers)
            _check_name(f"{key}.sampling", entry.sampling, self.samplings)
        for name, arm in self.arms.items():
            for kind in arm.retrain or ():
                _check_name(f"arms.{name}.retrain", kind, self.retrain)
            _check_name(f"arms.{name}.against", arm.against, [other for other in arms if other != name])
        if self.sweep is not None:
            for name in self.sweep.arms:
                _check_name("sweep.arms", name, arms)
            beyond = sorted(set(self.sweep.seeds) - set(self.seeds))
            if beyond:
                # A curve passes through the arm itself, which must have the same seeds.
                raise ValueError(
                    f"sweep.seeds: {beyond[0]} is not allowed: it is not one of seeds {[*self.seeds]}"
                )
        return self


def _check_name(key: str, name: str | None, allowed: Iterable[str]) -> None:
    if name is not None and name not in allowed:
        raise ValueError(f"{key}: there is no {name}; allowed: {', '.join(allowed) or 'none is defined'}")


_ALIKE: dict[str, Any] = {"metrics": {"importance_rows": 0}}
"""Settings of every arm unless an experiment sets them: no table shows what they measure."""
_ALIKE_BATCHES: dict[str, Any] = {"batch": {"growth": 1 / 1024}}


def read_experiment(path: Path, settings: Sequence[str] = ()) -> tuple[ExperimentConfig, dict[str, Any]]:
    """Reads an experiment, and its training configuration before any arm's changes. Raises InputError if invalid."""
    where = f"experiment {path}"
    experiment = load_model(ExperimentConfig, path, "experiment", settings)
    return experiment, training_content(path, where, experiment.base, experiment.config)


def training_content(path: Path, where: str, base: Path | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the training configuration of the file ``base``, with ``changes`` from the file ``path``.

    ``base`` is relative to ``path``; None: ``changes`` is the whole configuration. Raises InputError if the base is
    missing or not YAML, or one of the two has a wrong key or value.
    """
    content: dict[str, Any] = {}
    if base is not None:
        file = path.parent / base
        content = read_yaml(file, f"{where}: base")
        parse_model(TrainConfig, content, f"{where}: base {file}")
    content = merged(content, changes)
    parse_model(TrainConfig, content, where, "config.")
    return content


def alike_in_arms(content: Mapping[str, Any]) -> dict[str, Any]:
    """Sets the options that a run would derive from its techniques, so that arms differ by the techniques alone."""
    batch = content.get("batch") or {}
    is_open = not {"rows", "growth"} & {*batch}
    return merged({**_ALIKE, **(_ALIKE_BATCHES if is_open else {})}, content)


def check_experiment_folder(out: Path) -> None:
    """Raises InputError if a directory is not empty and was not written by ``ctr replay``."""
    kind = "an experiment of ctr replay"
    check_output_folder(out, kind, lambda folder: "arms" in read_object(folder / PLAN_FILE))


def merged(content: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `content` with `changes` merged into it recursively."""
    result = dict(content)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(value, Mapping) and isinstance(old, Mapping) else value
    return result


def changed(content: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `content` with the values at the dotted keys of `changes` replaced, in order."""
    result = dict(content)
    for path, value in changes.items():
        key, _, rest = path.partition(".")
        if rest:
            group = result.get(key)
            result[key] = changed(group if isinstance(group, Mapping) else {}, {rest: value})
        else:
            result[key] = value
    return result
