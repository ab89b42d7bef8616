"""From the configuration of an experiment to its plan and its tasks, everything checked before the first run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctr import __version__
from ctr.config import parse_model
from ctr.data.log import Manifest, log_sha256, read_manifests
from ctr.data.sampling import SamplingConfig
from ctr.data.time_range import TimeRange
from ctr.experiments.config import BASELINE, ArmConfig, Changes, ExperimentConfig, ShownSliceConfig, changed
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
from ctr.objective.bias_constraints import Family
from ctr.objective.slice_names import slice_names
from ctr.simulator.closed_loop import check_loop
from ctr.training.config import TrainConfig
from ctr.training.inputs import open_inputs
from ctr.training.model_config import ModelConfig
from ctr.training.run.metrics import SLICES_MEASURED


class _Checker:
    """Makes the configurations of runs, each checked as training would check it."""

    def __init__(self, log: Path, where: str) -> None:
        self._log = log
        self._where = where
        self._families: dict[str, list[PlannedFamily]] = {}
        self._models: dict[str, ModelConfig] = {}

    def config(self, content: Mapping[str, Any], seed: int, key: str, owner: str = "") -> TrainConfig:
        """Configuration from nested keys, with what the log decides.

        ``key`` is their place in the experiment's file, ``owner`` a point.
        """
        where = f"{self._where}: {owner}" if owner else self._where
        config = parse_model(TrainConfig, {**content, "seed": seed}, where, f"{key}.")
        given = _without_seed(config)
        if given not in self._models:
            try:
                inputs = open_inputs(self._log, config)
            except InputError as error:
                raise InputError(f"{where}: {key}: {str(error).removeprefix('config: ')}") from None
            self._models[given] = inputs.config.model
            self._families[_without_seed(inputs.config)] = slice_families(inputs.config, inputs.families)
        return config.model_copy(update={"model": self._models[given]})

    def families(self, config: TrainConfig) -> list[PlannedFamily]:
        return self._families[_without_seed(config)]

    def check_loop(self, config: TrainConfig, arm: str) -> None:
        try:
            check_loop(config, self._log)
        except InputError as error:
            raise InputError(f"{self._where}: loop: {arm}: {str(error).removeprefix('config: ')}") from None


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
    arms = {BASELINE: ArmConfig(**experiment.baseline.model_dump()), **experiment.arms}
    contents = {name: _arm_content(arm, baseline, teachers, samplings) for name, arm in arms.items()}
    planned: list[PlannedArm] = []
    trainings: dict[str, list[Training]] = {}
    for variant in _variants(experiment):
        arm = arms[variant.arm]
        own, owner = changed(contents[variant.arm], variant.changes), variant.name if variant.point else ""
        days = None if variant.point else _loop_days(experiment, variant.name)
        needs = _needs(arm, teachers, samplings)
        runs = [
            Training(variant.name, seed, checker.config(own, seed, variant.key, owner), needs, loop_days=days)
            for seed in variant.seeds
        ]
        if days is not None:
            checker.check_loop(runs[0].config, variant.name)
        _check_scored(experiment.scored, runs[0].config, manifests, f"{where}: {variant.name}")
        planned.append(_planned_arm(variant, arm, runs, checker.families(runs[0].config)))
        trainings[variant.name] = runs
    check_shown(experiment.slices, [arm.families for arm in planned if arm.of is None], where)
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
        loop_days=experiment.loop.days if experiment.loop is not None else None,
        scored_us=None
        if experiment.scored == TimeRange()
        else (experiment.scored.start_us, experiment.scored.end_us),
    )
    return plan, Tasks(trainings, teachers, samplings)


@dataclass(frozen=True)
class _Variant:
    """An arm, or a point of its sweep: ``changes`` beside the arm's, and ``key``, where they are in the file."""

    name: str
    arm: str
    point: str | None
    changes: Changes
    seeds: Sequence[int]
    key: str


def _variants(experiment: ExperimentConfig) -> Iterator[_Variant]:
    yield _Variant(BASELINE, BASELINE, None, {}, experiment.seeds, f"{BASELINE}.set")
    for name in experiment.arms:
        yield _Variant(name, name, None, {}, experiment.seeds, f"arms.{name}.set")
    if (sweep := experiment.sweep) is not None:
        for name in sweep.arms:
            for point, changes in sweep.points.items():
                yield _Variant(f"{name}@{point}", name, point, changes, sweep.seeds, f"sweep.points.{point}")


def _planned_arm(
    variant: _Variant, arm: ArmConfig, runs: Sequence[Training], families: list[PlannedFamily]
) -> PlannedArm:
    title, point = arm.title or variant.arm, variant.point
    return PlannedArm(
        name=variant.name,
        title=title if point is None else f"{title} ({point})",
        note=arm.note,
        against=None if variant.name == BASELINE else arm.against,
        set={**arm.set, **variant.changes},
        paper=arm.paper if point is None else {},
        seeds=[run.seed for run in runs],
        point=point,
        of=None if point is None else variant.arm,
        runs=[
            PlannedRun(seed=run.seed, folder=run.folder, loop=run.loop.folder if run.loop else None)
            for run in runs
        ],
        teacher=arm.teacher,
        sampling=arm.sampling,
        families=families,
    )


