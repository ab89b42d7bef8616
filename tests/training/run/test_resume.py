"""A run that is stopped, killed and resumed, however often and wherever, ends in the same bits."""

import json
import logging
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import growing_logs
from ctr.cli import main
from ctr.io.errors import InputError
from ctr.io.signals import Interrupted
from ctr.training.config import TrainConfig
from ctr.training.run.run import Run
from ctr.training.session import Process, train
from fault_points import flip
from killed_run import run_killed
from small_runs import LOGISTIC, config_of, draw_examples, publish

KILLED = -9
# Nothing divides anything else: windows, checkpoints, batches, shards and intervals end at different rows.
EVERY = 310
LINEAR: dict[str, Any] = {
    **LOGISTIC,
    # Experts that learn on their own, by default, and what calibrates them.
    "model": {"crosses": {"layers": 0}, "deep": {"units": []}, "prior": 0.3},
    "checkpoint": {"every_examples": EVERY, "keep": 2},
    "max_rejected_share": 0.01,
    "label_delay": 0.01,
    "optimizer": {
        "embeddings": {"schedule": "warmup 50, cosine 800 to 0.2"},
        "dense": {"learning_rate": 0.02, "schedule": "warmup 100, polynomial 400 power 2 to 0.1"},
    },
    # Windows whose size is open end where the ones before them ended.
    "metrics": {"slices": ["position"]},
}


def assert_same(run: Path, other: Path, *left_out: str) -> None:
    growing_logs.assert_same(run, other, *growing_logs.FILES, *left_out)
    for name in {"config.yaml", "environment.json"} - set(left_out):
        assert (run / name).read_bytes() == (other / name).read_bytes()


@pytest.fixture(scope="module")
def faulty_log(examples, tmp_path_factory) -> Path:
    """The log with a few faulty rows, so that rejects too have to come out the same."""
    label = examples.label.copy()
    label[[3, 400, 401, 900]] = 5
    return publish(tmp_path_factory.mktemp("faulty") / "log", replace(examples, label=label).table())


class Whole:
    """A run that nothing interrupted, and the positions after its batches."""

    def __init__(self, log: Path, config: TrainConfig, run: Path) -> None:
        self.config, self.run, self.positions = config, run, []
        train(log, config, run, lambda position, _: self.positions.append(position))

    def checkpointed(self) -> Iterator[int]:
        """The numbers of the batches (from 1) after which a checkpoint is written."""
        saved = 0
        for number, position in enumerate(self.positions, start=1):
            if position - saved >= EVERY:
                saved = position
                yield number


@pytest.fixture(scope="module")
def linear(faulty_log, tmp_path_factory) -> Whole:
    return Whole(faulty_log, config_of(LINEAR), tmp_path_factory.mktemp("linear") / "run")


def stop_after(batches: int) -> Any:
    left = iter(range(batches))
    return lambda: None if next(left, None) is not None else "SIGTERM"


def stop_then(log: Path, config: TrainConfig, run: Path, batches: int) -> int:
    """Trains until it is stopped after some more batches, which writes a checkpoint; returns its position."""
    with pytest.raises(Interrupted, match=r"interrupted at row [\d,]+; the same command resumes") as stopped:
        train(log, config, run, process=Process(stop=stop_after(batches)))
    assert stopped.value.status == 128 + signal.SIGTERM
    newest = max(int(path.name) for path in (run / "checkpoints").iterdir())
    assert f"row {newest:,};" in str(stopped.value)
    return newest


def fail_at(log: Path, config: TrainConfig, run: Path, position: int) -> list[int]:
    """Trains until an exception after the batch that ends at a position; returns the positions after its batches."""
    passed: list[int] = []

    def fail(at: int, _: object) -> None:
        passed.append(at)
        if at == position:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(log, config, run, fail)
    return passed


def test_a_run_that_is_stopped_or_fails_anywhere_ends_in_the_same_bits(faulty_log, linear, tmp_path):
    log, config, run, ends = faulty_log, linear.config, tmp_path / "run", linear.positions
    first, second, *_ = linear.checkpointed()
    # Stopped within the first window, and before any label is due.
    assert stop_then(log, config, run, 0) == ends[0]
    # Failed in the batch after a checkpoint that was due: what came after it is computed again.
    assert fail_at(log, config, run, ends[first]) == ends[1 : first + 1]
    # Stopped between two checkpoints, and within a window.
    assert stop_then(log, config, run, 2) == ends[first + 2]
    # Failed in the last batch.
    assert fail_at(log, config, run, ends[-1]) == ends[first + 3 :]
    passed: list[int] = []
    summary = train(log, config, run, lambda position, _: passed.append(position))
    assert passed == [end for end in ends if end > ends[list(linear.checkpointed())[-1] - 1]]
    assert_same(run, linear.run)
    assert second > first + 3 and summary["rejected_rows"] == 4


@pytest.mark.slow
def test_checkpoints_by_the_clock_change_nothing(faulty_log, linear, tmp_path):
    timed = config_of(LINEAR, {"checkpoint": {"every_examples": 10**6, "every_minutes": 1e-9, "keep": 99}})
    train(faulty_log, timed, tmp_path / "timed")
    assert len(list((tmp_path / "timed/checkpoints").iterdir())) > 10
    assert_same(tmp_path / "timed", linear.run, "config.yaml", "summary", "arrays", "newest")


