"""Trains as the intervals of a live log appear, until it is asked to stop or nothing new comes.

What it computes is what one pass over the log computes, whenever the intervals came, and however often it was
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
from ctr.training.preflight import LearningError, read_launch
from ctr.training.run.results import learning_failure
from ctr.training.run.snapshot import Exporter
from ctr.training.session import Phase, Session, open_session
from ctr.training.warm_start.start import InitFrom, launch

FollowProgress = Callable[[int, Lag, dict[str, Any]], None]

POLL_SECONDS = 0.5

# How soon a wish to stop is noticed between two looks, in seconds.
_NOTICED_IN = 0.1


@dataclass(frozen=True)
class Polling:
    """When to look and when to end.

    Attributes:
        seconds: between two looks for what is new.
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
    log: Path,
    config: TrainConfig,
    run: Path,
    stop: Stop,
    polling: Polling | None = None,
    progress: FollowProgress | None = None,
    exporter: Exporter | None = None,
    init_from: InitFrom | None = None,
    phase: Phase | None = None,
) -> Followed:
    """Trains on what a log has and on what comes, or goes on with that where ``run``'s newest checkpoint stands.

    Neither the log nor constraint logs and sidecars need be there yet. What a sidecar is not published for waits.

    Args:
        log, config, run, exporter, phase: see ``ctr.training.session.open_session``.
        stop: asked after each batch, and ten times a second when there is nothing to do.
        polling: how often to look, and when to end by itself.
        progress: called after every batch and every look with the position in the log, how far that is behind and
            the metrics of the pass so far.
        init_from: another run, from whose weights and place in the log a new one begins.

    Returns:
        Where it stopped. The same call goes on there, and ``ctr.training.loop.train`` goes on and finishes.

    Raises:
        LearningError: a checkpoint has all that it passed, but it has learned nothing, as rows were lost.
        InputError: see ``open_session``, its session's ``advance`` and ``ctr.training.warm_start.start.launch``.
    """
    polling = polling or Polling()
    quiet_since = time.monotonic()

    def reason_to_end() -> str | None:
        limit = polling.stop_when_idle
        is_idle = limit is not None and time.monotonic() - quiet_since >= limit
        return stop() or ("idle" if is_idle else None)

    awaited = _make_awaited(log, config)
    while (missing := awaited()) is not None:
        if (reason := reason_to_end()) is not None:
            return Followed(reason, 0, 0, missing)
        _pause(polling.seconds, stop)
    if init_from is not None:
        launch(log, config, run, init_from, waits=True)

    metrics: dict[str, Any] = {}

    def passed_batch(position: int, running: dict[str, Any]) -> None:
        nonlocal metrics
        metrics = running
        report.passed_batch(position)
        tell()

    def tell() -> None:
        if progress is not None:
            progress(session.current.position.examples, report.lag(), metrics)

    with (
        open_session(log, config, run, passed_batch, exporter, True, phase) as session,
        closing(LagReport(session)) as report,
    ):
        _advance(session, report, stop)
        quiet_since = time.monotonic()
        while True:
            while (reason := reason_to_end()) is None:
                tell()
                _pause(polling.seconds, stop)
                if stop() is None and session.look():
                    _advance(session, report, stop)
                    quiet_since = time.monotonic()
            if not session.save():
                break
            report.went_back()
            if stop() is not None:
                break
            # Nothing new has come, but there is something to be passed again.
            _advance(session, report, stop)
            quiet_since = time.monotonic()
        if failure := learning_failure(session.current):
            raise LearningError(f"{run}: {failure}")
        position, waiting = session.current.position.examples, report.lag().rows
        return Followed(reason, position, waiting, session.publications.awaited, read_launch(run))


def _advance(session: Session, report: LagReport, stop: Stop) -> None:
    if stop() is None:
        report.advanced(session.advance(stop=lambda: stop() is not None).waiting)


def _make_awaited(log: Path, config: TrainConfig) -> Callable[[], str | None]:
    """What a run cannot begin without and is not there yet, asked again and again."""
    constraints, distillation = config.objective.bias_constraints, config.objective.distillation
    others = () if constraints is None else tuple(Path(other.path) for other in constraints.logs)
    read = (log, *others)
    taught = () if distillation is None or distillation.log is None else (Path(distillation.log),)
    published = [PublishedPartitions(path) for path in read]

    def awaited() -> str | None:
        for path in (*read, *taught):
            if not (path / "schema.json").is_file():
                return str(path / "schema.json")
        for path, intervals in zip(read, published, strict=True):
            manifests = intervals.read()
            selected = any(config.time_range.selects(manifest) for manifest in manifests)
            if not selected or not any(manifest.rows for manifest in manifests):
                return f"{path / 'manifests'}, with a partition that has rows and overlaps time_range"
        return None

    return awaited


def _pause(seconds: float, stop: Stop) -> None:
    end = time.monotonic() + seconds
    while stop() is None and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _NOTICED_IN))
