"""One of several processes that train together."""

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ctr.config import parse_model
from ctr.io.errors import InputError
from ctr.serving.export import export_from_run
from ctr.training.config import TrainConfig
from ctr.training.loop import train
from ctr.training.run.run import Run
from ctr.workers.cluster import read_cluster
from ctr.workers.collectives import ALONE, join


def main(given: Mapping[str, Any]) -> None:
    """Trains.

    Args:
        given: ``log``, ``config`` (a dict) and ``run``; ``kill``, the rank of a worker that kills itself, after so many
            batches; ``others``, changes of the configuration of the last worker; ``states``, a folder to which each
            worker writes the hashes of what all have, once a checkpoint.
    """
    cluster = read_cluster()
    workers = ALONE if cluster is None else join(cluster, given.get("timeout", 60.0))
    content = dict(given["config"])
    if workers.rank == workers.size - 1:
        content |= given.get("others", {})
    config = parse_model(TrainConfig, content, "test")
    run, batches = Path(given["run"]), 0
    rank, after = given.get("kill", (-1, 0))
    record = Run.record_learned

    def passed(self: Run, *arguments: Any) -> None:
        nonlocal batches
        record(self, *arguments)
        batches += 1
        if workers.rank == rank and batches == after:
            os.kill(os.getpid(), signal.SIGKILL)

    Run.record_learned = passed
    if "states" in given:
        _note_states(Path(given["states"]), workers.rank)
    train(Path(given["log"]), config, run, exporter=export_from_run, workers=workers)


def _note_states(folder: Path, rank: int) -> None:
    save = Run.save

    def noted(self: Run) -> None:
        name = f"{self.position.examples:08d}-{rank}"
        folder.mkdir(exist_ok=True)
        arrays = {f"whole/{key}": value for key, value in self.state.arrays().items()}
        parts = self.state.parts()
        kept = {key: value for key, value in arrays.items() if key.removeprefix("whole/") not in parts}
        np.savez(folder / f"{name}.npz", **{key.replace("/", "|"): value for key, value in kept.items()})
        save(self)

    Run.save = noted


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except InputError as error:
        print(f"error: {type(error).__name__}: {error}")
        sys.exit(1)
