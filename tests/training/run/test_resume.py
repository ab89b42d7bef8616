"""A run that is stopped and resumed, however often and wherever, ends in the same bits."""

import json
import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ctr.config import parse_model
from ctr.data.shards import publish_partition
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.loop import TIMING, train

pytestmark = pytest.mark.slow

KILLED = -9


def without_timings(content: dict) -> dict:
    return {key: value for key, value in content.items() if key not in TIMING}


def outcome(run: Path) -> dict:
    """All that a run computed: the same for the same computation."""
    with np.load(run / "metric_states.npz") as states:
        metric_states = {name: states[name].tobytes() for name in states}
    return {
        "arrays": {
            path.parent.name: path.read_bytes() for path in sorted(run.glob("checkpoints/*/arrays.npz"))
        },
        "summary": without_timings(json.loads((run / "summary.json").read_text())),
        "metrics": [
            without_timings(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()
        ],
        "rejects": (run / "rejects.jsonl").read_text(),
        "metric states": metric_states,
        "timeline": (run / "timeline.npz").read_bytes(),
        "data health": (run / "data_health.json").read_bytes(),
        "predictions": {path.name: path.read_bytes() for path in sorted(run.glob("predictions/*"))},
        "config": (run / "config.yaml").read_bytes(),
        "environment": (run / "environment.json").read_bytes(),
    }


def assert_same(run: Path, other: Path) -> None:
    found, expected = outcome(run), outcome(other)
    for name in expected:
        assert found[name] == expected[name], name


def weights(run: Path) -> dict[str, np.ndarray]:
    with np.load(sorted((run / "checkpoints").iterdir())[-1] / "arrays.npz") as arrays:
        return {name: arrays[name] for name in arrays if name.startswith(("weights|rows/", "weights|dense/"))}


CONTENT = {
    "batch": {"rows": 50, "max_query_rows": 64},
    "model": {
        "crosses": {"layers": 2, "rank": 3, "ramp": [100, 600]},
        "deep": {"units": [8]},
        "prior": 0.3,
    },
    # So that roots are in flight wherever a run ends.
    "optimizer": {
        "dense": {"shampoo": {"start_preconditioning_step": 2, "precondition_frequency": 4, "momentum": 0.9}}
    },
    "metrics": {"window_examples": 230, "slices": ["position"]},
    "checkpoint": {"every_examples": 310, "keep": 2},
    "max_rejected_share": 0.01,
}
CONFIG = parse_model(TrainConfig, CONTENT, "test")


@pytest.fixture(scope="module")
def faulty_log(examples, tmp_path_factory, publish_log) -> Path:
    """The log with a few faulty rows, so that rejects too have to come out the same."""
    label = examples.label.copy()
    label[[3, 400, 401, 900]] = 5
    table = type(examples)(**{**vars(examples), "label": label}).table()
    return publish_log(tmp_path_factory.mktemp("faulty") / "log", table)


@pytest.fixture(scope="module")
def positions(faulty_log, uninterrupted) -> list[int]:
    """The position after each batch of the uninterrupted run."""
    return uninterrupted[1]


@pytest.fixture(scope="module")
def uninterrupted(faulty_log, tmp_path_factory) -> tuple[Path, list[int]]:
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    positions: list[int] = []
    train(faulty_log, CONFIG, run, lambda position, _: positions.append(position))
    assert len(outcome(run)["arrays"]) == 2
    assert len(outcome(run)["predictions"]) >= 4
    return run, positions


def checkpointed(positions: list[int]) -> list[int]:
    """The numbers of the batches (from 1) after which a checkpoint is written."""
    numbers, saved = [], 0
    for number, position in enumerate(positions, start=1):
        if position - saved >= 310:
            numbers.append(number)
            saved = position
    return numbers


@pytest.mark.soak
def test_killed_before_the_first_checkpoint(faulty_log, uninterrupted, run_killed, tmp_path):
    assert run_killed(faulty_log, CONFIG, tmp_path / "run", kill_after=3) == KILLED
    assert list(tmp_path.glob("run/checkpoints/*")) == []
    assert list(tmp_path.glob("run/config.yaml"))
    train(faulty_log, CONFIG, tmp_path / "run")
    assert_same(tmp_path / "run", uninterrupted[0])


@pytest.mark.soak
def test_killed_again_and_again(faulty_log, uninterrupted, positions, run_killed, tmp_path):
    run = tmp_path / "run"
    first, second, *_ = checkpointed(positions)
    # In the first batch after a checkpoint; then, from there on, between two checkpoints; in the last batch.
    assert run_killed(faulty_log, CONFIG, run, kill_after=first + 1) == KILLED
    assert [int(path.name) for path in (run / "checkpoints").iterdir()] == [positions[first - 1]]
    assert run_killed(faulty_log, CONFIG, run, kill_after=(second - first) // 2) == KILLED
    assert len(list((run / "checkpoints").iterdir())) == 1
    assert run_killed(faulty_log, CONFIG, run, kill_after=len(positions) - first) == KILLED
    assert not (run / "summary.json").exists()
    resumed_at = []
    train(faulty_log, CONFIG, run, lambda position, _: resumed_at.append(position))
    assert resumed_at == positions[checkpointed(positions)[-1] :]
    assert_same(run, uninterrupted[0])


@pytest.mark.soak
def test_killed_while_it_writes(faulty_log, uninterrupted, run_killed, tmp_path):
    run = tmp_path / "run"
    # Each process is killed at a later one of the moments at which something is made durable: within the start,
    # between predictions, arrays and state of a checkpoint, and between the files at the end.
    statuses = [run_killed(faulty_log, CONFIG, run, kill_at_sync=number) for number in (5, 16, 19)]
    assert statuses == [KILLED] * len(statuses)
    train(faulty_log, CONFIG, run)
    assert_same(run, uninterrupted[0])
    assert not [path for path in run.rglob("*") if ".partial" in path.name]


@pytest.mark.slow(first=1)
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=pytest.mark.slow if number % 6 == 1 else pytest.mark.soak)
        for number in range(1, 60)
    ],
)
def test_killed_while_it_writes_anything(faulty_log, uninterrupted, run_killed, tmp_path, number):
    status = run_killed(faulty_log, CONFIG, tmp_path / "run", kill_at_sync=number)
    if status == KILLED:
        train(faulty_log, CONFIG, tmp_path / "run")
    else:
        assert status == 0
        assert number > 40
    assert_same(tmp_path / "run", uninterrupted[0])


