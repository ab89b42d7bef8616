"""Numbers that are not finite, or absurd, at random steps: the pass goes on or goes back, and its metrics hold."""

import json
import math
import multiprocessing
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import numerical_faults
from ctr.data.log import read_manifests
from ctr.data.shards import read_shard
from ctr.data.sidecar import write_sidecar_partition
from ctr.eval.report import render_report
from ctr.io.errors import InputError
from ctr.training.config import ExportConfig
from ctr.training.follow import Polling, follow
from ctr.training.loop import LearningError, train
from ctr.training.run import checkpoint, rollback
from ctr.training.run.run import Run
from ctr.training.run.summary import summary_text
from growing_logs import assert_same, constrained, outcome
from numerical_faults import fill, injected

QUERIES = 800
END = QUERIES * 1000
LIMIT = 4
CONTENT: dict[str, Any] = {
    "rollback": {"after_skipped_steps": LIMIT},
    "checkpoint": {"every_examples": 900, "keep": 2},
    "metrics": {"window_examples": 700},
    "max_rejected_share": 0.02,
}
ADAGRAD = {"optimizer": {"dense": {"shampoo": {"start_preconditioning_step": None}}}}
SHAMPOO = {
    "optimizer": {"dense": {"shampoo": {"start_preconditioning_step": 2, "precondition_frequency": 4}}}
}
OPTIMIZERS = {"adagrad": ADAGRAD, "shampoo": SHAMPOO}


def each_under_one(cases, fast=(), slow=None):
    """Parameters (case, optimizer): cases under one of the optimizers in turn; in the soak all under both.

    ``slow``: which of them; by default all.
    """
    marked = []
    for number, case in enumerate(cases):
        for turn, optimizer in enumerate(OPTIMIZERS):
            in_turn = (number + turn) % 2 == 0 and (slow is None or case in slow)
            marks = () if in_turn and case in fast else pytest.mark.slow if in_turn else pytest.mark.soak
            marked.append(pytest.param(case, optimizer, marks=marks, id=f"{case}-{optimizer}"))
    return marked


METRICS = ("auc", "per_query_auc", "logloss", "normalized_entropy", "calibration_bias")


@pytest.fixture(scope="module")
def rows(make_examples):
    return make_examples(QUERIES, seed=11)


