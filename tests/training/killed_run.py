"""Run by its path in a process of its own: trains, and kills that process.

Given as globals: ``log``, ``config`` (a dict) and ``run``; ``kill_after``, a number of batches, and
``kill_at_sync``, a number of calls of fsync, 0 for never; ``live``: follows the log until nothing new comes.
"""

import os
import signal
from pathlib import Path

from ctr.config import parse_model
from ctr.training.config import TrainConfig
from ctr.training.follow import Polling, follow
from ctr.training.loop import train

given = globals()
fsync = os.fsync
counts = {"batches": 0, "syncs": 0}


def die_at(name, limit):
    counts[name] += 1
    if counts[name] == limit:
        os.kill(os.getpid(), signal.SIGKILL)


def counting_fsync(descriptor):
    die_at("syncs", given["kill_at_sync"])
    fsync(descriptor)


os.fsync = counting_fsync
config = parse_model(TrainConfig, given["config"], "test")
log, run = Path(given["log"]), Path(given["run"])
if given["live"]:
    # Called after batches and looks alike.
    follow(
        log, config, run, lambda: None, Polling(0.01, 0.2), lambda *_: die_at("batches", given["kill_after"])
    )
else:
    train(log, config, run, lambda *_: die_at("batches", given["kill_after"]))
