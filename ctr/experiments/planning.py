"""Plans the runs and the calls of an experiment, and validates every configuration before the first run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from ctr import __version__
from ctr.config import parse_model
from ctr.data.log import log_sha256, read_manifests
from ctr.data.sampling import SamplingConfig
from ctr.data.time_range import TimeRange
from ctr.experiments.calls import Call, settings_key
from ctr.experiments.config import BASELINE, ArmConfig, Changes, ExperimentConfig, alike_in_arms, changed
from ctr.experiments.plan import Plan, PlannedArm, PlannedFamily, PlannedRun, ShownSliceConfig
from ctr.io.errors import InputError
from ctr.objective.bias_constraints import SLICES_MEASURED, slice_names
from ctr.training.config import TrainConfig
from ctr.training.inputs import Inputs, open_inputs


@dataclass(frozen=True)
class Calls:
    """Calls of an experiment: of its teachers, samplings, arms and retrains."""

    teachers: dict[str, Call] = field(default_factory=dict)  # by sidecar
    samplings: dict[str, Call] = field(default_factory=dict)
    arms: dict[str, list[Call]] = field(default_factory=dict)  # for each arm and point of the sweep, by seed
    retrains: list[Call] = field(default_factory=list)

    def stages(self) -> tuple[Sequence[Call], Sequence[Call], Sequence[Call]]:
        """Returns all calls in three stages, each of which needs only the earlier ones.

        The first seeds of all arms come before the next ones.
        """
        seeds = [run.seed for run in next(iter(self.arms.values()))]
        runs = [*chain.from_iterable(self.arms.values()), *self.retrains]
        runs.sort(key=lambda run: seeds.index(run.seed))
        return [*self.teachers.values()], [*self.samplings.values()], runs


def make_plan(
    experiment: ExperimentConfig,
    content: Mapping[str, Any],
    log: Path,
    where: str,
    command: str = "",
    created: str = "",
) -> tuple[Plan, Calls]:
    """Plans the runs of an experiment, and validates every configuration.

    ``content`` is the training configuration, as nested keys; ``where`` names the file in errors. Raises
    InputError, with the path of the key, if an arm's configuration is invalid or does not fit the log.
    """
    planner = _Planner(experiment, changed(content, experiment.baseline.set), log, where)
    arms = {BASELINE: ArmConfig(**experiment.baseline.model_dump()), **experiment.arms}
    planned = []
    for name, arm in arms.items():
        key = f"{'' if name == BASELINE else 'arms.'}{name}.set"
        planned.append(planner.plan_arm(name, arm, experiment.seeds, key))
    if (sweep := experiment.sweep) is not None:
        for name in sweep.arms:
            for point, changes in sweep.points.items():
                key, title = f"sweep.points.{point}", f"{arms[name].title or name} ({point})"
                arm = arms[name].model_copy(update={"title": title, "paper": {}, "retrain": ()})
                entry = planner.plan_arm(f"{name}@{point}", arm, sweep.seeds, key, changes)
                planned.append(entry.model_copy(update={"of": name, "point": point}))
    _check_slices(experiment.slices, planned, where)
    scored, calls = experiment.scored, planner.calls
    plan = Plan(
        title=experiment.title,
        note=experiment.note,
        log=str(log.resolve()),
        log_sha256=planner.log_key,
        command=command,
        created=created,
        ctr_version=__version__,
        baseline=BASELINE,
        arms=planned,
        teachers={call.owner.removeprefix("teacher-"): call.folder for call in calls.teachers.values()},
        samplings={name: call.config.model_dump(mode="json") for name, call in calls.samplings.items()},
        slices=experiment.slices,
        scored_us=None if scored == TimeRange() else (scored.start_us, scored.end_us),
    )
    return plan, calls


class _Planner:
    """Makes the calls of arms, each configuration checked as training would check it.

    Teachers and samplings are added when an arm needs them; equal teachers share a call.
    """

    def __init__(
        self, experiment: ExperimentConfig, baseline: Mapping[str, Any], log: Path, where: str
    ) -> None:
        self._experiment, self._baseline, self._log, self._where = experiment, baseline, log, where
        self._manifests = read_manifests(log)
        self._inputs: dict[str, Inputs] = {}  # by hash of the configuration without its seed
        self._unchanged = ""  # hash of the baseline's configuration
        self.log_key = log_sha256(self._manifests)
        self.calls = Calls()

    def plan_arm(
        self, name: str, arm: ArmConfig, seeds: Sequence[int], key: str, changes: Changes | None = None
    ) -> PlannedArm:
        """Plans an arm, or with ``changes`` a point of its sweep; ``key`` is the path of its changes in the file."""
        settings, needs = changed(self._baseline, arm.set), list[Call]()
        if arm.teacher is not None:
            needs.append(self._teacher(arm.teacher))
            settings = changed(settings, {"objective.distillation.teacher": needs[0].sidecar})
        if arm.sampling is not None:
            needs.append(self._sampling(arm.sampling))
            settings["sampling"] = {"name": needs[-1].sidecar, "score": arm.score}
        settings = changed(settings, changes or {})

        def make_calls(owner: str, content: Mapping[str, Any], key: str) -> list[Call]:
            return [Call(owner, self._checked(content, seed, key)[0], needs) for seed in seeds]

        key = key if changes is None else f"{name}: {key}"
        calls = self.calls.arms[name] = make_calls(name, settings, key)
        retrains = {
            kind: make_calls(f"{name}~{kind}", changed(settings, again), f"{name}: retrain.{kind}")
            for kind, again in self._experiment.retrain.items()
            if arm.retrain is None or kind in arm.retrain
        }
        self.calls.retrains.extend(chain.from_iterable(retrains.values()))
        config, families = self._checked(settings, seeds[0], key)
        self._check_scored(config, name)
        if name == BASELINE:
            self._unchanged = config.sha256()
        elif changes is None and arm.set and config.sha256() == self._unchanged:
            raise InputError(
                f"{self._where}: {key}: {', '.join(arm.set)} changes nothing: the arm {name} would be "
                "trained as the baseline is; change another key, or leave the arm out"
            )
        return PlannedArm(
            name=name,
            title=arm.title or name,
            against=None if name == BASELINE else arm.against,
            set={**arm.set, **(changes or {})},
            seeds=[*seeds],
            runs=_planned_runs(calls),
            retrains={kind: _planned_runs(again) for kind, again in retrains.items()},
            families=families,
            **arm.model_dump(include={"note", "paper", "teacher", "sampling"}),
        )

    def _checked(
        self, content: Mapping[str, Any], seed: int, key: str
    ) -> tuple[TrainConfig, list[PlannedFamily]]:
        """Returns the configuration of nested keys, with values resolved from the log, and its slice families."""
        config = parse_model(TrainConfig, {**alike_in_arms(content), "seed": seed}, self._where, f"{key}.")
        settings = config.model_copy(update={"seed": 0}).sha256()
        if settings not in self._inputs:
            try:
                self._inputs[settings] = open_inputs(self._log, config)
            except InputError as error:
                raise InputError(f"{self._where}: {key}: {str(error).removeprefix('config: ')}") from None
        inputs = self._inputs[settings]
        constraints = inputs.config.objective.bias_constraints
        pairs = zip(constraints.families, inputs.families, strict=True) if constraints is not None else ()
        families = [
            PlannedFamily(name=entry.name, log=entry.log, slices=slice_names(entry, family))
            for entry, family in pairs
            if family.slices <= SLICES_MEASURED
        ]
        return config.model_copy(update={"model": inputs.config.model}), families

    def _check_scored(self, config: TrainConfig, name: str) -> None:
        """Raises InputError if a run can have no predictions in the query times that count."""
        scored, times = self._experiment.scored, config.time_range
        if scored == TimeRange():
            return
        where = f"{self._where}: {name}"
        if not config.record_predictions:
            raise InputError(f"{where}: record_predictions: false is not allowed: scored reads predictions")
        begin, end = max(scored.start_us, times.start_us), min(scored.end_us, times.end_us)
        if not any(part.rows and max(part.start, begin) < min(part.end, end) for part in self._manifests):
            raise InputError(f"{where}: scored: no partition of the log overlaps it within time_range")

    def _teacher(self, name: str) -> Call:
        teacher = self._experiment.teachers[name]
        content = {**changed(self._baseline, teacher.set), "record_predictions": True}
        config, _ = self._checked(content, teacher.seed, f"teachers.{name}.set")
        # A log that has grown has a new sidecar: no recording can extend the shorter log's.
        sidecar = f"replay-{settings_key(config)}-{self.log_key[:8]}"
        return self.calls.teachers.setdefault(sidecar, Call(f"teacher-{name}", config, sidecar=sidecar))

    def _sampling(self, name: str) -> Call:
        """Returns the call of a sampling, with the teacher's name replaced by its sidecar."""
        config, needs = self._experiment.samplings[name], []
        key, rule = config.by_teacher or ("", None)
        if rule is not None and rule.log is None and rule.teacher in self._experiment.teachers:
            needs = [self._teacher(rule.teacher)]
            content = changed(config.model_dump(), {f"{key}.teacher": needs[0].sidecar})
            config = SamplingConfig.model_validate(content)
        call = Call(f"sampling {name}", config, needs, f"replay-{settings_key(config)}")
        return self.calls.samplings.setdefault(name, call)


def _planned_runs(calls: Sequence[Call]) -> list[PlannedRun]:
    return [PlannedRun(seed=call.seed or 0, folder=call.folder) for call in calls]


def _check_slices(named: Mapping[str, ShownSliceConfig], arms: Sequence[PlannedArm], where: str) -> None:
    """Raises InputError when no arm measures a slice that the tables are to show."""
    sizes: dict[str, int] = {}
    for family in (family for arm in arms if arm.of is None for family in arm.families):
        sizes[family.name] = max(sizes.get(family.name, 0), len(family.slices))
    for name, entry in named.items():
        if entry.family not in sizes:
            names = ", ".join(sizes) or "none is measured by any arm"
            raise InputError(
                f"{where}: slices.{name}.family: there is no {entry.family} of at most {SLICES_MEASURED} slices; "
                f"allowed: {names}"
            )
        if entry.index >= sizes[entry.family]:
            raise InputError(
                f"{where}: slices.{name}.index: {entry.index} is not allowed; the family "
                f"{entry.family} has the slices 0 to {sizes[entry.family] - 1}"
            )
