"""Exports of a run that goes back: those from beyond are gone, and it makes them anew with what it then learned."""

import math
from pathlib import Path
from typing import Any

import pytest

from ctr.config import parse_model
from ctr.serving.export import export_from_run, export_run
from ctr.serving.metadata import read_metadata, versions
from ctr.training.config import TrainConfig
from ctr.training.loop import train
from ctr.training.run import directory, rollback
from numerical_faults import injected

ROWS = 480
CONFIG: dict[str, Any] = {
    "batch": {"rows": 48},
    "model": {"crosses": {"layers": 0}, "deep": {"units": []}},
    "optimizer": {"dense": {"shampoo": {"start_preconditioning_step": None}}},
    "checkpoint": {"every_examples": 10**6},
    "compute_dtype": "float32",
    "export": {"every_examples": 150, "keep": 9},
}
# More than a single rollback sets aside.
MORE = dict.fromkeys(range(192, 384), math.inf)


def configured(limit: int) -> TrainConfig:
    return parse_model(TrainConfig, {**CONFIG, "rollback": {"after_skipped_steps": limit}}, "test")


@pytest.fixture(scope="module")
def log(make_rows_log, tmp_path_factory) -> Path:
    return make_rows_log(tmp_path_factory.mktemp("rolled-back") / "log", ROWS)


def reported(run: Path) -> dict[int, tuple[int, str]]:
    """Of each export how many examples it has learned from, and its weights."""
    found = {int(path.name): read_metadata(path) for path in versions(run / "exports")}
    return {
        position: (content["position"]["trained_examples"], content["weights"])
        for position, content in found.items()
    }


@pytest.fixture(scope="module")
def gone_back(log, tmp_path_factory) -> tuple[Path, list[dict[str, Any]], list[list[int]]]:
    """A run that goes back twice, what it quarantined, and its exports when each batch was passed."""
    run, seen = tmp_path_factory.mktemp("rolled-back") / "run", list[list[int]]()

    def look(position: int, _: dict[str, Any]) -> None:
        seen.append([int(path.name) for path in versions(run / "exports")])

    with injected(MORE):
        summary = train(log, configured(2), run, look, exporter=export_from_run)
    return run, summary["quarantined"], seen


@pytest.mark.slow
def test_those_from_beyond_are_made_anew(gone_back, tmp_path):
    run, aside, seen = gone_back
    assert [entry["rows"] for entry in aside] == [[144, 288], [0, 384]]
    found = reported(run)
    assert list(found) == [192, 336, 480]
    # Of everything until row 384 nothing is learned.
    assert [trained for trained, _ in found.values()] == [0, 0, 96]
    weights = [weights for _, weights in found.values()]
    assert weights[0] == weights[1] != weights[2]
    assert export_run(run, tmp_path / "models").metadata["weights"] == weights[2]
    # Until the fourth batch is exported nothing is there, each time that it is passed.
    assert seen.count([]) == 4 * 3


@pytest.mark.soak
def test_none_is_made_while_steps_are_skipped(log, tmp_path):
    run = tmp_path / "run"
    with injected(dict.fromkeys(range(144, 288), math.inf)):
        summary = train(log, configured(9), run, exporter=export_from_run)
    assert (summary["rollbacks"], summary["skipped_steps"]) == (0, 3)
    # That of row 192 is left out; no other one takes its place.
    assert list(reported(run)) == [336, 480]


class Killed(BaseException):
    pass


@pytest.mark.slow(first=1)
@pytest.mark.parametrize(("module", "name"), [(directory, "delete_version"), (rollback, "write_rollbacks")])
def test_killed_within_a_rollback_it_ends_with_the_same(log, gone_back, tmp_path, monkeypatch, module, name):
    real = getattr(module, name)
    calls = 0

    def dying(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Killed
        return real(*arguments)

    with injected(MORE):
        monkeypatch.setattr(module, name, dying)
        with pytest.raises(Killed):
            train(log, configured(2), tmp_path / "run", exporter=export_from_run)
        monkeypatch.setattr(module, name, real)
        train(log, configured(2), tmp_path / "run", exporter=export_from_run)
    assert reported(tmp_path / "run") == reported(gone_back[0])
