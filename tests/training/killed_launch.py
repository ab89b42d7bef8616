"""Run by its path in a process of its own: begins a run from another one and trains, and kills that process.

Given as globals: ``log``, ``config`` (a dict), ``run`` and ``source``; ``kill_at_sync``, a number of calls of fsync,
0 for never.
"""

import os
import signal
from pathlib import Path

from ctr.config import parse_model
from ctr.training.config import TrainConfig
from ctr.training.launch import InitFrom
from ctr.training.loop import train

given = globals()
fsync = os.fsync
syncs = 0


def counting_fsync(descriptor):
    global syncs
    syncs += 1
    if syncs == given["kill_at_sync"]:
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(descriptor)


os.fsync = counting_fsync
config = parse_model(TrainConfig, given["config"], "test")
train(Path(given["log"]), config, Path(given["run"]), init_from=InitFrom(Path(given["source"])))
