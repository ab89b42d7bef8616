"""From the configuration of an experiment to its plan and its tasks, everything checked before the first run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from ctr import __version__
from ctr.config import parse_model
from ctr.data.log import Manifest, log_sha256, read_manifests
from ctr.data.sampling import SamplingConfig
from ctr.data.time_range import TimeRange
from ctr.experiments.config import (
    BASELINE,
    ArmConfig,
    Changes,
    ExperimentConfig,
    ShownSliceConfig,
    alike_in_arms,
    changed,
)
from ctr.experiments.plan import (
    Plan,
    PlannedArm,
    PlannedFamily,
    PlannedRun,
    PlannedSampling,
    PlannedTeacher,
    ShownSlice,
)
from ctr.experiments.tasks import Sampling, Task, Tasks, Training, settings_key
from ctr.io.errors import InputError
from ctr.objective.bias_constraints import SLICES_MEASURED, slice_names
from ctr.training.config import TrainConfig
from ctr.training.inputs import Inputs, open_inputs


def make_plan(
    experiment: ExperimentConfig,
    content: Mapping[str, Any],
    log: Path,
    where: str,
    command: str = "",
    created: str = "",
) -> tuple[Plan, Tasks]:
    """Plans the runs of an experiment, every configuration checked.

    ``content`` is the training configuration, as nested keys; ``where`` names the file in errors. Raises
    InputError: an arm's configuration is not possible, with the path of its key, or does not fit the log.
    """
    _check_no_seeds(experiment, where)
    manifests = read_manifests(log)
    checker = _Checker(log, where)
    baseline = changed(content, experiment.baseline.set)
    log_key = log_sha256(manifests)
    teachers = _make_teachers(experiment, baseline, checker, log_key)
    samplings = _make_samplings(experiment, teachers)
    planned: list[PlannedArm] = []
    trainings: dict[str, list[Training]] = {}
    retrainings: list[Training] = []
    for variant in _variants(experiment):
        own, needs = variant.content(baseline, teachers, samplings)
        checked = {seed: checker.check(own, seed, variant.key, variant.owner) for seed in variant.seeds}
        runs = [Training(variant.name, seed, config, needs) for seed, (config, _) in checked.items()]
        retrains: dict[str, list[Training]] = {kind: [] for kind in experiment.retrain if variant.has(kind)}
        for kind, trainings_again in retrains.items():
            again = changed(own, experiment.retrain[kind])
            for seed in variant.seeds:
                config, _ = checker.check(again, seed, f"retrain.{kind}", variant.name)
                name = f"{variant.name}~{kind}"
                trainings_again.append(Training(name, seed, config, needs))
        config, families = checked[variant.seeds[0]]
        _check_changes(variant, config, trainings, where)
        _check_scored(experiment.scored, config, manifests, f"{where}: {variant.name}")
        planned.append(variant.planned(runs, retrains, families))
        trainings[variant.name] = runs
        retrainings += chain.from_iterable(retrains.values())
    _check_shown(experiment.slices, [arm.families for arm in planned if arm.of is None], where)
    plan = Plan(
        title=experiment.title,
        note=experiment.note,
        log=str(log.resolve()),
        log_sha256=log_key,
        command=command,
        created=created,
        ctr_version=__version__,
        baseline=BASELINE,
        arms=planned,
        teachers=[
            PlannedTeacher(name=name, folder=run.folder, sidecar=run.record) for name, run in teachers.items()
        ],
        samplings=[
            PlannedSampling(name=name, sidecar=one.sidecar, config=one.config.model_dump(mode="json"))
            for name, one in samplings.items()
        ],
        slices=[ShownSlice(name=name, **one.model_dump()) for name, one in experiment.slices.items()],
        scored_us=None
        if experiment.scored == TimeRange()
        else (experiment.scored.start_us, experiment.scored.end_us),
    )
    return plan, Tasks(trainings, teachers, samplings, retrainings)


class _Checker:
    """Makes the configurations of runs, each checked as training would check it."""

    def __init__(self, log: Path, where: str) -> None:
        self._log, self._where = log, where
        self._inputs: dict[str, Inputs] = {}  # by what is left of a configuration without its seed

    def check(
        self, content: Mapping[str, Any], seed: int, key: str, owner: str = ""
    ) -> tuple[TrainConfig, list[PlannedFamily]]:
        """Configuration from nested keys, with what the log decides, and the families of slices it measures.

        ``key`` is their place in the experiment's file, ``owner`` a point.
        """
        where = f"{self._where}: {owner}" if owner else self._where
        content = {**alike_in_arms(content), "seed": seed}
        config = parse_model(TrainConfig, content, where, f"{key}.")
        given = config.model_copy(update={"seed": 0}).sha256()
        if given not in self._inputs:
            try:
                self._inputs[given] = open_inputs(self._log, config)
            except InputError as error:
                raise InputError(f"{where}: {key}: {str(error).removeprefix('config: ')}") from None
        inputs = self._inputs[given]
        return config.model_copy(update={"model": inputs.config.model}), _measured_families(inputs)


def _measured_families(inputs: Inputs) -> list[PlannedFamily]:
    constraints = inputs.config.objective.bias_constraints
    if constraints is None:
        return []
    return [
        PlannedFamily(name=given.name, log=given.log, slices=slice_names(given, family))
        for given, family in zip(constraints.families, inputs.families, strict=True)
        if family.slices <= SLICES_MEASURED
    ]


@dataclass(frozen=True)
class _Variant:
    """An arm, or a point of its sweep: ``changes`` beside the arm's, and ``key``, where they are in the file."""

    name: str
    arm: ArmConfig
    seeds: Sequence[int]
    key: str
    of: str | None = None  # the arm that a point varies; None for an arm
    point: str | None = None
    changes: Changes = field(default_factory=dict)

    @property
    def owner(self) -> str:
        return self.name if self.point else ""

    def has(self, retrain: str) -> bool:
        """Tells whether its runs are trained once more in that way."""
        return self.point is None and (self.arm.retrain is None or retrain in self.arm.retrain)

    def content(
        self, baseline: Mapping[str, Any], teachers: Mapping[str, Training], samplings: Mapping[str, Sampling]
    ) -> tuple[dict[str, Any], tuple[Task, ...]]:
        """Its configuration as nested keys, and the tasks that it needs."""
        content, needs = changed(baseline, self.arm.set), list[Task]()
        if self.arm.teacher is not None:
            teacher = teachers[self.arm.teacher]
            content = changed(content, {"objective.distillation.teacher": teacher.record})
            needs.append(teacher)
        if self.arm.sampling is not None:
            sampling = samplings[self.arm.sampling]
            content["sampling"] = {"name": sampling.sidecar, "score": self.arm.score}
            needs.append(sampling)
        return changed(content, self.changes), tuple(needs)

    def planned(
        self,
        runs: Sequence[Training],
        retrains: Mapping[str, Sequence[Training]],
        families: list[PlannedFamily],
    ) -> PlannedArm:
        arm, title = self.arm, self.arm.title or self.of or self.name
        return PlannedArm(
            name=self.name,
            title=title if self.point is None else f"{title} ({self.point})",
            note=arm.note,
            against=None if self.name == BASELINE else arm.against,
            set={**arm.set, **self.changes},
            paper=arm.paper if self.point is None else {},
            seeds=[run.seed for run in runs],
            point=self.point,
            of=self.of,
            runs=_planned_runs(runs),
            retrains={kind: _planned_runs(trainings) for kind, trainings in retrains.items()},
            teacher=arm.teacher,
            sampling=arm.sampling,
            families=families,
        )


