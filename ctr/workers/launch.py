"""Starts the workers of a run on this machine, monitors them, and restarts them when one is lost.

The workers are processes of one command, each with a separate seat (``ctr.workers.seats``). The exit status
of one decides for all: 0: the run is finished. 1: bad input, final, since a restart would fail again. 75: it has lost
another worker, or met a transient fault. Any other status, or a signal: it died.

The others detect a hanging worker when their exchanges with it time out: they exit with 75,
and the remaining one is the one that hangs. Then all are ended, and restarted from the last checkpoint.
"""

import ctypes
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ctr.io.errors import INPUT, PASSING, InputError, printable
from ctr.io.files import hold, make_folder
from ctr.io.log_lines import message_of
from ctr.io.signals import Stop, stop_signals
from ctr.workers.cluster import VARIABLE, WorkerLostError
from ctr.workers.reports import Report, Reports
from ctr.workers.seats import make_seats

MAX_RESTARTS = 3
_POLL_SECONDS = 0.1
# Between the first worker that notices that another one is lost, and the last.
_SETTLE_SECONDS = 10.0
_STOPPED_SECONDS = 20.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Launch:
    """Command, limits and environment of the workers to launch, with callbacks for their progress."""

    command: Sequence[str]
    size: int
    folder: Path  # for the output of each worker, NNN.log; created if it does not exist
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    show: Callable[[Report], None] = lambda report: None  # called with each report of a worker
    say: Callable[[str], None] = lambda text: None  # called with a line at each restart
    mark: Callable[[], int] = lambda: 0  # returns a number that a checkpoint makes larger
    max_restarts: int = MAX_RESTARTS  # most restarts without a checkpoint between
    start_seconds: float | None = None  # time for all workers to report ``joining``; None: no limit
    settle_seconds: float = _SETTLE_SECONDS  # time for the others to end after a failure or the first
    stopped_seconds: float = _STOPPED_SECONDS  # time after which a worker stopped by a signal is lost


class _Worker(NamedTuple):
    rank: int
    log: Path
    process: "subprocess.Popen[bytes]"

    def __str__(self) -> str:
        return f"worker {self.rank}"

    def is_stopped(self) -> bool:
        if self.process.returncode is not None:
            return False
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            # It has ended since it was last asked for its status.
            return False


@dataclass
class _Heard:
    """State of the workers: errors by rank, ranks that have begun to join, and since when a worker is stopped."""

    errors: dict[int, str] = field(default_factory=dict)
    passing: set[int] = field(default_factory=set)  # workers with a passing fault other than a lost one
    joining: set[int] = field(default_factory=set)
    stopped: dict[int, float] = field(default_factory=dict)


class _Failure(NamedTuple):
    text: str
    is_final: bool


def launch(plan: Launch) -> int:
    """Runs all workers until they are done; returns the first one's status as in a shell. Requires the main thread.

    The first worker writes to this process's standard output, all else goes to its log. SIGTERM and SIGINT are passed
    to all; a second one ends this process. In any case, no worker outlives it. Raises InputError for bad input, or if
    another process uses the folder; WorkerLostError if workers were lost repeatedly without a checkpoint between.
    """
    make_folder(plan.folder)
    with (
        hold(plan.folder, f"{plan.folder.parent}: another process is training in this run directory"),
        stop_signals() as stop,
    ):
        restarts, mark = 0, plan.mark()
        while True:
            end = _run_once(plan, stop)
            if isinstance(end, int):
                return end
            if end.is_final:
                raise InputError(end.text)
            if (now := plan.mark()) > mark:
                restarts, mark = 0, now
            if restarts == plan.max_restarts:
                raise WorkerLostError(
                    f"{end.text}; given up after {restarts} restarts without a checkpoint between: "
                    "rerun the same command to resume"
                )
            restarts += 1
            plan.say(
                f"{end.text}; all workers restart from the last checkpoint ({restarts}/{plan.max_restarts})"
            )


