"""Predictions evaluated by keys, here and by Beam: the numbers are those of the metrics fed in one batch."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr.cli import main
from ctr.eval.compare import compare
from ctr.eval.prediction_difference import PredictionDifference, join_predictions
from ctr.eval.progressive import ProgressiveMetrics
from ctr.io.errors import InputError
from ctr.pipelines.evaluate import run
from ctr.pipelines.evaluate.command import evaluate_text, run_evaluate
from ctr.pipelines.evaluate.rows import checked_rows, join_rows
from ctr.pipelines.evaluate.run import evaluate, evaluate_difference


def make_table(seed: int, queries: int = 40, click_rate: float = 0.4, weight_range: int = 0) -> pa.Table:
    """Rows in random order, with ties, rows of weight 0, and queries of one row and of one class.

    Weights spread over `weight_range` powers of ten.
    """
    rng = np.random.default_rng(seed)
    size = rng.integers(1, 12, queries)
    ids = rng.choice(2**62, queries, replace=False) * rng.choice([-1, 1], queries)
    count = int(size.sum())
    weight = rng.exponential(2.0, count) * (rng.random(count) < 0.9)
    table = pa.table(
        {
            "example_id": rng.choice(2**62, count, replace=False),
            "query_id": np.repeat(ids, size).astype(np.int64),
            "query_time": np.zeros(count, np.int64),
            "label": (rng.random(count) < click_rate).astype(np.int8),
            "train_weight": np.ones(count, np.float32),
            "metric_weight": (weight * 10.0 ** rng.integers(0, weight_range + 1, count)).astype(np.float32),
            "logit": np.round(rng.normal(-1, 3, count), 1).astype(np.float32),
        }
    )
    return table.take(pa.array(rng.permutation(count)))


def column(table: pa.Table, name: str) -> Any:
    return table.column(name).to_numpy()


def replaced(table: pa.Table, name: str, values: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, pa.array(values))


def retrained(table: pa.Table, seed: int = 99) -> pa.Table:
    """The same examples in another order, with other logits."""
    rng = np.random.default_rng(seed)
    logit = column(table, "logit") + rng.normal(0, 0.3, table.num_rows).astype(np.float32)
    return replaced(table, "logit", logit).take(pa.array(rng.permutation(table.num_rows)))


def local_metrics(table: pa.Table) -> ProgressiveMetrics:
    metrics = ProgressiveMetrics()
    metrics.update(*(column(table, name) for name in ("label", "logit", "metric_weight", "query_id")))
    return metrics


def local_difference(a: pa.Table, b: pa.Table) -> dict[str, Any]:
    joined = join_predictions(a.to_pandas(), b.to_pandas())
    state = PredictionDifference()
    state.update(joined.first, joined.second, joined.query_id)
    ends = [float(end) for end in state.estimate().interval()]
    return {
        "value": None if math.isnan(state.result()) else state.result(),
        "ci95": [None if math.isnan(end) else end for end in ends],
        "examples": len(joined.example_id),
        "only_a": joined.only_first,
        "only_b": joined.only_second,
    }


def assert_close(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_close(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)
    else:
        assert found == expected


def write(path: Path, table: pa.Table, row_group_size: int = 1000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group_size, write_page_checksum=True)
    return path


def spread(folder: Path, table: pa.Table, files: int = 3, row_group_size: int = 17) -> Path:
    """Rows over files and row groups, without regard to queries."""
    place = np.random.default_rng(0).integers(0, files, table.num_rows)
    for number in range(files):
        part = table.take(pa.array(np.flatnonzero(place == number)))
        write(folder / f"{number:03d}.parquet", part, row_group_size)
    return folder


@pytest.mark.parametrize("options", [[], ["--runner=FnApiRunner"]])
def test_files_give_the_local_metrics_here_and_by_beam(tmp_path, monkeypatch, options):
    """A query's rows stand in any of the files, of any number type, and whole queries fall to many keys."""
    monkeypatch.setattr(run, "ROWS_PER_KEY", 100)
    table = make_table(2, queries=300, weight_range=30)
    wide = replaced(table, "label", column(table, "label").astype(bool))
    for name in ("logit", "metric_weight"):
        wide = replaced(wide, name, column(table, name).astype(float))
    found = evaluate([spread(tmp_path / "predictions", wide)], options)
    assert_close(found, local_metrics(table).summary())
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(("rows_per_key", "rows_per_pass"), [(50, 10**9), (10**6, 900)])
def test_neither_keys_nor_passes_change_the_numbers(tmp_path, monkeypatch, rows_per_key, rows_per_pass):
    monkeypatch.setattr(run, "ROWS_PER_KEY", rows_per_key)
    monkeypatch.setattr(run, "ROWS_PER_PASS", rows_per_pass)
    a = make_table(3, queries=200)
    b = retrained(a).slice(0, a.num_rows - 100)
    folders = spread(tmp_path / "a", a), spread(tmp_path / "b", b, files=2, row_group_size=1000)
    found = evaluate_difference(folders[:1], folders[1:])
    assert_close(found["prediction_difference"], local_difference(a, b))
    assert found["prediction_difference"]["only_a"] == 100
    assert_close(found["a"], local_metrics(a).summary())
    assert_close(found["b"], local_metrics(b).summary())
    assert found["metrics"] is None


