"""Plans the runs and the calls of an experiment, everything checked before the first run."""

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
from ctr.experiments.calls import Call, settings_key
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
from ctr.io.errors import InputError
from ctr.objective.bias_constraints import SLICES_MEASURED, slice_names
from ctr.training.config import TrainConfig
from ctr.training.inputs import Inputs, open_inputs


@dataclass(frozen=True)
class Calls:
    """All calls of an experiment that an arm needs, by name."""

    arms: Mapping[str, Sequence[Call]]  # for each arm and point of the sweep, one for each seed
    configs: Mapping[str, TrainConfig]  # by arm and by owner of a teacher, for the first seed
    teachers: Mapping[str, Call]
    samplings: Mapping[str, Call]
    retrains: Sequence[Call] = ()

    def stages(self) -> tuple[Sequence[Call], Sequence[Call], Sequence[Call]]:
        """Returns all calls in three stages, of which each needs only those before it.

        The first seeds of all arms come before the next ones.
        """
        teachers = {call.label: call for call in self.teachers.values()}
        seeds = [run.seed for run in next(iter(self.arms.values()))]
        runs = [*chain.from_iterable(self.arms.values()), *self.retrains]
        runs.sort(key=lambda run: seeds.index(run.seed))
        return [*teachers.values()], [*self.samplings.values()], runs


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


def make_plan(
    experiment: ExperimentConfig,
    content: Mapping[str, Any],
    log: Path,
    where: str,
    command: str = "",
    created: str = "",
) -> tuple[Plan, Calls]:
    """Plans the runs of an experiment, every configuration checked.

    ``content`` is the training configuration, as nested keys; ``where`` names the file in errors. Raises
    InputError: an arm's configuration is not possible, with the path of its key, or does not fit the log.
    """
    manifests = read_manifests(log)
    checker = _Checker(log, where)
    baseline = changed(content, experiment.baseline.set)
    log_key = log_sha256(manifests)
    teachers = _make_teachers(experiment, baseline, checker, log_key)
    samplings = _make_samplings(experiment, teachers)
    planned: list[PlannedArm] = []
    arms: dict[str, list[Call]] = {}
    configs = {call.owner: call.config for call in teachers.values() if isinstance(call.config, TrainConfig)}
    retrained: list[Call] = []
    for variant in _variants(experiment):
        name, arm = variant.name, variant.arm
        settings, needs = changed(baseline, arm.set), list[Call]()
        if arm.teacher is not None:
            needs.append(teachers[arm.teacher])
            settings = changed(settings, {"objective.distillation.teacher": teachers[arm.teacher].sidecar})
        if arm.sampling is not None:
            needs.append(samplings[arm.sampling])
            settings["sampling"] = {"name": samplings[arm.sampling].sidecar, "score": arm.score}
        settings = changed(settings, variant.changes)
        owner = name if variant.point else ""
        checked = [checker.check(settings, seed, variant.key, owner) for seed in variant.seeds]
        configs[name], families = checked[0]
        arms[name] = [Call(name, config, needs) for config, _ in checked]
        retrains: dict[str, list[PlannedRun]] = {}
        for kind, changes in experiment.retrain.items():
            if variant.point is None and (arm.retrain is None or kind in arm.retrain):
                again = changed(settings, changes)
                runs = [checker.check(again, seed, f"retrain.{kind}", name)[0] for seed in variant.seeds]
                calls = [Call(f"{name}~{kind}", config, needs) for config in runs]
                retrains[kind] = _planned_runs(calls)
                retrained += calls
        _check_changes(variant, configs, where)
        _check_scored(experiment.scored, configs[name], manifests, f"{where}: {name}")
        title = arm.title or variant.of or name
        planned.append(
            PlannedArm(
                name=name,
                title=title if variant.point is None else f"{title} ({variant.point})",
                note=arm.note,
                against=None if name == BASELINE else arm.against,
                set={**arm.set, **variant.changes},
                paper=arm.paper if variant.point is None else {},
                seeds=[*variant.seeds],
                point=variant.point,
                of=variant.of,
                runs=_planned_runs(arms[name]),
                retrains=retrains,
                teacher=arm.teacher,
                sampling=arm.sampling,
                families=families,
            )
        )
    _check_shown(experiment.slices, planned, where)
    # Only those that an arm needs, itself or for its sampling.
    needs = [need for calls in arms.values() for call in calls for need in call.needs]
    needed = {call.label for need in needs for call in (need, *need.needs)}
    teachers = {name: call for name, call in teachers.items() if call.label in needed}
    samplings = {name: call for name, call in samplings.items() if call.label in needed}
    scored, is_all = experiment.scored, experiment.scored == TimeRange()
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
            PlannedTeacher(name=name, folder=call.folder, sidecar=call.sidecar)
            for name, call in teachers.items()
        ],
        samplings=[
            PlannedSampling(name=name, sidecar=call.sidecar, config=call.config.model_dump(mode="json"))
            for name, call in samplings.items()
        ],
        slices=[ShownSlice(name=name, **shown.model_dump()) for name, shown in experiment.slices.items()],
        scored_us=None if is_all else (scored.start_us, scored.end_us),
    )
    return plan, Calls(arms, configs, teachers, samplings, retrained)


