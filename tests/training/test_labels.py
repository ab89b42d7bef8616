"""Further labels: learned with the click where they are known; runs end in the same bits."""

import contextlib
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ctr.cli import main
from ctr.eval.display import amount
from ctr.io.errors import InputError
from ctr.io.signals import Interrupted
from ctr.training.run.summary import summary_text
from ctr.training.session import Process, train
from growing_logs import ADAGRAD, FILES, assert_same, constrained, read_predictions
from small_runs import config_of, labeled, make_config, merged, publish

FIRST_ID = 10_000
LABELS = {"sale": {"given": "all"}, "lead": {"weight": 0.5, "ramp": 300}}
OWN = {"model": {"experts": ["linear", "network"]}, "optimizer": {"embeddings": {"linear_rule": "newton"}}}


def config_with(labels=LABELS, **changes):
    return make_config(
        merged(ADAGRAD, {"objective": {"labels": labels}, "max_rejected_share": 0.01}, changes)
    )


def draw(examples, seed):
    """By row whether it has a label: 1, 0 or NaN for not known."""
    rng, count = np.random.default_rng(seed), len(examples)
    has = rng.random(count) < np.where(examples.ids[:, 0] % 3 == 0, 0.7, 0.2)
    return np.where(rng.random(count) < 0.9, has, np.nan)


@pytest.fixture(scope="module")
def outcomes(examples):
    return {"sale": draw(examples, 1), "lead": draw(examples, 2)}


@pytest.fixture(scope="module")
def labeled_log(examples, outcomes, tmp_path_factory) -> Path:
    """The log with two labels."""
    return publish(tmp_path_factory.mktemp("labeled") / "log", **labeled(examples.table(), **outcomes))


@pytest.mark.slow
def test_labels_change_nothing_before_their_rows_are_learned(labeled_log, examples, outcomes, tmp_path):
    """From some time on labels are other ones: predictions until then are the same."""
    later = examples.query * 1000 > int(examples.query[len(examples) * 2 // 3]) * 1000
    other = {name: np.where(later, 1 - values, values) for name, values in outcomes.items()}
    publish(tmp_path / "log", **labeled(examples.table(), **other))
    for name, folder in (("one", labeled_log), ("two", tmp_path / "log")):
        train(folder, config_with(**OWN), tmp_path / name)
    one, two = (read_predictions(tmp_path / name) for name in ("one", "two"))
    for column in ("logit", "logit_sale", "logit_lead"):
        np.testing.assert_array_equal(one[column][~later], two[column][~later])
        assert (one[column][later] != two[column][later]).mean() > 0.5


@pytest.mark.soak
def test_a_run_stopped_anywhere_ends_in_the_same_bits(labeled_log, tmp_path):
    assert main(["sample", str(labeled_log), "--name", "part", "--set", "non_click_rate=0.6", "-q"]) == 0
    config, whole = config_with(**OWN, label_delay=0.0035, sampling={"name": "part"}), tmp_path / "whole"
    summary = train(labeled_log, config, whole)
    stopped = 0
    while not (tmp_path / "run" / "summary.json").exists():
        left = iter([None] * (4 + 2 * stopped))
        with contextlib.suppress(Interrupted):
            train(labeled_log, config, tmp_path / "run", process=Process(stop=partial(next, left, "SIGTERM")))
        stopped += 1
    assert stopped > 3
    assert_same(tmp_path / "run", whole, *FILES)
    assert set(summary["labels"]) == {"sale", "lead"}


def test_records_metrics_evaluation_and_report(labeled_log, outcomes, tmp_path, capsys):
    run = tmp_path / "run"
    summary = train(labeled_log, config_with(), run)
    predictions = read_predictions(run)
    row = predictions["example_id"].to_numpy() - FIRST_ID
    for name in LABELS:
        expected = outcomes[name][row]
        counts = np.isfinite(expected) & ((predictions["label"] == 1) | (name == "sale"))
        expected = np.where(counts, expected, np.nan)
        np.testing.assert_array_equal(predictions[f"label_{name}"], expected)
        logit, weight = predictions[f"logit_{name}"].to_numpy(np.float64), predictions["metric_weight"]
        loss = np.logaddexp(0, np.where(expected == 1, -logit, logit))
        found = summary["labels"][name]
        assert found["examples"] == counts.sum()
        assert found["logloss"] == pytest.approx(np.average(loss[counts], weights=weight[counts]), rel=1e-6)
        assert 0.5 < found["calibration_ratio"] < 1.5
    assert main(["evaluate", str(run), "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)["labels"]
    for name, found in evaluated.items():
        for key in ("examples", "logloss", "auc", "per_query_auc", "calibration_bias"):
            assert found[key] == pytest.approx(summary["labels"][name][key], rel=1e-6)
    assert main(["report", str(run)]) == 0
    page = (run / "report.html").read_text()
    assert all(
        name in page and amount(label["examples"]) in page for name, label in summary["labels"].items()
    )
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {"loss_label_sale", "ramp_label_lead"} <= set(lines[-1])
    assert lines[0]["ramp_label_lead"] < 1 == lines[-1]["ramp_label_lead"]


def test_models_without_layers_to_share_and_logs_without_the_labels_are_refused(log, labeled_log, tmp_path):
    for model in ({"factorized": {}}, {"crosses": {"layers": 0}, "deep": {"units": []}}):
        with pytest.raises(InputError, match=r"objective.labels.sale needs crosses or deep layers"):
            config_of({"objective": {"labels": {"sale": {}}}, "model": model})
    assert "labels" not in make_config().model_dump(mode="json")["objective"]
    with pytest.raises(
        InputError, match=r"labels\.sale: .* has no such label; its further labels are \(none\)"
    ):
        train(log, config_with(), tmp_path / "run")
    with pytest.raises(InputError, match=r"labels\.sole: .* its further labels are sale, lead"):
        train(labeled_log, config_with({"sole": {}}), tmp_path / "run")


@pytest.mark.slow
def test_a_label_is_learned_with_the_click_and_one_that_can_teach_nothing_is_named(examples, tmp_path):
    count = len(examples)
    kinds = {"never": np.zeros(count), "unknown": np.full(count, np.nan), "always": np.ones(count)}
    publish(tmp_path / "log", **labeled(examples.table(), **kinds, odd=examples.ids[:, 0] % 2))
    config = config_with({name: {"given": "all"} for name in (*kinds, "odd")}, **OWN)
    summary = train(tmp_path / "log", config, tmp_path / "run")
    assert summary["labels"]["odd"]["auc"] > 0.8
    rows = summary["examples"]
    warnings = [
        f"label never: nothing was learned: none of its {rows} rows is positive",
        "label unknown: nothing was learned: it is known of no row that was scored",
        f"label always: nothing was learned: all of its {rows} rows are positive",
    ]
    assert summary["warnings"] == warnings
    assert all(f"  warning: {warning}" in summary_text(tmp_path / "run", summary) for warning in warnings)


@pytest.mark.slow
def test_constraint_logs_may_have_other_labels_or_none(labeled_log, examples, tmp_path):
    """Nothing is learned from theirs: with and without them weights are the same."""
    found = []
    for name, labels in (
        ("none", {}),
        ("own", {"sale": np.ones(len(examples)), "rent": np.ones(len(examples))}),
    ):
        shown = publish(tmp_path / name, **labeled(examples.table(), **labels))
        config = make_config(merged(ADAGRAD, {"objective": {"labels": LABELS}}, constrained(shown)))
        found.append(train(labeled_log, config, tmp_path / f"run-{name}")["weights_sha256"])
    assert found[0] == found[1]