@pytest.fixture(scope="module")
def long_log(rows, publish_log, tmp_path_factory) -> Path:
    """About 4,000 rows, 80 batches."""
    intervals = tuple((begin, begin + END // 4) for begin in range(0, END, END // 4))
    return publish_log(tmp_path_factory.mktemp("long") / "log", rows.table(), intervals)


@pytest.fixture(scope="module")
def clean_runs(long_log, tmp_path_factory) -> Callable[[Any], Path]:
    """The run without faults under a configuration, trained once."""
    known: dict[str, Path] = {}

    def clean(config) -> Path:
        if config.sha256() not in known:
            known[config.sha256()] = tmp_path_factory.mktemp("clean") / "run"
            train(long_log, config, known[config.sha256()])
        return known[config.sha256()]

    return clean


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


# Rows of the log.


@pytest.mark.soak
@pytest.mark.parametrize(("seed", "optimizer"), each_under_one([5]))
def test_faulty_rows_anywhere(
    rows, long_log, clean_runs, make_config, publish_log, tmp_path, seed, optimizer
):
    config = make_config({**CONTENT, **OPTIMIZERS[optimizer]})
    values = {name: np.array(getattr(rows, name), np.float64) for name in ("train_weight", "metric_weight")}
    label, ids = rows.label.copy(), rows.ids.copy()
    places = random_rows(seed, long_log, 16)
    label[places[:2]] = [5, -128]
    ids[places[2], 0], ids[places[3], 1] = 30, -1
    for name, own in (("train_weight", places[4:10]), ("metric_weight", places[10:])):
        values[name][own] = [np.nan, np.inf, -np.inf, -0.1, 1e38, 3e38]
    broken = type(rows)(**{**vars(rows), **values, "label": label, "ids": ids})
    log = publish_log(tmp_path / "log", broken.table(), ((0, END),))
    summary = train(log, config, tmp_path / "run")
    clean = summary_of(clean_runs(config))
    assert_within(summary, clean)
    assert summary["rejected_rows"] == len(places)
    assert summary["examples"] == clean["examples"] - len(places)
    assert (summary["skipped_steps"], summary["rollbacks"], summary["nonfinite_predictions"]) == (0, 0, 0)
    rejects = [json.loads(line) for line in (tmp_path / "run" / "rejects.jsonl").read_text().splitlines()]
    assert sorted(reject["example_id"] - 10_000 for reject in rejects) == sorted(places)


@pytest.mark.parametrize(("seed", "optimizer"), each_under_one([1]))
def test_a_teacher_that_says_anything(
    rows, schema, long_log, make_config, clean_runs, copy_run, tmp_path, seed, optimizer
):
    """Values that are not finite count as none; extreme ones are certain, and finite losses."""
    distillation = {"teacher": "teacher", "missing": "train_without", "weight": 0.2}
    config = make_config({**CONTENT, **OPTIMIZERS[optimizer], "objective": {"distillation": distillation}})
    log = copy_run(long_log)
    logit = np.random.default_rng(seed).normal(size=len(rows)).astype(np.float32)
    for number, value in enumerate((np.nan, np.inf, -np.inf, 1e30, -1e30)):
        logit[random_rows(seed + number, log, 5)] = value
    begin = 0
    for manifest in read_manifests(log):
        ids = pa.concat_tables([read_shard(log, entry, schema) for entry in manifest.shards])
        table = pa.table(
            {"example_id": ids.column("example_id"), "logit": pa.array(logit[begin : begin + len(ids)])}
        )
        write_sidecar_partition(log, "teacher", manifest, table)
        begin += len(ids)
    summary = train(log, config, tmp_path / "run")
    assert_within(summary, summary_of(clean_runs(make_config({**CONTENT, **OPTIMIZERS[optimizer]}))))
    assert summary["skipped_steps"] == summary["rollbacks"] == 0


# Steps.


@pytest.mark.parametrize(("weight", "optimizer"), each_under_one([np.nan, np.inf, 1e30, 3e38], slow=[np.inf]))
def test_steps_that_explode_are_skipped(long_log, clean_runs, make_config, tmp_path, optimizer, weight):
    config = make_config({**CONTENT, **OPTIMIZERS[optimizer]})
    places = random_rows(7, long_log, 5)
    with injected(unlearnable=dict.fromkeys(places, weight)):
        summary = train(long_log, config, tmp_path / "run")
    assert_within(summary, summary_of(clean_runs(config)))
    assert 1 <= summary["skipped_steps"] == len(summary["skipped_ranges"]) <= 5
    assert summary["rollbacks"] == 0
    assert all(any(b <= row < e for b, e in summary["skipped_ranges"]) for row in places)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "optimizer"), each_under_one([2, 3], slow=[3]))
def test_a_long_run_of_examples_that_cannot_be_learned_from(
    long_log, clean_runs, make_config, tmp_path, seed, optimizer
):
    """Longer than all that rollbacks would take: the pass goes on behind it."""
    config = make_config({**CONTENT, **OPTIMIZERS[optimizer]})
    first = random_rows(seed, long_log, 1, last=0.5)[0]
    learned: list[int] = []
    with injected(
        unlearnable=dict.fromkeys(range(first, first + 800, 20), np.inf),
        begun=lambda begin, _: learned.append(begin),
    ):
        summary = train(long_log, config, tmp_path / "run")
    assert_within(summary, summary_of(clean_runs(config)))
    assert 1 <= summary["rollbacks"] <= 2
    assert summary["examples"] == summary_of(clean_runs(config))["examples"]
    gone = sum(end - begin for begin, end in summary["skipped_ranges"]) + summary["quarantined_rows"]
    assert 800 <= gone < 1400
    assert max(learned) > 3500
    # It went back no farther than to a checkpoint: most batches were learned once.
    assert len(learned) < 1.5 * summary["batches"]


