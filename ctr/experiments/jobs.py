"""Commands as elements of a Beam pipeline, so many side by side as there are workers.

Each element is one command in a process of its own: its memory is given back, and when it crashes the others go on.
What came of it is a file beside the experiment, as workers elsewhere share nothing else with who started them.
"""

import contextlib
import heapq
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from ctr.io.files import write_atomic_bytes
from ctr.pipelines.beam import in_this_process, read_beam_options, split_beam_options
from ctr.pipelines.processes import safe_environment

_LINES_KEPT = 30
_POLL_SECONDS = 0.2

_BUNDLES = 32
"""Of elements, at least, where there are as many: a bundle's elements are run one after another."""

_stopped = threading.Event()
"""Set where a run is interrupted: threads of workers here begin nothing more."""


class _Slots:
    """How many jobs may run at once in this process.

    Beam deals elements out to its workers in advance, and a worker with short jobs would end early. So there are more
    workers than slots, and who has a job waits for one.
    """

    def __init__(self, free: int) -> None:
        self._free = free
        self._waiting: list[int] = []
        self._opens: float | None = None
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def one(self, place: int) -> Iterator[None]:
        with self._changed:
            heapq.heappush(self._waiting, place)
            if self._opens is None:
                # The first one there is seldom the first in order.
                self._opens = time.monotonic() + 2 * _POLL_SECONDS
            while not _stopped.is_set() and not self._is_next(place):
                self._changed.wait(_POLL_SECONDS)
            self._waiting.remove(place)
            heapq.heapify(self._waiting)
            self._free -= 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()

    def _is_next(self, place: int) -> bool:
        opened = self._opens is not None and time.monotonic() >= self._opens
        return opened and self._free > 0 and self._waiting[0] == place


_slots: _Slots | None = None
"""None in workers elsewhere, of whose number their runner decides."""


@dataclass(frozen=True)
class Job:
    """A command to run.

    Attributes:
        name: by which it is reported; each job's own.
        arguments: of ``python -m ctr``.
        outcome: the file, absolute, that will say what came of it.
        environment: variables of the process beside those of the worker.
        place: among those that wait for a worker here, the lowest goes first; ``run_jobs`` sets it.
    """

    name: str
    arguments: tuple[str, ...]
    outcome: str
    environment: tuple[tuple[str, str], ...] = ()
    place: int = 0


@dataclass(frozen=True)
class Outcome:
    """What came of a job.

    Attributes:
        ok: whether it ended well.
        seconds: that it took.
        error: one line; empty when it ended well.
        end: the last lines of its errors.
    """

    ok: bool
    seconds: float
    error: str = ""
    end: str = ""


def run_job(job: Job) -> Outcome | None:
    """Runs a command and writes its outcome; None, and no file, where it was interrupted or never begun."""
    if _stopped.is_set():
        return None
    begun = time.perf_counter()
    environment = {**safe_environment(), "TF_CPP_MIN_LOG_LEVEL": "3", **dict(job.environment)}
    with subprocess.Popen(
        [sys.executable, "-m", "ctr", *job.arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        lines: list[str] = []
        assert process.stderr is not None
        watch = threading.Thread(target=_end_with_us, args=(process,), daemon=True)
        watch.start()
        for line in process.stderr:
            lines = [*lines[1 - _LINES_KEPT :], line]
        status = process.wait()
    if _stopped.is_set() or status in (130, -signal.SIGINT):
        return None
    outcome = Outcome(status == 0, round(time.perf_counter() - begun, 1))
    if status:
        told = [line.strip() for line in lines if line.strip()]
        error = told[-1].removeprefix("error: ") if told else f"exit status {status} without a message"
        if status < 0:
            error = f"ended by signal {-status} ({signal.Signals(-status).name})"
        outcome = Outcome(False, outcome.seconds, error, "".join(lines))
    write_atomic_bytes(Path(job.outcome), json.dumps(vars(outcome)).encode())
    return outcome


def _run_in_turn(job: Job) -> None:
    with _slots.one(job.place) if _slots is not None else contextlib.nullcontext():
        run_job(job)


def _end_with_us(process: "subprocess.Popen[str]") -> None:
    while process.poll() is None:
        if _stopped.wait(_POLL_SECONDS):
            process.terminate()
            return


def read_outcome(job: Job) -> Outcome | None:
    """What came of a job, or None as long as that is open."""
    try:
        return Outcome(**json.loads(Path(job.outcome).read_bytes()))
    except FileNotFoundError:
        return None


def run_jobs(
    jobs: Sequence[Job],
    workers: int,
    beam_options: str = "",
    ended: Callable[[Job, Outcome], None] | None = None,
) -> dict[str, Outcome]:
    """Runs all jobs; returns what came of each, by name.

    Args:
        jobs: in the order in which they are to begin.
        workers: how many run side by side in this process.
        beam_options: of another runner, whose workers see the same files; it has its own number of workers.
        ended: called as each job ends, from a thread.

    Raises:
        InputError: a wrong option. Nothing was run.
    """
    if not jobs:
        return {}
    global _slots
    here = not any(option.startswith("--runner") for option in split_beam_options(beam_options))
    options = _options(beam_options, min(len(jobs), max(workers, _BUNDLES)) if here else None)
    _slots = _Slots(workers) if here else None
    jobs = [replace(job, place=place) for place, job in enumerate(jobs)]
    for job in jobs:
        Path(job.outcome).parent.mkdir(parents=True, exist_ok=True)
        Path(job.outcome).unlink(missing_ok=True)
    _stopped.clear()
    finished = threading.Event()
    teller = threading.Thread(target=_tell, args=(jobs, finished, ended), daemon=True)
    teller.start()
    lost = "its worker was lost"
    try:
        with beam.Pipeline(options=options) as pipeline:
            # The jobs are single elements, which Reshuffle spreads over the workers.
            _ = pipeline | beam.Create(jobs, reshuffle=False) | beam.Reshuffle() | beam.Map(_run_in_turn)
    except Exception as error:
        lost = f"the pipeline failed: {' '.join(str(error).split())[:500]}"
    except BaseException:
        _stopped.set()
        raise
    finally:
        finished.set()
        teller.join()
    if _stopped.is_set():
        raise KeyboardInterrupt
    return {job.name: read_outcome(job) or Outcome(False, 0.0, lost, lost) for job in jobs}


def _tell(
    jobs: Sequence[Job], finished: threading.Event, ended: Callable[[Job, Outcome], None] | None
) -> None:
    left = list(jobs)
    while left and ended is not None:
        over = finished.wait(_POLL_SECONDS)
        for job in list(left):
            outcome = read_outcome(job)
            if outcome is not None:
                left.remove(job)
                ended(job, outcome)
        if over:
            return


def _options(beam_options: str, threads: int | None) -> PipelineOptions:
    """Those that are given; with a number of ``threads``, for that many in this process."""
    here = [] if threads is None else in_this_process(threads)
    return read_beam_options([*split_beam_options(beam_options), *here], f"--beam-options {beam_options}")
