"""A loop whose weights break while it learns a day: each day is served by weights that know all days before it."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.data.log import read_manifests
from ctr.simulator import closed_loop
from ctr.simulator.closed_loop import run_closed_loop
from ctr.simulator.config import SimulatorConfig
from ctr.simulator.features import SCHEMA
from ctr.simulator.simulate import simulate
from ctr.training.config import TrainConfig
from ctr.training.loop import Session, train
from ctr.training.run.run import Run
from log_files import digests
from numerical_faults import fill, injected

WORLD: dict[str, Any] = {
    "days": 2,
    "queries_per_day": 100,
    "users": 300,
    "ads": 100,
    "advertisers": 20,
    "words": 100,
    "topics": 5,
}
FIRST = 2
MODEL: dict[str, Any] = {
    "batch": {"rows": 256},
    "compute_dtype": "float32",
    "model": {
        "prior": 0.08,
        "crosses": {"layers": 0},
        "deep": {"units": []},
        "widths": {feature.name: 2 for feature in SCHEMA.features},
    },
    # A checkpoint is where a day ends.
    "checkpoint": {"every_examples": 10**6},
    "rollback": {"after_skipped_steps": 2},
}
POISON = fill("dense/000", math.nan)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log and a run."""
    folder = tmp_path_factory.mktemp("broken")
    simulate(parse_model(SimulatorConfig, WORLD, "test"), folder / "log")
    train(folder / "log", parse_model(TrainConfig, MODEL, "test"), folder / "run")
    return folder


@pytest.fixture(scope="module")
def broken(place: Path) -> tuple[Path, dict[int, Any]]:
    """A loop whose weights break with the last batch of the first day that it serves, and with which rows."""
    run_closed_loop(place / "run", place / "log", 1, place / "sound")
    rows = sum(manifest.rows for manifest in read_manifests(place / "sound" / "log"))
    poison = {rows - 1: POISON}
    known: list[tuple[int, int]] = []
    original = closed_loop.model_policy

    def served(session: Session, ids: Any) -> Any:
        session.refresh()
        known.append((session.run.position.examples, session.inputs.log.rows))
        return original(session, ids)

    with injected(poison=poison), pytest.MonkeyPatch.context() as patch:
        patch.setattr(closed_loop, "model_policy", served)
        run_closed_loop(place / "run", place / "log", 2, place / "broken")
    assert len(known) == 2 and known[1][0] == rows
    assert all(passed == published for passed, published in known)
    return place / "broken", poison


def aside(loop: Path) -> list[dict[str, Any]]:
    return json.loads((loop / "run" / "summary.json").read_text())["quarantined"]


@pytest.mark.slow
def test_a_day_is_learned_before_the_next_one_is_served(place: Path, broken: tuple[Path, Any]) -> None:
    loop, poison = broken
    begins = np.cumsum([0, *(manifest.rows for manifest in read_manifests(loop / "log"))])
    (entry,) = aside(loop)
    assert entry["checkpoint"] == begins[FIRST]
    assert all(entry["rows"][0] <= row < entry["rows"][1] for row in poison)
    # The first day was served before anything broke.
    assert read_manifests(loop / "log")[: FIRST + 1] == read_manifests(place / "sound" / "log")


class KilledError(Exception):
    """Stands for a signal that nothing survives."""


def kill_after_going_back(patch: pytest.MonkeyPatch) -> None:
    original = Run.roll_back

    def last(run: Run, *arguments: Any) -> None:
        original(run, *arguments)
        patch.undo()
        raise KilledError

    patch.setattr(Run, "roll_back", last)


def assert_same(loop: Path, other: Path) -> None:
    assert digests(loop / "log") == digests(other / "log")
    assert (loop / "shown.parquet").read_bytes() == (other / "shown.parquet").read_bytes()
    assert aside(loop) == aside(other)


@pytest.mark.soak
def test_also_where_it_went_back_by_days_that_it_has_served(
    place: Path, broken: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are skipped from the end of a day into the next one: no checkpoint between the two is one to go back to."""
    (row,) = broken[1]
    bad = dict.fromkeys(range(row, row + 200), math.inf)
    with injected(bad):
        run_closed_loop(place / "run", place / "log", 3, place / "skipping")
        kill_after_going_back(monkeypatch)
        with pytest.raises(KilledError):
            run_closed_loop(place / "run", place / "log", 3, place / "skipping-killed")
        run_closed_loop(place / "run", place / "log", 3, place / "skipping-killed")
    begins = np.cumsum([0, *(manifest.rows for manifest in read_manifests(place / "skipping" / "log"))])
    assert aside(place / "skipping")[0]["checkpoint"] == begins[FIRST]
    assert aside(place / "skipping")[0]["rows"][1] > begins[FIRST + 1]
    assert_same(place / "skipping-killed", place / "skipping")
