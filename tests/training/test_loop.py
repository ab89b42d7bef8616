"""The pass over a log beside a loop of formulas, whose predictions, metrics and windows it must have."""

import gc
import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tensorflow.python.framework.ops import gradient_registry

from ctr.config import parse_model
from ctr.data.log import create_log, read_manifests, read_schema
from ctr.data.query_size import FEATURE
from ctr.data.reader import FAULTS, join_rows, read_rows
from ctr.eval.run_files import read_run, read_timeline
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.run.summary import LearningError, summary_text
from ctr.training.session import Process, train
from growing_logs import lines_of, read_predictions, train_part
from reference_loop import cut, progressive_pass
from small_runs import INTERVALS, Examples, draw_examples, make_config, merged, publish

PRIOR = 0.3
WAITED = 1000.0  # seconds before the passes
NETWORK: dict[str, Any] = {
    "compute_dtype": "float32",
    "model": {"crosses": {"rank": 3, "ramp": 300}, "deep": {"units": [8, 5]}},
    "metrics": {"window_examples": 150},
}
LINEAR: dict[str, Any] = {"experts": ["linear"], "prior": PRIOR}
OFTEN = {"precondition_frequency": 5, "start_preconditioning_step": 10}
# What differs from what a stranger's run begins with, and where it is stopped and resumed.
PASSES: dict[str, tuple[dict[str, Any], int | None]] = {
    "default": (NETWORK, None),
    # Stopped between the first batch of 8 rows, with which Shampoo begins, and its first roots.
    "large batches": (
        merged(
            NETWORK,
            {
                "batch": {"rows": 16, "growth": 0.05, "least": 1},
                "optimizer": {"dense": {"preconditioned_from_rows": 8, "shampoo": OFTEN}},
            },
        ),
        230,
    ),
    "shampoo": (
        merged(
            NETWORK,
            {
                "optimizer": {
                    "dense": {
                        "preconditioned_from_rows": 1,
                        "shampoo": {**OFTEN, "roots": {"asynchronous": False}},
                    }
                }
            },
        ),
        None,
    ),
    # Ramps count what was learned, which is less than what was scored; query times are multiples of a millisecond, so
    # that some labels are known exactly when the next batch begins. Two features have no embeddings.
    "late labels": (
        merged(
            NETWORK,
            {
                "label_delay": 0.02,
                "batch": {"rows": 40},
                "model": {"widths": {"user": 0, "item": 0}},
                "metrics": {"window_examples": "auto"},
                "optimizer": {"dense": {"preconditioned_from_rows": None}},
            },
        ),
        330,
    ),
    # A log with faulty rows; batches that grow.
    "linear": (
        {
            "batch": {"rows": 40, "growth": 0.1},
            "model": LINEAR,
            "metrics": {"slices": ["position"]},
            "checkpoint": {"every_examples": 310},
            "max_rejected_share": 0.01,
        },
        500,
    ),
}
# Faulty rows by their place: the column, what stands there, and why they are rejected.
FAULTY: dict[int, tuple[str, Any, str]] = {
    0: ("label", 2, FAULTS[1]),
    17: ("train_weight", np.nan, FAULTS[2]),
    18: ("metric_weight", -1, FAULTS[3]),
    500: ("ids", [3, 50, 2], FAULTS[4]),
    731: ("tags", [3, 40], FAULTS[4]),
    900: ("train_weight", np.inf, FAULTS[2]),
    901: ("train_weight", 3e38, FAULTS[2]),
    950: ("metric_weight", np.nan, FAULTS[3]),
    951: ("metric_weight", 1e38, FAULTS[3]),
}


def with_faults(examples: Examples) -> pa.Table:
    """The rows of ``examples``, some of them faulty."""
    columns = {name: column.copy() for name, column in vars(examples).items()}
    for row, (name, value, _) in FAULTY.items():
        columns[name][row] = value
    return Examples(**columns).table()


def rows_of(log: Path) -> Any:
    return join_rows(list(read_rows(log, read_schema(log), read_manifests(log))))


@pytest.fixture(scope="module")
def faulty_log(examples, tmp_path_factory) -> Path:
    return publish(tmp_path_factory.mktemp("faulty") / "log", with_faults(examples))


@pytest.fixture(scope="module")
def short_log(tmp_path_factory) -> Path:
    """About 600 rows: a loop of formulas takes its time."""
    return publish(tmp_path_factory.mktemp("short") / "log", draw_examples(120).table(), INTERVALS[:2])


