"""Schedules of learning rates: their closed forms, and how runs follow them."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.loop import open_session, train
from ctr.training.rate_schedule import parse_schedule
from ctr.training.run.directory import read_warm_start
from ctr.training.warm_start.start import InitFrom, warm_start

POLYNOMIAL = "warmup 100, polynomial 400 power 2 to 0.1"
COSINE = "warmup 50, cosine 800 to 0.2"
SCHEDULES: dict[str, Any] = {
    "optimizer": {"dense": {"schedule": POLYNOMIAL}, "embeddings": {"schedule": COSINE}}
}


def at(text: str, examples: int) -> float:
    return parse_schedule(text).at(examples)


def test_by_default_the_rate_is_constant():
    assert TrainConfig().optimizer.schedules == {}
    assert [at("constant", examples) for examples in (0, 1, 10**12)] == [1.0] * 3
    rates = TrainConfig().rates_at(10**9)
    assert rates == {"embeddings": 1.0, "dense": TrainConfig().optimizer.dense.learning_rate}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("warmup 8", {0: 0.0, 1: 0.125, 4: 0.5, 7: 0.875, 8: 1.0, 9: 1.0, 10**12: 1.0}),
        ("polynomial 4", {0: 1.0, 1: 0.75, 2: 0.5, 4: 0.0, 5: 0.0}),
        (
            POLYNOMIAL,
            {0: 0.0, 50: 0.5, 100: 1.0, 300: 0.1 + 0.9 / 4, 400: 0.1 + 0.9 / 16, 500: 0.1, 10**12: 0.1},
        ),
        ("cosine 3", {0: 1.0, 1: 0.75, 2: 0.25, 3: 0.0, 4: 0.0}),
        (COSINE, {0: 0.0, 25: 0.5, 50: 1.0, 450: 0.6, 850: 0.2, 851: 0.2}),
        ("warmup 8 power 2", {0: 0.0, 1: 1 / 64, 2: 1 / 16, 4: 0.25, 6: 0.5625, 8: 1.0, 10**12: 1.0}),
        ("warmup 4 power 0.5, cosine 2", {0: 0.0, 1: 0.5, 4: 1.0, 5: 0.5, 6: 0.0}),
        ("inverse_sqrt 9", {0: 1.0, 8: 1.0, 9: 1.0, 16: 0.75, 36: 0.5, 900: 0.1, 9 * 10**12: 1e-6}),
        (
            "warmup 10 power 2, inverse_sqrt 10",
            {0: 0.0, 5: 0.25, 9: 0.81, 10: 1.0, 40: 0.5, 1000: 0.1, 10**7: 1e-3},
        ),
        ("warmup 5, inverse_sqrt 100", {1: 0.2, 5: 1.0, 100: 1.0, 400: 0.5}),
    ],
)
def test_closed_forms(content, expected):
    for examples, factor in expected.items():
        assert at(content, examples) == pytest.approx(factor, abs=1e-15)


def test_the_corners_are_exact():
    for text, begin, end, final in ((POLYNOMIAL, 100, 500, 0.1), (COSINE, 50, 850, 0.2)):
        assert (at(text, 0), at(text, begin)) == (0.0, 1.0)
        assert at(text, end) == at(text, end + 1) == final


def test_the_decay_never_rises():
    for text, begin in ((POLYNOMIAL, 100), (COSINE, 50), ("warmup 20, inverse_sqrt 60", 20)):
        factors = [at(text, examples) for examples in range(begin, 1000)]
        assert all(later <= earlier for earlier, later in itertools.pairwise(factors))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("warmup -1", "allowed: constant"),
        ("linear 10", "allowed: constant"),
        ("cosine", "allowed: constant"),
        ("cosine 10, warmup 5", "allowed: constant"),
        ("warmup 5, warmup 5", "allowed: constant"),
        ("", "allowed: constant"),
        ("cosine 0", "a decay takes examples above 0"),
        ("cosine 10 power 2", "power is of a warm-up or a polynomial decay, not of cosine"),
        ("polynomial 10 power 0", "a power above 0"),
        ("polynomial 10 to 1.5", "a share of at most 1"),
        ("warmup 10 power 0", "a warm-up takes a power above 0"),
        ("warmup 10 to 2", "allowed: constant"),
        ("inverse_sqrt 10, warmup 5", "allowed: constant"),
        ("inverse_sqrt 0", "a decay takes examples above 0"),
        ("inverse_sqrt 10 to 0.1", "it takes no share"),
        ("inverse_sqrt 10 power 2", "not of inverse_sqrt"),
        ("warmup 20, inverse_sqrt 10", "from the end of the warm-up, 20, on"),
        ({"warmup_examples": 10}, "a text is required|valid string"),
    ],
)
def test_impossible_schedules_are_refused_by_their_keys(content, message):
    with pytest.raises(InputError, match=message) as refused:
        parse_model(TrainConfig, {"optimizer": {"dense": {"schedule": content}}}, "test")
    assert "optimizer.dense.schedule" in str(refused.value)


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def weights(run: Path) -> dict[str, bytes]:
    with np.load(max((run / "checkpoints").iterdir()) / "arrays.npz") as arrays:
        names = [name for name in arrays if name.startswith("weights|") and "counters" not in name]
        return {name: arrays[name].tobytes() for name in names}


@pytest.fixture(scope="module")
def scheduled(log, make_config, tmp_path_factory) -> Path:
    """A run over the whole log in which both rates change."""
    run = tmp_path_factory.mktemp("scheduled") / "run"
    train(log, make_config(SCHEDULES), run)
    return run


@pytest.fixture(scope="module")
def plain(log, make_config, tmp_path_factory) -> Path:
    """A run without a schedule."""
    run = tmp_path_factory.mktemp("plain") / "run"
    train(log, make_config(), run)
    return run


@pytest.fixture(scope="module")
def unchanged(log, make_config, tmp_path_factory) -> Path:
    """A run with a schedule that stays at 1 all the way."""
    run = tmp_path_factory.mktemp("unchanged") / "run"
    schedule = "cosine 100 to 1.0"
    train(log, make_config({"optimizer": {"dense": {"schedule": schedule}}}), run)
    return run


@pytest.mark.slow
def test_windows_have_the_rates_that_change(scheduled, unchanged, make_config):
    config = make_config(SCHEDULES)
    for line in lines_of(scheduled):
        expected = config.rates_at(line["examples"])
        assert line["rate_dense"] == expected["dense"]
        assert line["rate_embeddings"] == expected["embeddings"]
    names = {key for line in lines_of(unchanged) for key in line if key.startswith("rate_")}
    assert names == {"rate_dense"}


@pytest.mark.slow
def test_a_run_resumed_in_the_middle_of_a_schedule_ends_in_the_same_bits(
    scheduled, log, make_config, tmp_path
):
    config, run = make_config(SCHEDULES), tmp_path / "run"
    batches: list[int] = []
    with open_session(log, config, run, lambda position, _: batches.append(position)) as session:
        session.advance(stop=lambda: len(batches) == 7)
        session.save()
    assert 100 < batches[-1] < 500
    train(log, config, run)
    assert weights(run) == weights(scheduled)
    without_times = [
        {key: value for key, value in line.items() if "second" not in key} for line in lines_of(run)
    ]
    assert without_times == [
        {key: value for key, value in line.items() if "second" not in key} for line in lines_of(scheduled)
    ]


@pytest.mark.soak
def test_a_step_uses_the_rates_of_the_examples_before_it(log, make_config, tmp_path):
    schedule = {"schedule": f"warmup {10**6}"}
    changes = {"optimizer": {"dense": schedule, "embeddings": schedule}}
    seen: list[dict[str, bytes]] = []

    def note(*_: object) -> None:
        named = session.run.state.variables()
        seen.append({name: value.numpy().tobytes() for name, value in named.items()})

    with open_session(log, make_config(changes), tmp_path / "run", note) as session:
        note()
        session.advance(stop=lambda: len(seen) == 3)
    moved = [
        {name.partition("/")[0] for name in before if before[name] != after[name]}
        for before, after in itertools.pairwise(seen)
    ]
    # At rate 0 nothing moves but what optimizers remember.
    assert moved[0] == {"rows_accumulator", "shampoo"}
    assert {"rows", "dense"} < moved[1]


@pytest.mark.soak
def test_a_constant_schedule_that_is_written_out_is_the_default(make_config):
    written = {"schedule": "constant"}
    assert make_config({"optimizer": {"dense": written, "embeddings": written}}) == make_config()


@pytest.mark.soak
def test_a_factor_of_1_changes_no_bit(plain, unchanged):
    assert weights(plain) == weights(unchanged)


def schedules_of(run: Path) -> dict[str, tuple[str, str]]:
    content = read_warm_start(run)
    assert content is not None
    return {
        line["name"]: (line["status"], line["why"]) for line in content["table"] if line["part"] == "schedule"
    }


@pytest.mark.soak
@pytest.mark.slow
def test_a_warm_start_continues_the_schedules_by_examples(examples, publish_log, make_config, tmp_path):
    table, half, end = examples.table(), (0, 160_000), (160_000, 240_000)
    old_log = publish_log(tmp_path / "old-log", table, (half,))
    whole = publish_log(tmp_path / "whole", table, (half, end))
    # Batches end with partitions, so that a pass over half of the log and the rest is a pass over all of it.
    by_partition = {"batch": {"within_partitions": True}}
    config = make_config({**SCHEDULES, **by_partition})
    summary = train(old_log, config, tmp_path / "old")
    changed = make_config({**SCHEDULES, **by_partition, "metrics": {"window_examples": 100}})
    train(whole, changed, tmp_path / "new", init_from=InitFrom(tmp_path / "old"))
    train(whole, config, tmp_path / "uninterrupted")
    assert weights(tmp_path / "new") == weights(tmp_path / "uninterrupted")
    continued = ("taken", f"continues at {summary['trained_examples']} examples")
    assert schedules_of(tmp_path / "new") == {"rate_dense": continued, "rate_embeddings": continued}


@pytest.mark.soak
def test_a_schedule_that_the_old_run_has_not_begins_at_the_warm_start(plain, log, make_config, tmp_path):
    warm_start(log, make_config(SCHEDULES), tmp_path / "run", InitFrom(plain), waits=True)
    begun = ("fresh", "begins here")
    assert schedules_of(tmp_path / "run") == {"rate_dense": begun, "rate_embeddings": begun}


def test_a_schedule_of_weights_of_which_none_were_taken_begins_at_the_warm_start(
    scheduled, log, make_config, tmp_path
):
    factorized = {"model": {"factorized": {"width": 3}, "crosses": {"layers": 0}, "deep": {"units": [5]}}}
    config = make_config({**SCHEDULES, **factorized})
    warm_start(log, config, tmp_path / "run", InitFrom(scheduled), waits=True)
    schedules = schedules_of(tmp_path / "run")
    assert schedules["rate_dense"] == ("fresh", "begins here")
    assert schedules["rate_embeddings"][0] == "taken"
