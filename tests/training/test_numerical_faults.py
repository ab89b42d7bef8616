"""Numbers that are not finite, or absurd, at random steps: the pass goes on or stops, and its metrics hold."""

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import growing_logs
from ctr.data.log import read_manifests
from ctr.io.errors import InputError
from ctr.training.config import ExportConfig
from ctr.training.follow import Polling, follow
from ctr.training.run.directory import add_skips
from ctr.training.run.summary import LearningError, summary_text
from ctr.training.session import train
from growing_logs import assert_same, constrained
from numerical_faults import fill, injected
from small_runs import draw_examples, make_config, merged, publish

QUERIES = 800
END = QUERIES * 1000
CONTENT: dict[str, Any] = {
    "max_skipped_steps": 4,
    "checkpoint": {"every_examples": 900, "keep": 2},
    "metrics": {"window_examples": 700},
    "max_rejected_share": 0.02,
}
ADAGRAD = {**CONTENT, "optimizer": {"dense": {"shampoo": {"start_preconditioning_step": None}}}}
SHAMPOO = {
    **CONTENT,
    "optimizer": {"dense": {"shampoo": {"start_preconditioning_step": 2, "precondition_frequency": 4}}},
}
METRICS = ("auc", "per_query_auc", "logloss", "normalized_entropy", "calibration_bias")
# A row that breaks the weights whenever it is learned from, and some that cannot be learned from.
POISON = ("dense/000", 1e30)
UNLEARNABLE = dict.fromkeys(range(2600, 3000, 20), math.inf)


