"""The pass over a log, beside a loop in plain Python that predicts, records and learns."""

import gc
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tensorflow.python.framework.ops import gradient_registry

from ctr.config import parse_model
from ctr.data.log import create_log, read_manifests
from ctr.data.reader import FAULTS
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.loop import LearningError, train

PRIOR = 0.3
RATE, START = 0.1, 0.02  # linear weights
BIAS_RATE, BIAS_START = 0.02, 1e-6


def whole_queries(query: np.ndarray, batch_rows: int) -> list[np.ndarray]:
    """The rows of each batch, packed greedily."""
    batches: list[list[int]] = [[]]
    for one in np.unique(query):
        rows = np.flatnonzero(query == one).tolist()
        if batches[-1] and len(batches[-1]) + len(rows) > batch_rows:
            batches.append([])
        batches[-1] += rows
    return [np.array(rows) for rows in batches]


def progressive_pass(examples, batches, good=None, learn_first=False) -> np.ndarray:
    """A logistic regression in float64: predict a batch, record, learn from it. Returns all logits."""
    buckets = (30, 50, 8)
    weights = [np.zeros(size) for size in (*buckets, 40)]
    sums = [np.full(size, START) for size in (*buckets, 40)]
    bias, bias_sum = math.log(PRIOR / (1 - PRIOR)), BIAS_START
    good = np.ones(len(examples), bool) if good is None else good

    def predict(row: int) -> float:
        tags = examples.tags[row]
        logit = bias + sum(weights[column][examples.ids[row, column]] for column in range(3))
        return logit + (sum(weights[3][tag] for tag in tags) / len(tags) if tags else 0.0)

    recorded = np.full(len(examples), np.nan)
    for batch in batches:
        rows = [row for row in batch if good[row]]
        logits = [predict(row) for row in rows]
        if not learn_first:
            recorded[rows] = logits
        gradients = [np.zeros(len(weight)) for weight in weights]
        total = sum(examples.train_weight[row] for row in rows)
        bias_gradient = 0.0
        for row, logit in zip(rows, logits, strict=True):
            error = examples.train_weight[row] * (1 / (1 + math.exp(-logit)) - examples.label[row])
            for column in range(3):
                gradients[column][examples.ids[row, column]] += error
            for tag in examples.tags[row]:
                gradients[3][tag] += error / len(examples.tags[row])
            bias_gradient += error / total if total else 0.0
        for weight, squares, gradient in zip(weights, sums, gradients, strict=True):
            squares += gradient**2
            weight -= RATE * gradient / np.sqrt(squares)
        bias_sum += bias_gradient**2
        bias -= BIAS_RATE * bias_gradient / math.sqrt(bias_sum)
        if learn_first:
            recorded[rows] = [predict(row) for row in rows]
    return recorded


REFERENCE = parse_model(
    TrainConfig,
    {
        "batch": {"rows": 50},
        "model": {"crosses": {"layers": 0}, "deep": {"units": []}, "network_loss": "joint", "prior": PRIOR},
        "optimizer": {
            "embeddings": {"linear_learning_rate": RATE, "linear_initial_accumulator": START},
            "dense": {
                "learning_rate": BIAS_RATE,
                "shampoo": {
                    "grafting": {"initial_accumulator": BIAS_START},
                    "start_preconditioning_step": None,
                    "momentum": 0,
                },
            },
        },
        "metrics": {"window_examples": 230, "slices": ["position"]},
        "checkpoint": {"every_examples": 310},
    },
    "test",
)


@pytest.fixture(scope="module")
def logistic_run(log, tmp_path_factory) -> Path:
    """The reference's model, trained on ``log``."""
    run = tmp_path_factory.mktemp("logistic") / "run"
    train(log, REFERENCE, run)
    return run


def test_predictions_are_those_of_the_plain_loop(examples, logistic_run, read_predictions):
    found = read_predictions(logistic_run)
    expected = progressive_pass(examples, whole_queries(examples.query, 50))
    assert found["example_id"].tolist() == [10_000 + row for row in range(len(examples))]
    np.testing.assert_allclose(found["logit"], expected, rtol=0, atol=1e-5)
    assert np.std(expected) > 0.1


def test_predictions_made_after_the_update_would_be_noticed(examples, logistic_run, read_predictions):
    leaking = progressive_pass(examples, whole_queries(examples.query, 50), learn_first=True)
    difference = np.abs(read_predictions(logistic_run)["logit"] - leaking)
    assert np.median(difference) > 0.01


