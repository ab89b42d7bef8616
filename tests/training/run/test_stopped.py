"""Runs that stop by a signal, or write checkpoints by the clock, end in the bits of those that do not."""

import json
import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest
import yaml

from ctr.cli import main
from ctr.io.signals import Interrupted
from ctr.training.loop import train
from ctr.training.run.checkpoint import read as read_checkpoint
from ctr.training.run.run import Run
from numerical_faults import fill, injected
from small_runs import SMALL, draw_examples, publish

pytestmark = pytest.mark.slow

CHECKPOINT = {"every_examples": 500, "keep": 2}
ADAGRAD = {"optimizer": {"dense": {"shampoo": {"start_preconditioning_step": None}}}}


def stop_after(batches: int) -> Any:
    left = iter(range(batches))
    return lambda: None if next(left, None) is not None else "SIGTERM"


def assert_same(run: Path, other: Path) -> None:
    found, expected = (read_checkpoint(one / "checkpoints")[0] for one in (run, other))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    predictions = [ds.dataset(one / "predictions").to_table().sort_by("example_id") for one in (run, other)]
    assert predictions[0].equals(predictions[1])


def test_a_run_that_is_stopped_goes_on_where_it_stopped(log, make_config, tmp_path):
    config = make_config({"checkpoint": CHECKPOINT, **ADAGRAD})
    train(log, config, tmp_path / "whole")
    run, rows = tmp_path / "run", []
    for batches in (3, 1, 9):
        with pytest.raises(Interrupted, match=r"interrupted at row \d+; the same command resumes") as stopped:
            train(log, config, run, stop=stop_after(batches))
        assert stopped.value.status == 128 + signal.SIGTERM
        newest = max(int(path.name) for path in (run / "checkpoints").iterdir())
        assert f"row {newest:,};" in str(stopped.value)
        rows.append(newest)
    assert 0 < rows[0] < rows[1] < rows[2]
    train(log, config, run)
    assert_same(run, tmp_path / "whole")


def test_a_checkpoint_by_the_clock_changes_nothing_but_what_a_killed_run_has(log, make_config, tmp_path):
    kept = []
    for minutes in (None, 1e-9):
        content = {"checkpoint": {"every_examples": 10**6, "every_minutes": minutes, "keep": 99}, **ADAGRAD}
        train(log, make_config(content), tmp_path / str(minutes))
        kept.append(len(list((tmp_path / str(minutes) / "checkpoints").iterdir())))
    assert kept[0] == 1 and kept[1] > 10
    assert_same(tmp_path / "1e-09", tmp_path / "None")


@pytest.mark.soak
def test_a_rollback_goes_back_as_far_whether_the_run_was_stopped_or_not(log, make_config, tmp_path):
    content = {"checkpoint": CHECKPOINT, "rollback": {"after_skipped_steps": 3}, **ADAGRAD}
    config, quarantined = make_config(content), []
    for name, stops in (("whole", ()), ("run", (13,))):
        with injected(poison={750: fill("dense/000", math.nan)}, once=True):
            for batches in stops:
                with pytest.raises(Interrupted):
                    train(log, config, tmp_path / name, stop=stop_after(batches))
                assert max(int(path.name) for path in tmp_path.glob("run/checkpoints/*")) in range(501, 750)
            train(log, config, tmp_path / name)
        quarantined.append(json.loads((tmp_path / name / "quarantine.json").read_text()))
    assert quarantined[0] == quarantined[1]
    assert 0 < quarantined[0]["rollbacks"][0]["checkpoint"] < 750
    assert_same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_line_says_where_it_was_interrupted_and_resumes_there(
    number, tmp_path, monkeypatch, capfd
):
    publish(tmp_path / "log", draw_examples().table())
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**SMALL, **ADAGRAD}))
    command = ["train", str(tmp_path / "log"), "--config", str(tmp_path / "run.yaml"), "--out"]
    assert main([*command, str(tmp_path / "whole")]) == 0
    record, calls = Run.record, []

    def interrupted(run: Run, *given: Any) -> None:
        record(run, *given)
        calls.append(run)
        if len(calls) == 3:
            signal.raise_signal(number)

    monkeypatch.setattr(Run, "record", interrupted)
    capfd.readouterr()
    assert main([*command, str(tmp_path / "run")]) == 128 + number
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("interrupted at row ") and err.count("\n") == 1
    assert main([*command, str(tmp_path / "run")]) == 0
    assert_same(tmp_path / "run", tmp_path / "whole")