def _check_no_seeds(experiment: ExperimentConfig, where: str) -> None:
    """Raises InputError where changes set the seed, which is that of each run."""
    points = experiment.sweep.points if experiment.sweep is not None else {}
    by_key: dict[str, Changes] = {
        "baseline.set": experiment.baseline.set,
        **{f"teachers.{name}.set": teacher.set for name, teacher in experiment.teachers.items()},
        **{f"arms.{name}.set": arm.set for name, arm in experiment.arms.items()},
        **{f"sweep.points.{name}": changes for name, changes in points.items()},
    }
    for key, changes in by_key.items():
        if "seed" in changes:
            raise InputError(f"{where}: {key}.seed: not allowed here: set seeds, or the seed of a teacher")


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


def _without_seed(config: TrainConfig) -> str:
    """Tells configurations apart but for their seeds."""
    return config.model_copy(update={"seed": 0}).sha256()


def _make_teachers(
    experiment: ExperimentConfig, baseline: Mapping[str, Any], checker: _Checker, log_key: str
) -> dict[str, Training]:
    """Trainings of those teachers that an arm needs, itself or for its sampling; equal ones are one."""
    rules = (_teacher_of(experiment.samplings[name], experiment) for name in _used_samplings(experiment))
    used = {*rules, *(arm.teacher for arm in experiment.arms.values())}
    teachers: dict[str, Training] = {}
    for name, teacher in experiment.teachers.items():
        if name in used:
            content = {**changed(baseline, teacher.set), "record_predictions": True}
            config = checker.config(content, teacher.seed, f"teachers.{name}.set")
            # A log that has grown has a sidecar of its own: no recording can add to that of the shorter log.
            record = f"replay-{settings_key(config)}-{log_key[:8]}"
            equal = next((one for one in teachers.values() if one.record == record), None)
            teachers[name] = equal or Training(f"teacher-{name}", teacher.seed, config, record=record)
    return teachers


def _make_samplings(experiment: ExperimentConfig, teachers: Mapping[str, Training]) -> dict[str, Sampling]:
    """Samplings that an arm needs, each with its teacher's sidecar in place of the teacher's name."""
    samplings = {}
    for name in _used_samplings(experiment):
        config, teacher = experiment.samplings[name], _teacher_of(experiment.samplings[name], experiment)
        if teacher is None:
            samplings[name] = Sampling(name, config)
        else:
            assert config.by_teacher is not None
            key, _ = config.by_teacher
            sidecar = {f"{key}.teacher": teachers[teacher].record}
            content = changed(config.model_dump(), sidecar)
            samplings[name] = Sampling(name, SamplingConfig.model_validate(content), (teachers[teacher],))
    return samplings


def _used_samplings(experiment: ExperimentConfig) -> list[str]:
    return list(dict.fromkeys(arm.sampling for arm in experiment.arms.values() if arm.sampling is not None))


def _teacher_of(sampling: SamplingConfig, experiment: ExperimentConfig) -> str | None:
    """Name of the experiment's teacher whose predictions a sampling reads, if any."""
    if sampling.by_teacher is None:
        return None
    _, rule = sampling.by_teacher
    return rule.teacher if rule.log is None and rule.teacher in experiment.teachers else None


def _arm_content(
    arm: ArmConfig,
    baseline: Mapping[str, Any],
    teachers: Mapping[str, Training],
    samplings: Mapping[str, Sampling],
) -> dict[str, Any]:
    content = changed(baseline, arm.set)
    if arm.teacher is not None:
        content = changed(content, {"objective.distillation.teacher": teachers[arm.teacher].record})
    if arm.sampling is not None:
        content["sampling"] = {"name": samplings[arm.sampling].sidecar, "score": arm.score}
    return content


def _needs(
    arm: ArmConfig, teachers: Mapping[str, Training], samplings: Mapping[str, Sampling]
) -> tuple[Task, ...]:
    teacher = () if arm.teacher is None else (teachers[arm.teacher],)
    return (*teacher, *(() if arm.sampling is None else (samplings[arm.sampling],)))


def _loop_days(experiment: ExperimentConfig, arm: str) -> int | None:
    loop = experiment.loop
    return loop.days if loop is not None and (loop.arms is None or arm in loop.arms) else None


def slice_families(config: TrainConfig, families: Sequence[Family]) -> list[PlannedFamily]:
    """Families of a configuration that are measured; ``families`` are the same, resolved for its log."""
    constraints = config.objective.bias_constraints
    if constraints is None:
        return []
    return [
        PlannedFamily(name=given.name, log=given.log, slices=slice_names(given, family))
        for given, family in zip(constraints.families, families, strict=True)
        if family.slices <= SLICES_MEASURED
    ]


def check_shown(
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
