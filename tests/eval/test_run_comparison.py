import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import run_directories
from ctr.cli import main
from ctr.eval.compare import compare
from ctr.eval.prediction_difference import PredictionDifference, join_predictions
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.run_comparison import NotComparableError, compare_runs
from ctr.eval.run_files import COMPARED, distinct_names
from ctr.eval.tidy import Numbers, tidy
from ctr.io.errors import InputError
from run_directories import make_rows, predict, write_run


@pytest.fixture(scope="module")
def rows():
    return make_rows(1, queries=250)


@pytest.fixture(scope="module")
def runs(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    other = {"seed": 1, "model": {"crosses": {"layers": 0}, "deep": {"units": []}, "widths": {"c0": 4}}}
    run_a = write_run(folder / "a", rows, predict(rows, 2, 0.7), parts=3)
    run_b = write_run(folder / "b", rows, predict(rows, 3, 1.2), parts=5, config=other, step_ms_p50=6.0)
    return run_a, run_b


@pytest.fixture
def copies(runs, tmp_path):
    return [shutil.copytree(run, tmp_path / run.name) for run in runs]


def recorded(run: Path) -> pd.DataFrame:
    return pd.concat([pd.read_parquet(path) for path in sorted(run.glob("predictions/*.parquet"))])


def test_metrics_and_prediction_difference_are_those_of_the_predictions(runs, capsys):
    comparison = compare_runs(*runs)
    metrics, tables = [], [recorded(run) for run in runs]
    for table in tables:
        metrics.append(ProgressiveMetrics())
        metrics[-1].update(*(table[name] for name in ("label", "logit", "metric_weight", "query_id")))
    expected = compare(*metrics).loc[list(COMPARED)]
    assert list(comparison.metrics.index) == list(COMPARED)
    pd.testing.assert_frame_equal(comparison.metrics[expected.columns], expected, rtol=1e-9)
    both = join_predictions(*tables)
    assert len(both.first) == len(tables[0]) == comparison.predictions.examples
    expected = PredictionDifference()
    expected.update(both.first, both.second, both.query_id)
    assert comparison.predictions.difference.point == pytest.approx(expected.result(), rel=1e-12)
    assert (comparison.predictions.only_a, comparison.predictions.only_b) == (0, 0)

    content = comparison.as_dict()
    numbers = Numbers(tidy(content["results"]))
    for metric, row in comparison.metrics.iterrows():
        change = numbers(f"{metric}_difference")
        sides = [numbers(metric, run=run).value for run in "ab"]
        assert sides == pytest.approx([row["a"], row["b"]], rel=1e-12)
        assert [change.value, change.low, change.high] == [*row[["difference", "ci95_low", "ci95_high"]]]
        assert numbers(f"{metric}_significant").value == row["significant"]
        assert content["verdicts"][metric] == row["verdict"]
    low, high = map(float, metrics[0].estimates()["auc"].interval())
    assert (numbers("auc", run="a").low, numbers("auc", run="a").high) == pytest.approx((low, high))
    assert numbers("prediction_difference").value == pytest.approx(expected.result(), rel=1e-12)
    assert content["configuration"] == [
        {"key": "model.crosses.layers", "a": 2, "b": 0},
        {"key": "model.crosses.rank", "a": 16},
        {"key": "model.deep.units", "a": [64, 32], "b": []},
        {"key": "model.widths.c0", "b": 4},
    ]
    assert content["environment"] == [] and numbers("prediction_difference_only_a").value == 0
    assert main(["compare", "--json", *map(str, runs)]) == 0
    assert json.loads(capsys.readouterr().out) == content
    assert main(["compare", *map(str, runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == comparison.as_text().splitlines()
    assert max(map(len, lines)) <= 110 and all(line == line.rstrip() for line in lines)
    starts = ("PerQueryAUC", "AUC", "logloss", "normalized", "calib", "predicted /")
    assert len([line for line in lines if line.startswith(starts)]) == len(COMPARED)


def test_times_have_ranges_and_no_ratio_between_batches_of_other_sizes(rows, tmp_path):
    first = {"step_ms_p50": 4.0, "step_ms_p25": 3.0, "step_ms_p75": 5.0}
    second = {"step_ms_p50": 4.4, "step_ms_p25": 4.0, "step_ms_p75": 5.0, "examples_per_second": 10_000.0}
    base = write_run(tmp_path / "a", rows, predict(rows, 3, 1.0), **first)
    fast = write_run(tmp_path / "b", rows, predict(rows, 3, 1.0), **second)
    comparison = compare_runs(base, fast)
    speed, step = (comparison.costs[key] for key in ("examples_per_second", "step_ms_p50"))
    assert speed.ratio == 2 and speed.span is None and not speed.verdict
    assert step.span == (4.0 / 5.0, 5.0 / 3.0) and step.verdict == "not significant"
    assert "[0.80×, 1.67×]" in comparison.as_text()
    larger = write_run(tmp_path / "c", rows, predict(rows, 3, 1.0), config={"batch": {"rows": 9}}, **second)
    comparison = compare_runs(base, larger)
    assert comparison.costs["step_ms_p50"].ratio is None
    assert "examples/s compares the runs" in " ".join(comparison.as_text().split())
    assert max(map(len, comparison.as_text().splitlines())) <= 110


def test_a_better_run_is_called_better_unless_runs_differ_by_the_seed_alone(rows, tmp_path):
    noise, other = predict(rows, 5, 0.0), {**run_directories.CONFIG, "seed": 2}
    better = noise + 2 * rows["label"].to_numpy() - np.float32(0.6)
    run_a = write_run(tmp_path / "a", rows, noise)
    run_b = write_run(tmp_path / "b", rows, better, config=other)
    comparison = compare_runs(run_a, run_b)
    assert set(comparison.metrics["verdict"]) == {"differs"} and comparison.differs_by_seed
    text = " ".join(comparison.as_text().split())
    assert "ctr replay" in text and "a, the baseline: " in text
    run_c = write_run(tmp_path / "c", rows, better, config={**other, "model": {}})
    for runs, says in (((run_a, run_c), "better"), ((run_c, run_a), "worse")):
        text = compare_runs(*runs).as_text()
        verdicts = {line.split()[0]: line.split()[-1] for line in text.splitlines() if line}
        assert {verdicts[name] for name in ("PerQueryAUC", "AUC", "logloss", "normalized")} == {says}
        assert "ctr replay" not in text


def test_runs_of_one_class(rows, tmp_path):
    rows = rows.assign(label=np.int8(0))
    runs = [write_run(tmp_path / name, rows, predict(rows, seed, 1.0)) for seed, name in enumerate("ab")]
    comparison = compare_runs(*runs)
    content = json.loads(json.dumps(comparison.as_dict(), allow_nan=False))
    assert "without both a click and a non-click" in content["unavailable"]["auc"]
    assert content["verdicts"]["auc"] == "no interval" and "logloss" not in content["unavailable"]
    assert "no interval for PerQueryAUC, AUC" in comparison.as_text()


def test_what_one_run_lacks_or_has_otherwise_is_told(copies):
    def numbers_of(content, key):
        numbers = Numbers(tidy(content["results"]))
        found = [numbers(key, run="a"), numbers(key, run="b"), numbers(f"{key}_ratio")]
        return [None if one is None else one.value for one in found]

    content = compare_runs(*copies).as_dict()
    assert numbers_of(content, "step_ms_p50") == [4.0, 6.0, 1.5]
    assert numbers_of(content, "parameters_embedding") == [20_000, 20_000, 1.0]
    _edit(copies[0] / "summary.json", step_ms_p50=..., examples_per_second=None, parameters_dense=0)
    _edit(copies[1] / "environment.json", cpu_count=64)
    path = sorted(copies[0].glob("predictions/*.parquet"))[0]
    table = pd.read_parquet(path)
    table.loc[1, "example_id"] = table.loc[0, "example_id"]
    table.to_parquet(path, index=False)
    comparison = compare_runs(*copies)
    content, text = comparison.as_dict(), comparison.as_text()
    assert numbers_of(content, "step_ms_p50") == [None, 6.0, None]
    assert numbers_of(content, "parameters_dense")[2] is None and "–" in text
    assert content["environment"] == [{"key": "cpu_count", "a": 2, "b": 64}] and "Speeds may differ" in text
    # Repeated examples cost only the prediction difference.
    assert "must hold each example once" in comparison.no_predictions and comparison.no_predictions in text
    assert content["unavailable"]["prediction_difference"] == comparison.no_predictions
    assert np.isfinite(comparison.metrics["difference"]).all()
    shutil.rmtree(copies[1] / "predictions")
    assert compare_runs(*copies).no_predictions == f"no predictions were recorded in {copies[1]}"


def _edit(path: Path, **values: Any) -> None:
    """Sets keys of a JSON file, or deletes them (...)."""
    content = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _drop_column(path: Path) -> None:
    pd.read_parquet(path).drop(columns="bucket").to_parquet(path, index=False)


def _reverse(path: Path) -> None:
    pd.read_parquet(path).iloc[::-1].to_parquet(path, index=False)


def _no_run(path: Path) -> None:
    path.unlink()
    (path.parent / "config.yaml").unlink()


# What is done to which file of a run, and what is said of it.
FAULTS: list[tuple[str, Callable[[Path], Any], str]] = [
    ("summary.json", lambda path: shutil.rmtree(path.parent), "no such run directory"),
    ("summary.json", Path.unlink, "the run is not finished"),
    ("summary.json", _no_run, "this is not a run directory"),
    ("summary.json", lambda path: _edit(path, log_sha256="b" * 64), "read different logs .log_sha256 a{12}"),
    ("summary.json", lambda path: path.write_text("[]"), "must be a JSON object, got list"),
    ("summary.json", lambda path: _edit(path, step_ms_p50="fast"), "step_ms_p50 must be a number, got"),
    ("summary.json", lambda path: _edit(path, examples=7), "summary.json counts 7 examples"),
    ("windows.parquet", _truncate, "windows.parquet: not readable as sums"),
    ("windows.parquet", _drop_column, "the column bucket appears 0 times"),
    ("config.yaml", lambda path: path.write_text("a: [1\nb: 2"), "config.yaml: not YAML"),
    ("environment.json", Path.unlink, "environment.json: no such file"),
    ("predictions/*", _truncate, "parquet: not readable as predictions"),
    ("predictions/*", _reverse, "predictions must be in the order of the log"),
]


def test_bad_input_ends_with_one_line(rows, runs, tmp_path, capsys):
    for number, (name, spoil, message) in enumerate(FAULTS):
        run = shutil.copytree(runs[1], tmp_path / f"run{number}")
        spoil(sorted(run.glob(name))[-1])
        with pytest.raises(InputError, match=message) as caught:
            compare_runs(runs[0], run)
        text = str(caught.value)
        assert "\n" not in text and str(run) in text
    assert main(["compare", str(runs[0]), str(run)]) == 1
    assert capsys.readouterr().err == f"error: {text}\n"
    part = rows.iloc[: len(rows) // 2]
    with pytest.raises(NotComparableError, match="scored different examples"):
        compare_runs(runs[0], write_run(tmp_path / "part", part, predict(part, 3, 1.0)))
    assert distinct_names([Path("x/run"), Path("y/run"), Path("y/other")]) == ["x/run", "y/run", "y/other"]
    with pytest.raises(InputError, match="given twice"):
        distinct_names([runs[0], runs[1] / ".." / runs[0].name])


def test_no_flipped_byte_of_the_states_goes_unnoticed(copies):
    path, before = copies[0] / "windows.parquet", compare_runs(*copies).metrics
    whole = path.read_bytes()
    for place in (0.001, 0.3, 0.6, 0.999):
        content = bytearray(whole)
        content[int(place * len(content))] ^= 0xFF
        path.write_bytes(content)
        try:
            after = compare_runs(*copies).metrics
        except InputError:
            continue
        # What the file says of its writer, say, means nothing.
        pd.testing.assert_frame_equal(before, after)