def test_sets_of_the_same_examples_are_compared_metric_by_metric(tmp_path):
    a = make_table(4, queries=200)
    b = retrained(a)
    found = evaluate_difference([spread(tmp_path / "a", a)], [spread(tmp_path / "b", b)])
    expected = compare(local_metrics(a), local_metrics(b))
    assert set(found["metrics"]) == set(expected.index)
    for metric, row in found["metrics"].items():
        for key in ("a", "b", "difference", "relative_percent"):
            value = float(expected.loc[metric, key])
            assert_close(row[key], None if np.isnan(value) else value)
        assert_close(row["ci95"], [float(expected.loc[metric, f"ci95_{end}"]) for end in ("low", "high")])
        assert row["significant"] == bool(expected.loc[metric, "significant"])
    others = replaced(b, "example_id", column(b, "example_id") + 1)
    unlike = evaluate_difference([tmp_path / "a"], [write(tmp_path / "c.parquet", others)])
    assert (unlike["prediction_difference"]["only_a"], unlike["metrics"]) == (a.num_rows, None)
    same = evaluate_difference([tmp_path / "a"], [tmp_path / "a"])
    assert same["prediction_difference"]["value"] == 0.0
    assert not any(row["significant"] for row in same["metrics"].values())


@pytest.mark.parametrize("rows", [0, 1])
def test_no_row_and_one(tmp_path, rows):
    table = make_table(5).slice(0, rows)
    path = write(tmp_path / "x.parquet", table)
    assert_close(evaluate([path]), local_metrics(table).summary())
    found = evaluate_difference([path], [write(tmp_path / "y.parquet", make_table(5).slice(0, 0))])
    difference = {"value": None, "ci95": [None, None], "examples": 0, "only_a": rows, "only_b": 0}
    assert found["prediction_difference"] == difference
    evaluate_text(found)


def test_scores_without_labels_have_a_difference_alone(tmp_path):
    table = make_table(7, queries=100)
    scores = retrained(table).select(["query_time", "query_id", "example_id", "logit"])
    scored = write(tmp_path / "scores.parquet", scores)
    run = spread(tmp_path / "run" / "predictions", table).parent
    found = evaluate_difference([run], [scored])
    assert_close(found["prediction_difference"], local_difference(table, scores))
    assert_close(found["a"], local_metrics(table).summary())
    assert (found["b"]["examples"], found["b"]["auc"], found["metrics"]) == (table.num_rows, None, None)
    text = evaluate_text(found)
    assert "not paired" in text and text.count("PerQueryAUC") == 1
    with pytest.raises(InputError, match=r"scores\.parquet: no columns label and metric_weight, which"):
        evaluate([scored])