@pytest.fixture(scope="module")
def passed(short_log, faulty_log, tmp_path_factory) -> Callable[[str], SimpleNamespace]:
    """The run of one of ``PASSES``, made once: ``log``, ``config``, ``run``, ``summary``, and what was heard of it."""
    made: dict[str, SimpleNamespace] = {}

    def make(name: str) -> SimpleNamespace:
        if name not in made:
            content, stopped_at = PASSES[name]
            own_log, run = (
                faulty_log if name == "linear" else short_log,
                tmp_path_factory.mktemp("pass") / "run",
            )
            if name == "linear":
                # A window that is exactly full with the twelfth batch.
                first = list(cut(rows_of(own_log), parse_model(TrainConfig, content, "test").batch))[:12]
                size = sum(int((batch.fault == 0).sum()) for batch in first)
                content = merged(content, {"metrics": {"window_examples": size}})
            config = parse_model(TrainConfig, content, "test")
            heard: list[tuple[int, dict[str, Any]]] = []
            said: list[str] = []
            if stopped_at is not None:
                train_part(own_log, config, run, stopped_at)
            process = Process(phase=said.append, begun=time.perf_counter() - WAITED)
            summary = train(own_log, config, run, lambda *news: heard.append(news), process=process)
            made[name] = SimpleNamespace(
                log=own_log, config=config, run=run, summary=summary, heard=heard, said=said
            )
        return made[name]

    return make


SLOW = ("large batches", "shampoo", "late labels")
SHAMPOO = r"Shampoo \(\d+ steps, from batches of 8 rows on; AdaGrad in \d+ steps before\)"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in PASSES]
)
def test_predictions_are_those_of_the_formulas(name, passed):
    one = passed(name)
    expected, learned = progressive_pass(one.log, one.config)
    found = read_predictions(one.run)["logit"]
    # Linear weights learn their own drift, which makes more of the last bits.
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4 if name == "linear" else 1e-5)
    assert np.std(expected) > 0.1
    assert one.summary["trained_examples"] == learned
    assert (learned < len(expected)) == (name == "late labels")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("default", "Shampoo (never started: batches stayed below 256 rows; until then AdaGrad)"),
        pytest.param("large batches", SHAMPOO, marks=pytest.mark.slow),
        pytest.param("late labels", "AdaGrad", marks=pytest.mark.slow),
    ],
)
def test_a_run_says_what_dense_weights_learned_by(name, words, passed):
    one = passed(name)
    found = one.summary["dense_optimizer"]
    assert re.fullmatch(words if "steps" in words else re.escape(words), found)
    assert f"  dense weights       {found}" in summary_text(one.run, one.summary).splitlines()
    steps = [one.summary["shampoo"][key] for key in ("steps", "graft_steps")]
    # Under a label delay the last batches are scored and not learned from.
    assert (sum(steps) == one.summary["batches"]) == (name != "late labels")
    assert steps[0] > 20 if name == "large batches" else steps[0] == 0


def test_predictions_carry_the_columns_of_the_log_without_its_faulty_rows(examples, passed):
    found = read_predictions(passed("linear").run)
    good = np.setdiff1d(np.arange(len(examples)), list(FAULTY))
    assert found["example_id"].tolist() == (10_000 + good).tolist()
    assert found["query_id"].tolist() == (examples.query[good] * 7 + 1).tolist()
    assert found["query_time"].tolist() == (examples.query[good] * 1000).tolist()
    for name in ("label", "train_weight", "metric_weight"):
        np.testing.assert_array_equal(found[name], getattr(examples, name)[good])


def test_faulty_rows_are_set_aside_with_their_reason(examples, passed):
    one = passed("linear")
    rejects = lines_of(one.run, "rejects.jsonl")
    assert [reject["example_id"] for reject in rejects] == [10_000 + row for row in FAULTY]
    assert [reject["reason"] for reject in rejects] == [reason for _, _, reason in FAULTY.values()]
    for reject, row in zip(rejects, FAULTY, strict=True):
        begin, end = reject["between_log_rows"]
        assert begin <= row < end
    summary, taught = one.summary, examples.train_weight > 0
    taught[list(FAULTY)] = False
    assert (summary["rejected_rows"], summary["log_rows"]) == (len(FAULTY), len(examples))
    assert summary["examples"] == summary["trained_examples"] == len(examples) - len(FAULTY)
    assert summary["trained_rows"] == taught.sum()
    rows = rows_of(one.log)
    rows = rows.keep(rows.fault == 0)
    without = {name: rows.ids[:, place] == 0 for place, name in enumerate(("user", "item", "position"))}
    without["tags"] = np.diff(rows.multivalent["tags"][1]) == 0
    for name, is_missing in without.items():
        assert summary["features"][name]["missing"] == is_missing.mean() > 0, name


def row_losses(label: np.ndarray, logit: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, np.where(label == 1, -logit, logit))


def pairwise_auc(label: np.ndarray, logit: np.ndarray, weight: np.ndarray) -> float:
    clicked, other = label == 1, label == 0
    difference = logit[clicked][:, np.newaxis] - logit[other]
    pairs = weight[clicked][:, np.newaxis] * weight[other]
    return (pairs * (np.sign(difference) + 1) / 2).sum() / pairs.sum() if pairs.sum() else math.nan


