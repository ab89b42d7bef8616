"""A process that begins a run from another one, trains, and is killed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctr.config import parse_model
from ctr.training.config import TrainConfig
from ctr.training.loop import train
from ctr.training.warm_start.start import InitFrom
from fault_points import Counting, kill, watching


def main(given: Mapping[str, Any]) -> None:
    """Trains, and kills this process.

    Args:
        given: ``log``, ``config`` (a dict), ``run`` and ``source``; ``kill_at``, a point of ``fault_points.py``, how
            often it is to be reached, and what is in the path there.
    """
    point, count, path = given["kill_at"]
    config = parse_model(TrainConfig, given["config"], "test")
    with watching(Counting(point, count, kill, path)):
        train(Path(given["log"]), config, Path(given["run"]), init_from=InitFrom(Path(given["source"])))
