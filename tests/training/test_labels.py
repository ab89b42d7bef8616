"""Further labels: learned no sooner than they are known, once or with corrections; runs end in the same bits."""

import json
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import yaml

from ctr.cli import main
from ctr.config import parse_model
from ctr.eval.display import amount
from ctr.io.errors import InputError
from ctr.io.signals import Interrupted
from ctr.training.config import TrainConfig
from ctr.training.inputs import open_inputs, read_turns
from ctr.training.learner import fresh_state
from ctr.training.loop import open_session, train
from ctr.training.run.position import Position
from ctr.training.run.summary import summary_text
from growing_logs import FILES, assert_same, read_predictions
from labeled_logs import write_labels
from small_runs import make_config, merged

FIRST_ID = 10_000
WAIT = {"kind": "wait", "window": 0.03}
CORRECT = {"kind": "correct", "window": 0.03, "at": [0.004, 0.0115]}
LABELS = {
    "sale": {"delay": CORRECT, "given": "all"},
    "lead": {"delay": WAIT, "weight": 0.5, "ramp": 300},
}
OWN = {"model": {"network_loss": "own"}, "optimizer": {"embeddings": {"linear_rule": "newton"}}}


def config_with(labels=LABELS, **changes):
    return make_config(merged({"objective": {"labels": labels}, "max_rejected_share": 0.01}, changes))


def draw(examples, seed):
    """By row when it got a label, NaN for never, and until when it was watched, in seconds."""
    rng, count = np.random.default_rng(seed), len(examples)
    has = rng.random(count) < np.where(examples.ids[:, 0] % 3 == 0, 0.7, 0.2)
    after = np.where(has, np.round(rng.exponential(0.012, count), 4), np.nan)
    known = np.where(rng.random(count) < 0.9, np.inf, 0.01)
    return after, known


def labels_of(delays):
    def own(pair):
        return lambda ids: tuple(column[ids - FIRST_ID] for column in pair)

    return {name: own(pair) for name, pair in delays.items()}


@pytest.fixture(scope="module")
def delays(examples):
    return {"sale": draw(examples, 1), "lead": draw(examples, 2)}


@pytest.fixture(scope="module")
def labeled(log, delays, tmp_path_factory) -> Path:
    """The log with two labels."""
    folder = tmp_path_factory.mktemp("labeled") / "log"
    shutil.copytree(log, folder)
    write_labels(folder, **labels_of(delays))
    return folder


def turns_of(log, config):
    inputs = open_inputs(log, config)
    layouts = fresh_state(inputs.config, inputs.schema).layouts
    returned = dict.fromkeys(config.label_returns, 0)
    with closing(read_turns(inputs, layouts, Position(returned=returned), True, lambda _: None)) as turns:
        yield from turns


@pytest.mark.parametrize("delay", [0, 0.0035])
def test_each_row_comes_for_each_label_as_often_as_it_has_to_and_never_before_it_is_known(
    labeled, examples, delays, delay
):
    config = config_with(label_delay=delay)
    end = examples.query[-1] * 1000
    seen = {(name, kind): {} for name in LABELS for kind in ("positive", "negative")}
    now = 0
    for feed, is_new, has_labels in turns_of(labeled, config):
        # Learned with a batch whose rows were scored before that.
        now = max(now, feed.batch.times[1]) if is_new else now
        if not has_labels:
            continue
        for rows in [feed.batch.rows, *(one.rows for one in feed.constraint_batches if one is not None)]:
            for (name, kind), times in seen.items():
                for row in np.flatnonzero(rows.joined[f"{kind}:{name}"] > 0):
                    times.setdefault(int(rows.example_id[row] - FIRST_ID), []).append(now)
    start, weight = examples.query * 1000, examples.train_weight
    for (name, kind), times in seen.items():
        after, known = (column * 1e6 for column in delays[name])
        window = 30_000
        counts = (known >= window) & (weight > 0) & ((examples.label == 1) | (name == "sale"))
        is_positive = after <= window
        is_correct = name == "sale"
        asked = counts & (
            is_positive if kind == "positive" else np.full(len(after), is_correct) | ~is_positive
        )
        assert all(len(when) == 1 for when in times.values())
        assert set(times) <= set(np.flatnonzero(asked))
        for row, (when,) in times.items():
            first = delay * 1e6 if is_correct else window
            least = after[row] if kind == "positive" and is_correct else first
            assert when > start[row] + least or (kind, delay) == ("negative", 0)
        # All but those of the last moments come, soon after they may.
        due = np.flatnonzero(asked & (start + window + delay * 1e6 + 25_000 < end))
        assert set(due) <= set(times) and len(due) > 80
        late = [when - start[row] for row, (when,) in times.items()]
        assert np.max(late) < window + 40_000


