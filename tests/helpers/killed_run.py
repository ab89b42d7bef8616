"""A process that trains and is killed."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctr.config import parse_model
from ctr.training.config import TrainConfig
from ctr.training.follow import Polling, follow
from ctr.training.loop import train
from ctr.training.run.run import Run
from fault_points import Counting, kill, watching


def main(given: Mapping[str, Any]) -> None:
    """Trains, and kills this process.

    Args:
        given: ``log``, ``config`` (a dict) and ``run``; ``kill_after``, a number of batches, 0 for never; ``kill_at``,
            a point of ``fault_points.py`` and how often it is to be reached; ``kill_within``, seconds from the first
            batch or look on, 0 for never; ``live``: follows the log until nothing new comes. With ``kill_after`` a
            checkpoint is on the disk before the next batch begins, so that what is there at the end is known.
    """
    batches = 0

    def passed_batch(*_: object) -> None:
        nonlocal batches
        batches += 1
        if batches == 1 and given["kill_within"]:
            threading.Timer(given["kill_within"], kill).start()
        if batches == given["kill_after"]:
            kill()

    if given["kill_after"]:
        begin = Run.save

        def save(run: Run, is_due: bool = True) -> None:
            begin(run, is_due)
            run.files.background.wait()

        Run.save = save

    config = parse_model(TrainConfig, given["config"], "test")
    log, run = Path(given["log"]), Path(given["run"])
    with watching(Counting(*given["kill_at"])):
        if given["live"]:
            # Called after batches and looks alike.
            follow(log, config, run, lambda: None, Polling(0.01, given["idle"]), passed_batch)
        else:
            train(log, config, run, passed_batch)
