"""Many small batches in one compiled call: the same pass, to rounding, and the same bits however they are grouped."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctr.data.batches import whole_query_batches
from ctr.data.log import read_manifests
from ctr.data.reader import read_rows
from ctr.io.errors import InputError
from ctr.optim.shampoo.host import HostPipeline
from ctr.training.compiled_step import CompiledStep
from ctr.training.feed import make_feed
from ctr.training.fused_feed import make_fused_feed
from ctr.training.session import train
from ctr.training.sizes import fused_shapes
from fingerprint_logs import SCHEMA, publish_growing
from growing_logs import lines_of, read_predictions, train_part, weights_of
from small_runs import config_of, draw_examples

# Slots are evicted and given to other ids within a call; no window or checkpoint ends where a call would. Batches with
# rows to be left out end a call, and are scored alone.
CONTENT: dict[str, Any] = {
    "skip": [[100, 140], [500, 501]],
    "batch": {"rows": 12, "max_query_rows": 64, "steps_per_execution": 16},
    "ids": {
        "capacity": 12,
        "shared_rows": 2,
        "admission": {"rule": "probability", "probability": 0.8},
        "eviction": {"policy": "score", "share": 0.2},
    },
    "model": {"crosses": {"layers": 0}, "deep": {"units": [4]}},
    "optimizer": {
        "dense": {"schedule": "warmup 300", "shampoo": {"start_preconditioning_step": None, "momentum": 0}}
    },
    "metrics": {"window_examples": 230},
    "checkpoint": {"every_examples": 310},
    "compute_dtype": "float32",
}


def apart(steps: int) -> dict[str, Any]:
    return {"batch": {"steps_per_execution": steps}}


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    return publish_growing(tmp_path_factory.mktemp("fused") / "log", draw_examples())


@pytest.fixture(scope="module", autouse=True)
def calls() -> Iterator[list[int]]:
    """Numbers of batches that are learned together, from the first row on; two batches are not finite."""
    seen: list[int] = []
    learn = CompiledStep.learn_fused

    def counted(self, feed, *rest):
        seen.append(len(feed.batches))
        return learn(self, feed, *rest)

    def is_broken(batch):
        return any(batch.begin <= row < batch.end for row in (400, 700))

    def broken(batch, *rest, **options):
        feed = make_feed(batch, *rest, **options)
        if is_broken(batch):
            feed.targets["own_weight"][0] = np.inf
        return feed

    def partly_broken(batches, *rest):
        feed = make_fused_feed(batches, *rest)
        feed.targets["own_weight"][[is_broken(batch) for batch in batches], 0] = np.inf
        return feed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ctr.training.sizes.FUSED_FROM", 0)
        patch.setattr("ctr.training.inputs.make_feed", broken)
        patch.setattr("ctr.training.inputs.make_fused_feed", partly_broken)
        patch.setattr(CompiledStep, "learn_fused", counted)
        yield seen


def assert_same(one: Path, other: Path, **tolerance: float) -> None:
    found, expected = read_predictions(one)["logit"], read_predictions(other)["logit"]
    np.testing.assert_allclose(found, expected, **tolerance, err_msg="logit")
    first, second = weights_of(one), weights_of(other)
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_allclose(array, second[name], **tolerance, err_msg=name)
    assert lines_of(one)[-1]["examples"] == lines_of(other)[-1]["examples"]


@pytest.fixture(scope="module")
def fused(log, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("fused") / "run"
    train(log, config_of(CONTENT), run)
    return run


def summary_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


@pytest.mark.slow
def test_a_pass_is_that_of_separate_steps_and_broken_batches_are_skipped_alone(log, fused, tmp_path, calls):
    assert max(calls) > 1
    calls.clear()
    train(log, config_of(CONTENT, apart(1)), tmp_path / "apart")
    assert not calls
    assert_same(fused, tmp_path / "apart", rtol=2e-4, atol=2e-5)
    own, other = summary_of(fused), summary_of(tmp_path / "apart")
    for name in ("skipped_steps", "trained_rows", "batches"):
        assert own[name] == other[name]
    assert own["skipped_steps"] == 2 and 40 < own["left_out_rows"] == other["left_out_rows"] < 100


@pytest.mark.slow
def test_a_run_that_stops_inside_a_call_names_the_rows_up_to_the_batch_at_fault(log, tmp_path, calls):
    calls.clear()
    config = config_of(CONTENT, {"max_skipped_steps": 1, "metrics": {"window_examples": 5000}})
    with pytest.raises(InputError, match="1 steps in a row") as stopped:
        train(log, config, tmp_path / "run")
    batches = whole_query_batches(read_rows(log, SCHEMA, read_manifests(log)), 12, 64)
    at_fault = next(batch for batch in batches if batch.end > 400)
    begin, end = map(int, re.search(r"--skip (\d+):(\d+)", str(stopped.value)).groups())
    assert begin <= 400 and end == at_fault.end
    assert max(calls) > 3


# Batches of 8 rows come from row 160 on; an exchange comes ever later, at first between any two of them.
SHAMPOO: dict[str, Any] = {
    "skip": [],
    "batch": {"rows": 8, "growth": 0.05, "least": 1},
    "model": {"experts": ["network"]},
    "optimizer": {
        "dense": {
            "preconditioned_from_rows": 8,
            # Damped well, as in other tests of few rows: roots make much of the last bits.
            "shampoo": {
                "epsilon": 0.01,
                "start_preconditioning_step": 3,
                "precondition_frequency": 7,
                "momentum": 0.9,
                "roots": {"early_growth": 0.25},
            },
        }
    },
}


@pytest.mark.slow
def test_roots_are_exchanged_at_the_same_steps_however_many_batches_share_a_call(log, tmp_path, calls):
    """Also where a run is resumed in between, with a root in flight."""
    exchanges: list[int] = []
    send, calls[:] = HostPipeline.send, []

    def counted(self, step, *rest):
        exchanges.append(step)
        return send(self, step, *rest)

    found, together = {}, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HostPipeline, "send", counted)
        for steps in (1, 3, 64):
            config, run = config_of(CONTENT, SHAMPOO, apart(steps)), tmp_path / str(steps)
            if steps == 3:
                train_part(log, config, run, 600)
                exchanges.clear()
            summary = train(log, config, run)
            found[steps] = exchanges.copy(), summary["shampoo"]
            together.append(max(calls, default=1))
            exchanges.clear()
            calls.clear()
    whole, report = found[64]
    assert together[:2] == [1, 3] and together[2] > 7
    assert np.diff(whole)[-3:].tolist() == [7, 7, 7] and 1 in np.diff(whole)
    assert found[1][0] == whole and found[3][0] == whole[-len(found[3][0]) :]
    assert len(found[3][0]) < len(whole)
    assert report["steps"] > whole[-1] and report["layers_ready"] == report["layers"] > 0
    assert_same(tmp_path / "3", tmp_path / "64", rtol=0, atol=0)
    assert_same(tmp_path / "1", tmp_path / "64", rtol=2e-4, atol=2e-5)


def test_what_one_call_cannot_do_is_done_batch_by_batch():
    layouts = config_of(CONTENT).table_layouts(SCHEMA)
    assert fused_shapes(config_of(CONTENT), layouts)
    for changes in (
        apart(1),
        {"jit": False},
        {"label_delay": 60},
        {"objective": {"ranking": {}}},
        {"optimizer": {"embeddings": {"rule": "one_sided"}}},
    ):
        assert not fused_shapes(config_of(CONTENT, changes), layouts), changes