@pytest.mark.soak
def test_the_same_seed_gives_the_same_bits_and_another_one_others(
    faulty_log, uninterrupted, run_killed, tmp_path
):
    # In another process, so that nothing that this one has done before is in it.
    assert run_killed(faulty_log, CONFIG, tmp_path / "run") == 0
    assert_same(tmp_path / "run", uninterrupted[0])
    train(faulty_log, CONFIG.model_copy(update={"seed": 2}), tmp_path / "other")
    own, other = weights(uninterrupted[0]), weights(tmp_path / "other")
    assert own.keys() == other.keys()
    # A gate may stand at the end of its range in both.
    assert not any(np.array_equal(own[name], other[name]) for name in own if own[name].ndim)


@pytest.mark.soak
def test_the_reference_model_in_bfloat16_repeats_bit_by_bit(make_examples, publish_log, run_killed, tmp_path):
    # Large enough that TensorFlow and oneDNN share matrix products among threads.
    table = make_examples(4000, seed=3).table()
    log = publish_log(tmp_path / "log", table, ((0, 10**9),))
    content = {
        "batch": {"rows": 2048},
        "compute_dtype": "bfloat16",
        "checkpoint": {"every_examples": 5000},
        "model": {"crosses": {"rank": 16, "ramp": 5000}},
    }
    config = parse_model(TrainConfig, content, "test")
    assert run_killed(log, config, tmp_path / "a") == 0
    assert run_killed(log, config, tmp_path / "b", kill_after=6) == KILLED
    assert run_killed(log, config, tmp_path / "b") == 0
    assert_same(tmp_path / "b", tmp_path / "a")


def test_what_interrupted_writes_left_is_removed(unfinished, faulty_log):
    left = [unfinished / name for name in ("summary.json", "constraint_states/exposure.npz")]
    left = [path.with_name(f"{path.name}.partial-0123456789abcdef") for path in left]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    train(faulty_log, CONFIG, unfinished)
    assert not any(path.exists() for path in left)


def test_a_finished_run_has_nothing_left_to_do(faulty_log, uninterrupted, copy_run):
    run = copy_run(uninterrupted[0])
    before = outcome(run)
    summary = json.loads((run / "summary.json").read_text())
    batches = []
    assert train(faulty_log, CONFIG, run, lambda *_: batches.append(1)) == summary
    assert batches == []
    assert json.loads((run / "summary.json").read_text()) == summary
    assert outcome(run) == before


@pytest.fixture
def unfinished(uninterrupted, copy_run) -> Path:
    """A copy of the run that was killed before it wrote its results."""
    run = copy_run(uninterrupted[0])
    (run / "summary.json").unlink()
    return run


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    faulty_log, uninterrupted, unfinished, positions, caplog
):
    run = unfinished
    older, newest = sorted((run / "checkpoints").iterdir())
    flip(newest / "arrays.npz")
    batches = []
    with caplog.at_level(logging.WARNING):
        train(faulty_log, CONFIG, run, lambda position, _: batches.append(position))
    assert f"{newest.name} is damaged" in caplog.text
    assert batches == [position for position in positions if position > int(older.name)]
    assert_same_but_for_the_damaged(run, uninterrupted[0])