@pytest.fixture
def unfinished(linear, copy_run) -> Path:
    """A copy of the run that was killed before it wrote its results."""
    run = copy_run(linear.run)
    (run / "summary.json").unlink()
    return run


def test_what_interrupted_writes_left_is_removed_and_a_finished_run_has_nothing_left_to_do(
    faulty_log, linear, unfinished
):
    names = ("summary.json", "windows.parquet", "predictions/1.parquet")
    left = [unfinished / f"{name}.partial-0123456789abcdef" for name in names]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    batches: list[int] = []
    for _ in range(2):
        summary = train(faulty_log, linear.config, unfinished, lambda *_: batches.append(1))
        assert json.loads((unfinished / "summary.json").read_text()) == summary
    assert batches == [] and not any(path.exists() for path in left)
    assert_same(unfinished, linear.run)
    # The first timing stands.
    before = json.loads((linear.run / "summary.json").read_text())
    assert train(faulty_log, linear.config, linear.run) == before


def test_a_damaged_checkpoint_gives_way_to_the_one_before(faulty_log, linear, unfinished, caplog):
    older, newest = sorted((unfinished / "checkpoints").iterdir())
    flip(newest / "arrays.npz")
    (unfinished / "tensorboard/notes.txt").write_text("mine")
    batches: list[int] = []
    with caplog.at_level(logging.WARNING):
        train(faulty_log, linear.config, unfinished, lambda position, _: batches.append(position))
    assert f"{newest.name} is damaged" in caplog.text
    assert batches == [position for position in linear.positions if position > int(older.name)]
    assert_same(unfinished, linear.run)
    # Of the windows that were lost there are no events left.
    events = EventAccumulator(str(unfinished / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    steps = [event.step for event in events.Tensors("traffic/queries")]
    assert steps == [line["examples"] for line in growing_logs.lines_of(unfinished)]
    assert (unfinished / "tensorboard/notes.txt").exists()


def test_what_it_cannot_go_on_from_is_refused_and_left_as_it_is(faulty_log, log, linear, copy_run):
    def refused(words: str, on: Path = faulty_log, *changes: dict[str, Any], damage: Any = None) -> None:
        run = copy_run(linear.run)
        if damage is not None:
            (run / "summary.json").unlink()
            damage(run)
        files = {
            path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"
        }
        with pytest.raises(InputError, match=words) as caught:
            train(on, config_of(LINEAR, *changes), run)
        assert "\n" not in str(caught.value)
        left = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
        assert left == files

    def all_damaged(run: Path) -> None:
        for checkpoint in (run / "checkpoints").iterdir():
            flip(checkpoint / "state.json")

    def changed_environment(run: Path) -> None:
        environment = json.loads((run / "environment.json").read_text())
        (run / "environment.json").write_text(json.dumps({**environment, "inter_op_threads": 64}))

    refused("every checkpoint is damaged; delete the run directory to start again", damage=all_damaged)
    # Lost lines are not made up.
    for name in ("metrics.jsonl", "rejects.jsonl"):
        lost = rf"{name}: has 0 bytes, \d+ at the checkpoint"
        refused(lost, damage=lambda run, name=name: (run / name).write_text(""))
    lost = r"predictions: has \d+ rows, \d+ at the checkpoint: files were lost"
    refused(lost, damage=lambda run: min((run / "predictions").iterdir()).unlink())
    refused("inter_op_threads was 64, is ", damage=changed_environment)
    refused("batch.rows was 50, is 40.* seed was 1, is 9", faulty_log, {"seed": 9, "batch": {"rows": 40}})
    refused("the log is not the one that this run was trained on", log)


@pytest.mark.slow
def test_the_command_line_says_where_it_was_interrupted_and_resumes_there(tmp_path, monkeypatch, capfd):
    publish(tmp_path / "log", draw_examples().table())
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(LOGISTIC))
    command = ["train", str(tmp_path / "log"), "--config", str(tmp_path / "run.yaml"), "--out"]
    assert main([*command, str(tmp_path / "whole")]) == 0
    record, calls = Run.record, []

    def interrupted(run: Run, *given: Any) -> None:
        record(run, *given)
        calls.append(run)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Run, "record", interrupted)
    capfd.readouterr()
    assert main([*command, str(tmp_path / "run")]) == 128 + signal.SIGINT
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("interrupted at row ") and err.count("\n") == 1
    assert main([*command, str(tmp_path / "run")]) == 0
    assert_same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.soak
def test_the_reference_model_in_bfloat16_repeats_bit_by_bit(tmp_path):
    # Large enough that TensorFlow and oneDNN share matrix products among threads.
    log = publish(tmp_path / "log", draw_examples(4000, seed=3).table(), ((0, 10**9),))
    content = {
        "batch": {"rows": 2048},
        "compute_dtype": "bfloat16",
        "checkpoint": {"every_examples": 5000},
        "model": {"crosses": {"rank": 16, "ramp": 5000}},
    }
    config = config_of(content)
    assert run_killed(log, config, tmp_path / "a") == 0
    assert run_killed(log, config, tmp_path / "b", kill_at=("learn.after", 6)) == KILLED
    assert run_killed(log, config, tmp_path / "b") == 0
    assert_same(tmp_path / "b", tmp_path / "a")