def threads_each(size: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables, unless already set, that divide this machine's processors among workers."""
    share = str(max(1, len(os.sched_getaffinity(0)) // size))
    names = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")
    return {name: share for name in names if name not in environment}


def _run_once(plan: Launch, stop: Stop) -> int | _Failure:
    """Returns the first worker's status if none failed or all were to stop, else the failure."""
    reports = Reports()
    workers: list[_Worker] = []
    heard = _Heard()
    try:
        workers.extend(_start(plan, reports))
        is_stopped = _wait(plan, workers, reports, heard, stop)
        if not is_stopped and (failure := _judge(workers, heard)) is not None:
            return failure
        status = workers[0].process.returncode
        return 128 - status if status < 0 else status
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.wait()
        reports.close()


def _start(plan: Launch, reports: Reports) -> Iterator[_Worker]:
    launcher = os.getpid()

    def die_with_launcher() -> None:
        # The kernel then kills the worker, also if this process is killed, which may already have happened.
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != launcher:
            os._exit(PASSING)

    environment = {name: value for name, value in plan.environment.items() if name != VARIABLE}
    for rank, seat in enumerate(make_seats(plan.size)):
        log = plan.folder / f"{rank:03d}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                plan.command,
                env={**environment, **seat.variable(), **reports.variable(rank)},
                stdin=subprocess.DEVNULL,
                stdout=None if rank == 0 else output,
                stderr=output,
                pass_fds=[reports.descriptor, *seat.descriptors],
                # A terminal's signals reach this process alone, which passes them on once.
                start_new_session=True,
                preexec_fn=die_with_launcher,
            )
        yield _Worker(rank, log, process)


def _hear(plan: Launch, reports: Reports, heard: _Heard, timeout: float) -> None:
    for report in reports.read(timeout):
        if report.kind == "error":
            heard.errors[report.rank] = report.content["text"]
            if not report.content.get("is_lost", True):
                heard.passing.add(report.rank)
        elif report.kind == "joining":
            heard.joining.add(report.rank)
        plan.show(report)


def _wait(plan: Launch, workers: Sequence[_Worker], reports: Reports, heard: _Heard, stop: Stop) -> bool:
    """Waits until all workers have ended, or the failed ones are identified; returns whether a stop was requested."""
    is_stopped, begun = False, None
    late = time.monotonic() + (math.inf if plan.start_seconds is None else plan.start_seconds)
    while True:
        _hear(plan, reports, heard, _POLL_SECONDS)
        if (name := stop()) is not None and not is_stopped:
            is_stopped = True
            for worker in workers:
                worker.process.send_signal(signal.Signals[name])
        statuses = [worker.process.poll() for worker in workers]
        failed = [status for status in statuses if status not in (None, 0)]
        is_done = statuses[0] == 0
        if (failed or is_done) and begun is None:
            begun = time.monotonic()
        is_settled = begun is not None and time.monotonic() - begun >= plan.settle_seconds
        is_known = is_settled or any(status not in (INPUT, PASSING) for status in failed)
        is_decided = (failed or is_done) and is_known
        is_late = time.monotonic() > late and len(heard.joining) < len(workers)
        now = time.monotonic()
        stopped = [worker.rank for worker in workers if worker.is_stopped()]
        heard.stopped = {rank: heard.stopped.get(rank, now) for rank in stopped}
        is_stuck = any(now - since > plan.stopped_seconds for since in heard.stopped.values())
        if None not in statuses or (not is_stopped and (is_late or is_stuck or is_decided)):
            # Reports from before the end.
            _hear(plan, reports, heard, 0)
            return is_stopped


def _judge(workers: Sequence[_Worker], heard: _Heard) -> _Failure | None:
    """Returns the failed worker and why, or None once worker 0, which always exits last, has succeeded.

    A worker that ended only because it lost another one is returned only if no other failure explains the end.
    """
    if workers[0].process.returncode == 0:
        return None
    ended = [worker for worker in workers if worker.process.returncode]
    for worker in ended:
        is_lost = worker.process.returncode == PASSING and worker.rank not in heard.passing
        if worker.process.returncode != INPUT and not is_lost:
            return _Failure(_with_log(worker, _death(worker, heard.errors)), False)
    for worker in ended:
        if worker.process.returncode == INPUT:
            text = heard.errors.get(worker.rank) or _last_line(worker.log)
            # A fault that all workers meet reads as in a process alone.
            return _Failure(text if worker.rank == 0 else f"{worker}: {text}", True)
    running = [worker for worker in workers if worker.process.returncode is None]
    # Where none failed and some run, one of them does not begin.
    for worker in running:
        if worker.rank in heard.stopped:
            return _Failure(_with_log(worker, "was stopped by a signal and did not go on"), False)
    for worker in running:
        if ended or worker.rank not in heard.joining:
            return _Failure(_with_log(worker, "does not answer"), False)
    if not ended:
        return None
    text = heard.errors.get(ended[0].rank) or _last_line(ended[0].log)
    return _Failure(_with_log(ended[0], f"has lost another: {text}"), False)


def _death(worker: _Worker, errors: Mapping[int, str]) -> str:
    status = worker.process.returncode
    if status == -signal.SIGKILL:
        return "was killed (SIGKILL; the system does this when memory runs out)"
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}: {errors.get(worker.rank) or _last_line(worker.log)}"


def _with_log(worker: _Worker, text: str) -> str:
    return f"{worker} {text}; its output is in {worker.log}"


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return printable(message_of(lines[-1])[:300]) if lines else "it wrote nothing"
