"""Trains every arm of an experiment on one log, side by side, and measures what each costs (FF 3, figure 1).

Teachers first, then samplings, which may need a teacher's predictions, then arms, then the loops in which their runs
serve. What is there already is not made again, so the same command goes on after an interruption, tries what failed,
and trains what was added to the file.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ctr.data.log import log_sha256, read_manifests
from ctr.experiments.config import BASELINE, check_experiment_folder, read_experiment
from ctr.experiments.jobs import Job, Outcome, run_jobs
from ctr.experiments.plan import PLAN_FILE
from ctr.experiments.planning import make_plan
from ctr.experiments.tasks import THREADS, Place, Task, Tasks, read_object
from ctr.io.errors import InputError
from ctr.io.files import make_folder, write_atomic_bytes
from ctr.pipelines.processes import safe_environment
from ctr.training.config import TrainConfig
from ctr.training.run.directory import only_process, write_json

Progress = Callable[[str], None]
ROUNDS = 6
_ARMS_AT_ONCE = 8  # arms beside the baseline in one process, in whose memory all their tables are


def run_experiment(
    experiment: Path,
    log: Path,
    out: Path,
    command: str,
    workers: int | None = None,
    beam_options: str = "",
    timing: bool = True,
    progress: Progress | None = None,
    costs: bool = True,
    settings: Sequence[str] = (),
) -> dict[str, str]:
    """Makes all runs of an experiment that are not there yet, and OUT/plan.json and OUT/costs.json.

    Args:
        workers: how many runs are trained side by side; None: one for each processor.
        beam_options: options of another Beam runner, whose workers see the log and ``out`` under the same
            paths.
        timing: whether steps are timed, after all runs; otherwise only operations are counted.
        progress: called with a line for each run that ends.
        settings: changes of the file, ``key=value``.

    Returns failures by name, with one line each; the others were made. Raises InputError before anything is run:
    a wrong experiment or log, or another process is at work in ``out``.
    """
    config, content = read_experiment(experiment, settings)
    manifests = read_manifests(log)
    if not sum(manifest.rows for manifest in manifests):
        raise InputError(f"{log}: the log has no rows")
    if workers is not None and workers < 1:
        raise InputError(f"--workers {workers}: at least 1 is required")
    place = Place(log.resolve(), manifests, out.resolve())
    now = datetime.now(UTC).isoformat(timespec="seconds")
    created = str(read_object(place.out / PLAN_FILE).get("created") or now)
    plan, tasks = make_plan(config, content, log, f"experiment {experiment}", command, created)
    check_experiment_folder(place.out)
    make_folder(place.out)
    with only_process(place.out):
        write_json(place.out / PLAN_FILE, plan.as_json())
        failures = _Runner(place, workers, beam_options, progress).run(tasks)
        measured = write_costs(place.out, place.log, tasks, timing) if costs else {}
        for name, error in measured.items():
            failures[f"costs of {name}"] = error
    return failures


class _Runner:
    """Runs the tasks of an experiment that are not made yet; ``workers`` is None: one for each processor."""

    def __init__(
        self, place: Place, workers: int | None, beam_options: str, progress: Progress | None
    ) -> None:
        self._place = place
        # Workers elsewhere have processors of their own.
        cores = len(os.sched_getaffinity(0))
        self._workers = workers or cores
        here = workers is not None or not beam_options
        self._threads = str(max(1, cores // self._workers)) if here else None
        self._beam_options = beam_options
        self._progress = progress
        self._total = 0
        self._ended = 0
        self._begun = time.perf_counter()
        self._failures: dict[str, str] = {}

    def run(self, tasks: Tasks) -> dict[str, str]:
        """Runs stage after stage; returns one line for each task that failed, by its label."""
        for loop in tasks.loops():
            if not loop.is_made(self._place):
                loop.make_ready(self._place)
        stages: list[list[Task]] = []
        for stage in tasks.stages():
            stages.append([])
            for task in stage:
                if task.is_made(self._place):
                    self._finish(task)
                else:
                    stages[-1].append(task)
        self._total = sum(map(len, stages))
        for unmade in stages:
            self._run_stage(unmade)
        return self._failures

    def _run_stage(self, stage: Sequence[Task]) -> None:
        ready: dict[str, Task] = {}
        for task in stage:
            failed = next((other.label for other in task.needs if other.label in self._failures), None)
            if failed is None:
                ready[task.label] = task
            else:
                self._fail(task, f"not run, because {failed} failed")
        if ready:
            outcomes = self._place.out / "outcomes"
            jobs = [self._job(task) for task in ready.values()]
            run_jobs(
                jobs,
                self._workers,
                lambda job, end: self._end(ready[job.name], end),
                self._beam_options,
                outcomes,
            )
            shutil.rmtree(outcomes, ignore_errors=True)

    def _job(self, task: Task) -> Job:
        threads = task.threads(self._place) or self._threads
        return Job(task.label, tuple(task.command(self._place)), ((THREADS, threads),) if threads else ())

    def _end(self, task: Task, outcome: Outcome) -> None:
        if not outcome.ok:
            self._fail(task, outcome.error, outcome.end)
        elif not task.is_made(self._place):
            self._fail(task, f"it succeeded, but {task.what_lacks(self._place)}")
        else:
            seconds = f"{outcome.seconds:.0f} s"
            self._report(task, ", ".join(filter(None, (task.result_text(self._place), seconds))))
            self._finish(task)

    def _finish(self, task: Task) -> None:
        # It may have failed here before, or before another experiment made it.
        (self._place.out / task.failure).unlink(missing_ok=True)
        task.clean_up(self._place)

    def _fail(self, task: Task, error: str, end: str = "") -> None:
        self._failures[task.label] = error
        write_atomic_bytes(self._place.out / task.failure, f"{end or error}\n".encode())
        self._report(task, f"failed: {error}")

    def _report(self, task: Task, text: str) -> None:
        self._ended += 1
        left = (time.perf_counter() - self._begun) / self._ended * (self._total - self._ended)
        if self._progress is not None:
            self._progress(f"[{self._ended}/{self._total}, {left / 60:.0f} min left] {task.label}: {text}")


class _MeasureError(RuntimeError):
    """The process that measures failed; one line."""


def write_costs(out: Path, log: Path, tasks: Tasks, timing: bool) -> dict[str, str]:
    """Writes OUT/costs.json: costs of each arm of which a run is finished, for the axis of FF's figure 1.

       arms          for each arm what ``ctr.experiments.measure`` found, and ``learned_share``: the rows that its first
                     finished run learned from over all rows of the log
       teacher_flops operations of each teacher for an example that it learns from
       rounds        of turns that were timed; 0: none
       log_sha256, configs   of what was measured; measured again only when that changes

    ``step_ratio`` relates batches; where arms differ in ``batch_rows``, a row's ratio is that times the
    ratio of these. Counts operations alone unless ``timing``. Returns why arms were not measured, by group
    of names.
    """
    summaries = {
        name: next(filter(None, (read_object(out / run.folder / "summary.json") for run in runs)), {})
        for name, runs in tasks.arms.items()
    }
    # All others are related to the baseline, which therefore is measured even where its runs failed.
    configs = {
        name: runs[0].config for name, runs in tasks.arms.items() if name == BASELINE or summaries[name]
    }
    teachers = {f"teacher {name}": run.config for name, run in tasks.teachers.items()}
    measured = {
        "log_sha256": log_sha256(read_manifests(log)),
        "configs": {name: config.sha256() for name, config in {**configs, **teachers}.items()},
    }
    costs = read_object(out / "costs.json")
    failures: dict[str, str] = {}
    if {key: costs.get(key) for key in measured} != measured or (timing and not costs.get("rounds")):
        rounds = ROUNDS if timing else 0
        found, failures = _measure_all(log, configs, rounds)
        of_teachers, more = _measure_all(log, teachers, 0) if teachers else ({}, {})
        failures |= more
        arms = {name: found[name] for name in configs if name in found}
        flops = {name.removeprefix("teacher "): cost["train_flops"] for name, cost in of_teachers.items()}
        costs = {"arms": arms, "rounds": rounds, "teacher_flops": flops}
        # What failed is tried again.
        costs |= {**measured, "configs": {} if failures else measured["configs"]}
    for name, cost in costs["arms"].items():
        summary = summaries.get(name) or {}
        rows = summary.get("log_rows")
        cost["learned_share"] = summary["trained_rows"] / rows if rows else None
    write_atomic_bytes(out / "costs.json", (json.dumps(costs, indent=1) + "\n").encode())
    return failures


def _measure_all(
    log: Path, configs: Mapping[str, TrainConfig], rounds: int
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    base = BASELINE if BASELINE in configs else next(iter(configs))
    arms = [name for name in configs if name != base]
    found: dict[str, dict[str, Any]] = {}
    failures: dict[str, str] = {}
    for begin in range(0, max(1, len(arms)), _ARMS_AT_ONCE):
        group = [base, *arms[begin : begin + _ARMS_AT_ONCE]]
        try:
            costs = _measure(log, {name: configs[name] for name in group}, base, rounds)
        except _MeasureError as error:
            failures[", ".join(group)] = str(error)
            continue
        # Only ratios, of the same rounds, compare arms: milliseconds are the first group's baseline times them.
        for kind in ("step", "inference") if rounds else ():
            first = (found or costs)[base][f"{kind}_ms"]
            for cost in costs.values():
                cost[f"{kind}_ms"] = first * cost[f"{kind}_ratio"][1]
        found = {**costs, **found}
    return found, failures


def _measure(
    log: Path, configs: Mapping[str, TrainConfig], base: str, rounds: int
) -> dict[str, dict[str, Any]]:
    wanted = {
        "log": str(log),
        "configs": {name: config.model_dump(mode="json") for name, config in configs.items()},
        "base": base,
        "rounds": rounds,
    }
    environment = {**safe_environment(), "TF_CPP_MIN_LOG_LEVEL": "3"}
    ended = subprocess.run(
        [sys.executable, "-m", "ctr.experiments.measure"],
        input=json.dumps(wanted),
        capture_output=True,
        text=True,
        errors="replace",
        env=environment,
        check=False,
    )
    if ended.returncode:
        errors = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode} without a message"]
        raise _MeasureError(errors[-1].strip().removeprefix("error: "))
    result: dict[str, dict[str, Any]] = json.loads(ended.stdout)
    return result
