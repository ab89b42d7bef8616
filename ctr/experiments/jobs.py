"""Runs commands side by side, each in a separate process: its end frees its memory, and a crash affects no other.

With another Beam runner each command is an element of a pipeline, and its outcome a file beside the experiment, because
workers on other machines share nothing else with the process that started them.
"""

import json
import logging
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ctr.io.errors import PASSING, exit_status, process_status
from ctr.io.files import make_folder, write_atomic_bytes
from ctr.io.signals import ending_by_sigterm
from ctr.pipelines.processes import quiet_beam, safe_environment

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

_LINES_KEPT = 30
_POLL_SECONDS = 0.1
_INTERRUPTED = "interrupted"  # among the outcomes: the file by which workers elsewhere learn of a signal


@dataclass(frozen=True)
class Job:
    """Command to run: the arguments of ``python -m MODULE``."""

    name: str  # in reports, unique among the jobs
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()  # variables added to the worker's
    module: str = "ctr"


@dataclass(frozen=True)
class Outcome:
    """Duration of a job, and why it failed, if it did."""

    seconds: float
    error: str = ""  # one line; empty if it succeeded
    end: str = ""  # the last lines of its errors
    status: int = PASSING  # if it failed: ``INPUT``, ``DEFECT`` or ``PASSING`` (``ctr.io.errors``)


Report = Callable[[Job, Outcome | None], None]  # called as each job begins, with None, and as it ends


def run_jobs(jobs: Sequence[Job], workers: int, report: Report, beam_options: str, outcomes: Path) -> None:
    """Runs all jobs, in their order, and reports the start and the end of each.

    ``beam_options`` may name another runner, which decides its number of workers; they must see the same files.
    ``outcomes`` is a folder for their outcomes alone; its content is removed. Raises InputError for an invalid
    option before any job runs. SIGINT or SIGTERM ends running jobs, which are not reported.
    """
    if not beam_options:
        with ending_by_sigterm():
            run_here(jobs, workers, report)
        return
    with quiet_beam(logging.WARNING):
        from ctr.pipelines.beam import read_beam_options, split_beam_options

        texts = split_beam_options(beam_options)
        options = read_beam_options(texts)
        with ending_by_sigterm():
            if any(text.startswith("--runner") for text in texts):
                _run_elsewhere(jobs, options, report, outcomes)
            else:
                run_here(jobs, workers, report)


def run_here(
    jobs: Sequence[Job], workers: int, report: Report, interrupted: Callable[[], bool] = lambda: False
) -> None:
    """Runs commands as child processes; an interrupt ends the running ones, which are not reported."""
    waiting, running = list(jobs), dict[Job, tuple[subprocess.Popen[bytes], IO[bytes], float]]()
    try:
        while (waiting or running) and not interrupted():
            while waiting and len(running) < workers:
                job = waiting.pop(0)
                report(job, None)
                errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed once it was read
                try:
                    running[job] = _start(job, errors), errors, time.perf_counter()
                except OSError as fault:
                    text = f"its process cannot be started: {fault}"
                    report(job, Outcome(0.0, text, status=exit_status(fault)))
            for job, (process, errors, begun) in [*running.items()]:
                if (status := process.poll()) is not None:
                    del running[job]
                    with errors:
                        errors.seek(0)
                        text = errors.read().decode(errors="replace")
                    report(job, _outcome(round(time.perf_counter() - begun, 1), status, text))
            time.sleep(_POLL_SECONDS)
    finally:
        for process, _, _ in running.values():
            process.terminate()
        for process, _, _ in running.values():
            process.wait()


def _start(job: Job, errors: IO[bytes]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", job.module, *job.arguments],
        # No worker of the cluster that this process may belong to.
        env={**safe_environment(), "TF_CPP_MIN_LOG_LEVEL": "3", "TF_CONFIG": "", **dict(job.environment)},
        stdin=subprocess.DEVNULL,
        # A terminal's signals reach this process alone, which passes one on: a second one ends a training at once.
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=errors,
    )


def _outcome(seconds: float, status: int, errors: str) -> Outcome:
    lines = errors.splitlines(keepends=True)[-_LINES_KEPT:]
    texts = [line.strip() for line in lines if line.strip()]
    error = texts[-1].removeprefix("error: ") if texts else f"exit status {status} without a message"
    if status in (0, 130, 143, -signal.SIGINT):
        return Outcome(seconds, "it was interrupted" if status else "")
    if status < 0:
        error = f"ended by signal {-status} ({signal.Signals(-status).name})"
    return Outcome(seconds, error, "".join(lines), process_status(status))


def _run_elsewhere(jobs: Sequence[Job], options: "PipelineOptions", report: Report, outcomes: Path) -> None:
    import apache_beam as beam

    from ctr.pipelines.beam import run_pipeline

    shutil.rmtree(outcomes, ignore_errors=True)
    make_folder(outcomes)

    def build(pipeline: beam.Pipeline) -> None:
        # The jobs are single elements, which Reshuffle spreads over the workers.
        spread = pipeline | beam.Create([(job, str(outcomes)) for job in jobs], reshuffle=False)
        _ = spread | beam.Reshuffle() | beam.MapTuple(_run_element)

    begun, waiting = set[Job](), list(jobs)
    with ThreadPoolExecutor(1) as pool:
        # Not in this thread: Beam may delay or lose an exception raised by a signal.
        pipeline = pool.submit(run_pipeline, options, build)
        try:
            while waiting:
                is_last_look = pipeline.done()
                for job in [*waiting]:
                    if job not in begun and (outcomes / f"{job.name}.begun").exists():
                        begun.add(job)
                        report(job, None)
                    if (file := outcomes / f"{job.name}.json").exists():
                        waiting.remove(job)
                        report(job, Outcome(**json.loads(file.read_bytes())))
                if is_last_look:
                    break
                time.sleep(_POLL_SECONDS)
        except BaseException:
            (outcomes / _INTERRUPTED).touch()
            raise
    lost = Outcome(0.0, "its worker was lost")
    if (error := pipeline.exception()) is not None:
        text = f"the pipeline failed: {' '.join(str(error).split())[:500]}"
        lost = Outcome(0.0, text, text, exit_status(error))
    for job in waiting:
        report(job, lost)


def _run_element(job: Job, outcomes: str) -> None:
    folder = Path(outcomes)

    def report(job: Job, outcome: Outcome | None) -> None:
        name = f"{job.name}.begun" if outcome is None else f"{job.name}.json"
        write_atomic_bytes(folder / name, json.dumps(vars(outcome) if outcome else {}).encode())

    run_here([job], 1, report, (folder / _INTERRUPTED).exists)
