"""Training on a live log, as its partitions appear, until a stop is requested or no new ones appear.

The result equals one pass over the whole log, whenever the partitions appeared, and however often the run was
stopped or killed in between. RUN/follow.jsonl records the lag behind the log; nothing is computed from it.

It has a line for each batch that completed a partition, and one at the end of an advance that processed more rows::

    {"time": 1767225600.25,           time of writing, seconds since 1970
     "position": 81920,               rows of the log that the run has processed
     "rows": 4096,                    rows processed since the last line
     "waiting": 310,                  published rows not processed yet
     "trained_through": 1767225599000000,    query time, microseconds, of the last row that was learned from
     "published_through": 1767225600000000,  query time up to which the log was published at the last refresh
     "partitions": [[1767225590000000, 1767225600000000, 0.21]],  start, end and seconds, see below
     "seconds_p50": 0.21, "seconds_max": 0.21}                   over these partitions; null without any

The seconds of a partition run from its publication, the modification time of its manifest, until its last row
was trained on. A partition without rows is not listed.
"""

import logging
import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ctr.data.log import Manifest, PublishedPartitions
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.run.directory import read_warm_start
from ctr.training.run.files import GrowingFile, Unwritten
from ctr.training.run.results import learning_failure, warnings_of
from ctr.training.run.snapshot import Exporter
from ctr.training.run.summary import LearningError
from ctr.training.session import Process, Session, open_session
from ctr.training.warm_start.start import InitFrom, warm_start

logger = logging.getLogger(__name__)

FOLLOW_FILE = "follow.jsonl"

POLL_SECONDS = 0.5

# Seconds between two checks for a requested stop while waiting for the next poll.
_NOTICED_IN = 0.1


class Lag(NamedTuple):
    """Rows and seconds by which a run is behind its log."""

    rows: int  # published rows that the run has not processed yet
    seconds: float  # since publication of the first partition not fully trained on; 0 if there is none


FollowProgress = Callable[[int, Lag, dict[str, Any]], None]


@dataclass(frozen=True)
class Polling:
    """Seconds between two polls, and without new rows before stopping (None: never). InputError if out of range."""

    seconds: float = POLL_SECONDS
    stop_when_idle: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise InputError(f"poll: {self.seconds:g} seconds; a number above 0 is required")
        if self.stop_when_idle is not None and not 0 <= self.stop_when_idle < math.inf:
            raise InputError(
                f"stop when idle: {self.stop_when_idle:g} seconds; a number of at least 0 is required"
            )


@dataclass(frozen=True)
class Followed:
    """Position of a run when it stopped, as stored in a checkpoint."""

    reason: str  # the reason that ``stop`` returned, or ``idle``
    position: int  # rows of the log that the run has processed
    waiting: int  # published rows that the run has not processed yet
    awaited: str | None  # a missing file that the run needs to continue; None: only the log must grow
    init_from: dict[str, Any] | None = None  # content of init_from.json, if the run was warm-started

    def as_text(self) -> str:
        text = (
            f"stopped ({self.reason}) at row {self.position} of the log, {self.waiting} published rows wait"
        )
        return f"{text}; awaited: {self.awaited}" if self.awaited else text


class LagReport:
    """Measures the lag of a session behind its log, and appends its lines to follow.jsonl."""

    def __init__(self, session: Session) -> None:
        path = session.run.run_dir / FOLLOW_FILE
        # Cuts off an incomplete last line.
        length = path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0
        self._session = session
        self._file = GrowingFile.open(path, length) if session.run.group.is_chief else Unwritten()
        position = session.run.position
        passed, learned = position.examples, position.learned
        self._written = passed
        self._waiting = self._session.inputs.log.rows - passed
        # The first partition that is not fully trained on, the rows before it, and when it was published.
        self._next = self._behind = 0
        self._published: float | None = None
        self._pass_partitions(learned if self._session.run.config.label_delay else passed)

    def _pass_partitions(self, trained: int) -> list[Manifest]:
        """Moves on to the first partition with rows beyond ``trained``; returns the completed partitions with rows."""
        gone = []
        manifests = self._session.inputs.log.manifests
        while self._next < len(manifests) and self._behind + manifests[self._next].rows <= trained:
            gone.append(manifests[self._next])
            self._behind += manifests[self._next].rows
            self._next += 1
            self._published = None
        return [manifest for manifest in gone if manifest.rows]

    def _published_at(self, partition: Manifest) -> float:
        return (self._session.inputs.log.path / "manifests" / f"{partition.name}.json").stat().st_mtime

    def note(self, passed: int, is_end: bool) -> None:
        """Records a batch, or the end of an advance, that processed the log up to a row."""
        run = self._session.run
        self._waiting = self._session.inputs.log.rows - passed
        gone = self._pass_partitions(run.position.learned if run.config.label_delay else passed)
        if not gone and not (is_end and passed > self._written):
            return
        now, learned_until = time.time(), run.position.learned_until
        seconds = [max(0.0, now - self._published_at(partition)) for partition in gone]
        self._file.append(
            {
                "time": round(now, 3),
                "position": passed,
                "rows": passed - self._written,
                "waiting": self._waiting,
                "trained_through": None if learned_until is None else learned_until[0],
                "published_through": self._session.inputs.log.end,
                "partitions": [
                    [partition.start, partition.end, round(delay, 3)]
                    for partition, delay in zip(gone, seconds, strict=True)
                ],
                "seconds_p50": round(float(np.median(seconds)), 3) if seconds else None,
                "seconds_max": round(max(seconds), 3) if seconds else None,
            }
        )
        self._written = passed

    def lag(self) -> Lag:
        manifests = self._session.inputs.log.manifests
        if not self._waiting or self._next >= len(manifests):
            return Lag(self._waiting, 0.0)
        if self._published is None:
            self._published = self._published_at(manifests[self._next])
        return Lag(self._waiting, max(0.0, time.time() - self._published))

    def close(self) -> None:
        self._file.close()


