"""Trains every arm of an experiment on one log, in parallel, and measures the costs of each (FF 3, figure 1).

Teachers first, then samplings, which may need a teacher's predictions, then arms. Existing results are not computed
again, so the same command continues after an interruption, retries failures, and trains arms added to the file.
"""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from ctr.data.log import read_manifests
from ctr.experiments.calls import THREADS, Call, Folders
from ctr.experiments.config import check_experiment_folder, read_experiment
from ctr.experiments.costs import write_costs
from ctr.experiments.jobs import Job, Outcome, run_jobs
from ctr.experiments.plan import PLAN_FILE
from ctr.experiments.planning import Calls, make_plan
from ctr.io.errors import DEFECT, InputError
from ctr.io.files import make_folder, write_atomic_bytes
from ctr.training.run.directory import only_process, write_json

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """Execution options of an experiment or a search, which do not change its runs.

    Attributes:
        command: the command that repeats it.
        workers: how many runs are trained in parallel; None: one for each processor.
        beam_options: options of another Beam runner, whose workers see the log and the output folder under the
            same paths.
        timing: whether steps are timed, after all runs; otherwise only operations are counted.
        progress: called with a line for each run that begins, ends or fails, and with the progress of a supernet.
    """

    command: str
    workers: int | None = None
    beam_options: str = ""
    timing: bool = True
    progress: Progress | None = None


def run_experiment(
    experiment: Path, log: Path, out: Path, options: Options, settings: Sequence[str] = ()
) -> dict[str, Outcome]:
    """Trains all missing runs of an experiment, and writes OUT/plan.json and OUT/costs.json.

    ``settings`` are changes of the file, ``key=value``. Returns failures by name, with one line each; all
    others succeeded. Raises InputError before anything is run if the experiment or log is invalid, or another process
    is at work in ``out``.
    """
    config, content = read_experiment(experiment, settings)
    manifests = read_manifests(log)
    if not sum(manifest.rows for manifest in manifests):
        raise InputError(f"{log}: the log has no rows")
    if options.workers is not None and options.workers < 1:
        raise InputError(f"--workers {options.workers}: at least 1 is required")
    folders = Folders(log.resolve(), manifests, out.resolve())
    now = datetime.now(UTC).isoformat(timespec="seconds")
    created = str(folders.read(PLAN_FILE).get("created") or now)
    plan, calls = make_plan(config, content, log, f"experiment {experiment}", options.command, created)
    check_experiment_folder(folders.out)
    make_folder(folders.out)
    with only_process(folders.out):
        write_json(folders.out / PLAN_FILE, plan.as_json())
        failures = _Runner(folders, options).run(calls)
        more = write_costs(folders, calls, options.timing)
    return failures | {f"costs of {name}": failure for name, failure in more.items()}


class _Runner:
    """Runs the calls of an experiment that have no complete results yet."""

    def __init__(self, folders: Folders, options: Options) -> None:
        self._folders, self._options = folders, options
        # Workers on other machines use the processors there.
        cores = len(os.sched_getaffinity(0))
        self._workers = options.workers or cores
        here = options.workers is not None or not options.beam_options
        self._threads = str(max(1, cores // self._workers)) if here else None
        self._total = self._ended = 0
        self._begun = time.perf_counter()
        self._failures: dict[str, Outcome] = {}

    def run(self, calls: Calls) -> dict[str, Outcome]:
        """Runs stage after stage; returns one line for each call that failed, by its label."""
        left = [[call for call in stage if not self._is_finished(call)] for stage in calls.stages()]
        self._total = sum(map(len, left))
        for stage in left:
            ready: dict[str, Call] = {}
            for call in stage:
                failed = next((other.label for other in call.needs if other.label in self._failures), None)
                if failed is None:
                    ready[call.label] = call
                else:
                    reason = f"not run, because {failed} failed"
                    self._fail(call, replace(self._failures[failed], error=reason, end=""))
            if ready:
                self._run_side_by_side(ready)
        return self._failures

    def _is_finished(self, call: Call) -> bool:
        if call.what_lacks(self._folders):
            return False
        # An earlier attempt may have failed, before a retry or another experiment succeeded.
        (self._folders.out / call.failure).unlink(missing_ok=True)
        call.remove_checkpoints(self._folders)
        return True

    def _run_side_by_side(self, calls: dict[str, Call]) -> None:
        jobs = []
        for label, call in calls.items():
            threads = call.threads(self._folders) or self._threads
            environment = ((THREADS, threads),) if threads else ()
            jobs.append(Job(label, tuple(call.command(self._folders)), environment))
        outcomes = self._folders.out / "outcomes"

        def report(job: Job, outcome: Outcome | None) -> None:
            if outcome is None:
                self._say(f"{job.name}: begun")
            else:
                self._end(calls[job.name], outcome)

        run_jobs(jobs, self._workers, report, self._options.beam_options, outcomes)
        shutil.rmtree(outcomes, ignore_errors=True)

    def _end(self, call: Call, outcome: Outcome) -> None:
        if outcome.error:
            self._fail(call, outcome)
        elif not self._is_finished(call):
            lacking = f"it succeeded, but {call.what_lacks(self._folders)}"
            self._fail(call, replace(outcome, error=lacking, end="", status=DEFECT))
        else:
            self._ended += 1
            accuracy = self._folders.read(call.folder, "summary.json").get("per_query_auc")
            result = "" if accuracy is None else f"PerQueryAUC {accuracy:.4f}, "
            self._say(f"{call.label}: {result}{outcome.seconds:.0f} s")

    def _fail(self, call: Call, outcome: Outcome) -> None:
        self._failures[call.label] = outcome
        write_atomic_bytes(self._folders.out / call.failure, f"{outcome.end or outcome.error}\n".encode())
        self._ended += 1
        self._say(f"{call.label}: failed: {outcome.error}")

    def _say(self, text: str) -> None:
        seconds = time.perf_counter() - self._begun
        left = (
            f", {seconds / self._ended * (self._total - self._ended) / 60:.0f} min left"
            if self._ended
            else ""
        )
        if self._options.progress is not None:
            self._options.progress(f"[{self._ended}/{self._total}{left}] {text}")