@pytest.mark.slow
def test_what_becomes_of_labels_later_changes_nothing_before(labeled, log, examples, delays, tmp_path):
    """Labels that are observed from some time on are other ones: predictions until then are the same."""
    time = int(examples.query[len(examples) * 2 // 3]) * 1000
    other = {}
    for name, (after, known) in delays.items():
        later = ~(examples.query * 1000 + after * 1e6 <= time)
        flipped = np.where(
            np.isnan(after), np.maximum(0.001, (time + 1) / 1e6 - examples.query / 1000), np.nan
        )
        other[name] = np.where(later, flipped, after), known
    shutil.copytree(log, tmp_path / "log")
    write_labels(tmp_path / "log", **labels_of(other))
    for number, delay in enumerate((0, 0.0035)):
        config = config_with(**OWN, label_delay=delay)
        runs = [tmp_path / f"{name}{number}" for name in ("one", "two")]
        for run, folder in zip(runs, (labeled, tmp_path / "log"), strict=True):
            train(folder, config, run)
        one, two = map(read_predictions, runs)
        until = one["query_time"] <= time
        for column in ("logit", "logit_sale", "logit_lead"):
            np.testing.assert_array_equal(one[column][until], two[column][until])
            assert (one[column][~until] != two[column][~until]).mean() > 0.5


def trained(log, config, run, batches):
    """Trains for at most so many batches; returns whether it is finished."""
    left = iter(range(batches))
    try:
        train(log, config, run, stop=lambda: None if next(left, None) is not None else "SIGTERM")
    except Interrupted:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {**OWN, "label_delay": 0.0035, "sampling": {"name": "part"}}])
def test_a_run_stopped_anywhere_ends_in_the_same_bits(labeled, tmp_path, changes):
    if "sampling" in changes:
        assert main(["sample", str(labeled), "--name", "part", "--set", "non_click_rate=0.6", "-q"]) == 0
    config, whole = config_with(**changes), tmp_path / "whole"
    summary = train(labeled, config, whole)
    stopped = 0
    # Between the first sight of rows and their return.
    while not trained(labeled, config, tmp_path / "run", 4 + 2 * stopped):
        stopped += 1
    assert stopped >= 3
    assert_same(tmp_path / "run", whole, *FILES)
    assert set(summary["labels"]) == {"sale", "lead"}


def test_a_session_over_a_log_that_grows_has_the_predictions_of_one_pass(
    labeled, growing, examples, delays, tmp_path
):
    config = config_with(batch={"within_partitions": True})
    with open_session(growing.grow(), config, tmp_path / "grown", wait_for_sidecars=True) as session:
        assert session.advance().rows == 0
        for partition in range(3):
            write_labels(growing.folder, slice(partition, partition + 1), **labels_of(delays))
            assert session.advance().rows > 0
            if partition < 2:
                growing.grow()
        session.finish()
    train(growing.folder, config, tmp_path / "whole")
    one, two = (read_predictions(tmp_path / name) for name in ("grown", "whole"))
    np.testing.assert_array_equal(one.to_numpy(), two.to_numpy())


def test_rows_that_are_left_out_do_not_come_again(labeled):
    ranges = [(100, 300), (500, 501)]
    come, kept = ([], [])
    for found, config in ((come, config_with()), (kept, config_with(skip=ranges))):
        for feed, _, _ in turns_of(labeled, config):
            found += [row for one in feed.constraint_batches if one for row in one.rows.position.tolist()]
    assert kept == [row for row in come if not any(begin <= row < end for begin, end in ranges)]
    assert len(kept) < len(come)


