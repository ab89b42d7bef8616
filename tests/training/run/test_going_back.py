"""What stands around a run that goes back: its exports, and what following a live log says of where it stands."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctr.serving.export import export_from_run
from ctr.serving.metadata import versions
from ctr.training.follow import Followed, Polling, follow
from ctr.training.loop import open_session, train
from growing_logs import Growing, lines_of
from numerical_faults import fill, injected
from small_runs import draw_examples, make_config

POISON = fill("dense/000", math.nan)
# Intervals of a few batches; every batch ends with one.
ENDS = (0, 10_000, 30_000, 60_000, 90_000, 120_000, 160_000, 240_000)
CHANGES: dict[str, Any] = {
    "batch": {"within_partitions": True},
    "optimizer": {"dense": {"shampoo": {"start_preconditioning_step": None}}},
    "checkpoint": {"every_examples": 10**6},
    "rollback": {"after_skipped_steps": 3},
}


@pytest.fixture
def live(growing, schema) -> Any:
    return Growing(growing.folder, schema, draw_examples().table(), ENDS)


def interval_end(live: Any, number: int) -> int:
    """The rows of the first intervals."""
    return int((live.table.column("query_time").to_numpy() < ENDS[number]).sum())


def followed(live: Any, config: Any, run: Path, stop: Callable[[], str | None]) -> Followed:
    return follow(live.folder, config, run, stop, Polling(0.001, 0.05))


@pytest.mark.slow
def test_weights_that_break_with_the_last_batch_are_learned_anew_before_it_is_idle_or_stopped(live, tmp_path):
    config = make_config(CHANGES, logistic=True)
    live.grow(4)
    rows, run = interval_end(live, 4), tmp_path / "idle"
    with injected(poison={rows - 1: POISON}, once=True):
        end = followed(live, config, run, lambda: None)
    assert (end.reason, end.position, end.waiting) == ("idle", rows, 0)
    assert (run / "checkpoints" / f"{rows:020d}").is_dir()
    # What was passed again is reported again.
    passed = [interval_end(live, number) for number in range(1, 5)]
    assert [line["position"] for line in lines_of(run, "follow.jsonl")] == passed * 2
    assert [line["rows"] for line in lines_of(run, "follow.jsonl")] == np.diff([0, *passed]).tolist() * 2
    (entry,) = json.loads((run / "quarantine.json").read_text())["rollbacks"]
    assert entry["checkpoint"] == 0 and entry["rows"][1] == rows

    # A signal leaves it where it went back to, and it says so.
    run, lag, begun = tmp_path / "stopped", [], set[int]()

    def stop() -> str | None:
        is_done = any(begin > rows - 200 for begin in begun) and lag[-1][0] == rows
        return "SIGTERM" if is_done else None

    def passed_batch(position: int, waits: Any, _: dict[str, Any]) -> None:
        lag.append((position, waits.rows))

    with injected(poison={rows - 1: POISON}, begun=lambda begin, _: begun.add(begin)):
        end = follow(live.folder, config, run, stop, Polling(0.001, 5), passed_batch)
        assert (end.reason, end.position, end.waiting) == ("SIGTERM", 0, rows)
        assert f"at row 0 of the log, {rows} published rows wait" in end.as_text()
        # And goes on from there.
        end = followed(live, config, run, lambda: None)
    assert (end.reason, end.position, end.waiting) == ("idle", rows, 0)


@pytest.mark.slow
def test_save_says_whether_it_has_gone_back(live, tmp_path):
    with (
        injected(poison={interval_end(live, 2) - 1: POISON}, once=True),
        open_session(live.grow(), make_config(CHANGES, logistic=True), tmp_path / "run") as session,
    ):
        session.advance(partial=True)
        assert session.save() is False
        saved = session.run.position.examples
        live.grow()
        session.advance(partial=True)
        assert session.save() is True
        assert session.run.position.examples == saved
        session.advance(partial=True)
        assert session.save() is False
        assert session.run.position.examples == interval_end(live, 2)


@pytest.mark.soak
def test_the_export_at_the_end_of_a_pass_goes_with_the_rest(live, tmp_path):
    """The pass ends while steps are skipped, the log goes on, and so many more are skipped that the run goes back."""
    config = make_config(
        {**CHANGES, "batch": {"within_partitions": False}, "export": {"every_examples": 10**6, "keep": 9}},
        logistic=True,
    )
    run, end = tmp_path / "run", interval_end(live.grow(2) and live, 2)

    def exported() -> list[int]:
        return [int(path.name) for path in versions(run / "exports")]

    with injected(dict.fromkeys(range(end - 5, end + 150), math.inf)):
        train(live.folder, config, run, exporter=export_from_run)
        assert exported() == [end]
        live.grow(3)
        summary = train(live.folder, config, run, exporter=export_from_run)
    assert summary["rollbacks"] >= 1
    assert exported() == [interval_end(live, 5)]