def test_predictions_carry_the_columns_of_the_log(examples, logistic_run, read_predictions):
    found = read_predictions(logistic_run)
    for name in ("label", "train_weight", "metric_weight"):
        np.testing.assert_array_equal(found[name], getattr(examples, name))
    assert found["query_id"].tolist() == (examples.query * 7 + 1).tolist()
    assert found["query_time"].tolist() == (examples.query * 1000).tolist()


def row_losses(label, logit):
    return np.logaddexp(0, np.where(label == 1, -logit, logit))


def pairwise_auc(label, logit, weight) -> float:
    clicked, other = np.flatnonzero(label == 1), np.flatnonzero(label == 0)
    better = total = 0.0
    for a in clicked:
        for b in other:
            pair = weight[a] * weight[b]
            total += pair
            better += pair * (1.0 if logit[a] > logit[b] else 0.5 if logit[a] == logit[b] else 0.0)
    return better / total if total else math.nan


def test_metrics_are_those_of_the_recorded_predictions(examples, logistic_run, read_predictions):
    summary = json.loads((logistic_run / "summary.json").read_text())
    found = read_predictions(logistic_run)
    label, logit, weight = (found[name].to_numpy(float) for name in ("label", "logit", "metric_weight"))
    assert summary["examples"] == len(examples)
    assert summary["queries"] == 240
    assert summary["weight_sum"] == pytest.approx(weight.sum())
    assert summary["logloss"] == pytest.approx(
        (row_losses(label, logit) * weight).sum() / weight.sum(), rel=1e-6
    )
    predicted, clicked = (weight / (1 + np.exp(-logit))).sum(), (weight * label).sum()
    assert summary["calibration_bias"] == pytest.approx((clicked - predicted) / weight.sum(), rel=1e-5)
    assert summary["calibration_ratio"] == pytest.approx(predicted / clicked, rel=1e-6)
    assert summary["auc"] == pytest.approx(pairwise_auc(label, logit, weight), abs=2e-3)
    by_query = [pairwise_auc(*(part[rows] for part in (label, logit, weight))) for rows in
                (np.flatnonzero(examples.query == one) for one in range(240))]  # fmt: skip
    assert summary["per_query_auc"] == pytest.approx(np.nanmean(by_query), abs=1e-9)
    assert summary["calibration_slices"]["position"]["slices"] == 8
    assert (summary["rejected_rows"], summary["skipped_steps"], summary["nonfinite_predictions"]) == (0, 0, 0)
    assert summary["batches"] == len(whole_queries(examples.query, 50))


def test_the_summary_has_all_that_is_promised(logistic_run):
    summary = json.loads((logistic_run / "summary.json").read_text())
    promised = """examples queries weight_sum auc per_query_auc per_query_auc_ci95 logloss normalized_entropy
        calibration_bias calibration_buckets examples_per_second step_ms_p50 step_ms_p25 step_ms_p75
        parameters_dense parameters_embedding
        skipped_steps rollbacks quarantined quarantined_rows rejected_rows config_sha256 log_sha256"""
    assert set(promised.split()) <= summary.keys()
    assert summary["examples_per_second"] > 0
    assert summary["step_ms_p50"] > 0
    assert summary["parameters_dense"] == 1
    assert summary["parameters_embedding"] == 30 + 50 + 40 + 8


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_window_is_a_line_with_the_metrics_of_its_rows(examples, logistic_run, read_predictions):
    lines = read_lines(logistic_run / "metrics.jsonl")
    found = read_predictions(logistic_run)
    begin = 0
    ends = [batch[-1] + 1 for batch in whole_queries(examples.query, 50)]
    for line in lines:
        end = line["examples"]
        assert end in ends
        rows = found.iloc[begin:end]
        assert line["window_examples"] == len(rows)
        assert (line["window_begin"], line["window_end"]) == (
            rows["query_time"].iloc[0],
            rows["query_time"].iloc[-1],
        )
        label, logit, weight = (rows[name].to_numpy(float) for name in ("label", "logit", "metric_weight"))
        assert line["logloss"] == pytest.approx(
            (row_losses(label, logit) * weight).sum() / weight.sum(), rel=1e-6
        )
        # As short as whole batches allow, but the last.
        previous = max((e for e in ends if e < end), default=0)
        assert previous - begin < 230
        assert end - begin >= 230 or end == len(examples)
        begin = end
    assert begin == len(examples)
    assert len(lines) >= 5


