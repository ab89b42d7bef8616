"""The loops of an experiment: each run of an arm serves the days after the log and learns on (FF 7.3, table 3).

::

    OUT/loops/NAME-seed-S-HASH/   what ``ctr simulate --policy`` writes, without checkpoints once it is finished

A loop begins with the last checkpoint of its run, which is kept until the loop is finished. One that has served another
number of days, or after another log, begins anew, as does its run where the checkpoint is gone by then.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctr.experiments.plan import PlannedRun
from ctr.simulator.closed_loop import LOOP_FILE
from ctr.simulator.folders import ORIGIN_FILE


@dataclass(frozen=True)
class PlannedLoop:
    """A run that serves.

    Attributes:
        run: that does.
        folder: of the loop, relative to the folder of the experiment.
        days: to serve.
    """

    run: PlannedRun
    folder: str
    days: int

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.run.name}-loop"

    @property
    def failure(self) -> str:
        """As of ``PlannedRun``; no name of an arm makes it that of a run."""
        return f"{self.run.failure.removesuffix('.txt')}-loop.txt"

    def arguments(self, out: Path, log: Path) -> list[str]:
        """Of ``ctr``, for an experiment in ``out``."""
        arguments = ["simulate", "--policy", str(out / self.run.folder), "--log", str(log)]
        return [*arguments, "--days", str(self.days), "--out", str(out / self.folder)]

    def is_done(self, out: Path, log_sha256: str) -> bool:
        """Whether it has served its days after this log."""
        begun_after = _content(out / self.folder / ORIGIN_FILE).get("log_sha256")
        return self._served(out) == self.days and begun_after == log_sha256

    def needs_checkpoint(self, out: Path) -> bool:
        """Whether its run has none that it could begin with."""
        return not _has_checkpoint(out / self.run.folder)

    def discard_other(self, out: Path, log_sha256: str) -> None:
        """Removes a loop that cannot become this one: of another log, of more days, or ended with fewer."""
        folder = out / self.folder
        origin = _content(folder / ORIGIN_FILE)
        goes_on = _has_checkpoint(folder / "run") and self._served(out) <= self.days
        if folder.exists() and not (goes_on and origin.get("log_sha256") == log_sha256):
            shutil.rmtree(folder)

    def clean_up(self, out: Path) -> None:
        """Removes the checkpoints of a loop that is finished, which are most of its bytes."""
        shutil.rmtree(out / self.folder / "run" / "checkpoints", ignore_errors=True)

    def told(self, out: Path) -> str:
        """What it showed, in a few words."""
        days = _content(out / self.folder / LOOP_FILE).get("days", [])
        queries = sum(day["queries"] for day in days)
        return (
            f"{sum(day['examples'] for day in days) / queries:.3f} ads per query" if queries else "no query"
        )

    def _served(self, out: Path) -> int:
        return len(_content(out / self.folder / LOOP_FILE).get("days", []))


def loop_of(run: PlannedRun) -> PlannedLoop | None:
    """The loop that a run is to serve in."""
    if run.loop is None or run.loop_days is None:
        return None
    return PlannedLoop(run, run.loop, run.loop_days)


def _has_checkpoint(run: Path) -> bool:
    return next((run / "checkpoints").glob("*/state.json"), None) is not None


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