def _planned_runs(runs: Sequence[Training]) -> list[PlannedRun]:
    return [PlannedRun(seed=run.seed, folder=run.folder) for run in runs]


def _variants(experiment: ExperimentConfig) -> Iterator[_Variant]:
    arms = {BASELINE: ArmConfig(**experiment.baseline.model_dump()), **experiment.arms}
    for name, arm in arms.items():
        yield _Variant(name, arm, experiment.seeds, f"{'' if name == BASELINE else 'arms.'}{name}.set")
    if (sweep := experiment.sweep) is not None:
        for name in sweep.arms:
            for point, changes in sweep.points.items():
                key = f"sweep.points.{point}"
                yield _Variant(f"{name}@{point}", arms[name], sweep.seeds, key, name, point, changes)


def _check_no_seeds(experiment: ExperimentConfig, where: str) -> None:
    """Raises InputError where changes set the seed, which is that of each run."""
    by_key = {"baseline.set": experiment.baseline.set}
    by_key |= {f"teachers.{name}.set": teacher.set for name, teacher in experiment.teachers.items()}
    by_key |= {f"retrain.{name}": changes for name, changes in experiment.retrain.items()}
    by_key |= {f"arms.{name}.set": arm.set for name, arm in experiment.arms.items()}
    points = experiment.sweep.points if experiment.sweep is not None else {}
    by_key |= {f"sweep.points.{name}": changes for name, changes in points.items()}
    for key, changes in by_key.items():
        if "seed" in changes:
            raise InputError(f"{where}: {key}.seed: not allowed here: set seeds, or the seed of a teacher")


