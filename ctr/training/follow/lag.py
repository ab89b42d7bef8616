"""How far a run that follows a live log is behind it: RUN/follow.jsonl, which nothing is computed from.

A line for each batch that completed a partition of the log, and one at the end of an advance that passed more::

    {"time": 1767225600.25,           seconds since 1970 of the line
     "position": 81920,               rows of the log that the run has passed
     "rows": 4096,                    of them those since the last line
     "waiting": 310,                  published rows that it has not passed
     "trained_through": 1767225599000000,    query time, microseconds, of the last row that was learned from
     "published_through": 1767225600000000,  query time up to which the log was published at the last refresh
     "partitions": [[1767225590000000, 1767225600000000, 0.21]],  start, end and seconds, see below
     "seconds_p50": 0.21, "seconds_max": 0.21}                   over these partitions; null without any

The seconds of a partition are those from its publication, by the time of its manifest's file, until its last row
was trained on. A partition without rows is not listed.
"""

import time
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from ctr.data.log import Manifest
from ctr.training.loop import Session
from ctr.training.run.files import GrowingFile
from ctr.training.run.position import Mark

FOLLOW_FILE = "follow.jsonl"


class Lag(NamedTuple):
    """How far a run is behind its log.

    Attributes:
        rows: published ones that it has not passed.
        seconds: since the publication of the first partition that is not trained on to its end; 0 without one.
    """

    rows: int
    seconds: float


class LagReport:
    """Writes the lines of one session, after those of earlier ones."""

    def __init__(self, session: Session, file: GrowingFile) -> None:
        """Begins where the session stands."""
        self._session, self._file = session, file
        position = session.run.position
        self._begin(position.examples, position.learned)

    @classmethod
    def open(cls, session: Session) -> Self:
        """Opens the file of the session's run, and cuts off a line that was not written to its end."""
        path = session.run.run_dir / FOLLOW_FILE
        return cls(session, GrowingFile.open(path, _whole_lines(path)))

    def _begin(self, passed: int, learned: int) -> None:
        """Begins at a position, as far as scoring and as far as learning goes."""
        self._written = self._passed = passed
        self._waiting = self._session.inputs.log.rows - passed
        # The first partition that is not trained on to its end, the rows before it, and when it was published.
        self._next = self._behind = 0
        self._published: float | None = None
        self._pass_partitions(learned if self._session.run.config.label_delay else passed)

    def went_back(self) -> None:
        """Begins anew where the session stands after a rollback: what it passed before is passed again."""
        position = self._session.run.position
        self._begin(position.examples, position.learned)

    def _trained(self, passed: int) -> int:
        run = self._session.run
        return run.position.learned if run.config.label_delay else passed

    def _pass_partitions(self, trained: int) -> list[Manifest]:
        """Goes on to the first partition that has rows after the first ``trained`` ones; returns those gone by."""
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

    def passed_batch(self, position: int) -> None:
        """Notes that the batch that ends at this position of the log is done with."""
        if position < self._passed:
            # The first one after a rollback; a checkpoint, which would move the mark, comes later.
            mark = Mark(*self._session.run.position.mark)
            self._begin(mark.examples, mark.learned)
        self._passed = position
        self._note(position, self._session.inputs.log.rows - position, self._trained(position), False)

    def advanced(self, waiting: int) -> None:
        """Notes the end of an advance that left ``waiting`` rows."""
        passed = self._session.inputs.log.rows - waiting
        self._note(passed, waiting, self._trained(passed), True)

    def _note(self, passed: int, waiting: int, trained: int, is_end: bool) -> None:
        self._waiting = waiting
        gone = self._pass_partitions(trained)
        if not gone and not (is_end and passed > self._written):
            return
        now = time.time()
        seconds = [max(0.0, now - self._published_at(partition)) for partition in gone]
        self._file.append(
            {
                "time": round(now, 3),
                "position": passed,
                "rows": passed - self._written,
                "waiting": waiting,
                "trained_through": self._session.run.learned_through,
                "published_through": self._session.inputs.log.end,
                "partitions": [
                    [partition.start, partition.end, round(one, 3)]
                    for partition, one in zip(gone, seconds, strict=True)
                ],
                "seconds_p50": round(float(np.median(seconds)), 3) if seconds else None,
                "seconds_max": round(max(seconds), 3) if seconds else None,
            }
        )
        self._written = passed

    def lag(self) -> Lag:
        """Returns how far the run is behind what was published at the last refresh."""
        manifests = self._session.inputs.log.manifests
        if not self._waiting or self._next >= len(manifests):
            return Lag(self._waiting, 0.0)
        if self._published is None:
            self._published = self._published_at(manifests[self._next])
        return Lag(self._waiting, max(0.0, time.time() - self._published))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _whole_lines(path: Path) -> int:
    """The length, in bytes, of the lines of a file that were written to their ends."""
    return path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0
