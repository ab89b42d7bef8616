"""Runs with everything switched on that are killed again and again, anywhere, end in the bits of one left alone."""

import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import growing_logs
from ctr.config import parse_model
from ctr.data.sample_log import write_decisions
from ctr.data.sampling import SamplingConfig
from ctr.training.session import train
from fault_points import POINTS
from killed_run import run_killed
from small_runs import make_config

ENDS = (0, 40_000, 80_000, 120_000, 160_000, 200_000, 240_000)
SAMPLING = parse_model(SamplingConfig, {"non_click_rate": 0.6, "salt": "kills"}, "test")
RAMP = [100, 500]
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "shampoo": {"start_preconditioning_step": 2, "precondition_frequency": 4},
    "adagrad": {"start_preconditioning_step": None},
}
KILLS = int(os.environ.get("CTR_SOAK_KILLS", "32"))


class World:
    """A log, its sample and a log to be constrained, all growing; and the run's configuration."""

    def __init__(self, examples: Any, exposure: Any, schema: Any, shampoo: dict, folder: Path):
        self.folder, self.schema, self.tables = folder, schema, (examples.table, exposure.table)
        changes = {
            **growing_logs.constrained(folder / "exposure"),
            "model": {"crosses": {"layers": 0}},
            "sampling": {"name": "part", "score": "all"},
            "optimizer": {"dense": {"shampoo": shampoo}},
            "checkpoint": {"every_examples": 130, "keep": 2},
            "max_rejected_share": 0.01,
        }
        changes["objective"]["ranking"] = {"weight": 0.3, "ramp": RAMP}
        changes["objective"]["bias_constraints"]["ramp"] = RAMP
        self.config = make_config(changes)
        self.begin()

    def begin(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        names = ("log", "exposure")
        self.log, self.exposure = (
            growing_logs.Growing(self.folder / name, self.schema, table, ENDS)
            for name, table in zip(names, self.tables, strict=True)
        )

    @property
    def is_whole(self) -> bool:
        return bool(self.log.partitions == len(ENDS) - 1)

    def grow(self) -> None:
        if not self.is_whole:
            self.exposure.grow()
            self.log.grow()
            write_decisions(self.log.folder, "part", SAMPLING)

    def grow_whole(self) -> None:
        while not self.is_whole:
            self.grow()


def killed_somewhere(source: random.Random) -> tuple[str, dict[str, Any]]:
    """Where the next process dies, in words and as arguments of ``run_killed``."""
    if source.random() < 0.3:
        return "any time", {"kill_within": source.uniform(0.001, 0.6)}
    point = source.choice(POINTS)
    return point, {"kill_at": (point, source.choice((1, 2, 3, 5, 8, 13, 21)))}


def run_until_done(world: World, run: Path, live: bool, source: random.Random) -> Counter[str]:
    """Goes on with a run that is killed each time until it is done; returns where."""
    died: Counter[str] = Counter()
    while True:
        place, how = killed_somewhere(source)
        follows = live and not (world.is_whole and source.random() < 0.5)
        steps = source.choice((0, 1, 2)) if world.log.partitions else 2

        def publish(steps: int = steps) -> None:
            for _ in range(steps):
                time.sleep(source.uniform(0, 0.3))
                world.grow()

        publisher = threading.Thread(target=publish)
        publisher.start()
        status = run_killed(world.log.folder, world.config, run, idle=0.3 if follows else None, **how)
        publisher.join()
        assert status in (0, -signal.SIGKILL)
        died[place] += status != 0
        if status == 0 and not follows:
            return died


@pytest.mark.slow(first=1)
@pytest.mark.parametrize(
    ("live", "optimizer", "kills"),
    [
        (False, "shampoo", 3),
        (True, "adagrad", 3),
        *((live, optimizer, KILLS) for live in (False, True) for optimizer in OPTIMIZERS),
    ],
)
@pytest.mark.timeout(7200)
def test_killed_anywhere_it_ends_in_the_same_bits(
    live, optimizer, kills, growing, exposure, schema, tmp_path, capsys
):
    world = World(growing, exposure, schema, OPTIMIZERS[optimizer], tmp_path / "world")
    source = random.Random(f"{live} {world.config.sha256()} {kills}")
    world.grow_whole()
    whole = tmp_path / "whole"
    train(world.log.folder, world.config, whole)
    expected = growing_logs.outcome(whole)
    # Everything that could come out otherwise is at work.
    assert any(value for value in expected["summary"]["duals"]["random"])
    assert expected["rejects"] and expected["summary"]["trained_rows"] < expected["summary"]["examples"]
    died: Counter[str] = Counter()
    passes = 0
    while died.total() < kills:
        passes += 1
        run = tmp_path / f"run-{passes}"
        if live:
            world.begin()
        died += run_until_done(world, run, live, source)
        growing_logs.assert_same(run, whole, *(growing_logs.STANDS if live else ()))
        assert not [path for path in run.rglob("*") if ".partial" in path.name]
    with capsys.disabled():
        print(f"\n{died.total()} kills at {len(died)} places in {passes} passes: {dict(died)}")