@pytest.mark.slow
def test_a_network_learns(log, make_config, tmp_path, read_predictions):
    heard, said = [], []
    summary = train(log, make_config(), tmp_path / "run", lambda *news: heard.append(news), phase=said.append)
    assert summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    positions = [position for position, _ in heard]
    assert len(heard) == summary["batches"]
    assert positions == sorted(positions)
    assert positions[-1] == summary["examples"]
    # From the first batch on: metrics of all rows so far.
    assert all(metrics["logloss"] > 0 for _, metrics in heard)
    for name in ("per_query_auc", "logloss", "calibration_bias", "calibration_ratio"):
        assert heard[-1][1][name] == pytest.approx(summary[name], rel=1e-12)
    assert 0 < heard[0][1]["auc"] < 1
    assert said == ["checking rows", "", "compiling", "", "compiling", ""]
    # Later predictions know more than the prior does.
    late = read_predictions(tmp_path / "run").iloc[600:]
    label, logit = late["label"].to_numpy(float), late["logit"].to_numpy(float)
    prior = np.full(len(late), math.log(PRIOR / (1 - PRIOR)))
    assert row_losses(label, logit).mean() < row_losses(label, prior).mean()
    alphas = [line["alpha2"] for line in read_lines(tmp_path / "run" / "metrics.jsonl")]
    assert alphas == sorted(alphas)
    assert 0 < alphas[0] < 1 == alphas[-1]


@pytest.mark.slow
def test_predictions_are_not_recorded_when_not_wanted(log, make_config, tmp_path):
    train(log, make_config({"record_predictions": False}, logistic=True), tmp_path / "run")
    assert not (tmp_path / "run" / "predictions").exists()


# Weights.


def flip_labels(examples, rows):
    label = examples.label.copy()
    label[rows] = 1 - label[rows]
    return label


def replace(examples, **columns):
    return type(examples)(**{**vars(examples), **columns})


@pytest.mark.soak
def test_rows_of_train_weight_0_are_scored_but_teach_nothing(
    examples, logistic_run, make_log, tmp_path, read_predictions
):
    silent = np.flatnonzero(examples.train_weight == 0)
    assert 50 < len(silent) < len(examples) / 2
    # Of other labels, those of silent rows and that of one that teaches.
    loud = int(np.flatnonzero(examples.train_weight > 0)[0])
    logits, losses = [read_predictions(logistic_run)["logit"]], []
    for name, rows in (("silent", silent), ("loud", [loud])):
        table = replace(examples, label=flip_labels(examples, rows)).table()
        losses.append(train(make_log(table, f"{name}-log"), REFERENCE, tmp_path / name)["logloss"])
        logits.append(read_predictions(tmp_path / name)["logit"])
    before, with_silent, with_loud = logits
    assert len(before) == len(examples)
    np.testing.assert_array_equal(with_silent, before)
    assert losses[0] != json.loads((logistic_run / "summary.json").read_text())["logloss"]
    assert (with_loud != before).any()


@pytest.mark.soak
def test_metric_weights_change_the_metrics_and_nothing_else(
    examples, logistic_run, make_log, tmp_path, read_predictions
):
    rng = np.random.default_rng(5)
    other = replace(examples, metric_weight=rng.choice([0.0, 3.0], len(examples)))
    summary = train(make_log(other.table()), REFERENCE, tmp_path / "run")
    logits, arrays = [], []
    for run in (logistic_run, tmp_path / "run"):
        logits.append(read_predictions(run)["logit"])
        checkpoint = sorted((run / "checkpoints").iterdir())[-1]
        with np.load(checkpoint / "arrays.npz") as saved:
            arrays.append({key: saved[key].tobytes() for key in saved if key.startswith("weights|")})
    np.testing.assert_array_equal(*logits)
    assert arrays[0] == arrays[1]
    assert len(arrays[0]) > 4
    loss, weight = row_losses(other.label, logits[1].to_numpy(float)), other.metric_weight
    assert summary["logloss"] == pytest.approx((loss * weight).sum() / weight.sum(), rel=1e-6)


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("network", [False, True])
def test_a_log_of_only_weight_0(examples, make_log, make_config, tmp_path, read_predictions, network):
    zeros = np.zeros(len(examples))
    table = replace(examples, train_weight=zeros, metric_weight=zeros).table()
    summary = train(make_log(table), make_config({}, logistic=not network), tmp_path / "run")
    assert (summary["examples"], summary["weight_sum"]) == (len(examples), 0)
    for name in ("auc", "per_query_auc", "logloss", "calibration_bias"):
        assert summary[name] is None
    assert summary["skipped_steps"] == 0
    if not network:
        logit = read_predictions(tmp_path / "run")["logit"]
        np.testing.assert_allclose(logit, math.log(PRIOR / (1 - PRIOR)), rtol=1e-6)