def _planned_runs(calls: Sequence[Call]) -> list[PlannedRun]:
    return [PlannedRun(seed=call.seed or 0, folder=call.folder) for call in calls]


def _variants(experiment: ExperimentConfig) -> Iterator[_Variant]:
    arms = {BASELINE: ArmConfig(**experiment.baseline.model_dump()), **experiment.arms}
    for name, arm in arms.items():
        yield _Variant(name, arm, experiment.seeds, f"{'' if name == BASELINE else 'arms.'}{name}.set")
    if (sweep := experiment.sweep) is not None:
        for name in sweep.arms:
            for point, changes in sweep.points.items():
                key = f"sweep.points.{point}"
                yield _Variant(f"{name}@{point}", arms[name], sweep.seeds, key, name, point, changes)


class _Checker:
    """Makes the configurations of runs, each checked as training would check it."""

    def __init__(self, log: Path, where: str) -> None:
        self._log, self._where = log, where
        self._inputs: dict[str, Inputs] = {}  # by hash of the configuration without its seed

    def check(
        self, content: Mapping[str, Any], seed: int, key: str, owner: str = ""
    ) -> tuple[TrainConfig, list[PlannedFamily]]:
        """Returns the configuration of nested keys, with values resolved from the log, and its slice families.

        ``key`` is their path in the experiment's file, ``owner`` a point.
        """
        where = f"{self._where}: {owner}" if owner else self._where
        config = parse_model(TrainConfig, {**alike_in_arms(content), "seed": seed}, where, f"{key}.")
        settings = config.model_copy(update={"seed": 0}).sha256()
        if settings not in self._inputs:
            try:
                self._inputs[settings] = open_inputs(self._log, config)
            except InputError as error:
                raise InputError(f"{where}: {key}: {str(error).removeprefix('config: ')}") from None
        inputs = self._inputs[settings]
        constraints = inputs.config.objective.bias_constraints
        pairs = zip(constraints.families, inputs.families, strict=True) if constraints is not None else ()
        families = [
            PlannedFamily(name=entry.name, log=entry.log, slices=slice_names(entry, family))
            for entry, family in pairs
            if family.slices <= SLICES_MEASURED
        ]
        return config.model_copy(update={"model": inputs.config.model}), families


def _check_changes(variant: _Variant, configs: Mapping[str, TrainConfig], where: str) -> None:
    """Raises InputError where an arm has changes, and yet the configuration of the baseline."""
    if variant.name == BASELINE or variant.point is not None or not variant.arm.set:
        return
    if configs[variant.name].sha256() == configs[BASELINE].sha256():
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
    times = config.time_range
    begin, end = max(scored.start_us, times.start_us), min(scored.end_us, times.end_us)
    if not any(part.rows and max(part.start, begin) < min(part.end, end) for part in manifests):
        raise InputError(f"{where}: scored: no partition of the log overlaps it within time_range")


def _check_shown(shown: Mapping[str, ShownSliceConfig], arms: Sequence[PlannedArm], where: str) -> None:
    """Raises InputError when no arm measures a slice that the tables are to show."""
    sizes: dict[str, int] = {}
    for family in (family for arm in arms if arm.of is None for family in arm.families):
        sizes[family.name] = max(sizes.get(family.name, 0), len(family.slices))
    for name, shown_slice in shown.items():
        if shown_slice.family not in sizes:
            names = ", ".join(sizes) or "none is measured by any arm"
            raise InputError(
                f"{where}: slices.{name}.family: there is no {shown_slice.family} of at most {SLICES_MEASURED} slices; "
                f"allowed: {names}"
            )
        if shown_slice.index >= sizes[shown_slice.family]:
            raise InputError(
                f"{where}: slices.{name}.index: {shown_slice.index} is not allowed; the family "
                f"{shown_slice.family} has the slices 0 to {sizes[shown_slice.family] - 1}"
            )


def _make_teachers(
    experiment: ExperimentConfig, baseline: Mapping[str, Any], checker: _Checker, log_key: str
) -> dict[str, Call]:
    """Returns the trainings of the teachers; equal teachers share a call."""
    teachers: dict[str, Call] = {}
    for name, teacher in experiment.teachers.items():
        content = {**changed(baseline, teacher.set), "record_predictions": True}
        config, _ = checker.check(content, teacher.seed, f"teachers.{name}.set")
        # A log that has grown has a new sidecar: no recording can extend the shorter log's.
        sidecar = f"replay-{settings_key(config)}-{log_key[:8]}"
        equal = next((call for call in teachers.values() if call.sidecar == sidecar), None)
        teachers[name] = equal or Call(f"teacher-{name}", config, sidecar=sidecar)
    return teachers


def _make_samplings(experiment: ExperimentConfig, teachers: Mapping[str, Call]) -> dict[str, Call]:
    """Returns the samplings, each with its teacher's sidecar in place of the teacher's name."""
    samplings = {}
    for name, config in experiment.samplings.items():
        key, rule = config.by_teacher or ("", None)
        needs = []
        if rule is not None and rule.log is None and rule.teacher in teachers:
            needs = [teachers[rule.teacher]]
            content = changed(config.model_dump(), {f"{key}.teacher": needs[0].sidecar})
            config = SamplingConfig.model_validate(content)
        samplings[name] = Call(f"sampling {name}", config, needs, f"replay-{settings_key(config)}")
    return samplings
