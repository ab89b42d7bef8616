"""What a run reads: samples, time ranges and constraint logs, through whole runs."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from ctr.config import parse_model
from ctr.data.log import create_log
from ctr.data.sample_log import write_decisions, write_sampled_log
from ctr.data.sampling import SamplingConfig
from ctr.data.schema import Schema
from ctr.eval.run_files import read_constraint_metrics, read_run
from ctr.io.errors import InputError
from ctr.training.session import train
from growing_logs import constrained, read_predictions
from small_runs import draw_examples, make_config, publish

SAMPLING = parse_model(SamplingConfig, {"non_click_rate": 0.4, "salt": "test"}, "test")


@pytest.fixture
def own_log(examples, make_log):
    """The rows of ``log`` as a log of the test's own, to put sidecars beside."""
    return make_log(examples.table())


@pytest.fixture(scope="module")
def exposure(tmp_path_factory):
    """A second log at the same times in which everything is clicked, with ids and users of its own; and its rows."""
    rows = draw_examples(queries=200, seed=9)
    rows = replace(rows, label=np.ones(len(rows), int), train_weight=np.ones(len(rows)))
    return publish(tmp_path_factory.mktemp("exposure") / "log", rows.table()), len(rows)


# Samples.


def test_score_all_scores_every_row_and_learns_from_the_kept_ones(own_log, examples, tmp_path):
    write_decisions(own_log, "part", SAMPLING)
    summary = train(own_log, make_config({"sampling": {"name": "part"}}, logistic=True), tmp_path / "run")
    table = read_predictions(tmp_path / "run")
    assert summary["examples"] == len(table) == len(examples)
    assert np.array_equal(table["metric_weight"], examples.metric_weight.astype(np.float32))
    weighted = examples.train_weight > 0
    factor = table["train_weight"][weighted] / examples.train_weight[weighted]
    label = examples.label[weighted]
    assert (factor[label == 1] == 1).all()
    assert set(np.round(factor[label == 0], 6)) == {0.0, 2.5}
    assert summary["trained_rows"] == int((table["train_weight"] > 0).sum())
    assert not summary["per_query_auc_of_sample"]


@pytest.mark.slow
def test_kept_rows_alone_are_what_a_smaller_log_of_them_is(own_log, examples, tmp_path):
    """Beside the log or as a log of its own, a sample gives the same weights, metrics and predictions."""
    write_decisions(own_log, "part", SAMPLING)
    write_sampled_log(own_log, "part", SAMPLING, tmp_path / "smaller")
    sampling = {"sampling": {"name": "part", "score": "kept"}}
    kept = train(own_log, make_config(sampling, logistic=True), tmp_path / "kept")
    smaller = train(tmp_path / "smaller", make_config(logistic=True), tmp_path / "run")
    columns = ["example_id", "logit", "train_weight", "metric_weight"]
    one, other = (read_predictions(tmp_path / run)[columns] for run in ("kept", "run"))
    assert one.equals(other) and 0 < len(one) < len(examples)
    for name in ("per_query_auc", "auc", "logloss", "calibration_bias", "examples", "trained_rows"):
        assert kept[name] == smaller[name]
    assert kept["per_query_auc_of_sample"] and smaller["per_query_auc_of_sample"]
    assert kept["log_rows"] == len(examples)


# Time ranges.


@pytest.mark.slow
def test_a_time_range_is_that_part_of_the_log_and_no_more(examples, make_log, tmp_path):
    """As if the log began there and ended there: queries 60 to 169, of a millisecond each."""
    table, inside = examples.table(), (examples.query >= 60) & (examples.query < 170)
    time_range = {"start": "1970-01-01T00:00:00.060", "end": "1970-01-01T00:00:00.170"}
    one = train(
        make_log(table, "long"), make_config({"time_range": time_range}, logistic=True), tmp_path / "one"
    )
    part = make_log(table.filter(pa.array(inside)), "short")
    other = train(part, make_config(logistic=True), tmp_path / "other")
    found, expected = (read_predictions(tmp_path / name) for name in ("one", "other"))
    assert found["example_id"].tolist() == (np.flatnonzero(inside) + 10_000).tolist()
    np.testing.assert_array_equal(found["logit"], expected["logit"])
    for name in ("per_query_auc", "logloss", "examples", "trained_examples", "trained_rows"):
        assert one[name] == other[name]