@pytest.mark.soak
def test_nothing_of_a_run_stays_in_the_process(examples, make_log, make_config, tmp_path):
    """What TensorFlow keeps of each traced step for its gradients, some 40 MB for a wide network."""

    def registered():
        gc.collect()
        return set(gradient_registry.list())

    log = make_log(examples.table().slice(0, 60))
    train(log, make_config(), tmp_path / "first")
    before = registered()
    for number in range(2):
        train(log, make_config(), tmp_path / f"run{number}")
    assert registered() <= before


# Small and odd logs.


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("network", [False, True])
def test_a_log_of_one_row(examples, make_log, make_config, tmp_path, read_predictions, network):
    summary = train(
        make_log(examples.table().slice(0, 1)), make_config({}, logistic=not network), tmp_path / "run"
    )
    assert (summary["examples"], summary["queries"], summary["batches"]) == (1, 1, 1)
    assert summary["auc"] is None
    assert summary["per_query_auc"] is None
    assert len(read_predictions(tmp_path / "run")) == 1
    assert len(read_lines(tmp_path / "run" / "metrics.jsonl")) == 1


@pytest.mark.soak
def test_a_log_of_one_class(examples, make_log, make_config, tmp_path):
    table = replace(examples, label=np.zeros(len(examples))).table()
    summary = train(make_log(table), make_config(), tmp_path / "run")
    assert summary["auc"] is None
    assert summary["per_query_auc"] is None
    assert 0 < summary["logloss"] < 0.2
    json.dumps(summary, allow_nan=False)


@pytest.mark.slow
def test_batches_of_one_row(examples, make_log, make_config, tmp_path):
    config = make_config({"batch": {"rows": 1, "max_query_rows": 9}}, logistic=True)
    summary = train(make_log(examples.table().slice(0, 60)), config, tmp_path / "run")
    assert summary["examples"] == 60
    assert summary["batches"] == summary["queries"]


def test_an_empty_log_is_refused(schema, make_config, tmp_path):
    create_log(tmp_path / "log", schema)
    with pytest.raises(InputError, match="the log has no rows"):
        train(tmp_path / "log", make_config(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metrics": {"slices": ["tags"]}}, "metrics.slices names tags.*allowed: user, item, position"),
        ({"model": {"widths": {"usr": 3}}}, "model.widths names usr.*allowed: user, item, tags, position"),
        (
            {"model": {"widths": dict.fromkeys(("user", "item", "tags", "position"), 0)}},
            "all features have width 0",
        ),
        ({"batch": {"rows": 3, "max_query_rows": 5}}, r"query_id \d+ .* has \d rows; at most 5 are allowed"),
    ],
)
def test_a_configuration_that_does_not_fit_the_log_is_refused(log, make_config, tmp_path, changes, words):
    with pytest.raises(InputError, match=words):
        train(log, make_config(changes), tmp_path / "run")


# Faulty rows.


def with_faults(examples) -> tuple[pa.Table, dict[int, str]]:
    """The rows of ``examples``, five of them faulty."""
    faults = {0: FAULTS[1], 17: FAULTS[2], 18: FAULTS[3], 500: FAULTS[4], 731: FAULTS[4]}
    label, train_weight, metric_weight = (
        getattr(examples, name).copy() for name in ("label", "train_weight", "metric_weight")
    )
    ids, tags = examples.ids.copy(), list(examples.tags)
    label[0] = 2
    train_weight[17] = np.nan
    metric_weight[18] = -1
    ids[500, 1] = 50
    tags[731] = [3, 40]
    changed = replace(
        examples, label=label, train_weight=train_weight, metric_weight=metric_weight, ids=ids, tags=tags
    )
    return changed.table(), faults


@pytest.mark.slow
def test_faulty_rows_are_set_aside_with_their_reason_and_the_rest_is_trained_on(
    examples, make_log, make_config, tmp_path, read_predictions
):
    table, faults = with_faults(examples)
    config = make_config({"max_rejected_share": 0.01}, logistic=True)
    summary = train(make_log(table), config, tmp_path / "run")
    rejects = read_lines(tmp_path / "run" / "rejects.jsonl")
    assert [reject["example_id"] for reject in rejects] == [10_000 + row for row in faults]
    assert [reject["reason"] for reject in rejects] == list(faults.values())
    for reject, row in zip(rejects, faults, strict=True):
        begin, end = reject["between_log_rows"]
        assert begin <= row < end
    assert summary["rejected_rows"] == 5
    assert summary["examples"] == len(examples) - 5
    assert summary["log_rows"] == len(examples)
    found = read_predictions(tmp_path / "run")
    good = ~np.isin(np.arange(len(examples)), list(faults))
    assert found["example_id"].tolist() == (10_000 + np.flatnonzero(good)).tolist()
    expected = progressive_pass(examples, whole_queries(examples.query, 50), good)
    np.testing.assert_allclose(found["logit"], expected[good], rtol=0, atol=1e-5)