def assert_same_but_for_the_damaged(run: Path, other: Path) -> None:
    found, expected = outcome(run), outcome(other)
    found["arrays"] = {name: content for name, content in found["arrays"].items() if name.isdigit()}
    assert found == expected


def test_when_every_checkpoint_is_damaged_it_says_so(faulty_log, unfinished):
    run = unfinished
    for checkpoint in (run / "checkpoints").iterdir():
        flip(checkpoint / "state.json")
    with pytest.raises(
        InputError, match="every checkpoint is damaged; delete the run directory to start again"
    ):
        train(faulty_log, CONFIG, run)


@pytest.mark.parametrize("name", ["metrics.jsonl", "rejects.jsonl"])
def test_lost_lines_are_not_made_up(faulty_log, unfinished, name):
    run = unfinished
    (run / name).write_text("")
    with pytest.raises(InputError, match=rf"{name}: has 0 bytes, \d+ at the checkpoint"):
        train(faulty_log, CONFIG, run)


def test_another_configuration_is_refused_with_the_keys_that_differ(faulty_log, uninterrupted, copy_run):
    run = copy_run(uninterrupted[0])
    before = outcome(run)
    other = parse_model(TrainConfig, {**CONTENT, "seed": 9, "batch": {"rows": 40}}, "test")
    with pytest.raises(InputError) as caught:
        train(faulty_log, other, run)
    assert "batch.rows was 50, is 40" in str(caught.value)
    assert "seed was 1, is 9" in str(caught.value)
    assert outcome(run) == before


def test_another_log_is_refused(log, uninterrupted, copy_run):
    run = copy_run(uninterrupted[0])
    before = outcome(run)
    with pytest.raises(InputError, match="the log is not the one that this run was trained on"):
        train(log, CONFIG, run)
    assert outcome(run) == before


def test_another_environment_is_refused(faulty_log, unfinished):
    run = unfinished
    environment = json.loads((run / "environment.json").read_text())
    environment["versions"]["tensorflow"] = "1.0"
    (run / "environment.json").write_text(json.dumps(environment))
    with pytest.raises(InputError, match=r"versions\.tensorflow was '1\.0'"):
        train(faulty_log, CONFIG, run)


@pytest.mark.soak
def test_events_of_the_lost_windows_disappear(faulty_log, unfinished):
    run = unfinished
    flip(sorted((run / "checkpoints").iterdir())[-1] / "arrays.npz")
    (run / "tensorboard" / "notes.txt").write_text("mine")
    train(faulty_log, CONFIG, run)
    assert len(list((run / "tensorboard").glob("events*"))) == 1
    assert (run / "tensorboard" / "notes.txt").exists()


@pytest.mark.soak
def test_a_log_that_grew_is_gone_on_with(examples, schema, publish_log, tmp_path, read_predictions):
    table = examples.table()
    times = table.column("query_time").to_numpy()
    log = publish_log(tmp_path / "log", table, ((0, 80_000), (80_000, 160_000)))
    run = tmp_path / "run"
    seen = int((times < 160_000).sum())
    short = train(log, CONFIG, run)
    assert short["log_rows"] == seen
    before = read_predictions(run)

    publish_partition(log, schema, 160_000, 240_000, table.take(pa.array(np.flatnonzero(times >= 160_000))))
    positions = []
    summary = train(log, CONFIG, run, lambda position, _: positions.append(position))
    assert positions[0] > seen
    assert summary["log_rows"] == positions[-1] == len(examples)
    assert summary["log_sha256"] != short["log_sha256"]
    after = read_predictions(run)
    assert after["example_id"].tolist() == table.column("example_id").to_pylist()
    pd.testing.assert_frame_equal(after.iloc[:seen], before)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["window_examples"] for line in lines) == len(examples)


@pytest.mark.soak
def test_a_log_that_grew_before_where_the_run_stands_is_refused(examples, schema, publish_log, tmp_path):
    table = examples.table()
    times = table.column("query_time").to_numpy()
    log = publish_log(tmp_path / "log", table, ((80_000, 160_000),))
    train(log, CONFIG, tmp_path / "run")
    publish_partition(log, schema, 0, 80_000, table.take(pa.array(np.flatnonzero(times < 80_000))))
    with pytest.raises(InputError, match="its first 1 partitions differ"):
        train(log, CONFIG, tmp_path / "run")
