"""Run by its path in a process of its own: begins a run from another one and trains, and kills that process.

Given as globals: ``log``, ``config`` (a dict), ``run`` and ``source``; ``kill_at``, a point of ``fault_points.py``, how
often it is to be reached, and what is in the path there.
"""

import runpy
from pathlib import Path

from ctr.config import parse_model
from ctr.training.config import TrainConfig
from ctr.training.loop import train
from ctr.training.warm_start.start import InitFrom

given = globals()
points = runpy.run_path(str(Path(__file__).resolve().parent.parent / "fault_points.py"))
point, count, path = given["kill_at"]
config = parse_model(TrainConfig, given["config"], "test")
with points["watching"](points["Counting"](point, count, points["kill"], path)):
    train(Path(given["log"]), config, Path(given["run"]), init_from=InitFrom(Path(given["source"])))
