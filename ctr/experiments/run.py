"""Trains every arm of an experiment on one log, side by side, and measures what each costs (FF 3, figure 1).

Teachers first, then samplings, which may need a teacher's predictions, then arms. What is there already is not made
again, so the same command goes on after an interruption, tries what failed, and trains what was added to the file.
"""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ctr.data.log import read_manifests
from ctr.experiments.config import check_experiment_folder, read_experiment
from ctr.experiments.costs import write_costs
from ctr.experiments.jobs import Failure, Job, Outcome, run_jobs
from ctr.experiments.plan import PLAN_FILE
from ctr.experiments.planning import make_plan
from ctr.experiments.tasks import THREADS, Place, Task, Tasks
from ctr.io.errors import DEFECT, InputError
from ctr.io.files import make_folder, write_atomic_bytes
from ctr.training.run.directory import only_process, write_json

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How an experiment or a search is made, which changes nothing of its runs.

    Attributes:
        command: what repeats it.
        workers: how many runs are trained side by side; None: one for each processor.
        beam_options: options of another Beam runner, whose workers see the log and the output folder under the
            same paths.
        timing: whether steps are timed, after all runs; otherwise only operations are counted.
        progress: called with a line for each run that ends, and as a supernet goes on.
        costs: whether operations are counted, and steps timed.
    """

    command: str
    workers: int | None = None
    beam_options: str = ""
    timing: bool = True
    progress: Progress | None = None
    costs: bool = True


def run_experiment(
    experiment: Path, log: Path, out: Path, options: Options, settings: Sequence[str] = ()
) -> dict[str, Failure]:
    """Makes all runs of an experiment that are not there yet, and OUT/plan.json and OUT/costs.json.

    ``settings`` are changes of the file, ``key=value``. Returns failures by name, with one line each; the
    others were made. Raises InputError before anything is run: a wrong experiment or log, or another process
    is at work in ``out``.
    """
    config, content = read_experiment(experiment, settings)
    manifests = read_manifests(log)
    if not sum(manifest.rows for manifest in manifests):
        raise InputError(f"{log}: the log has no rows")
    if options.workers is not None and options.workers < 1:
        raise InputError(f"--workers {options.workers}: at least 1 is required")
    place = Place(log.resolve(), manifests, out.resolve())
    now = datetime.now(UTC).isoformat(timespec="seconds")
    created = str(place.read(PLAN_FILE).get("created") or now)
    plan, tasks = make_plan(config, content, log, f"experiment {experiment}", options.command, created)
    check_experiment_folder(place.out)
    make_folder(place.out)
    with only_process(place.out):
        write_json(place.out / PLAN_FILE, plan.as_json())
        failures = _Runner(place, options).run(tasks)
        if options.costs:
            more = write_costs(place, tasks, options.timing)
            failures |= {f"costs of {name}": failure for name, failure in more.items()}
    return failures


class _Runner:
    """Runs the tasks of an experiment that are not made yet."""

    def __init__(self, place: Place, options: Options) -> None:
        self._place, self._options = place, options
        # Workers elsewhere have processors of their own.
        cores = len(os.sched_getaffinity(0))
        self._workers = options.workers or cores
        here = options.workers is not None or not options.beam_options
        self._threads = str(max(1, cores // self._workers)) if here else None
        self._total = self._ended = 0
        self._begun = time.perf_counter()
        self._failures: dict[str, Failure] = {}

    def run(self, tasks: Tasks) -> dict[str, Failure]:
        """Runs stage after stage; returns one line for each task that failed, by its label."""
        unmade = [[task for task in stage if not self._is_finished(task)] for stage in tasks.stages()]
        self._total = sum(map(len, unmade))
        for stage in unmade:
            self._run_stage(stage)
        return self._failures

    def _is_finished(self, task: Task) -> bool:
        if not task.is_made(self._place):
            return False
        # It may have failed here before, or before another experiment made it.
        (self._place.out / task.failure).unlink(missing_ok=True)
        task.clean_up(self._place)
        return True

    def _run_stage(self, stage: Sequence[Task]) -> None:
        ready: dict[str, Task] = {}
        for task in stage:
            failed = next((other.label for other in task.needs if other.label in self._failures), None)
            if failed is None:
                ready[task.label] = task
            else:
                status = self._failures[failed].status
                self._fail(task, Failure(f"not run, because {failed} failed", status))
        if ready:
            outcomes = self._place.out / "outcomes"
            jobs = [self._job(task) for task in ready.values()]
            run_jobs(
                jobs,
                self._workers,
                lambda job, outcome: self._end(ready[job.name], outcome),
                self._options.beam_options,
                outcomes,
            )
            shutil.rmtree(outcomes, ignore_errors=True)

    def _job(self, task: Task) -> Job:
        threads = task.threads(self._place) or self._threads
        return Job(task.label, tuple(task.command(self._place)), ((THREADS, threads),) if threads else ())

    def _end(self, task: Task, outcome: Outcome) -> None:
        if not outcome.ok:
            self._fail(task, outcome.failure, outcome.end)
        elif not self._is_finished(task):
            self._fail(task, Failure(f"it succeeded, but {task.what_lacks(self._place)}", DEFECT))
        else:
            seconds = f"{outcome.seconds:.0f} s"
            self._report(task, ", ".join(filter(None, (task.result_text(self._place), seconds))))

    def _fail(self, task: Task, error: Failure, end: str = "") -> None:
        self._failures[task.label] = error
        write_atomic_bytes(self._place.out / task.failure, f"{end or error}\n".encode())
        self._report(task, f"failed: {error}")

    def _report(self, task: Task, text: str) -> None:
        self._ended += 1
        left = (time.perf_counter() - self._begun) / self._ended * (self._total - self._ended)
        if self._options.progress is not None:
            of_all = f"[{self._ended}/{self._total}, {left / 60:.0f} min left]"
            self._options.progress(f"{of_all} {task.label}: {text}")
