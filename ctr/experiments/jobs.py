"""Commands side by side, each in a process of its own: its memory is given back, and a crash ends it alone.

Here, threads take the commands in their order, and only wait for them. Beam's runner inside a process would
deal its elements out in advance: the order would be lost, and a worker with short commands would idle. On
another runner each command is an element of a pipeline, and its outcome a file beside the experiment, as
workers elsewhere share nothing else with who started them.
"""

import json
import logging
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ctr.io.errors import PASSING, exit_status, process_status
from ctr.io.files import make_folder, write_atomic_bytes
from ctr.io.signals import ending_by_sigterm
from ctr.pipelines.processes import quiet_beam, safe_environment

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

_LINES_KEPT = 30
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Job:
    """Command to run: the arguments of ``python -m MODULE``."""

    name: str  # in reports, unlike that of any other job
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()  # variables beside those of the worker
    module: str = "ctr"
    given: str = ""  # its standard input


class Failure(str):
    """Why a job failed, in one line, with the exit status that says what to do about it (``ctr.io.errors``)."""

    status: int

    def __new__(cls, text: str, status: int) -> Self:
        made = super().__new__(cls, text)
        made.status = status
        return made


@dataclass(frozen=True)
class Outcome:
    """End of a job."""

    ok: bool
    seconds: float
    error: str = ""  # one line; empty when it ended well
    end: str = ""  # the last lines of its errors
    found: str = ""  # its standard output, where it was given something; else nothing is kept of it
    status: int = PASSING  # where it failed: ``INPUT``, ``DEFECT`` or ``PASSING``

    @property
    def failure(self) -> Failure:
        return Failure(self.error, self.status)


Report = Callable[[Job, Outcome], None]  # called as each job ends, by one thread at a time


def run_jobs(jobs: Sequence[Job], workers: int, report: Report, beam_options: str, outcomes: Path) -> None:
    """Runs all jobs, in their order, and reports each as it ends.

    ``beam_options`` are of another runner, whose workers see the same files and whose number it has itself;
    ``outcomes`` is a folder of its own, for their files; what was in it is removed. Raises InputError for a
    wrong option before anything runs. After SIGINT or SIGTERM what was running has been ended, and is not
    reported.
    """
    elsewhere = None
    if beam_options:
        with quiet_beam(logging.WARNING):
            elsewhere = _options_elsewhere(beam_options)
    with ending_by_sigterm():
        if elsewhere is None:
            _run_here(jobs, workers, report)
        else:
            with quiet_beam(logging.WARNING):
                _run_elsewhere(jobs, elsewhere, report, outcomes)


def run_job(job: Job, interrupted: Callable[[], bool]) -> Outcome | None:
    """Runs a command; returns None where it was interrupted or never begun."""
    if interrupted():
        return None
    begun = time.perf_counter()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", job.module, *job.arguments],
            # No worker of the cluster that this process may belong to.
            env={**safe_environment(), "TF_CPP_MIN_LOG_LEVEL": "3", "TF_CONFIG": "", **dict(job.environment)},
            stdin=subprocess.PIPE if job.given else subprocess.DEVNULL,
            # A terminal's signals reach this process alone, which passes one on: a second one ends a training at once.
            start_new_session=True,
            stdout=subprocess.PIPE if job.given else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as fault:
        return Outcome(False, 0.0, f"its process cannot be started: {fault}", status=exit_status(fault))
    found, errors = _wait(process, job.given or None, interrupted)
    status = process.returncode
    if interrupted() or status in (130, 143, -signal.SIGINT):
        return None
    seconds = round(time.perf_counter() - begun, 1)
    if status == 0:
        return Outcome(True, seconds, found=found or "")
    lines = errors.splitlines(keepends=True)[-_LINES_KEPT:]
    texts = [line.strip() for line in lines if line.strip()]
    error = texts[-1].removeprefix("error: ") if texts else f"exit status {status} without a message"
    if status < 0:
        error = f"ended by signal {-status} ({signal.Signals(-status).name})"
    return Outcome(False, seconds, error, "".join(lines), status=process_status(status))


def _wait(
    process: "subprocess.Popen[str]", given: str | None, interrupted: Callable[[], bool]
) -> tuple[str | None, str]:
    """Returns the output and the errors of a process, which is ended with this one's work."""
    while not interrupted():
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(given, timeout=_POLL_SECONDS)
        given = None  # It may be given once.
    process.terminate()
    return process.communicate()


def _run_here(jobs: Sequence[Job], workers: int, report: Report) -> None:
    interrupted = threading.Event()
    with ThreadPoolExecutor(workers) as pool:
        try:
            running = {pool.submit(run_job, job, interrupted.is_set): job for job in jobs}
            for future in as_completed(running):
                report(running[future], future.result() or Outcome(False, 0.0, "it was interrupted"))
        except BaseException:
            # The pool then waits for the processes to end.
            interrupted.set()
            raise


def _options_elsewhere(beam_options: str) -> "PipelineOptions | None":
    """Options of another runner; None where they name none."""
    from ctr.pipelines.beam import read_beam_options, split_beam_options

    given = split_beam_options(beam_options)
    options = read_beam_options(given)
    return options if any(option.startswith("--runner") for option in given) else None


def _run_elsewhere(jobs: Sequence[Job], options: "PipelineOptions", report: Report, outcomes: Path) -> None:
    import apache_beam as beam

    from ctr.pipelines.beam import run_pipeline

    shutil.rmtree(outcomes, ignore_errors=True)
    make_folder(outcomes)
    files = {job: outcomes / f"{job.name}.json" for job in jobs}
    elements = [(job, str(file)) for job, file in files.items()]
    finished = threading.Event()
    lost = Outcome(False, 0.0, "its worker was lost")

    def build(pipeline: beam.Pipeline) -> None:
        # The jobs are single elements, which Reshuffle spreads over the workers.
        spread = pipeline | beam.Create(elements, reshuffle=False) | beam.Reshuffle()
        _ = spread | beam.MapTuple(_run_element)

    with ThreadPoolExecutor(2) as pool:
        reporting = pool.submit(_report_files, files, finished, report)
        try:
            # Not in this thread: what a signal raises there may be held up, or lost, in Beam.
            pool.submit(run_pipeline, options, build).result()
        except Exception as error:
            text = f"the pipeline failed: {' '.join(str(error).split())[:500]}"
            lost = Outcome(False, 0.0, text, text, status=exit_status(error))
        except BaseException:
            _interruption(outcomes).touch()
            raise
        finally:
            finished.set()
        for job in reporting.result():
            report(job, lost)


def _run_element(job: Job, file: str) -> None:
    outcome = run_job(job, _interruption(Path(file).parent).exists)
    if outcome is not None:
        write_atomic_bytes(Path(file), json.dumps(vars(outcome)).encode())


def _interruption(outcomes: Path) -> Path:
    """File whose presence tells workers wherever they are that the experiment was interrupted."""
    return outcomes / "interrupted"


def _report_files(files: dict[Job, Path], finished: threading.Event, report: Report) -> list[Job]:
    """Reports each job whose file appears, until the pipeline has finished; returns the others."""
    waiting, last_look = dict(files), False
    while waiting and not last_look:
        last_look = finished.wait(_POLL_SECONDS)
        for job, file in files.items():
            if job in waiting and file.exists():
                report(job, Outcome(**json.loads(waiting.pop(job).read_bytes())))
    return list(waiting)