def test_the_command_shows_metrics_and_the_difference_from_the_first_set_named(tmp_path):
    table = make_table(9, queries=60)
    better = replaced(table, "logit", column(table, "label") * 4.0 - 2)
    paths = [write(tmp_path / f"{name}.parquet", one) for name, one in (("plain", table), ("good", better))]
    found = run_evaluate([paths[0]], [paths[1]])
    assert found["metrics"]["auc"]["verdict"] == "better" and found["metrics"]["auc"]["difference"] > 0
    assert found["baseline"] == "a" and found["predictions"] == {"a": [str(paths[0])], "b": [str(paths[1])]}
    text = evaluate_text(found)
    first, second = text.splitlines()[:2]
    assert first.startswith(f"a, the baseline: {paths[0]}: ") and second.startswith(f"b: {paths[1]}: ")
    assert f"{table.num_rows:,} examples in both, 0 only in a, 0 only in b" in text and "b - a" in text
    assert f"{found['prediction_difference']['value']:.3f}" in text
    single = run_evaluate([paths[0]], beam_options="--runner FnApiRunner")
    assert_close(found["a"], single)
    lines = evaluate_text(single).splitlines()
    assert lines[0] == f"{table.num_rows:,} examples, 60 queries"
    warned = "warning: nothing was learned: the predictions are worse than the base rate"
    assert lines.pop().startswith(warned)
    names = "PerQueryAUC, AUC, logloss, normalized entropy, calibration bias, predicted / actual clicks"
    assert [line.split("  ")[0] for line in lines[2:]] == names.split(", ")
    with pytest.raises(InputError, match=r"^--beam-options ': No closing quotation"):
        run_evaluate([paths[0]], beam_options="'")


def test_days_are_measured_by_themselves(tmp_path):
    """A day is one of UTC, before 1970 too; its rows may be in any row group."""
    table = make_table(4, queries=90)
    day = column(table, "query_id") % 3 - 1
    times = pa.array(day * 86_400_000_000 + np.where(day < 0, 86_399_999_999, 0), pa.int64())
    table = table.set_column(table.column_names.index("query_time"), "query_time", times)
    path = write(tmp_path / "days.parquet", table, row_group_size=50)
    days = evaluate([path], by_day=True)["days"]
    assert [*days] == ["1969-12-31", "1970-01-01", "1970-01-02"]
    for number, found in enumerate(days.values(), -1):
        assert_close(found, local_metrics(table.take(pa.array(np.flatnonzero(day == number)))).summary())
    text = evaluate_text(run_evaluate([path], by_day=True))
    assert [line.split()[0] for line in text.splitlines()[-3:]] == [*days]
    with pytest.raises(InputError, match="--by-day"):
        run_evaluate([path], [path], by_day=True)
    with pytest.raises(InputError, match="query_time"):
        evaluate([write(tmp_path / "timeless.parquet", table.drop_columns("query_time"))], by_day=True)


SECONDS = 1_700_000_000
NO_COLUMN = " no column {}; the columns found are example_id, "
# A column, the values of two rows (None: without the column), and what is said.
COLUMN_FAULTS: list[tuple[str, Any, str]] = [
    ("logit", [math.nan, 0.0], " row 1: logit must be a finite number, got nan"),
    ("label", [0.0, 0.5], " row 2: label must be 0 or 1, got 0.5"),
    ("metric_weight", [1.0, -1.0], " row 2: metric_weight must be a finite number of at least 0, got -1.0"),
    ("metric_weight", None, NO_COLUMN.format("metric_weight")),
    ("example_id", [None, 3], " row 1: example_id must be given in every row, got null"),
    ("query_id", pa.array([0, 1], pa.uint64()), " column query_id must be int64, got uint64"),
    ("label_sale", [None, 2], " row 2: label_sale must be 0 or 1, got 2"),
    ("query_time", ["1", "2"], " column query_time must be int64, microseconds since 1970, got string"),
    ("query_time", [SECONDS] * 2, f"got {SECONDS}, which seems to be seconds; multiply by 1,000,000"),
    ("query_time", [SECONDS * 10**3] * 2, "000, which seems to be milliseconds; multiply by 1,000"),
]


