"""Trains every arm of an experiment on one log, side by side, and measures what each costs (FF 3, figure 1).

Teachers first, then samplings, which may need a teacher's predictions, then arms, then the loops in which their runs
serve. What is there already is not made again, so the same command goes on after an interruption, tries what failed,
and trains what was added to the file.
"""

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ctr import __version__
from ctr.config import dump_yaml
from ctr.data.log import Manifest, log_sha256, read_manifests
from ctr.data.sidecar import sidecar_folder
from ctr.experiments.config import check_experiment_folder, read_experiment
from ctr.experiments.costs import write_costs
from ctr.experiments.loops import PlannedLoop, loop_of
from ctr.experiments.plan import Plan, PlannedRun, PlannedSampling, make_plan
from ctr.io.errors import InputError
from ctr.io.files import make_folder, write_atomic_bytes
from ctr.pipelines.processes import quiet_beam, safe_workers
from ctr.training.run.directory import only_process, write_json

if TYPE_CHECKING:
    from ctr.experiments.jobs import Job, Outcome

Told = Callable[[str], None]

_Planned = PlannedRun | PlannedSampling | PlannedLoop

_THREADS = "TF_NUM_INTRAOP_THREADS"


@dataclass(frozen=True)
class _Place:
    """Where an experiment is made.

    Attributes:
        log: the log, absolute.
        manifests: its intervals.
        out: the folder of the experiment, absolute.
    """

    log: Path
    manifests: Sequence[Manifest]
    out: Path

    def is_done(self, run: PlannedRun) -> bool:
        """Whether a run has learned from the whole log under its configuration, and recorded what it is to record."""
        if run.record is not None:
            # Another experiment may have made it.
            return self.has_sidecar(run.record)
        try:
            summary = json.loads((self.out / run.folder / "summary.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return False
        constraints = run.config.objective.bias_constraints
        wanted = {
            "config_sha256": run.config.sha256(),
            "log_sha256": log_sha256(self.manifests),
            "constraint_logs_sha256": {
                other.name: log_sha256(read_manifests(Path(other.path)))
                for other in (constraints.logs if constraints is not None else ())
            },
        }
        return (
            summary.get("learning_failure") is None and {name: summary.get(name) for name in wanted} == wanted
        )

    def is_looped(self, loop: PlannedLoop) -> bool:
        """Whether a run has served its days."""
        return self.is_done(loop.run) and loop.is_done(self.out, log_sha256(self.manifests))

    def has_sidecar(self, name: str) -> bool:
        """Whether a sidecar has every interval of the log."""
        folder = sidecar_folder(self.log, name)
        return all((folder / f"{manifest.name}.json").is_file() for manifest in self.manifests)


def replay(
    experiment: Path,
    log: Path,
    out: Path,
    command: str,
    workers: int | None = None,
    beam_options: str = "",
    timing: bool = True,
    tell: Told | None = None,
) -> dict[str, str]:
    """Makes all runs of an experiment that are not there yet, and OUT/plan.json and OUT/costs.json.

    Args:
        experiment: the YAML file.
        log: to train on.
        out: the folder of the experiment.
        command: by which all of it is repeated, for plan.json.
        workers: how many runs are trained side by side; None: one for each processor.
        beam_options: of another Beam runner, whose workers see the log and ``out`` under the same paths.
        timing: whether steps are timed, after all runs; otherwise only operations are counted.
        tell: called with a line for each run that ends.

    Returns:
        What failed, by name, with one line each; the others were made.

    Raises:
        InputError: a wrong experiment or log, or another process is at work in ``out``. Nothing was run.
    """
    config, content = read_experiment(experiment)
    manifests = read_manifests(log)
    if not sum(manifest.rows for manifest in manifests):
        raise InputError(f"{log}: the log has no rows")
    if workers is not None and workers < 1:
        raise InputError(f"--workers {workers}: at least 1 is required")
    plan = make_plan(config, content, log, f"experiment {experiment}")
    place = _Place(log.resolve(), manifests, out.resolve())
    check_experiment_folder(place.out)
    make_folder(place.out)
    with only_process(place.out):
        told = {"title": config.title, "note": config.note, "log": str(place.log)}
        told |= {"log_sha256": log_sha256(manifests), "command": command, "created": _created(place.out)}
        write_json(place.out / "plan.json", {**told, "ctr_version": __version__, **plan.as_dict()})
        failures = _run_all(plan, place, workers, beam_options, tell)
        for name, error in write_costs(place.out, place.log, plan, timing).items():
            failures[f"costs of {name}"] = error
    return failures


def _created(out: Path) -> str:
    """When the experiment was begun."""
    try:
        created = json.loads((out / "plan.json").read_bytes()).get("created")
    except (FileNotFoundError, ValueError):
        created = None
    return created or datetime.now(UTC).isoformat(timespec="seconds")


def _run_all(
    plan: Plan, place: _Place, workers: int | None, beam_options: str, tell: Told | None
) -> dict[str, str]:
    runs = [run for arm in plan.arms for run in arm.runs]
    # The first seeds of all arms before the next ones.
    runs.sort(key=lambda run: [other.seed for other in plan.arms[0].runs].index(run.seed))
    teachers = {name: run for name, run in plan.teachers.items() if not place.is_done(run)}
    samplings = {name: one for name, one in plan.samplings.items() if not place.has_sidecar(one.sidecar)}
    loops = [loop for run in runs if (loop := loop_of(run)) is not None and not place.is_looped(loop)]
    for loop in loops:
        _make_ready(place, loop)
    waiting = [run for run in runs if not place.is_done(run)]
    serving = {loop.run.name for loop in loops}
    for run in [*runs, *plan.teachers.values()]:
        if place.is_done(run) and run.name not in serving:
            _clean_up(place, run)
    made = [run.failure for name, run in plan.teachers.items() if name not in teachers]
    made += [one.failure for name, one in plan.samplings.items() if name not in samplings]
    for failure in made:
        # It may have failed here before another experiment made it.
        (place.out / failure).unlink(missing_ok=True)
    total = len(teachers) + len(samplings) + len(waiting) + len(loops)
    stages = _Stages(place, workers, beam_options, tell, total)
    for teacher in teachers.values():
        stages.add(teacher)
    stages.run()
    for sampling in samplings.values():
        needed = plan.teachers[sampling.teacher] if sampling.teacher is not None else None
        stages.add(sampling, [needed])
    stages.run()
    by_name = {arm.name: arm for arm in plan.arms}
    for run in waiting:
        arm = by_name[run.owner]
        stages.add(
            run,
            [
                plan.teachers[arm.teacher] if arm.teacher is not None else None,
                plan.samplings[arm.sampling] if arm.sampling is not None else None,
            ],
        )
    stages.run()
    for loop in loops:
        stages.add(loop, [loop.run])
    stages.run()
    shutil.rmtree(place.out / "outcomes", ignore_errors=True)
    return stages.failures


class _Stages:
    """Runs what is added, all of it at once; what needs something that failed fails with it.

    Attributes:
        failures: one line for each name.
    """

    def __init__(
        self, place: _Place, workers: int | None, beam_options: str, tell: Told | None, total: int
    ) -> None:
        self._place = place
        # Workers elsewhere have processors of their own.
        cores = len(os.sched_getaffinity(0))
        self._workers = workers or cores
        here = workers is not None or not beam_options
        self._threads = str(max(1, cores // self._workers)) if here else None
        self._beam_options = beam_options
        self._say = tell
        self._total = total
        self._ended = 0
        self._begun = time.perf_counter()
        self._added: dict[str, _Planned] = {}
        self.failures: dict[str, str] = {}

    def add(
        self,
        one: _Planned,
        needed: Sequence[_Planned | None] = (),
    ) -> None:
        """Puts a run, a sampling or a loop into the next stage, unless something that it needs has failed."""
        for other in needed:
            if other is not None and _shown(other) in self.failures:
                self._fail(one, f"not run, because {_shown(other)} failed")
                self._tell(one, f"failed: {self.failures[_shown(one)]}")
                return
        self._added[one.name] = one

    def run(self) -> None:
        """Runs what was added."""
        added, self._added = self._added, {}
        if not added:
            return
        with quiet_beam(logging.WARNING), safe_workers():
            from ctr.experiments.jobs import run_jobs

            jobs = [self._job(one) for one in added.values()]
            outcomes = run_jobs(
                jobs,
                self._workers,
                self._beam_options,
                lambda job, outcome: self._end(added[job.name], outcome),
            )
        for name, one in added.items():
            outcome = outcomes[name]
            if not outcome.ok:
                self._fail(one, outcome.error, outcome.end)
            elif not self._is_made(one):
                self._fail(one, "it succeeded, but its results are not in the directory of the experiment")
            else:
                (self._place.out / one.failure).unlink(missing_ok=True)
                if isinstance(one, PlannedLoop):
                    one.clean_up(self._place.out)
                run = one.run if isinstance(one, PlannedLoop) else one
                if isinstance(run, PlannedRun) and (run is not one or loop_of(run) is None):
                    _clean_up(self._place, run)

    def _is_made(self, one: _Planned) -> bool:
        if isinstance(one, PlannedSampling):
            return True
        return self._place.is_looped(one) if isinstance(one, PlannedLoop) else self._place.is_done(one)

    def _job(self, one: _Planned) -> "Job":
        from ctr.experiments.jobs import Job

        out, log = self._place.out, str(self._place.log)
        if isinstance(one, PlannedLoop):
            arguments = one.arguments(out, self._place.log)
        else:
            config = out / "configs" / f"{one.name}.yaml"
            write_atomic_bytes(config, dump_yaml(one.config).encode())
            if isinstance(one, PlannedSampling):
                arguments = ["sample", log, "--name", one.sidecar, "--config", str(config)]
            else:
                arguments = ["train", log, "--config", str(config), "--out", str(out / one.folder)]
                arguments += ["--record", one.record] if one.record is not None else []
        outcome = str(out / "outcomes" / f"{one.name}.json")
        # A run that was begun goes on with as many as it had: others would change its bits, which it refuses.
        run = one.run if isinstance(one, PlannedLoop) else one
        threads = _threads_before(out / run.folder) if isinstance(run, PlannedRun) else None
        threads = threads or self._threads
        return Job(one.name, tuple(arguments), outcome, ((_THREADS, threads),) if threads else ())

    def _fail(self, one: _Planned, error: str, end: str = "") -> None:
        self.failures[_shown(one)] = error
        write_atomic_bytes(self._place.out / one.failure, f"{end or error}\n".encode())

    def _end(self, one: _Planned, outcome: "Outcome") -> None:
        if not outcome.ok:
            self._tell(one, f"failed: {outcome.error}")
            return
        result = ""
        if isinstance(one, PlannedRun):
            accuracy = _per_query_auc(self._place.out / one.folder)
            result = f"PerQueryAUC {'none' if accuracy is None else f'{accuracy:.4f}'}, "
        elif isinstance(one, PlannedLoop):
            result = f"{one.told(self._place.out)}, "
        self._tell(one, f"{result}{outcome.seconds:.0f} s")

    def _tell(self, one: _Planned, text: str) -> None:
        self._ended += 1
        left = (time.perf_counter() - self._begun) / self._ended * (self._total - self._ended)
        if self._say is not None:
            self._say(f"[{self._ended}/{self._total}, {left / 60:.0f} min left] {_shown(one)}: {text}")


def _shown(one: _Planned) -> str:
    if isinstance(one, PlannedSampling):
        return f"sampling {one.owner}"
    if isinstance(one, PlannedLoop):
        return f"{_shown(one.run)} loop"
    return f"{one.owner} seed {one.seed}"


def _per_query_auc(run: Path) -> float | None:
    try:
        accuracy: float | None = json.loads((run / "summary.json").read_bytes()).get("per_query_auc")
    except (FileNotFoundError, ValueError):
        return None
    return accuracy


def _threads_before(run: Path) -> str | None:
    try:
        environment = json.loads((run / "environment.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    threads: str | None = environment.get("variables", {}).get(_THREADS)
    return threads


def _make_ready(place: _Place, loop: PlannedLoop) -> None:
    """Puts away what keeps a loop from running: another loop in its folder, or the results of a run that cannot go on.

    Without its results a run is trained again, to the same bits, and not taken for finished before it is.
    """
    loop.discard_other(place.out, log_sha256(place.manifests))
    if loop.needs_checkpoint(place.out) and not (place.out / loop.folder).exists():
        (place.out / loop.run.folder / "summary.json").unlink(missing_ok=True)


def _clean_up(place: _Place, run: PlannedRun) -> None:
    # Nothing goes on from here, and most of a run's bytes are its tables.
    shutil.rmtree(place.out / run.folder / "checkpoints", ignore_errors=True)
