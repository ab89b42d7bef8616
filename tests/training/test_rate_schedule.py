"""Schedules of learning rates: their closed forms, and how runs follow them."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from ctr.config import parse_model
from ctr.io.errors import InputError
from ctr.objective.schedules import parse_schedule
from ctr.training.config import TrainConfig
from ctr.training.run.directory import read_warm_start
from ctr.training.session import open_session
from ctr.training.warm_start.start import InitFrom, warm_start
from growing_logs import ADAGRAD, lines_of, train_part
from small_runs import make_config, merged

POLYNOMIAL = "warmup 100, polynomial 400 power 2 to 0.1"
COSINE = "warmup 50, cosine 800 to 0.2"
SCHEDULES: dict[str, Any] = {
    "optimizer": {"dense": {"schedule": POLYNOMIAL}, "embeddings": {"schedule": COSINE}}
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("constant", {0: 1.0, 1: 1.0, 10**12: 1.0}),
        ("warmup 8", {0: 0.0, 1: 0.125, 4: 0.5, 7: 0.875, 8: 1.0, 9: 1.0, 10**12: 1.0}),
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
    ],
)
def test_closed_forms(text, expected):
    schedule = parse_schedule(text)
    for examples, factor in expected.items():
        found = schedule.at(examples)
        # The corners are exact.
        assert (
            found == factor if factor in (0.0, 0.1, 0.2, 1.0) else found == pytest.approx(factor, abs=1e-15)
        )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("linear 10", "allowed: constant"),
        ("cosine 10, warmup 5", "allowed: constant"),
        ("cosine 0", "a decay takes examples above 0"),
        ("cosine 10 power 2", "power is of a warm-up or a polynomial decay, not of cosine"),
        ("polynomial 10 power 0", "a power above 0"),
        ("polynomial 10 to 1.5", "a share of at most 1"),
        ("inverse_sqrt 10 to 0.1", "it takes no share"),
        ("warmup 20, inverse_sqrt 10", "from the end of the warm-up, 20, on"),
        ({"warmup_examples": 10}, "a text is required|valid string"),
    ],
)
def test_impossible_schedules_are_refused_by_their_keys(content, message):
    with pytest.raises(InputError, match=message) as refused:
        parse_model(TrainConfig, {"optimizer": {"dense": {"schedule": content}}}, "test")
    assert "optimizer.dense.schedule" in str(refused.value)


def test_a_step_uses_the_rates_of_the_examples_before_it_and_windows_show_them(log, tmp_path):
    """At the start of a warm-up the rate is 0."""
    config = make_config(merged(ADAGRAD, SCHEDULES))
    seen: list[dict[str, bytes]] = []

    def note(*_: object) -> None:
        named = session.run.state.variables()
        seen.append({name: value.numpy().tobytes() for name, value in named.items()})

    with open_session(log, config, tmp_path / "run", note) as session:
        note()
        session.finish()
    moved = [
        {name.partition("/")[0] for name in before if before[name] != after[name]}
        for before, after in itertools.pairwise(seen[:3])
    ]
    # At rate 0 nothing moves but what optimizers remember.
    assert moved[0] == {"rows_accumulator", "shampoo"}
    assert {"rows", "dense"} < moved[1]
    for line in lines_of(tmp_path / "run"):
        rates = config.rates_at(line["examples"])
        assert (line["rate_dense"], line["rate_embeddings"]) == (rates["dense"], rates["embeddings"])


def schedules_of(run: Path) -> dict[str, tuple[str, str]]:
    content = read_warm_start(run)
    assert content is not None
    return {
        line["name"]: (line["status"], line["why"]) for line in content["table"] if line["part"] == "schedule"
    }


@pytest.mark.slow
def test_a_schedule_that_is_new_or_of_weights_that_were_not_taken_begins_at_the_warm_start(log, tmp_path):
    begun = ("fresh", "begins here")
    old, scheduled = make_config(logistic=True), make_config(SCHEDULES, logistic=True)
    for name, config in (("old", old), ("old-scheduled", scheduled)):
        train_part(log, config, tmp_path / name, 100)
    warm_start(log, scheduled, tmp_path / "new", InitFrom(tmp_path / "old"), waits=True)
    assert schedules_of(tmp_path / "new") == {"rate_dense": begun, "rate_embeddings": begun}
    network = merged(ADAGRAD, SCHEDULES)
    train_part(log, make_config(network), tmp_path / "old-network", 100)
    # With two towers the network reads other embeddings, so that it begins fresh.
    other = make_config({**network, "model": {"factorized": {"width": 3}}})
    warm_start(log, other, tmp_path / "other", InitFrom(tmp_path / "old-network"), waits=True)
    found = schedules_of(tmp_path / "other")
    assert found["rate_dense"] == begun
    assert found["rate_embeddings"][0] == "taken"
