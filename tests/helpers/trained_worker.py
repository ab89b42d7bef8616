"""One of several processes that train together, one run after the other."""

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ctr.config import parse_model
from ctr.io.errors import InputError
from ctr.serving.export import export_from_run
from ctr.training.config import TrainConfig
from ctr.training.run.run import Run
from ctr.training.session import Process, train
from ctr.training.warm_start.start import InitFrom
from ctr.workers.collectives import Workers
from ctr.workers.local import join
from ctr.workers.seats import read_place


def main(jobs: list[Mapping[str, Any]]) -> None:
    """Trains.

    Args:
        jobs: each has ``log``, ``config`` (a dict) and ``run``; it may have ``kill``, the rank of a worker that kills
            itself, and after how many batches; ``kill_within``, the same, and how many seconds after that batch;
            ``states``, a folder to which each worker
            writes its state at each checkpoint; ``record`` and ``init_from`` of ``train``; ``fails``, whether its
            InputError is to be printed only.
    """
    workers = join(read_place(), 60.0)
    for given in jobs:
        try:
            _run(given, workers)
        except InputError as error:
            if not given.get("fails"):
                raise
            print(f"refused: {error}", flush=True)


def _run(given: Mapping[str, Any], workers: Workers) -> None:
    config = parse_model(TrainConfig, given["config"], "test")
    rank, after = given.get("kill", (-1, 0))
    record, save, batches = Run.record_learned, Run.save, 0

    def passed(self: Run, *arguments: Any) -> Any:
        nonlocal batches
        learned = record(self, *arguments)
        batches += 1
        if [workers.rank, batches] == [*given.get("kill_within", ())][:2]:
            threading.Timer(given["kill_within"][2], os.kill, (os.getpid(), signal.SIGKILL)).start()
        if workers.rank == rank and batches == after:
            os.kill(os.getpid(), signal.SIGKILL)
        return learned

    def noted(self: Run) -> None:
        if "states" in given:
            folder = Path(given["states"])
            folder.mkdir(exist_ok=True)
            arrays = {key.replace("/", "|"): value for key, value in self.state.arrays().items()}
            np.savez(folder / f"{self.position.examples:08d}-{workers.rank}.npz", **arrays)
        save(self)
        if rank >= 0:
            # So that it is known what is there at the end.
            self.background.wait()
            workers.wait_for_all()

    Run.record_learned, Run.save = passed, noted
    init_from = InitFrom(Path(given["init_from"])) if "init_from" in given else None
    try:
        log, run, name = Path(given["log"]), Path(given["run"]), given.get("record")
        train(log, config, run, None, name, export_from_run, init_from, Process(workers))
    finally:
        Run.record_learned, Run.save = record, save


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except InputError as error:
        print(f"error: {type(error).__name__}: {error}")
        sys.exit(1)