def test_metrics_are_those_of_the_recorded_predictions(passed):
    one = passed("linear")
    summary, found = one.summary, read_predictions(one.run)
    label, logit, weight = (found[name].to_numpy(float) for name in ("label", "logit", "metric_weight"))
    loss = (row_losses(label, logit) * weight).sum() / weight.sum()
    predicted, clicked = (weight / (1 + np.exp(-logit))).sum(), (weight * label).sum()
    assert summary["queries"] == found["query_id"].nunique()
    assert summary["weight_sum"] == pytest.approx(weight.sum())
    assert summary["logloss"] == pytest.approx(loss, rel=1e-6)
    assert summary["calibration_bias"] == pytest.approx((clicked - predicted) / weight.sum(), rel=1e-5)
    assert summary["calibration_ratio"] == pytest.approx(predicted / clicked, rel=1e-6)
    assert summary["auc"] == pytest.approx(pairwise_auc(label, logit, weight), abs=2e-3)
    by_query = [
        pairwise_auc(*(rows[name].to_numpy(float) for name in ("label", "logit", "metric_weight")))
        for _, rows in found.groupby("query_id")
    ]
    assert summary["per_query_auc"] == pytest.approx(np.nanmean(by_query), abs=1e-9)
    assert summary["calibration_slices"]["position"]["slices"] == 8
    assert (summary["skipped_steps"], summary["nonfinite_predictions"]) == (0, 0)
    assert summary["batches"] == len(list(cut(rows_of(one.log), one.config.batch)))
    promised = """examples queries weight_sum auc per_query_auc per_query_auc_ci95 logloss normalized_entropy
        calibration_bias calibration_buckets wall_seconds examples_per_second step_ms_p50 step_ms_p25 step_ms_p75
        parameters_dense parameters_embedding
        skipped_steps skipped_ranges left_out_rows rejected_rows config_sha256 log_sha256"""
    assert set(promised.split()) <= summary.keys()
    assert summary["examples_per_second"] > 0 < summary["step_ms_p50"]
    assert summary["wall_seconds"] > WAITED
    assert summary["parameters_embedding"] == 30 + 50 + 40 + 8 + FEATURE.buckets
    assert summary == json.loads((one.run / "summary.json").read_text())


def test_each_window_is_a_line_with_the_metrics_of_its_rows(passed):
    one = passed("linear")
    lines, found = lines_of(one.run), read_predictions(one.run)
    ends, count = [0], 0
    for batch in cut(rows_of(one.log), one.config.batch):
        count += int((batch.fault == 0).sum())
        last = int(batch.position[-1]) + 1
        # As short as whole batches allow.
        if count >= one.config.metrics.window_examples:
            ends, count = [*ends, last], 0
    ends = [*ends, last] if count else ends
    assert [line["examples"] for line in lines] == ends[1:] and len(lines) >= 5
    assert read_timeline(read_run(one.run)).windows[:, 0].tolist() == ends[1:]
    assert lines[0]["window_examples"] == one.config.metrics.window_examples
    row = found["example_id"] - 10_000
    for begin, line in zip(ends, lines, strict=False):
        rows = found[(row >= begin) & (row < line["examples"])]
        assert line["window_examples"] == len(rows)
        times = rows["query_time"].iloc[0], rows["query_time"].iloc[-1]
        assert (line["window_begin"], line["window_end"]) == times
        label, logit, weight = (rows[name].to_numpy(float) for name in ("label", "logit", "metric_weight"))
        expected = (row_losses(label, logit) * weight).sum() / weight.sum()
        assert line["logloss"] == pytest.approx(expected, rel=1e-6)


def test_the_pass_tells_where_it_is_and_what_it_does(passed):
    one = passed("default")
    positions = [position for position, _ in one.heard]
    # Once for each call, which may learn from many small batches.
    assert 10 < len(positions) < one.summary["batches"]
    assert positions == sorted(positions) and positions[-1] == one.summary["examples"]
    # Batches of up to 8 rows, larger queries, and rows that are scored alone.
    assert one.said == ["checking rows", "", *["compiling", ""] * 3]
    # Metrics of all rows so far, from the first call on; later not of each.
    found = read_predictions(one.run)
    label, logit, weight = (found[name].to_numpy(float) for name in ("label", "logit", "metric_weight"))
    losses = np.cumsum(row_losses(label, logit) * weight) / np.cumsum(weight)
    for number in (1, 8, 16):
        position, metrics = one.heard[number - 1]
        assert metrics["logloss"] == pytest.approx(losses[position - 1], rel=1e-6)
        assert 0 < metrics["auc"] < 1
    ramp = one.config.model.crosses.ramp
    lines = lines_of(one.run)
    assert [line["alpha2"] for line in lines] == [ramp.at(line["examples"]) for line in lines]


