"""What an experiment comes down to: the configuration and the folder of every run, and how the runs belong together.

::

    OUT/plan.json                      all of it, written before the first run
    OUT/configs/NAME-seed-S-HASH.yaml  the configuration of a run, or of a sampling
    OUT/runs/NAME-seed-S-HASH/         its run directory

The hash is of what is not a default in the configuration: an arm that is changed gets another folder. A teacher's
predictions and the decisions of a sampling become sidecars of the log, ``replay-HASH``: several experiments share them.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ctr.config import StrictModel, parse_model
from ctr.data.sampling import SamplingConfig
from ctr.experiments.config import BASELINE, Changes, ExperimentConfig, ShownSliceConfig, changed
from ctr.experiments.slices import SliceFamily, check_shown, slice_families
from ctr.io.errors import InputError
from ctr.simulator.closed_loop import check_loop
from ctr.training.config import TrainConfig
from ctr.training.inputs import open_inputs


@dataclass(frozen=True)
class PlannedRun:
    """A training of an arm, or of a teacher.

    Attributes:
        owner: the arm's or the teacher's name.
        seed: of the run.
        config: of the run.
        record: the sidecar that its predictions become; None: none.
        loop_days: that it serves after the log; None: it ends with the log.
    """

    owner: str
    seed: int
    config: TrainConfig
    record: str | None = None
    loop_days: int | None = None

    @property
    def name(self) -> str:
        """Of its files: that of the run directory within ``runs``."""
        return f"{self.owner}-seed-{self.seed}-{settings_key(self.config)}"

    @property
    def folder(self) -> str:
        """The run directory, relative to the folder of the experiment."""
        return f"runs/{self.name}"

    @property
    def failure(self) -> str:
        """Where the end of the errors of a run that failed is kept, relative to the folder of the experiment."""
        return f"failures/{self.owner}-seed-{self.seed}.txt"

    @property
    def loop(self) -> str | None:
        """The folder of its loop, relative to the folder of the experiment; None: it has none."""
        return None if self.loop_days is None else f"loops/{self.name}"


@dataclass(frozen=True)
class PlannedSampling:
    """Decisions of which rows to learn from.

    Attributes:
        owner: the sampling's name.
        config: of the sampling, with the sidecar of its teacher.
        teacher: which of the experiment's teachers must be there first; None: none.
    """

    owner: str
    config: SamplingConfig
    teacher: str | None

    @property
    def sidecar(self) -> str:
        """The name of the sidecar with the decisions."""
        return f"replay-{settings_key(self.config)}"

    @property
    def name(self) -> str:
        """Of its files."""
        return f"sampling-{self.owner}-{settings_key(self.config)}"

    @property
    def failure(self) -> str:
        """As of ``PlannedRun``."""
        return f"failures/sampling-{self.owner}.txt"


@dataclass(frozen=True)
class PlannedArm:
    """An arm, or an arm at a point of the sweep.

    Attributes:
        name: ``ARM``, or ``ARM@POINT``.
        title, note, paper: as in the experiment.
        against: the arm to compare with; None: it is the baseline.
        changes: what is set for it beside the baseline.
        runs: one a seed.
        of, point: the two parts of the name of a point of the sweep; None: it is none.
        teacher, sampling: those of the experiment that its runs need.
        families: the slices of its bias constraints.
    """

    name: str
    title: str
    note: str
    paper: Mapping[str, str]
    against: str | None
    changes: Changes
    runs: tuple[PlannedRun, ...]
    of: str | None = None
    point: str | None = None
    teacher: str | None = None
    sampling: str | None = None
    families: tuple[SliceFamily, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """What plan.json records of it."""
        return {
            "name": self.name,
            "title": self.title,
            "note": self.note,
            "against": self.against,
            "set": self.changes,
            "paper": dict(self.paper),
            "seeds": [run.seed for run in self.runs],
            "point": self.point,
            "of": self.of,
            "runs": [{"seed": run.seed, "folder": run.folder, "loop": run.loop} for run in self.runs],
            "teacher": self.teacher,
            "sampling": self.sampling,
            "families": [family.as_dict() for family in self.families],
        }


@dataclass(frozen=True)
class Plan:
    """All runs of an experiment; teachers and samplings by name, those alone that an arm needs.

    Attributes:
        arms: with their runs.
        teachers, samplings: as said.
        slices: those that the tables show, by a short name.
        loop_days: that runs serve after the log; None: they end with the log.
    """

    arms: tuple[PlannedArm, ...]
    teachers: Mapping[str, PlannedRun] = field(default_factory=dict)
    samplings: Mapping[str, PlannedSampling] = field(default_factory=dict)
    slices: Mapping[str, ShownSliceConfig] = field(default_factory=dict)
    loop_days: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """What plan.json records of it."""
        return {
            "baseline": BASELINE,
            "arms": [arm.as_dict() for arm in self.arms],
            "teachers": [
                {"name": name, "folder": run.folder, "sidecar": run.record}
                for name, run in self.teachers.items()
            ],
            "samplings": [
                {"name": name, "sidecar": one.sidecar, "config": one.config.model_dump(mode="json")}
                for name, one in self.samplings.items()
            ],
            "slices": [{"name": name, **one.model_dump()} for name, one in self.slices.items()],
            "loop_days": self.loop_days,
        }


def settings_key(config: StrictModel) -> str:
    """Tells configurations apart, by what is not a default: a new key of the configuration changes nothing."""
    content = json.dumps(config.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def make_plan(experiment: ExperimentConfig, content: Mapping[str, Any], log: Path, where: str) -> Plan:
    """The runs of an experiment, every configuration checked.

    Args:
        experiment: what is tried.
        content: its training configuration, as nested keys.
        log: to train on.
        where: the experiment's file, for errors.

    Raises:
        InputError: an arm's configuration is not possible, with the path of its key, or does not fit the log.
    """
    baseline = changed(content, experiment.baseline.set)
    fitting: dict[str, tuple[SliceFamily, ...]] = {}

    def checked(own: Mapping[str, Any], seed: int, key: str, where: str = where) -> TrainConfig:
        config = parse_model(TrainConfig, {**own, "seed": seed}, where, f"{key}.")
        meaning = _meaning(config)
        if meaning not in fitting:
            fitting[meaning] = _check_fit(config, log, f"{where}: {key}")
        return config

    for key, changes in _all_changes(experiment).items():
        if "seed" in changes:
            raise InputError(f"{where}: {key}.seed: not allowed here: set seeds, or the seed of a teacher")
    used = _used_samplings(experiment)
    wanted = {arm.teacher for arm in experiment.arms.values()} | {one.teacher for one in used.values()}
    teachers: dict[str, PlannedRun] = {}
    for name, teacher in experiment.teachers.items():
        if name in wanted:
            own = {**changed(baseline, teacher.set), "record_predictions": True}
            config = checked(own, teacher.seed, f"teachers.{name}.set")
            teachers[name] = PlannedRun(
                f"teacher-{name}", teacher.seed, config, f"replay-{settings_key(config)}"
            )
    samplings = {name: _with_sidecar(one, teachers) for name, one in used.items()}
    plain = PlannedArm(
        BASELINE, experiment.baseline.title, experiment.baseline.note, {}, None, experiment.baseline.set, ()
    )
    contents: dict[str, dict[str, Any]] = {BASELINE: baseline}
    arms: dict[str, PlannedArm] = {BASELINE: plain}
    for name, arm in experiment.arms.items():
        own = changed(baseline, arm.set)
        if arm.teacher is not None:
            own = changed(own, {"objective.distillation.teacher": teachers[arm.teacher].record})
        if arm.sampling is not None:
            own["sampling"] = {"name": samplings[arm.sampling].sidecar, "score": arm.score}
        contents[name] = own
        arms[name] = PlannedArm(
            name, arm.title or name, arm.note, arm.paper, arm.against, arm.set, (),
            teacher=arm.teacher, sampling=arm.sampling,
        )  # fmt: skip
    planned = []
    for name, planned_arm in arms.items():
        key = f"{name}.set" if name == BASELINE else f"arms.{name}.set"
        days = _loop_days(experiment, name)
        runs = [
            PlannedRun(name, seed, checked(contents[name], seed, key), loop_days=days)
            for seed in experiment.seeds
        ]
        if days is not None:
            _check_loop(runs[0].config, log, f"{where}: loop: {name}")
        planned.append(replace(planned_arm, runs=tuple(runs), families=fitting[_meaning(runs[0].config)]))
    check_shown(experiment.slices, [arm.families for arm in planned], where)
    sweep = experiment.sweep
    for name in sweep.arms if sweep is not None else ():
        assert sweep is not None
        for point, changes in sweep.points.items():
            full = f"{name}@{point}"
            own, key = changed(contents[name], changes), f"sweep.points.{point}"
            runs = [
                PlannedRun(full, seed, checked(own, seed, key, f"{where}: {full}")) for seed in sweep.seeds
            ]
            planned.append(
                replace(
                    arms[name],
                    name=full,
                    title=f"{arms[name].title} ({point})",
                    paper={},
                    against=arms[name].against or BASELINE,
                    changes={**arms[name].changes, **changes},
                    runs=tuple(runs),
                    of=name,
                    point=point,
                    families=fitting[_meaning(runs[0].config)],
                )
            )
    days = experiment.loop.days if experiment.loop is not None else None
    return Plan(tuple(planned), teachers, samplings, experiment.slices, days)


def _meaning(config: TrainConfig) -> str:
    """Tells configurations apart but for their seeds."""
    return config.model_copy(update={"seed": 0}).sha256()


def _check_fit(config: TrainConfig, log: Path, where: str) -> tuple[SliceFamily, ...]:
    """The slices of a configuration. Raises InputError when it does not fit the log, as training would."""
    try:
        inputs = open_inputs(log, config)
        config.model.table_layouts(inputs.schema)
    except InputError as error:
        raise InputError(f"{where}: {str(error).removeprefix('config: ')}") from None
    return slice_families(config, inputs.families)


def _check_loop(config: TrainConfig, log: Path, where: str) -> None:
    """Raises InputError when a run cannot serve the days after the log."""
    try:
        check_loop(config, log)
    except InputError as error:
        raise InputError(f"{where}: {str(error).removeprefix('config: ')}") from None


def _loop_days(experiment: ExperimentConfig, arm: str) -> int | None:
    loop = experiment.loop
    return loop.days if loop is not None and (loop.arms is None or arm in loop.arms) else None


def _all_changes(experiment: ExperimentConfig) -> dict[str, Changes]:
    """All changes of an experiment by the path of their key."""
    points = experiment.sweep.points if experiment.sweep is not None else {}
    return {
        "baseline.set": experiment.baseline.set,
        **{f"teachers.{name}.set": teacher.set for name, teacher in experiment.teachers.items()},
        **{f"arms.{name}.set": arm.set for name, arm in experiment.arms.items()},
        **{f"sweep.points.{name}": changes for name, changes in points.items()},
    }


def _used_samplings(experiment: ExperimentConfig) -> dict[str, PlannedSampling]:
    """The samplings of arms, each with that of the experiment's teachers which it needs."""
    used = {}
    for name in dict.fromkeys(arm.sampling for arm in experiment.arms.values() if arm.sampling is not None):
        config = experiment.samplings[name]
        rule = config.uninformative.low_loss if config.uninformative is not None else None
        own = rule is not None and rule.log is None and rule.teacher in experiment.teachers
        used[name] = PlannedSampling(name, config, rule.teacher if own and rule is not None else None)
    return used


def _with_sidecar(one: PlannedSampling, teachers: Mapping[str, PlannedRun]) -> PlannedSampling:
    """The sampling with its teacher's sidecar in place of the teacher's name."""
    if one.teacher is None:
        return one
    content = changed(
        one.config.model_dump(), {"uninformative.low_loss.teacher": teachers[one.teacher].record}
    )
    return replace(one, config=SamplingConfig.model_validate(content))