def test_records_metrics_evaluation_and_report(labeled, examples, delays, tmp_path, capsys):
    run = tmp_path / "run"
    summary = train(labeled, config_with(), run)
    predictions = read_predictions(run)
    row = predictions["example_id"].to_numpy() - FIRST_ID
    for name in LABELS:
        after, known = (column[row] for column in delays[name])
        counts = (known >= 0.03) & ((predictions["label"] == 1) | (name == "sale"))
        expected = np.where(counts, after <= 0.03, np.nan)
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
    assert "Further labels" in page and amount(summary["labels"]["sale"]["examples"]) in page
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {"loss_label_sale", "ramp_label_lead"} <= set(lines[-1])
    assert lines[0]["ramp_label_lead"] < 1 == lines[-1]["ramp_label_lead"]


def test_labels_known_at_once_are_learned_with_the_click(labeled, examples, log, tmp_path):
    shutil.copytree(log, tmp_path / "log")
    always = np.full(len(examples), np.inf)
    after = np.where(examples.ids[:, 0] % 2, 0.0, np.nan)
    write_labels(tmp_path / "log", **labels_of({"odd": (after, always)}))
    labels = {"odd": {"delay": {"kind": "wait", "window": 0}, "given": "all"}}
    summary = train(tmp_path / "log", config_with(labels, **OWN), tmp_path / "run")
    assert summary["labels"]["odd"]["auc"] > 0.8
    assert (
        "returned"
        not in json.loads(next((tmp_path / "run/checkpoints").glob("*/state.json")).read_text())["position"]
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"delay": {"kind": "correct", "window": 5}, "given": "clicks"}, "given"),
        (
            {"delay": {"kind": "correct", "window": 5, "at": [5]}},
            r"at \[5.0\] does not rise to the window of 5 s",
        ),
        ({"delay": {"kind": "wait", "window": 1}}, "allowed: not below label_delay, 2 s"),
        ({"delay": {"kind": "correct", "window": 9, "at": [2]}}, "allowed: above label_delay, 2 s"),
        ({"delay": {"window": 9}}, "kind"),
    ],
)
def test_delays_that_are_refused(content, message):
    with pytest.raises(InputError, match=message):
        parse_model(TrainConfig, {"objective": {"labels": {"sale": content}}, "label_delay": 2}, "test")


@pytest.mark.parametrize(
    "model",
    [{"factorized": {}}, {"crosses": {"layers": 0}, "deep": {"units": []}}],
    ids=["factors", "linear"],
)
def test_models_without_layers_to_share_are_refused(model):
    content = {"objective": {"labels": {"sale": {"delay": WAIT}}}, "model": model}
    with pytest.raises(InputError, match=r"objective.labels.sale needs crosses or deep layers"):
        parse_model(TrainConfig, content, "test")


def test_without_labels_a_configuration_is_what_it_was_and_a_log_without_them_is_refused(log, tmp_path):
    assert "labels" not in yaml.safe_dump(make_config().model_dump(mode="json"))
    with pytest.raises(InputError, match="has no sidecar labels"):
        train(log, config_with(), tmp_path / "run")


def test_a_label_that_can_teach_nothing_is_named(log, tmp_path):
    shutil.copytree(log, tmp_path / "log")
    kinds = {
        "never": (np.nan, np.inf),
        "unknown": (np.nan, 0.01),
        "always": (0.0, np.inf),
        "some": (None, np.inf),
    }

    def seen(after, known):
        def of(ids):
            column = np.where(ids % 2, 0.0, np.nan) if after is None else np.full(len(ids), after)
            return column, np.full(len(ids), known)

        return of

    write_labels(tmp_path / "log", **{name: seen(*kind) for name, kind in kinds.items()})
    config = config_with({name: {"delay": WAIT, "given": "all"} for name in kinds})
    summary = train(tmp_path / "log", config, tmp_path / "run")
    rows = summary["examples"]
    warnings = [
        f"label never: nothing was learned: none of its {rows} rows is positive",
        "label unknown: nothing was learned: no row is known 0.03 s after its query",
        f"label always: nothing was learned: all of its {rows} rows are positive",
    ]
    assert summary["warnings"] == warnings
    assert all(f"  warning: {warning}" in summary_text(tmp_path / "run", summary) for warning in warnings)