@pytest.mark.slow
def test_a_time_range_holds_for_constraint_logs_and_nothing_older_than_the_log_is_read(
    examples, make_log, exposure, tmp_path
):
    path, _ = exposure
    late = make_log(examples.table().slice(int(np.searchsorted(examples.query, 100))))
    time_range = {"end": "1970-01-01T00:00:00.150"}
    config = make_config({**constrained(path, own_loss=False), "time_range": time_range}, logistic=True)
    summary = train(late, config, tmp_path / "run")
    # The log's partition begins at 0, so all of the second log's rows before the range's end are in its time.
    assert summary["constraint_logs"]["exposure"]["queries"] <= 150
    nothing = make_config({"time_range": {"start": "2026-01-01"}})
    with pytest.raises(InputError, match="no partition of the log overlaps time_range"):
        train(late, nothing, tmp_path / "nothing")


# Constraint logs.


@pytest.mark.slow
def test_rows_of_a_constraint_log_move_its_dual_and_the_weights_but_no_metric(log, exposure, tmp_path):
    path, count = exposure
    without = train(log, make_config(logistic=True), tmp_path / "plain")
    summary = train(log, make_config(constrained(path, own_loss=False), logistic=True), tmp_path / "run")
    # All is clicked there, more than is predicted: lambda rises, and so do predictions.
    assert summary["duals"]["random"][0] > 1
    assert summary["calibration_bias"] < without["calibration_bias"] - 0.02
    for name in ("examples", "queries", "weight_sum", "log_rows", "trained_examples"):
        assert summary[name] == without[name]
    other = summary["constraint_logs"]["exposure"]
    assert count - 10 < other["examples"] <= count  # all but those at the very last moment
    assert other["calibration_bias"] > 0.1
    slices = other["calibration_slices"]["constraint:random"]["heaviest"]
    assert [row["id"] for row in slices] == [0]
    # What pairs it with another run's.
    states = read_constraint_metrics(read_run(tmp_path / "run"), "exposure")
    assert states is not None and states.summary() == other
    assert read_constraint_metrics(read_run(tmp_path / "plain"), "exposure") is None
    assert len(read_predictions(tmp_path / "run")) == without["examples"]


@pytest.mark.slow
def test_a_constraint_log_of_the_same_examples_tells_no_label_before_its_prediction(make_log, tmp_path):
    """Many queries share a time, so that batches end inside it; the second log holds every third query again."""
    examples = draw_examples(seed=7)
    changed_from = 120  # a query; times are those of ten queries together
    logits = []
    for name, flipped in (("one", False), ("other", True)):
        label = np.where((examples.query >= changed_from) & flipped, 1 - examples.label, examples.label)
        table = replace(examples, label=label).table()
        time = pa.array(examples.query // 10 * 10_000)
        table = table.set_column(table.column_names.index("query_time"), "query_time", time)
        part = table.filter(pa.array(examples.query % 3 == 0))
        config = make_config(constrained(make_log(part, f"{name}-exposure")), logistic=True)
        train(make_log(table, f"{name}-log"), config, tmp_path / name)
        logits.append(read_predictions(tmp_path / name)["logit"].to_numpy())
    first = int(np.searchsorted(examples.query, changed_from))
    same = logits[0] == logits[1]
    assert same[: first + 1].all()
    assert not same[first + 60 :].any()


def test_constraint_logs_that_do_not_fit_are_refused(log, tmp_path, schema):
    create_log(tmp_path / "empty", schema)
    other = Schema(features=tuple(one for one in schema.features if one.name != "tags"))
    publish(tmp_path / "other", draw_examples(9).table().drop_columns(["tags"]), schema=other)
    faulty = draw_examples(queries=200, seed=9)
    faulty = replace(faulty, train_weight=np.full(len(faulty), -1.0))
    path = publish(tmp_path / "faulty", faulty.table())
    for name, words in (
        ("empty", "has no rows"),
        ("other", "both must have the same features"),
        ("nothing", "not an example log"),
        # Counted by log, and against what was read of it.
        ("faulty", f"{path}: [0-9]+ of the first [0-9]+ rows that were read are faulty"),
    ):
        with pytest.raises(InputError, match=words):
            train(log, make_config(constrained(tmp_path / name), logistic=True), tmp_path / "run")