# Weights, broken in memory.

BREAKS = {
    "a table": ("rows/quality-4", math.nan, 1.0),
    "a table, infinite": ("rows/quality-4", math.inf, 1.0),
    "a table, absurd": ("rows/quality-4", 1e30, 1.0),
    "one weight of a table": ("rows/quality-4", math.nan, 0.0),
    "one weight of a table, absurd": ("rows/ui-2", -1e30, 0.0),
    "sums of a table": ("rows_accumulator/quality-4", math.inf, 0.5),
    "a dense weight": ("dense/000", math.nan, 0.1),
    "a dense weight, absurd": ("dense/000", 1e30, 1.0),
    "sums of a dense weight": ("shampoo/tensor0/accumulator", math.inf, 0.5),
    "momentum": ("shampoo/tensor0/momentum", math.nan, 0.5),
}
SLOW = ("a table", "one weight of a table", "sums of a table", "a dense weight, absurd", "momentum")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "optimizer"), each_under_one(BREAKS, fast=["sums of a table"], slow=SLOW[:2])
)
def test_weights_that_break_once_are_had_again(long_log, clean_runs, make_config, tmp_path, what, optimizer):
    config = make_config({**CONTENT, **OPTIMIZERS[optimizer]})
    row = random_rows(len(what), long_log, 1)[0]
    with injected(poison={row: fill(*BREAKS[what])}, once=True):
        summary = train(long_log, config, tmp_path / "run")
    clean = clean_runs(config)
    assert_within(summary, summary_of(clean))
    assert summary["rollbacks"] == 1
    assert summary["examples"] == summary_of(clean)["examples"]
    (entry,) = summary["quarantined"]
    begin, end = entry["rows"]
    if begin == end:
        # Nothing quarantined: it is as if nothing had happened.
        found, expected = outcome(tmp_path / "run"), outcome(clean)
        for name in ("metrics", "rejects", "metric states"):
            assert found[name] == expected[name], name
        assert entry["query_times"] is None
    else:
        # What breaks the momentum breaks the weights a step later.
        assert begin - 60 <= row < end
        assert summary["quarantined_rows"] == end - begin < 400
        times = [time // 1000 for time in entry["query_times"]]
        assert 0 <= times[0] <= times[1] < QUERIES


# Rows that break the weights whenever they are learned from.


POISON = ("dense/000", 1e30)


@pytest.mark.parametrize(("seed", "optimizer"), each_under_one([20, 21], slow=[21]))
def test_rows_that_break_the_weights_are_quarantined(
    long_log, clean_runs, make_config, tmp_path, optimizer, seed
):
    config = make_config({**CONTENT, **OPTIMIZERS[optimizer]})
    places = random_rows(seed, long_log, 2)
    with injected(poison={row: fill(*POISON) for row in places}):
        summary = train(long_log, config, tmp_path / "run")
    assert_within(summary, summary_of(clean_runs(config)))
    assert 1 <= summary["rollbacks"] <= 3
    ranges = [entry["rows"] for entry in summary["quarantined"]]
    assert all(any(begin <= row < end for begin, end in ranges) for row in places)
    assert summary["skipped_steps"] == 0


@pytest.mark.soak
def test_before_the_first_checkpoint_it_begins_anew_with_the_same_bits(long_log, make_config, tmp_path):
    config = make_config({**CONTENT, **SHAMPOO, "checkpoint": {"every_examples": 10**6}})
    weights: dict[int, list[bytes]] = {}

    def keep(begin, state):
        weights.setdefault(begin, []).append(b"".join(array.tobytes() for array in state.arrays().values()))

    with injected(poison={420: fill(*POISON)}, begun=keep):
        summary = train(long_log, config, tmp_path / "run")
    assert [entry["checkpoint"] for entry in summary["quarantined"]] == [0]
    begin, end = summary["quarantined"][0]["rows"]
    assert begin <= 420 < end
    before = [seen for row, seen in weights.items() if row <= 420 and row < begin]
    assert len(before) > 5
    assert all(len(seen) == 2 and seen[0] == seen[1] for seen in before)
    assert len(weights[begin]) == 1


# Kills.


@pytest.fixture(scope="session")
def run_faulty() -> Callable[..., int]:
    """Trains under faults in a process that is killed after so many batches; returns its exit status."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ctr.training.loop", "ctr.training.follow"])

    def run(log: Path, config, folder: Path, given: dict[str, Any], kill_at: int) -> int:
        content = {
            "log": str(log),
            "config": config.model_dump(mode="json"),
            "run": str(folder),
            "faults": given,
            "kill_at": kill_at,
        }
        process = context.Process(target=numerical_faults.main, args=(content,))
        process.start()
        process.join(300)
        return process.exitcode

    return run


BOTH = {"poison": {1500: POISON}, "unlearnable": dict.fromkeys(range(2600, 3000, 20), math.inf)}


def in_process(given: dict[str, Any]):
    return injected(given["unlearnable"], {row: fill(*how) for row, how in given["poison"].items()})


@pytest.fixture(scope="module")
def faulty_run(long_log, tmp_path_factory) -> Callable[..., Path]:
    known: dict[str, Path] = {}

    def make(config) -> Path:
        if config.sha256() not in known:
            known[config.sha256()] = tmp_path_factory.mktemp("faulty") / "run"
            with in_process(BOTH):
                train(long_log, config, known[config.sha256()])
        return known[config.sha256()]

    return make


@pytest.mark.soak
def test_killed_again_and_again_it_ends_in_the_same_bits(
    long_log, faulty_run, make_config, run_faulty, tmp_path
):
    config = make_config({**CONTENT, **SHAMPOO})
    expected = faulty_run(config)
    assert summary_of(expected)["rollbacks"] >= 2
    # Some of them are farther from the end than a run comes from one checkpoint to the next.
    kills = iter([30, 40, 30, 0])
    starts = 0
    while run_faulty(long_log, config, tmp_path / "run", BOTH, next(kills)):
        starts += 1
    assert starts >= 2
    assert_same(tmp_path / "run", expected)
    assert (tmp_path / "run/quarantine.json").read_bytes() == (expected / "quarantine.json").read_bytes()


class Killed(BaseException):
    pass


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(moment, marks=pytest.mark.slow if moment == 1 else pytest.mark.soak)
        for moment in range(4)
    ],
)
def test_stopped_within_a_rollback_it_ends_in_the_same_bits(
    long_log, faulty_run, make_config, tmp_path, monkeypatch, moment
):
    config = make_config({**CONTENT, **SHAMPOO})
    expected = faulty_run(config)
    module, name = (
        (checkpoint, "drop_after"),
        (rollback, "write_rollbacks"),
        (checkpoint, "restore_newest"),
        (Run, "resume"),
    )[moment]
    real = getattr(module, name)
    calls = []

    def dying(*arguments):
        calls.append(1)
        # The first of the last two are of the start itself.
        if len(calls) == (1 if moment < 2 else 2):
            raise Killed
        return real(*arguments)

    monkeypatch.setattr(module, name, dying)
    with in_process(BOTH), pytest.raises(Killed):
        train(long_log, config, tmp_path / "run")
    monkeypatch.setattr(module, name, real)
    assert (tmp_path / "run/quarantine.json").exists() == (moment >= 2)
    with in_process(BOTH):
        train(long_log, config, tmp_path / "run")
    assert_same(tmp_path / "run", expected)


@pytest.mark.soak
def test_following_a_live_log_it_ends_in_the_same_bits(long_log, faulty_run, make_config, tmp_path):
    config = make_config({**CONTENT, **SHAMPOO})
    with in_process(BOTH):
        follow(long_log, config, tmp_path / "run", lambda: None, Polling(0.01, 0.2))
        train(long_log, config, tmp_path / "run")
    found, expected = outcome(tmp_path / "run"), outcome(faulty_run(config))
    for name in ("summary", "metrics", "rejects", "metric states"):
        assert found[name] == expected[name], name


@pytest.mark.soak
@pytest.mark.parametrize(
    "delay", [pytest.param(0, marks=pytest.mark.soak), pytest.param(0.03, marks=pytest.mark.slow)]
)
def test_with_a_label_delay_and_a_constraint_log(
    long_log, make_examples, make_config, publish_log, run_faulty, tmp_path, delay
):
    other = make_examples(QUERIES - 10, seed=9)
    exposure = publish_log(tmp_path / "exposure", other.table(), ((0, END),))
    config = make_config({**CONTENT, **SHAMPOO, **constrained(exposure), "label_delay": delay})
    clean = train(long_log, config, tmp_path / "clean")
    with in_process(BOTH):
        summary = train(long_log, config, tmp_path / "run")
    assert_within(summary, clean)
    assert summary["rollbacks"] >= 2
    assert summary["examples"] == clean["examples"]
    # Rows of the constraint log that came with a batch that is quarantined are scored all the same.
    scored = [one["constraint_logs"]["exposure"]["examples"] for one in (summary, clean)]
    assert scored[0] == scored[1] > 3000
    assert any(entry["rows"][0] <= 1500 < entry["rows"][1] for entry in summary["quarantined"])
    for kill_at in (30,):
        assert run_faulty(long_log, config, tmp_path / "killed", BOTH, kill_at) == -9
    assert run_faulty(long_log, config, tmp_path / "killed", BOTH, 0) == 0
    assert_same(tmp_path / "killed", tmp_path / "run")


# Where it ends.


@pytest.mark.slow
def test_when_going_back_does_not_help_it_says_so(long_log, make_config, tmp_path):
    config = make_config({**CONTENT, "checkpoint": {"every_examples": 10**6}})
    # Every batch breaks the weights.
    with (
        injected(poison={row: fill(*POISON) for row in range(1000, 3500, 5)}),
        pytest.raises(
            InputError, match=r"after two rollbacks to the checkpoint of row \d+ that quarantined"
        ) as caught,
    ):
        train(long_log, config, tmp_path / "run")
    assert "\n" not in str(caught.value)
    # The same again, at once.
    with (
        injected(poison={row: fill(*POISON) for row in range(1000, 3500, 5)}),
        pytest.raises(InputError, match="after two rollbacks"),
    ):
        train(long_log, config, tmp_path / "run")


@pytest.mark.soak
def test_without_rollbacks_steps_are_skipped_for_ever(long_log, make_config, tmp_path):
    config = make_config({**CONTENT, "rollback": {"after_skipped_steps": None}})
    with (
        injected(poison={1000: fill("dense/000", math.nan)}),
        pytest.raises(
            LearningError, match=r"of no use \(dense/000 is not finite\); lower the learning rates"
        ),
    ):
        train(long_log, config, tmp_path / "run")
    summary = summary_of(tmp_path / "run")
    assert summary["learning_failure"].startswith("the weights at the end")
    assert summary["rollbacks"] == 0
    assert summary["skipped_steps"] > 50


def test_a_run_that_learned_nothing_writes_its_files_and_fails(log, make_config, copy_run, tmp_path):
    """The first step breaks the weights, so that all rows end up quarantined."""
    config = make_config(
        {"optimizer": {"dense": {"learning_rate": 1e30}}, "batch": {"rows": 2000, "max_query_rows": 2000}},
        logistic=True,
    )
    log, run, exported = copy_run(log), tmp_path / "run", []
    config = config.model_copy(update={"export": ExportConfig(every_examples=10**6)})
    for _ in range(2):  # and each time that it is asked for again
        with pytest.raises(LearningError) as caught:
            train(log, config, run, record="teacher", exporter=exported.append)
        summary = summary_of(run)
        assert caught.value.summary == summary
        rows = summary["examples"]
        message = str(caught.value)
        assert message == f"{run}: {summary['learning_failure']}"
        assert f"nothing was learned: {rows} of {rows} rows (100.0%) were not trained on" in message
        assert "cause: dense/" in message and "optimizer.dense.learning_rate is 1e+30" in message
        assert summary["trained_rows"] == 0 and summary["quarantined_rows"] == rows
        assert (run / "metric_states.npz").exists()
        assert f"not trained on      {rows} rows (100.0%)" in summary_text(run, summary)
    assert not exported and not (log / "sidecars" / "teacher").exists()


def test_a_run_whose_steps_are_all_skipped_fails(log, make_config, tmp_path):
    with injected(unlearnable=dict.fromkeys(range(2000), math.inf)), pytest.raises(LearningError) as caught:
        train(log, make_config({"rollback": {"after_skipped_steps": None}}, logistic=True), tmp_path / "run")
    summary = summary_of(tmp_path / "run")
    assert summary["skipped_rows"] == summary["examples"] and summary["trained_rows"] == 0
    assert f"0 quarantined, {summary['examples']} in {summary['batches']} skipped steps" in str(caught.value)
    assert "cause: the loss or a gradient was not finite" in str(caught.value)


def test_rows_outside_the_time_range_count_neither_as_lost_nor_as_read(log, make_config, tmp_path):
    shards = [shard for manifest in read_manifests(log) for shard in manifest.shards]
    middle = (shards[0].first_query_time + shards[-1].last_query_time) // 2
    ends = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=middle)).isoformat()
    config = make_config(
        {"rollback": {"after_skipped_steps": None}, "time_range": {"end": ends}}, logistic=True
    )
    with injected(unlearnable=dict.fromkeys(range(2000), math.inf)), pytest.raises(LearningError) as caught:
        train(log, config, tmp_path / "run")
    rows = summary_of(tmp_path / "run")["examples"]
    assert 0 < rows < sum(shard.rows for shard in shards)
    assert f"nothing was learned: {rows} of {rows} rows (100.0%)" in str(caught.value)


def test_following_a_log_it_fails_as_well(log, make_config, tmp_path):
    config = make_config({"rollback": {"after_skipped_steps": None}}, logistic=True)
    with (
        injected(unlearnable=dict.fromkeys(range(2000), math.inf)),
        pytest.raises(LearningError, match="nothing was learned"),
    ):
        follow(log, config, tmp_path / "run", lambda: None, Polling(0.01, 0))


@pytest.mark.slow
def test_rows_that_were_lost_are_named_as_a_share(examples, log, make_config, tmp_path, caplog):
    with injected(unlearnable=dict.fromkeys(range(300, 340), math.inf)):
        summary = train(log, make_config(logistic=True), tmp_path / "run")
    assert summary["learning_failure"] is None
    lost = sum(end - begin for begin, end in summary["skipped_ranges"])
    assert summary["skipped_rows"] == lost > 0
    share = f"{lost / summary['examples']:.1%}"
    assert f"{lost} of {summary['examples']} rows ({share}) were not trained on" in caplog.text
    assert f"{lost} rows ({share})" in summary_text(tmp_path / "run", summary)
    # Rows of skipped steps are not among those that were trained on.
    taught = examples.train_weight > 0
    taught[summary["skipped_ranges"][0][0] : summary["skipped_ranges"][-1][1]] = False
    assert summary["trained_rows"] == taught.sum()


@pytest.mark.soak
def test_no_checkpoint_within_a_streak(long_log, make_config, tmp_path, monkeypatch):
    config = make_config({**CONTENT, "rollback": {"after_skipped_steps": 30}})
    bad = range(800, 1800)
    found: list[int] = []
    save = Run.save

    def noted(run: Run) -> None:
        found.append(run.position.examples)
        save(run)

    monkeypatch.setattr(Run, "save", noted)
    with injected(unlearnable=dict.fromkeys(bad, math.inf)):
        summary = train(long_log, config, tmp_path / "run")
    assert summary["rollbacks"] == 0
    assert not any(850 < position < 1800 for position in found)
    # The first step that is applied is followed by it.
    assert any(1800 <= position < 1900 for position in found)


@pytest.mark.slow
def test_lost_or_changed_notes_are_refused(long_log, faulty_run, make_config, copy_run):
    run = copy_run(faulty_run(make_config({**CONTENT, **SHAMPOO})))
    (run / "summary.json").unlink()
    path = run / "quarantine.json"
    content = path.read_text()
    path.unlink()
    with pytest.raises(InputError, match=r"quarantine.json: does not have the \d rollbacks"):
        train(long_log, make_config({**CONTENT, **SHAMPOO}), run)
    path.write_text(content.replace("1", "2", 3))
    with pytest.raises(InputError, match=r"quarantine.json: "):
        train(long_log, make_config({**CONTENT, **SHAMPOO}), run)


# bfloat16, and Shampoo's statistics.


@pytest.mark.soak
@pytest.mark.parametrize(("size", "optimizer"), each_under_one([1e20, 3e38], slow=[3e38]))
def test_an_overflow_in_bfloat16(long_log, clean_runs, make_config, tmp_path, optimizer, size):
    config = make_config({**CONTENT, **OPTIMIZERS[optimizer], "compute_dtype": "bfloat16"})
    row = random_rows(31, long_log, 1)[0]
    with injected(poison={row: fill("rows/quality-4", size)}, once=True):
        summary = train(long_log, config, tmp_path / "run")
    assert_within(summary, summary_of(clean_runs(config)))
    assert summary["rollbacks"] == 1


def singular(state) -> None:
    for total in state.dense_optimizer.core.statistics.totals:
        total.assign(np.ones(total.shape))


def fill_totals(value: float):
    def act(state) -> None:
        for total in state.dense_optimizer.core.statistics.totals:
            total.assign(np.full(total.shape, value))

    return act


@pytest.mark.parametrize(
    ("act", "fails"),
    [
        pytest.param(singular, False, id="singular", marks=pytest.mark.slow),
        pytest.param(fill_totals(0), False, id="zero", marks=pytest.mark.soak),
        pytest.param(fill_totals(math.nan), True, id="NaN", marks=pytest.mark.slow),
        pytest.param(fill_totals(math.inf), True, id="infinite", marks=pytest.mark.soak),
        pytest.param(fill_totals(-1), False, id="negative", marks=pytest.mark.soak),
    ],
)
def test_statistics_that_have_no_root(long_log, clean_runs, make_config, tmp_path, act, fails):
    config = make_config({**CONTENT, **SHAMPOO})
    row = random_rows(41, long_log, 1)[0]
    with injected(poison={row: act}, once=True):
        summary = train(long_log, config, tmp_path / "run")
    clean = summary_of(clean_runs(config))
    assert_within(summary, clean)
    assert summary["skipped_steps"] == summary["rollbacks"] == 0
    # Others count as hardly changed while what they hold is far larger than what comes in.
    assert summary["shampoo"]["failed"] > 0 or not fails
    assert summary["shampoo"]["layers_ready"] == clean["shampoo"]["layers_ready"]


@pytest.mark.soak
def test_the_report_tells_of_it(faulty_run, make_config):
    run = faulty_run(make_config({**CONTENT, **SHAMPOO}))
    html = render_report([run])
    assert '<section id="faults">' in html
    for entry in summary_of(run)["quarantined"]:
        assert f"back to row {entry['checkpoint']}, rows {entry['rows']} quarantined" in html
