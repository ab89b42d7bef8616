"""Run by name in a process of its own: trains, and kills that process after a number of batches.

``log``, ``config`` (a dict), ``run`` and ``kill_after`` are given as globals.
"""

import os
import signal
from pathlib import Path

from ctr.config import parse_model
from ctr.training.config import TrainConfig
from ctr.training.loop import train

given = globals()
batches = 0


def count_and_kill(position, metrics):
    global batches
    batches += 1
    if batches == given["kill_after"]:
        os.kill(os.getpid(), signal.SIGKILL)


train(Path(given["log"]), parse_model(TrainConfig, given["config"], "test"), Path(given["run"]), count_and_kill)
