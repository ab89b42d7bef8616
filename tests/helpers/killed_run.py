"""Processes that train and are killed."""

import multiprocessing
import threading
from pathlib import Path
from typing import Any

from ctr.training.config import TrainConfig
from ctr.training.follow import Polling, follow
from ctr.training.session import train
from ctr.training.warm_start.start import InitFrom
from fault_points import Counting, kill, watching


def run_killed(
    log: Path,
    config: TrainConfig,
    run: Path,
    *,
    kill_at: tuple[Any, ...] = ("", 0),
    kill_within: float = 0,
    idle: float | None = None,
    source: Path | None = None,
) -> int:
    """Trains in a process that is killed; returns its exit status.

    The processes are forked from one that has loaded TensorFlow and computed nothing.

    Args:
        log: is trained on.
        config: how.
        run: the run directory.
        kill_at: a point of ``fault_points.py``, how often it is to be reached, and what is in the path there.
        kill_within: seconds from the first batch or look on; 0 for never.
        idle: it follows the log until nothing new comes for so many seconds.
        source: the run that it begins from.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["killed_run"])
    process = context.Process(target=_train, args=(log, config, run, kill_at, kill_within, idle, source))
    process.start()
    process.join(300)
    if process.exitcode is None:
        process.kill()
        raise AssertionError("the run did not end")
    return process.exitcode


def _train(
    log: Path,
    config: TrainConfig,
    run: Path,
    kill_at: tuple[Any, ...],
    kill_within: float,
    idle: float | None,
    source: Path | None,
) -> None:
    timers = [threading.Timer(kill_within, kill)] if kill_within else []

    def passed_batch(*_: object) -> None:
        if timers:
            timers.pop().start()

    point, count, *path = kill_at
    init_from = None if source is None else InitFrom(source)
    with watching(Counting(point, count, kill, *path)):
        if idle is None:
            train(log, config, run, passed_batch, init_from=init_from)
        else:
            # Called after batches and looks alike.
            follow(log, config, run, Polling(0.01, idle), passed_batch)