def _check_changes(
    variant: _Variant, config: TrainConfig, trainings: Mapping[str, Sequence[Training]], where: str
) -> None:
    """Raises InputError where an arm has changes, and yet the configuration of the baseline."""
    if variant.name == BASELINE or variant.point is not None or not variant.arm.set:
        return
    baseline = trainings[BASELINE][0].config
    if config.model_copy(update={"seed": baseline.seed}).sha256() == baseline.sha256():
        raise InputError(
            f"{where}: {variant.key}: {', '.join(variant.arm.set)} changes nothing: the arm {variant.name} would be "
            "trained as the baseline is; change another key, or leave the arm out"
        )


def _check_scored(scored: TimeRange, config: TrainConfig, manifests: Sequence[Manifest], where: str) -> None:
    """Raises InputError where a run can have no predictions of the query times that count."""
    if scored == TimeRange():
        return
    if not config.record_predictions:
        raise InputError(f"{where}: record_predictions: false is not allowed: scored reads predictions")
    own = config.time_range
    begin, end = max(scored.start_us, own.start_us), min(scored.end_us, own.end_us)
    if not any(one.rows and max(one.start, begin) < min(one.end, end) for one in manifests):
        raise InputError(f"{where}: scored: no partition of the log overlaps it within time_range")


def _check_shown(
    shown: Mapping[str, ShownSliceConfig], arms: Sequence[Sequence[PlannedFamily]], where: str
) -> None:
    """Raises InputError when no arm measures a slice that the tables are to show."""
    sizes: dict[str, int] = {}
    for family in (family for families in arms for family in families):
        sizes[family.name] = max(sizes.get(family.name, 0), len(family.slices))
    for name, one in shown.items():
        if one.family not in sizes:
            known = ", ".join(sizes) or "none is measured by any arm"
            raise InputError(
                f"{where}: slices.{name}.family: there is no {one.family} of at most {SLICES_MEASURED} slices; "
                f"allowed: {known}"
            )
        if one.index >= sizes[one.family]:
            raise InputError(
                f"{where}: slices.{name}.index: {one.index} is not allowed; the family {one.family} has "
                f"the slices 0 to {sizes[one.family] - 1}"
            )


def _used_samplings(experiment: ExperimentConfig) -> dict[str, tuple[SamplingConfig, str | None, str]]:
    """Samplings that an arm needs: of each its experiment's teacher, if any, and the key of that rule."""
    found = {}
    arms = (experiment.baseline, *experiment.arms.values())
    for name in dict.fromkeys(arm.sampling for arm in arms if arm.sampling is not None):
        config = experiment.samplings[name]
        key, rule = config.by_teacher or ("", None)
        own = rule is not None and rule.log is None and rule.teacher in experiment.teachers
        found[name] = config, rule.teacher if rule is not None and own else None, key
    return found


def _make_teachers(
    experiment: ExperimentConfig, baseline: Mapping[str, Any], checker: _Checker, log_key: str
) -> dict[str, Training]:
    """Trainings of those teachers that an arm needs, itself or for its sampling; equal ones are one."""
    used = {teacher for _, teacher, _ in _used_samplings(experiment).values()}
    used |= {arm.teacher for arm in (experiment.baseline, *experiment.arms.values())}
    teachers: dict[str, Training] = {}
    for name, teacher in experiment.teachers.items():
        if name in used:
            content = {**changed(baseline, teacher.set), "record_predictions": True}
            config, _ = checker.check(content, teacher.seed, f"teachers.{name}.set")
            # A log that has grown has a sidecar of its own: no recording can add to that of the shorter log.
            record = f"replay-{settings_key(config)}-{log_key[:8]}"
            equal = next((one for one in teachers.values() if one.record == record), None)
            teachers[name] = equal or Training(f"teacher-{name}", teacher.seed, config, record=record)
    return teachers


def _make_samplings(experiment: ExperimentConfig, teachers: Mapping[str, Training]) -> dict[str, Sampling]:
    """Samplings that an arm needs, each with its teacher's sidecar in place of the teacher's name."""
    samplings = {}
    for name, (config, teacher, key) in _used_samplings(experiment).items():
        if teacher is None:
            samplings[name] = Sampling(name, config)
        else:
            content = changed(config.model_dump(), {f"{key}.teacher": teachers[teacher].record})
            samplings[name] = Sampling(name, SamplingConfig.model_validate(content), (teachers[teacher],))
    return samplings