def test_a_faulty_column_is_named_with_its_value(tmp_path, capfd):
    sound = make_table(3, queries=4).slice(0, 2)
    for name in ("logit", "label"):
        sound = sound.append_column(f"{name}_sale", sound.column(name))
    for name, values, fault in COLUMN_FAULTS:
        table = sound.drop_columns([name]) if values is None else replaced(sound, name, values)
        path = write(tmp_path / "faulty.parquet", table)
        assert main(["evaluate", str(path), "--by-day"]) == 1
        error = capfd.readouterr().err
        assert fault in error and error.startswith(f"error: {path}") and error.count("\n") == 1


def test_a_label_that_is_true_or_false_is_one_that_is_0_or_1(tmp_path):
    """Where it is null, nothing is known."""
    table = make_table(3)
    known = np.arange(table.num_rows) % 3 > 0
    for kind in (pa.bool_(), pa.int64(), pa.float32()):
        label = pa.array(column(table, "label").astype(bool), mask=~known).cast(kind)
        both = table.append_column("logit_sale", table.column("logit")).append_column("label_sale", label)
        found = evaluate([write(tmp_path / "labels.parquet", both)])["labels"]["sale"]
        assert_close(found, local_metrics(table.filter(pa.array(known))).summary())


def test_an_example_that_changed_its_query_is_not_joined():
    a, b = (checked_rows("here", make_table(8), True) for _ in range(2))
    b["query_id"][0] += 1
    joined = join_rows(a, b)
    assert (joined.only_first, joined.only_second, len(joined.example_id)) == (1, 1, len(a) - 1)


def test_files_that_are_no_predictions_are_named(tmp_path):
    write(tmp_path / "some" / "a.parquet", make_table(9))
    path = write(tmp_path / "some" / "x.parquet", make_table(13, queries=400), row_group_size=20)
    sound = path.read_bytes()
    bad = make_table(10)
    write(
        path, replaced(bad, "logit", [*column(bad, "logit")[:45], math.nan, *column(bad, "logit")[46:]]), 20
    )
    with pytest.raises(InputError) as caught:
        evaluate([path.parent])
    assert str(caught.value) == f"{path} row 46: logit must be a finite number, got nan"
    flipped = bytearray(sound)
    flipped[len(flipped) // 3] ^= 1
    for content in (bytes(flipped), sound[:100]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"x\.parquet: damaged"):
            evaluate([path])
    (tmp_path / "none").mkdir()
    for inputs, options, message in (
        ([tmp_path / "none"], [], "none: no predictions in it; allowed: "),
        ([tmp_path / "absent"], [], "absent: no such file or folder"),
        ([], [], "no input is given"),
        ([tmp_path / "some/a.parquet", tmp_path / "some/a.parquet"], [], r"a\.parquet: given twice"),
        ([tmp_path / "some/a.parquet"], ["--runner=NoSuchRunner"], "--beam-options: .*NoSuchRunner"),
        ([tmp_path / "some/a.parquet"], ["--direct_num_workers=x"], "invalid int"),
    ):
        with pytest.raises(InputError, match=message):
            evaluate(inputs, options)


def test_what_is_there_twice_is_refused(tmp_path):
    table = make_table(14)
    a, b = write(tmp_path / "a.parquet", table), write(tmp_path / "b.parquet", table.slice(5, 1))
    example_id = column(table, "example_id")[5]
    twice = f"{a}: example_id {example_id} appears in the predictions 2 times, also in {b}; allowed: each example once"
    for call in (
        lambda: evaluate([tmp_path]),
        lambda: evaluate([tmp_path], ["--runner=FnApiRunner"]),
        lambda: evaluate_difference([a], [tmp_path]),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert str(caught.value) == twice