# Small and odd logs.


def test_logs_of_which_nothing_can_be_learned(examples, make_log, tmp_path):
    """One row; rows without weight; faulty ones alone: a summary without what is not defined, and no failure."""
    zeros, config = np.zeros(len(examples)), make_config({"max_rejected_share": 1.0}, logistic=True)
    tables = {
        "one row": examples.table().slice(0, 1),
        "no weight": replace(examples, train_weight=zeros, metric_weight=zeros).table().slice(0, 200),
        "faulty": replace(examples, label=np.full(len(examples), 7)).table(),
    }
    for name, table in tables.items():
        run, good = tmp_path / name, 0 if name == "faulty" else len(table)
        summary = train(make_log(table, f"{name}-log"), config, run)
        assert (summary["examples"], summary["rejected_rows"]) == (good, len(table) - good)
        assert summary["auc"] is None and summary["per_query_auc"] is None
        assert summary["skipped_steps"] == 0
        assert len(lines_of(run, "rejects.jsonl")) == len(table) - good
        if name == "no weight":
            assert summary["weight_sum"] == 0 and summary["logloss"] is summary["calibration_bias"] is None
        if good:
            prior = math.log(PRIOR / (1 - PRIOR))
            np.testing.assert_allclose(read_predictions(run)["logit"], prior, rtol=1e-6)


def test_a_log_that_is_empty_or_has_too_many_faulty_rows_is_refused(schema, faulty_log, tmp_path):
    create_log(tmp_path / "log", schema)
    with pytest.raises(InputError, match="the log has no rows"):
        train(tmp_path / "log", make_config(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    positions: list[int] = []
    config = make_config({"max_rejected_share": 0.0025}, logistic=True)
    for _ in range(2):
        with pytest.raises(InputError) as caught:
            train(faulty_log, config, tmp_path / "run", lambda position, _: positions.append(position))
        # Three of a thousand are more than allowed; the first three lie in the first batch.
        message = str(caught.value)
        assert "3 of the first" in message and "rejects.jsonl" in message
        assert "allowed: a share of 0.0025 (max_rejected_share)" in message
        assert positions == []
        assert len(lines_of(tmp_path / "run", "rejects.jsonl")) == 3
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.slow
def test_predictions_that_are_not_finite_are_counted_and_the_run_ends(log, tmp_path):
    # Steps of nearly the largest float32: sums of weights overflow. A run that stops would not keep these.
    changes = {
        "optimizer": {"embeddings": {"linear_learning_rate": 3e38}},
        "max_skipped_steps": None,
        "export": {"every_examples": 100},
    }
    config = make_config(changes, logistic=True)
    exports: list[object] = []
    with pytest.raises(LearningError, match=r"of no use .*_learning_rate is 3e\+38") as caught:
        train(log, config, tmp_path / "run", exporter=exports.append)
    summary = caught.value.summary
    # Of what it has become there is no export.
    assert not exports
    assert summary["nonfinite_predictions"] > 10
    assert 0 < summary["skipped_steps"] <= summary["batches"]
    assert len(summary["skipped_ranges"]) == min(100, summary["skipped_steps"])
    assert all(0 < end - begin <= 50 for begin, end in summary["skipped_ranges"])
    found = read_predictions(tmp_path / "run")
    assert len(found) == summary["examples"]
    assert np.isfinite(found["logit"]).all()
    # They are scored as the prior, as all rows of the first batch are.
    replaced = np.isclose(found["logit"], math.log(PRIOR / (1 - PRIOR)), rtol=1e-6)
    first = len(next(cut(rows_of(log), config.batch)))
    assert replaced[:first].all()
    assert replaced[first:].sum() >= summary["nonfinite_predictions"]
    json.dumps(summary, allow_nan=False)


@pytest.mark.soak
def test_a_run_of_compiled_steps_has_its_roots_from_the_host_and_leaves_nothing_in_the_process(
    log, examples, make_log, tmp_path
):
    roots = train(log, make_config({"jit": True}), tmp_path / "run")["shampoo"]
    assert roots["layers_ready"] == roots["layers"] > 0
    assert roots["refreshed"] > 0
    assert not roots["failed"] + roots["lost"] + roots["device"] + roots["overflowed"]

    # What TensorFlow keeps of each traced step for its gradients, some 40 MB for a wide network.
    def registered() -> set[str]:
        gc.collect()
        return set(gradient_registry.list())

    short = make_log(examples.table().slice(0, 60))
    train(short, make_config(), tmp_path / "first")
    before = registered()
    for number in range(2):
        train(short, make_config(), tmp_path / f"run{number}")
    assert registered() <= before
