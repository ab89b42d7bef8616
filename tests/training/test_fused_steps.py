"""Many small batches in one compiled call: the same pass, to rounding, and the same bits however they are grouped."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.training.config import TrainConfig
from ctr.training.feed import make_feed
from ctr.training.loop import open_session, train
from ctr.training.run import checkpoint
from ctr.training.trainer import Trainer
from fingerprint_logs import publish_growing
from small_runs import draw_examples, merged

# Slots are evicted and given to other ids within a call; no window or checkpoint ends where a call would.
CONTENT: dict[str, Any] = {
    "batch": {"rows": 12, "max_query_rows": 64, "steps_per_execution": 16},
    "ids": {"capacity": 12, "shared_rows": 2, "eviction": {"policy": "score", "share": 0.2}},
    "model": {"crosses": {"layers": 1, "rank": 3, "ramp": [100, 600]}, "deep": {"units": [4]}},
    "optimizer": {"dense": {"schedule": "warmup 300"}},
    "metrics": {"window_examples": 230},
    "checkpoint": {"every_examples": 310},
    "compute_dtype": "float32",
}


def config_of(*changes: dict[str, Any]) -> TrainConfig:
    content = CONTENT
    for change in changes:
        content = merged(content, change)
    return parse_model(TrainConfig, content, "test")


def apart(steps: int) -> dict[str, Any]:
    return {"batch": {"steps_per_execution": steps}}


@pytest.fixture(autouse=True)
def _fused_from_the_beginning(monkeypatch):
    monkeypatch.setattr("ctr.training.inputs.FUSED_FROM", 0)


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    return publish_growing(tmp_path_factory.mktemp("fused") / "log", draw_examples())


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    """Numbers of batches that were learned together."""
    seen: list[int] = []
    learn = Trainer.learn_fused

    def counted(self, feeds, *rest):
        seen.append(len(feeds))
        return learn(self, feeds, *rest)

    monkeypatch.setattr(Trainer, "learn_fused", counted)
    return seen


def weights_of(run: Path) -> dict[str, np.ndarray]:
    arrays, _ = checkpoint.read(run / "checkpoints")
    return {name: array for name, array in arrays.items() if name.startswith("weights|")}


def assert_same(one: Path, other: Path, read_predictions: Callable[..., Any], **tolerance: float) -> None:
    np.testing.assert_allclose(
        read_predictions(one)["logit"], read_predictions(other)["logit"], **tolerance, err_msg="logit"
    )
    first, second = weights_of(one), weights_of(other)
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_allclose(array, second[name], **tolerance, err_msg=name)


@pytest.fixture(scope="module")
def fused(log, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("fused") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ctr.training.inputs.FUSED_FROM", 0)
        train(log, config_of(), run)
    return run


def test_a_pass_is_that_of_separate_steps(log, fused, tmp_path, calls, read_predictions):
    train(log, config_of(apart(1)), tmp_path / "apart")
    assert not calls
    assert_same(fused, tmp_path / "apart", read_predictions, rtol=2e-4, atol=2e-5)
    lines = [(run / "metrics.jsonl").read_text().splitlines() for run in (fused, tmp_path / "apart")]
    own, other = ([json.loads(line)["examples"] for line in each] for each in lines)
    assert own == other


def test_bits_do_not_depend_on_which_batches_share_a_call(log, fused, tmp_path, calls, read_predictions):
    config = config_of(apart(3))
    with open_session(log, config, tmp_path / "other") as session:
        session.advance(stop=lambda: session.run.position.examples >= 500)
        session.save()
    train(log, config, tmp_path / "other")
    assert set(calls) >= {1, 2, 3}
    assert_same(fused, tmp_path / "other", read_predictions, rtol=0, atol=0)


def test_a_batch_that_is_not_finite_is_skipped_alone(log, tmp_path, calls, monkeypatch, read_predictions):
    def broken(batch, *rest):
        feed = make_feed(batch, *rest)
        if any(batch.begin <= row < batch.end for row in (400, 405, 700)):
            feed.targets["own_weight"][0] = np.inf
        return feed

    monkeypatch.setattr("ctr.training.inputs.make_feed", broken)
    found = []
    for steps in (16, 1):
        summary = train(log, config_of(apart(steps)), tmp_path / str(steps))
        found.append((summary["skipped_steps"], summary["trained_rows"]))
    assert found[0] == found[1]
    assert found[0][0] in (2, 3)
    assert max(calls) > 1
    assert_same(tmp_path / "16", tmp_path / "1", read_predictions, rtol=2e-4, atol=2e-5)