def test_too_many_faulty_rows_stop_the_run(examples, make_log, make_config, tmp_path):
    table, _ = with_faults(examples)
    log, config = make_log(table), make_config({"max_rejected_share": 0.0025}, logistic=True)
    positions = []
    for _ in range(2):
        with pytest.raises(InputError) as caught:
            train(log, config, tmp_path / "run", lambda position, _: positions.append(position))
        # Three of a thousand are more than allowed; the first three lie in the first batch.
        message = str(caught.value)
        assert "3 of the first" in message
        assert "allowed: a share of 0.0025 (max_rejected_share)" in message
        assert "rejects.jsonl" in message
        assert positions == []
        assert len(read_lines(tmp_path / "run" / "rejects.jsonl")) == 3
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_log_of_faulty_rows_only(examples, make_log, make_config, tmp_path):
    table = replace(examples, label=np.full(len(examples), 7)).table()
    summary = train(make_log(table), make_config({"max_rejected_share": 1.0}), tmp_path / "run")
    assert (summary["examples"], summary["rejected_rows"]) == (0, len(examples))
    assert len(read_lines(tmp_path / "run" / "rejects.jsonl")) == len(examples)


@pytest.mark.slow
def test_nothing_of_a_damaged_shard_is_trained_on(log, logistic_run, tmp_path, copy_run, read_predictions):
    damaged = copy_run(log)
    shards = [shard for manifest in read_manifests(damaged) for shard in manifest.shards]
    first = sum(shard.rows for shard in shards[:4])
    path = damaged / "shards" / shards[4].file
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    positions = []
    with pytest.raises(InputError, match=f"{shards[4].file}: damaged"):
        train(damaged, REFERENCE, tmp_path / "run", lambda position, _: positions.append(position))
    assert first - 100 < positions[-1] <= first
    # Once the shard is there again the run goes on, to where it would have come.
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    train(damaged, REFERENCE, tmp_path / "run")
    pd.testing.assert_frame_equal(read_predictions(tmp_path / "run"), read_predictions(logistic_run))


# Numbers that are not finite.


@pytest.mark.slow
def test_predictions_that_are_not_finite_are_counted_and_the_run_ends(
    log, make_config, tmp_path, read_predictions
):
    # Steps of nearly the largest float32: sums of weights overflow. A run that goes back would not keep these.
    changes = {
        "optimizer": {"embeddings": {"linear_learning_rate": 3e38}},
        "rollback": {"after_skipped_steps": None},
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
    for begin, end in summary["skipped_ranges"]:
        assert 0 < end - begin <= 50
    found = read_predictions(tmp_path / "run")
    assert len(found) == summary["examples"]
    assert np.isfinite(found["logit"]).all()
    # They are scored as the prior, as all rows of the first batch are.
    replaced = np.isclose(found["logit"], math.log(PRIOR / (1 - PRIOR)), rtol=1e-6)
    first = len(whole_queries(found["query_time"].to_numpy(), 50)[0])
    assert replaced[:first].all()
    assert replaced[first:].sum() >= summary["nonfinite_predictions"]
    json.dumps(summary, allow_nan=False)


@pytest.mark.slow
def test_a_run_of_compiled_steps_agrees_with_one_of_plain_steps(log, make_config, tmp_path, read_predictions):
    # The two differ in bits; and in when a root comes into use, so that only AdaGrad can be compared.
    changes = {
        "batch": {"rows": 200, "max_query_rows": 200},
        "optimizer": {"dense": {"shampoo": {"start_preconditioning_step": None}}},
    }
    for jit in (True, False):
        train(log, make_config({"jit": jit, **changes}), tmp_path / str(jit))
    compiled, plain = (read_predictions(tmp_path / str(jit))["logit"] for jit in (True, False))
    np.testing.assert_allclose(compiled, plain, atol=1e-3)


@pytest.mark.soak
def test_a_run_of_compiled_steps_has_its_roots_from_the_host(log, make_config, tmp_path):
    summary = train(log, make_config({"jit": True}), tmp_path / "run")
    roots = summary["shampoo"]
    assert roots["layers_ready"] == roots["layers"] > 0
    assert roots["eigh"] == roots["refreshed"] > 0
    assert not roots["failed"] + roots["lost"] + roots["device"] + roots["overflowed"]