@pytest.fixture(scope="module")
def long_log(tmp_path_factory) -> Path:
    """About 4,000 rows, 80 batches."""
    intervals = tuple((begin, begin + END // 4) for begin in range(0, END, END // 4))
    return publish(
        tmp_path_factory.mktemp("long") / "log", draw_examples(QUERIES, seed=11).table(), intervals
    )


def train_skipping(log: Path, run: Path, attempt: Callable[[], Any]) -> tuple[Any, list[tuple[int, int]]]:
    """Trains, each time that the run stops without the rows that it names; returns the result, and what it skips."""
    for _ in range(6):
        try:
            return attempt(), [*add_skips(run, [], writes=True).skip]
        except LearningError:
            raise
        except InputError as stop:
            begin, end = named_rows(log, run, str(stop))
            add_skips(run, [(begin, end)], writes=True)
    raise AssertionError("it stops again and again")


def named_rows(log: Path, run: Path, line: str) -> tuple[int, int]:
    assert "\n" not in line and line.startswith(f"{run}: ")
    found = re.search(
        rf"rows (\d+) to (\d+) of the log; .* ctr train {log} --out {run} --skip (\d+):(\d+)$", line
    )
    assert found is not None, line
    assert found[1] == found[3] and found[2] == found[4]
    return int(found[1]), int(found[2])


def both_faults() -> Any:
    return injected(UNLEARNABLE, {1500: fill(*POISON)})


@pytest.fixture(scope="module")
def made_runs(long_log, tmp_path_factory) -> Callable[..., Path]:
    """The run under a configuration without faults, trained once."""
    known: dict[str, Path] = {}

    def make(config) -> Path:
        key = config.sha256()
        if key not in known:
            known[key] = tmp_path_factory.mktemp("made") / "run"
            train(long_log, config, known[key])
        return known[key]

    return make


def summary_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


def assert_within(summary: dict[str, Any], clean: dict[str, Any]) -> None:
    for metric in METRICS:
        low, high = clean[f"{metric}_ci95"]
        assert low <= summary[metric] <= high, metric
    json.dumps(summary, allow_nan=False)


def random_rows(seed: int, log: Path, count: int, last: float = 1.0) -> list[int]:
    """Rows of the log at random, not among the first ones, where nothing is learned yet."""
    total = sum(manifest.rows for manifest in read_manifests(log))
    chosen = np.random.default_rng(seed).choice(np.arange(300, round(total * last)), count, replace=False)
    return [int(row) for row in chosen]


# Steps.


@pytest.mark.slow(first=1)
@pytest.mark.parametrize(("weight", "optimizer"), [(np.inf, ADAGRAD), (3e38, SHAMPOO)])
def test_steps_that_explode_are_skipped(long_log, made_runs, tmp_path, optimizer, weight):
    config = make_config(optimizer)
    places = random_rows(7, long_log, 5)
    with injected(unlearnable=dict.fromkeys(places, weight)):
        summary = train(long_log, config, tmp_path / "run")
    assert_within(summary, summary_of(made_runs(config)))
    assert 1 <= summary["skipped_steps"] == len(summary["skipped_ranges"]) <= 5
    assert summary["left_out_rows"] == 0
    assert all(any(b <= row < e for b, e in summary["skipped_ranges"]) for row in places)


@pytest.mark.slow
def test_a_long_run_of_examples_that_cannot_be_learned_from(long_log, made_runs, tmp_path):
    """Where none stop the run, the pass goes on behind them."""
    config = make_config({**SHAMPOO, "max_skipped_steps": None})
    first = random_rows(3, long_log, 1, last=0.5)[0]
    with injected(unlearnable=dict.fromkeys(range(first, first + 800, 20), np.inf)):
        summary = train(long_log, config, tmp_path / "run")
    clean = summary_of(made_runs(make_config(SHAMPOO)))
    assert_within(summary, clean)
    assert summary["examples"] == clean["examples"]
    gone = sum(end - begin for begin, end in summary["skipped_ranges"])
    assert 800 <= gone < 1000 and summary["skipped_rows"] > 0


# Weights, broken in memory: the variable, the value and its share.
BREAKS: dict[str, tuple[str, float, float]] = {
    "a table": ("rows/quality-4", math.nan, 1.0),
    "one weight of a table": ("rows/quality-4", math.nan, 0.0),
    "one weight of a table, absurd": ("rows/ui-2", -1e30, 0.0),
    "sums of a table": ("rows_accumulator/quality-4", math.inf, 0.5),
    "a dense weight": ("dense/000", math.nan, 0.1),
    "sums of a dense weight": ("shampoo/tensor0/accumulator", math.inf, 0.5),
    "momentum": ("shampoo/tensor0/momentum", math.nan, 0.5),
    "a table in bfloat16": ("rows/quality-4", 3e38, 1.0),
}


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("what", BREAKS)
def test_weights_that_break_once_stop_the_run_and_are_computed_again(long_log, made_runs, tmp_path, what):
    """No checkpoint has them: as the memory has failed and not the data, the same command ends as it would have."""
    optimizer = ADAGRAD if list(BREAKS).index(what) % 2 else SHAMPOO
    config = make_config({**optimizer, "compute_dtype": "bfloat16" if "bfloat16" in what else "float32"})
    row, run = random_rows(len(what), long_log, 1)[0], tmp_path / "run"
    with injected(poison={row: fill(*BREAKS[what])}, once=True):
        with pytest.raises(InputError) as stop:
            train(long_log, config, run)
        begin, end = named_rows(long_log, run, str(stop.value))
        # What breaks the momentum breaks the weights a step later.
        assert begin - 60 <= row < end
        train(long_log, config, run)
    assert_same(run, made_runs(config))


@pytest.mark.slow
def test_rows_that_break_the_weights_can_be_left_out(long_log, made_runs, tmp_path):
    config, run = make_config(SHAMPOO), tmp_path / "run"
    places = random_rows(21, long_log, 2)
    with injected(poison={row: fill(*POISON) for row in places}):
        summary, skipped = train_skipping(long_log, run, lambda: train(long_log, config, run))
        fresh = train(long_log, config.model_copy(update={"skip": tuple(skipped)}), tmp_path / "fresh")
    assert_within(summary, summary_of(made_runs(config)))
    assert 1 <= len(skipped) <= 4
    assert all(any(begin <= row < end for begin, end in skipped) for row in places)
    assert summary["left_out_rows"] == fresh["left_out_rows"] > 0
    assert summary["skipped_steps"] == 0
    assert_same(run, tmp_path / "fresh")


# Shampoo's statistics.


@pytest.mark.slow
def test_statistics_that_have_no_root(long_log, made_runs, tmp_path):
    def break_totals(state) -> None:
        for total in state.dense_optimizer.core.statistics.totals:
            total.assign(np.full(total.shape, np.nan))

    config = make_config(SHAMPOO)
    row = random_rows(41, long_log, 1)[0]
    with injected(poison={row: break_totals}, once=True):
        summary = train(long_log, config, tmp_path / "run")
    clean = summary_of(made_runs(config))
    assert_within(summary, clean)
    assert summary["skipped_steps"] == 0
    assert summary["shampoo"]["failed"] > 0
    assert summary["shampoo"]["layers_ready"] == clean["shampoo"]["layers_ready"]


# Stopped, and gone on with.


class Killed(BaseException):
    pass


def stopping_after(batches: int) -> Callable[[int, Any], None]:
    left = iter(range(batches))

    def progress(*_: object) -> None:
        if next(left, None) is None:
            raise Killed

    return progress


@pytest.mark.soak
def test_with_a_label_delay_and_a_constraint_log_stopped_again_and_again(long_log, tmp_path):
    other = draw_examples(QUERIES - 10, seed=9)
    exposure = publish(tmp_path / "exposure", other.table(), ((0, END),))
    config = make_config({**SHAMPOO, **constrained(exposure), "label_delay": 0.03})
    clean = train(long_log, config, tmp_path / "clean")
    run = tmp_path / "run"
    with both_faults():
        summary, skipped = train_skipping(long_log, run, lambda: train(long_log, config, run))
    assert_within(summary, clean)
    assert len(skipped) >= 2
    assert summary["examples"] == clean["examples"]
    # Rows of the constraint log that came with a batch that is left out are scored all the same.
    scored = [one["constraint_logs"]["exposure"]["examples"] for one in (summary, clean)]
    assert scored[0] == scored[1] > 3000
    assert any(begin <= 1500 < end for begin, end in skipped)
    config = config.model_copy(update={"skip": tuple(skipped)})
    for batches in (30, 40, 15):
        with both_faults(), pytest.raises(Killed):
            train(long_log, config, tmp_path / "stopped", stopping_after(batches))
    with both_faults():
        train(long_log, config, tmp_path / "stopped")
    assert_same(tmp_path / "stopped", run)


# Where it ends.


@pytest.mark.slow
def test_a_run_that_learned_nothing_writes_its_files_and_fails(log, copy_run, tmp_path):
    """The first step breaks the weights, so that all rows end up left out."""
    rate, batch = {"optimizer": {"dense": {"learning_rate": 1e30}}}, {"rows": 2000, "max_query_rows": 2000}
    config = make_config(merged(growing_logs.ADAGRAD, rate, {"batch": batch}))
    log, run, exported = copy_run(log), tmp_path / "run", []
    config = config.model_copy(update={"export": ExportConfig(every_examples=10**6)})
    with pytest.raises(InputError, match=r"dense/.* --skip 0:") as stop:
        train(log, config, run, record="teacher", exporter=exported.append)
    assert not (run / "checkpoints").exists()
    add_skips(run, [named_rows(log, run, str(stop.value))], writes=True)
    for _ in range(2):  # and each time that it is asked for again
        with pytest.raises(LearningError) as caught:
            train(log, config, run, record="teacher", exporter=exported.append)
        summary = summary_of(run)
        assert caught.value.summary == summary
        rows = summary["examples"]
        message = str(caught.value)
        assert message == f"{run}: {summary['learning_failure']}"
        assert f"nothing was learned: {rows} of {rows} rows (100.0%) were not trained on" in message
        assert (
            "cause: skip leaves rows out" in message and "optimizer.dense.learning_rate is 1e+30" in message
        )
        assert summary["trained_rows"] == 0 and summary["left_out_rows"] == rows
        assert (run / "windows.parquet").exists()
        assert f"not trained on      {rows} rows (100.0%)" in summary_text(run, summary)
    assert not exported and not (log / "sidecars" / "teacher").exists()


def test_a_run_whose_steps_are_all_skipped_fails(log, tmp_path):
    """Of a part of the log, whose other rows count neither as lost nor as read."""
    shards = [shard for manifest in read_manifests(log) for shard in manifest.shards]
    middle = (shards[0].first_query_time + shards[-1].last_query_time) // 2
    end = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=middle)).isoformat()
    changes = {"max_skipped_steps": None, "time_range": {"end": end}}
    config = make_config(changes, logistic=True)
    with injected(unlearnable=dict.fromkeys(range(2000), math.inf)):
        with pytest.raises(LearningError) as caught:
            train(log, config, tmp_path / "run")
        with pytest.raises(LearningError, match="nothing was learned"):
            follow(log, config, tmp_path / "live", Polling(0.01, 0))
    summary, message = summary_of(tmp_path / "run"), str(caught.value)
    rows = summary["examples"]
    assert 0 < rows < sum(shard.rows for shard in shards)
    assert summary["skipped_rows"] == rows and summary["trained_rows"] == 0
    assert f"nothing was learned: {rows} of {rows} rows (100.0%)" in message
    assert f"0 left out by skip, {rows} in {summary['batches']} skipped steps" in message
    assert "cause: the loss or a gradient was not finite" in message
