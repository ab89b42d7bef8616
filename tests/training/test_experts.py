"""Experts: when pairs are left out, and which ones a run has."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctr.data.batches import whole_query_batches
from ctr.data.log import read_manifests
from ctr.data.reader import read_rows
from ctr.io.errors import InputError
from ctr.training.experts.forward import make_experts
from ctr.training.experts.state import FIRST_LOOK, ExpertState
from ctr.training.logs import open_logs
from ctr.training.session import train
from fingerprint_logs import SCHEMA, publish_growing
from growing_logs import ADAGRAD, read_predictions, train_part, weights_of
from small_runs import config_of, draw_examples

ALL = ["linear", "network", "pairs"]
CONTENT: dict[str, Any] = {
    "batch": {"rows": 12, "max_query_rows": 64},
    "model": {"crosses": {"layers": 0}, "deep": {"units": [4]}, "query_size": False, "experts": ALL},
    "compute_dtype": "float32",
    **ADAGRAD,
}


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    return publish_growing(tmp_path_factory.mktemp("experts") / "log", draw_examples())


def batches_of(log: Path) -> list[slice]:
    """The places of each batch's rows."""
    blocks = read_rows(log, SCHEMA, read_manifests(log))
    ends = [batch.end for batch in whole_query_batches(blocks, 12, 64)]
    return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def logits_of(run: Path) -> np.ndarray:
    return read_predictions(run)["logit"].to_numpy(np.float64)


@pytest.fixture
def short_looks(monkeypatch) -> None:
    """Pairs that have to prove themselves within 96 rows, and are looked at again when the log is twice as long."""
    for name, value in (("FIRST_LOOK", 96), ("_AGAIN", 2)):
        monkeypatch.setattr(f"ctr.training.experts.state.{name}", value)


@pytest.mark.slow
def test_useless_pairs_are_left_out_and_looked_at_again(short_looks, log, tmp_path):
    """Where they are left out, predictions are those of a run that has none."""
    for experts in (ALL, ALL[:2]):
        train(log, config_of(CONTENT, {"model": {"experts": experts}}), tmp_path / experts[-1])
    difference = np.abs(logits_of(tmp_path / "pairs") - logits_of(tmp_path / "network"))
    batches = batches_of(log)
    other = [bool((difference[batch] > 1e-5).any()) for batch in batches]
    changes = [
        batch.start
        for batch, before, now in zip(batches[1:], other, other[1:], strict=False)
        if before != now
    ]
    # A gate that begins at 0 moves nothing in the first batch of a look.
    begun, left_out, again, once_more = changes[:4]
    assert begun < 40 and 96 <= left_out < 130
    assert 2 * left_out - 20 < again < 2 * left_out + 60 and again < once_more < again + 130


@pytest.mark.soak
def test_bits_do_not_depend_on_where_it_stopped_and_what_shares_a_call(
    short_looks, log, tmp_path, monkeypatch
):
    monkeypatch.setattr("ctr.training.sizes.FUSED_FROM", 0)
    # Calls are long, as most batches have at most 8 rows, and the first stop lies within a look.
    train(log, config_of(CONTENT, {"batch": {"rows": 8, "steps_per_execution": 16}}), tmp_path / "whole")
    three = config_of(CONTENT, {"batch": {"rows": 8, "steps_per_execution": 3}})
    for stop in (80, 700):
        train_part(log, three, tmp_path / "other", stop)
    train(log, three, tmp_path / "other")
    np.testing.assert_array_equal(logits_of(tmp_path / "whole"), logits_of(tmp_path / "other"))
    own, other = weights_of(tmp_path / "whole"), weights_of(tmp_path / "other")
    assert own.keys() == other.keys() >= {"weights|experts/gain"}
    assert any("rows/pairs" in name for name in own)
    for name, array in own.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


def decisions(share: float) -> list[tuple[int, bool]]:
    """Rows after which pairs that save a share of the loss are left out, or come back."""
    config = config_of(CONTENT)
    state, found, passed = ExpertState(make_experts(config.model, config.objective, "float32", ()), {}), [], 0
    while passed < 3_000_000:
        rows = 4096
        had_pairs = "pairs" in state.active.names
        if had_pairs:
            state.gain.assign_add([share * rows, rows])
        state.count(rows)
        passed += rows
        if ("pairs" in state.active.names) != had_pairs:
            found.append((passed, not had_pairs))
    return found


def test_looks_become_rare_and_what_helps_stays():
    again = 8 * FIRST_LOOK
    assert decisions(0.0)[:3] == [(FIRST_LOOK, False), (again, True), (again + FIRST_LOOK, False)]
    assert decisions(0.002) == []


def test_experts_that_do_not_fit_are_refused():
    components, multi_task = {"ensemble": {"components": 2}}, {"ranking": {"setup": "multi_task"}}
    for experts, changes, message in (
        (["pairs"], {}, "must name linear or network"),
        (["network"], {"model": {"deep": {"units": []}}}, "network needs crosses or deep layers"),
        (["linear"], {"model": components}, "components above 1 needs the expert network"),
        (["linear"], {"objective": multi_task}, "needs crosses or deep layers"),
        (["linear", "linears"], {}, "experts"),
    ):
        with pytest.raises(InputError, match=message):
            config_of(CONTENT, changes, {"model": {"experts": experts}})


def test_what_auto_leaves_out_is_said(log, tmp_path, caplog):
    auto = {"model": {"experts": "auto"}}
    opened = open_logs(log, config_of(CONTENT, auto))
    assert opened.config.model.experts == tuple(ALL) and opened.notes == ()
    ranked = config_of(CONTENT, auto, {"objective": {"ranking": {}, "distillation": {"teacher": "t"}}})
    assert open_logs(log, ranked).config.model.experts == tuple(ALL)
    plain = config_of(CONTENT, auto, {"model": {"deep": {"units": []}}, "jit": False})
    train(log, plain, tmp_path / "run")
    assert json.loads((tmp_path / "run/summary.json").read_text())["notes"] == list(
        open_logs(log, plain).notes
    )
    assert "model.experts is without network, as there are neither crosses nor deep layers" in caplog.text
    factorized = {"model": {"factorized": {"ui_features": ["position"]}}}
    opened = open_logs(log, config_of(CONTENT, auto, factorized))
    assert opened.config.model.experts == ("network",)
    assert [note.split(",")[0] for note in opened.notes] == ["model.experts is network alone"]
