"""Trains as the partitions of a live log appear, until it is asked to stop or nothing new comes.

What it computes is what one pass over the log computes, whenever the partitions came, and however often it was
stopped or killed in between.
"""

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctr.data.log import PublishedPartitions
from ctr.io.errors import InputError
from ctr.io.signals import Stop
from ctr.training.config import TrainConfig
from ctr.training.follow.lag import Lag, LagReport
from ctr.training.loop import Session, open_session
from ctr.training.preflight import LearningError, read_warm_start
from ctr.training.run.results import learning_failure
from ctr.training.run.snapshot import Exporter
from ctr.training.trainer import Phase
from ctr.training.warm_start.start import InitFrom, warm_start

FollowProgress = Callable[[int, Lag, dict[str, Any]], None]

POLL_SECONDS = 0.5

# How soon a wish to stop is noticed between two polls, in seconds.
_NOTICED_IN = 0.1


@dataclass(frozen=True)
class Polling:
    """When to look for what is new, and when to end.

    Attributes:
        seconds: between two polls.
        stop_when_idle: ends when nothing new has come for so many seconds; None: never.
    """

    seconds: float = POLL_SECONDS
    stop_when_idle: float | None = None

    def __post_init__(self) -> None:
        """Raises InputError: numbers of seconds that are none."""
        if not 0 < self.seconds < math.inf:
            raise InputError(f"poll: {self.seconds:g} seconds; a number above 0 is required")
        if self.stop_when_idle is not None and not 0 <= self.stop_when_idle < math.inf:
            raise InputError(
                f"stop when idle: {self.stop_when_idle:g} seconds; a number of at least 0 is required"
            )


@dataclass(frozen=True)
class Followed:
    """Where a run stood when it stopped; a checkpoint has it.

    Attributes:
        reason: the word of ``stop``, or ``idle``.
        position: rows of the log that it has passed.
        waiting: published rows that wait: for more to come, or, where it went back with its last checkpoint or was
            stopped, to be passed.
        awaited: a file that has to be there before it can begin or go on; None: only the log must grow.
        init_from: of a run that was begun from another one, with what (init_from.json).
    """

    reason: str
    position: int
    waiting: int
    awaited: str | None
    init_from: dict[str, Any] | None = None

    def as_text(self) -> str:
        """In one line."""
        text = (
            f"stopped ({self.reason}) at row {self.position} of the log, {self.waiting} published rows wait"
        )
        return f"{text}; awaited: {self.awaited}" if self.awaited else text


def follow(
    log: Path | str,
    config: TrainConfig,
    run_dir: Path | str,
    stop: Stop,
    polling: Polling | None = None,
    progress: FollowProgress | None = None,
    exporter: Exporter | None = None,
    init_from: InitFrom | None = None,
    phase: Phase | None = None,
) -> Followed:
    """Trains on what a log has and on what comes, or goes on where the newest checkpoint in ``run_dir`` stands.

    Neither the log nor constraint logs and sidecars need be there yet. What a sidecar is not published for waits.

    Args:
        log, config, run_dir, exporter, phase: see ``ctr.training.loop.open_session``.
        stop: asked after each batch, and ten times a second when there is nothing to do.
        polling: how often to poll, and when to end by itself.
        progress: called after every batch and every poll with the position in the log, how far that is behind and
            the metrics of the pass so far.
        init_from: another run, from whose weights and place in the log a new one begins.

    Returns:
        Where it stopped. The same call goes on there, and ``ctr.training.loop.train`` goes on and finishes.

    Raises:
        LearningError: a checkpoint has all that it passed, but it has learned nothing, as rows were lost.
        InputError: see ``open_session``, its session's ``advance`` and ``ctr.training.warm_start.start.warm_start``.
    """
    log, run_dir, polling = Path(log), Path(run_dir), polling or Polling()
    patience = _Patience(stop, polling.stop_when_idle)
    missing, reason = _wait_for_logs(log, config, polling.seconds, patience)
    if reason is not None:
        return Followed(reason, 0, 0, missing)
    if init_from is not None:
        warm_start(log, config, run_dir, init_from, waits=True)

    metrics: dict[str, Any] = {}

    def passed_batch(position: int, running: dict[str, Any]) -> None:
        nonlocal metrics
        metrics = running
        report.passed_batch(position)
        show()

    def show() -> None:
        if progress is not None:
            progress(session.run.position.examples, report.lag(), metrics)

    with (
        open_session(log, config, run_dir, passed_batch, exporter, True, phase) as session,
        closing(LagReport.open(session)) as report,
    ):
        _advance(session, report, patience)
        while True:
            while (reason := patience.reason_to_end()) is None:
                show()
                patience.pause(polling.seconds)
                if stop() is None and session.refresh():
                    _advance(session, report, patience)
            if not session.save():
                break
            report.went_back()
            if stop() is not None:
                break
            # Nothing new has come, but there is something to be passed again.
            _advance(session, report, patience)
        if failure := learning_failure(session.run):
            raise LearningError(f"{run_dir}: {failure}")
        position, waiting = session.run.position.examples, report.lag().rows
        return Followed(reason, position, waiting, session.published.awaited, read_warm_start(run_dir))


class _Patience:
    """How long to wait for something new.

    Attributes:
        stop: see ``follow``.
    """

    def __init__(self, stop: Stop, idle_seconds: float | None) -> None:
        """Begins to wait. ``idle_seconds``: see ``Polling.stop_when_idle``."""
        self.stop, self._idle_seconds = stop, idle_seconds
        self.restart()

    def restart(self) -> None:
        """Begins to wait anew: something has come."""
        self._quiet_since = time.monotonic()

    def reason_to_end(self) -> str | None:
        """Returns why to end; None: there is no reason."""
        limit = self._idle_seconds
        is_idle = limit is not None and time.monotonic() - self._quiet_since >= limit
        return self.stop() or ("idle" if is_idle else None)

    def pause(self, seconds: float) -> None:
        """Sleeps, unless it is asked to stop."""
        end = time.monotonic() + seconds
        while self.stop() is None and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _NOTICED_IN))


def _advance(session: Session, report: LagReport, patience: _Patience) -> None:
    if patience.stop() is None:
        report.advanced(session.advance(stop=lambda: patience.stop() is not None).waiting)
    patience.restart()


def _wait_for_logs(
    log: Path, config: TrainConfig, seconds: float, patience: _Patience
) -> tuple[str | None, str | None]:
    """Waits until all logs are there that a run cannot begin without.

    Returns:
        What is missing, and the reason to wait no longer; None and None: nothing is missing.
    """
    constraints, distillation = config.objective.bias_constraints, config.objective.distillation
    read = [log, *(Path(one.path) for one in (() if constraints is None else constraints.logs))]
    teacher_log = () if distillation is None or distillation.log is None else (Path(distillation.log),)
    published = {path: PublishedPartitions(path) for path in read}

    def first_missing() -> str | None:
        for path in (*read, *teacher_log):
            if not (path / "schema.json").is_file():
                return str(path / "schema.json")
        for path, partitions in published.items():
            manifests = partitions.read()
            selected = any(config.time_range.selects(manifest) for manifest in manifests)
            if not selected or not any(manifest.rows for manifest in manifests):
                return f"{path / 'manifests'}, with a partition that has rows and overlaps time_range"
        return None

    while (missing := first_missing()) is not None:
        if (reason := patience.reason_to_end()) is not None:
            return missing, reason
        patience.pause(seconds)
    return None, None