def follow(
    log: Path | str,
    config: TrainConfig,
    run_dir: Path | str,
    polling: Polling | None = None,
    progress: FollowProgress | None = None,
    exporter: Exporter | None = None,
    init_from: InitFrom | None = None,
    process: Process | None = None,
) -> Followed:
    """Trains on a log as it grows, from the newest checkpoint in ``run_dir`` if there is one.

    The log, constraint logs and sidecars need not exist yet. Partitions wait until their sidecars are published.
    The same call resumes a stopped run; ``ctr.training.session.train`` resumes and finishes it, and documents further
    arguments. The first member of a group polls, and all advance together.

    Args:
        progress: called after every batch and every poll with the position in the log, its lag behind the end, and
            the metrics of the pass so far.
        process: the training process; its ``stop`` is also called ten times a second while no rows are available.

    Raises:
        LearningError: a checkpoint is written, but the run has not learned, see ``learning_failure``.
        InputError: see ``open_session``, ``Session.advance`` and ``warm_start``.
    """
    process = process or Process()
    log, run_dir, group = Path(log), Path(run_dir), process.group
    patience = _Patience(process, polling or Polling())
    with group.noticing_losses():
        missing, reason = _wait_for_logs(log, config, patience)
        if reason is not None:
            group.leave()
            return Followed(reason, 0, 0, missing)
        if init_from is not None:
            group.once(partial(warm_start, log, config, run_dir, init_from, True, group.size))
        followed = _follow(log, config, run_dir, patience, progress, exporter)
        group.leave()
        return followed


def _follow(
    log: Path,
    config: TrainConfig,
    run_dir: Path,
    patience: "_Patience",
    progress: FollowProgress | None,
    exporter: Exporter | None,
) -> Followed:
    group, metrics = patience.group, dict[str, Any]()

    def passed_batch(position: int, running: dict[str, Any]) -> None:
        nonlocal metrics
        metrics = running
        report.note(position, is_end=False)
        show()

    def show() -> None:
        if progress is not None and group.is_chief:
            progress(session.run.position.examples, report.lag(), metrics)

    with (
        open_session(log, config, run_dir, passed_batch, exporter, True, patience.process) as session,
        closing(LagReport(session)) as report,
    ):
        _advance(session, report, patience)
        while (reason := patience.reason_to_end()) is None:
            show()
            if patience.pause() is None and session.refresh():
                _advance(session, report, patience)
        session.save()
        if failure := learning_failure(session.run):
            group.leave()
            raise LearningError(f"{run_dir}: {failure}")
        for warning in warnings_of(session.run):
            logger.warning("%s: %s", run_dir, warning)
        # While steps are being skipped nothing is saved: these rows are processed again.
        position, passed = session.run.saved_at, session.run.position.examples
        waiting = report.lag().rows + passed - position
        begun = group.once(lambda: read_warm_start(run_dir))
        return Followed(reason, position, waiting, session.published.awaited, begun)


class _Patience:
    """Decides how long to wait and whether to go on; the whole group agrees at every poll."""

    def __init__(self, process: Process, polling: Polling) -> None:
        self.process, self.group, self._polling = process, process.group, polling
        self.restart()

    def restart(self) -> None:
        self._quiet_since = time.monotonic()

    def agreed_stop(self) -> str | None:
        """Returns the reason to stop that the first member with one gives, or None; the same in the whole group."""
        return next(filter(None, self.group.gather_texts(self.process.stop() or "")), None)

    def reason_to_end(self) -> str | None:
        limit = self._polling.stop_when_idle
        is_idle = limit is not None and time.monotonic() - self._quiet_since >= limit
        stop = self.agreed_stop()
        return stop or ("idle" if self.group.broadcast(is_idle) else None)

    def pause(self) -> str | None:
        """Waits until the next poll is due, and returns None, or returns a reason to stop as soon as there is one."""
        end = time.monotonic() + self._polling.seconds
        while (stop := self.agreed_stop()) is None:
            # By one clock. No member waits long for another one, however seldom they poll.
            left = self.group.broadcast(end - time.monotonic())
            if left <= 0:
                break
            time.sleep(min(left, _NOTICED_IN))
        return stop


def _advance(session: Session, report: LagReport, patience: _Patience) -> None:
    if patience.agreed_stop() is None:
        waiting = session.advance(stop=lambda: patience.process.stop() is not None).waiting
        report.note(session.inputs.log.rows - waiting, is_end=True)
    patience.restart()


def _wait_for_logs(log: Path, config: TrainConfig, patience: _Patience) -> tuple[str | None, str | None]:
    """Waits for all logs. Returns (missing path, reason for giving up), or (None, None)."""
    constraints, distillation = config.objective.bias_constraints, config.objective.distillation
    read = [log, *(Path(entry.path) for entry in (() if constraints is None else constraints.logs))]
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

    while (missing := patience.group.once(first_missing)) is not None:
        if (reason := patience.reason_to_end()) is not None:
            return missing, reason
        patience.pause()
    return None, None
