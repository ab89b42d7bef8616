import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import run_directories
from ctr.cli import main
from ctr.eval.prediction_difference import pair_predictions
from ctr.eval.report import render_report
from ctr.eval.run_comparison import NotComparableError, compare_runs, differing_keys
from ctr.eval.run_files import COMPARED, distinct_names
from ctr.eval.states import query_bucket
from ctr.io.errors import InputError
from jackknife import margin_of
from run_directories import make_rows, predict, write_predictions, write_run


@pytest.fixture(scope="module")
def rows():
    return make_rows(1, queries=250)


@pytest.fixture(scope="module")
def few_rows():
    return make_rows(4, queries=60)


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


def brute_auc(label, score, weight):
    """Every pair of a click and a non-click."""
    above = (score[label == 1][:, None] - score[label == 0][None, :] + 0.0) / 2
    pairs = weight[label == 1][:, None] * weight[label == 0][None, :]
    return float((pairs * (np.sign(above) + 1) / 2).sum() / pairs.sum())


def brute_metrics(table: pd.DataFrame) -> dict[str, float]:
    table = table[table["metric_weight"] > 0]
    label = table["label"].to_numpy()
    score, weight = (table[name].to_numpy(np.float64) for name in ("logit", "metric_weight"))
    p = 1 / (1 + np.exp(-score))
    logloss = -np.average(np.where(label == 1, np.log(p), np.log(1 - p)), weights=weight)
    rate = np.average(label, weights=weight)
    by_query = [
        brute_auc(*(part[name].to_numpy(np.float64) for name in ("label", "logit", "metric_weight")))
        for _, part in table.groupby("query_id")
        if part["label"].nunique() == 2
    ]
    return {
        "per_query_auc": float(np.mean(by_query)),
        "auc": brute_auc(label, score, weight),
        "logloss": float(logloss),
        "normalized_entropy": float(logloss / stats.entropy([rate, 1 - rate])),
        "calibration_bias": float(rate - np.average(p, weights=weight)),
        "calibration_ratio": float(np.average(p, weights=weight) / rate),
    }


def jackknife(point: float, replicates: list[float]) -> tuple[float, float]:
    margin = margin_of(replicates)
    return point - margin, point + margin


def brute_pd(a: pd.DataFrame, b: pd.DataFrame) -> tuple[float, tuple[float, float], int, int, int]:
    """PD, its interval, examples of both, of a only and of b only."""
    first = {int(row.example_id): row for row in a.itertuples()}
    second = {int(row.example_id): row for row in b.itertuples()}
    terms = defaultdict(list)
    for example, row in first.items():
        if example in second:
            p, q = (1 / (1 + np.exp(-np.float64(logit))) for logit in (row.logit, second[example].logit))
            terms[int(query_bucket(np.array([row.query_id]))[0])].append(abs(p - q) / ((p + q) / 2))
    everything = [term for part in terms.values() for term in part]
    replicates = [
        float(np.mean([term for other, part in terms.items() if other != bucket for term in part]))
        for bucket in terms
    ]
    point = float(np.mean(everything))
    both = len(everything)
    return point, jackknife(point, replicates), both, len(first) - both, len(second) - both


def test_metrics_are_those_of_the_predictions(runs):
    comparison = compare_runs(*runs)
    values_a, values_b = (brute_metrics(recorded(run)) for run in runs)
    assert list(comparison.metrics.index) == list(COMPARED)
    for metric, row in comparison.metrics.iterrows():
        # AUC counts logits closer than 1/2048 as ties.
        tolerance = 1e-4 if metric == "auc" else 1e-12
        assert row["a"] == pytest.approx(values_a[metric], abs=tolerance)
        assert row["b"] == pytest.approx(values_b[metric], abs=tolerance)
        assert row["difference"] == pytest.approx(values_b[metric] - values_a[metric], abs=2 * tolerance)
        relative = 100 * (values_b[metric] - values_a[metric]) / abs(values_a[metric])
        if metric == "calibration_bias" and np.isnan(row["relative_percent"]):
            continue
        assert row["relative_percent"] == pytest.approx(relative, abs=0.05 if metric == "auc" else 1e-9)


def test_intervals_are_those_of_a_jackknife_over_the_buckets(few_rows, tmp_path):
    runs = [
        write_run(tmp_path / str(seed), few_rows, predict(few_rows, seed, skill))
        for seed, skill in ((1, 0.7), (2, 1.4))
    ]
    comparison = compare_runs(*runs)
    tables = [recorded(run) for run in runs]
    buckets = [query_bucket(table["query_id"].to_numpy()) for table in tables]
    replicates = defaultdict(list)
    for bucket in np.unique(buckets[0][tables[0]["metric_weight"] > 0]):
        a, b = (brute_metrics(table[own != bucket]) for table, own in zip(tables, buckets, strict=True))
        for metric in COMPARED:
            replicates[metric].append(b[metric] - a[metric])
    # Buckets without a scored query do not count for PerQueryAUC: there the replicate is the metric itself.
    scored = comparison.run_a.metrics.per_query_auc.estimate().occupied.sum()
    for metric, row in comparison.metrics.iterrows():
        own = replicates[metric]
        if metric == "per_query_auc":
            own = [value for value in own if abs(value - row["difference"]) > 1e-15]
            assert len(own) == scored
        low, high = jackknife(row["difference"], own)
        # AUC's replicates count logits closer than 1/32 as ties.
        tolerance = 0.02 * (high - low) if metric == "auc" else 1e-10
        assert row["ci95_low"] == pytest.approx(low, abs=tolerance)
        assert row["ci95_high"] == pytest.approx(high, abs=tolerance)
        assert row["significant"] == (row["ci95_low"] > 0 or row["ci95_high"] < 0)


def test_prediction_difference_is_that_of_a_plain_loop(runs):
    paired = compare_runs(*runs).predictions
    point, interval, both, only_a, only_b = brute_pd(*(recorded(run) for run in runs))
    assert paired.difference.point == pytest.approx(point, abs=1e-12)
    assert paired.difference.interval() == pytest.approx(interval, abs=1e-10)
    assert (paired.examples, paired.only_a, paired.only_b) == (both, only_a, only_b) == (both, 0, 0)


@pytest.mark.parametrize(("parts_a", "parts_b"), [(1, 20), (20, 1), (15, 7), (6, 6)])
@pytest.mark.parametrize("times", ["apart", "coarse", "equal"])
def test_unmatched_examples_are_counted_however_the_files_are_cut(
    few_rows, tmp_path, parts_a, parts_b, times
):
    rows = few_rows.copy()
    if times == "coarse":
        rows["query_time"] //= 10**11
    if times == "equal":
        rows["query_time"] = 5
    rng = np.random.default_rng(parts_a)
    runs = []
    for name, parts, first in (("a", parts_a, 0), ("b", parts_b, len(rows) // 4)):
        table = rows.assign(logit=predict(rows, parts, 1.0))[first:]
        runs.append(write_predictions(tmp_path / name, table[rng.random(len(table)) < 0.8], parts))
    paired = pair_predictions(*runs)
    point, interval, both, only_a, only_b = brute_pd(*(recorded(run) for run in runs))
    assert (paired.examples, paired.only_a, paired.only_b) == (both, only_a, only_b)
    assert min(both, only_a, only_b) > 0
    assert paired.difference.point == pytest.approx(point, abs=1e-12)
    assert paired.difference.interval() == pytest.approx(interval, abs=1e-10)


def test_a_run_equals_itself(runs):
    comparison = compare_runs(runs[0], runs[0])
    assert (comparison.metrics["difference"] == 0).all()
    assert not comparison.metrics["significant"].any()
    assert comparison.predictions.difference.point == 0
    assert "The configurations are equal." in comparison.as_text()


def test_predictions_out_of_order_are_refused(copies):
    path = sorted(copies[0].glob("predictions/*.parquet"))[1]
    pd.read_parquet(path).iloc[::-1].to_parquet(path, index=False)
    with pytest.raises(InputError, match=rf"{path}: predictions must be in the order of the log"):
        compare_runs(*copies)


def test_repeated_examples_cost_only_the_prediction_difference(copies):
    path = sorted(copies[0].glob("predictions/*.parquet"))[0]
    table = pd.read_parquet(path)
    table.loc[1, "example_id"] = table.loc[0, "example_id"]
    table.to_parquet(path, index=False)
    comparison = compare_runs(*copies)
    assert comparison.predictions is None
    assert "must hold each example once" in comparison.no_predictions
    assert comparison.no_predictions in comparison.as_text()
    assert comparison.as_dict()["prediction_difference"] == {"unavailable": comparison.no_predictions}
    assert np.isfinite(comparison.metrics["difference"]).all()


def test_without_predictions(copies):
    shutil.rmtree(copies[1] / "predictions")
    comparison = compare_runs(*copies)
    assert comparison.no_predictions == f"no predictions were recorded in {copies[1]}"
    assert comparison.no_predictions in comparison.as_text()


def test_what_it_costs(runs):
    costs = compare_runs(*runs).as_dict()["cost"]
    assert costs["step_ms_p50"] == {"a": 4.0, "b": 6.0, "ratio": 1.5, "ratio_range": None}
    assert costs["parameters_embedding"] == {"a": 20_000, "b": 20_000, "ratio": 1.0, "ratio_range": None}


def timed_run(folder: Path, rows: pd.DataFrame, speeds: np.ndarray, **more: Any) -> Path:
    run = write_run(folder, rows, predict(rows, 3, 1.0), windows=len(speeds), parts=1, **more)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line, speed in zip(lines, speeds, strict=True):
        line["examples_per_second"] = float(speed)
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_times_have_ranges_and_no_ratio_between_batches_of_other_sizes(rows, tmp_path):
    noise = np.exp(np.random.default_rng(1).normal(0, 0.2, 12))
    first = {"step_ms_p50": 4.0, "step_ms_p25": 3.0, "step_ms_p75": 5.0}
    second = {"step_ms_p50": 4.4, "step_ms_p25": 4.0, "step_ms_p75": 5.0, "examples_per_second": 10_000.0}
    base = timed_run(tmp_path / "a", rows, 5000 * noise, **first)
    # What slows both in a window is no difference between them.
    fast = timed_run(tmp_path / "b", rows, 10_000 * noise * np.linspace(0.99, 1.01, 12), **second)
    comparison = compare_runs(base, fast)
    speed, step = (comparison.costs[key] for key in ("examples_per_second", "step_ms_p50"))
    assert speed.ratio == 2 and 1.95 < speed.span[0] < 2 < speed.span[1] < 2.05 and not speed.verdict
    assert step.span == (4.0 / 5.0, 5.0 / 3.0) and step.verdict == "not significant"
    assert "[0.80×, 1.67×]" in comparison.as_text()
    larger = timed_run(tmp_path / "c", rows, 9000 * noise, config={"batch": {"rows": 9}}, **second)
    comparison = compare_runs(base, larger)
    assert comparison.costs["step_ms_p50"].ratio is None
    assert "examples/s compares the runs" in " ".join(comparison.as_text().split())
    assert max(map(len, comparison.as_text().splitlines())) <= 110


def test_runs_that_differ_by_the_seed_are_neither_better_nor_worse(rows, tmp_path):
    noise = predict(rows, 5, 0.0)
    other = {**run_directories.CONFIG, "seed": 2}
    run_a = write_run(tmp_path / "a", rows, noise)
    better = noise + 2 * rows["label"].to_numpy() - np.float32(0.6)
    run_b = write_run(tmp_path / "b", rows, better, config=other)
    comparison = compare_runs(run_a, run_b)
    assert set(comparison.metrics["verdict"]) == {"differs"} and comparison.differs_by_seed
    text = " ".join(comparison.as_text().split())
    assert "ctr replay" in text and "a, the baseline: " in text
    assert "ctr replay" in render_report([run_a, run_b])
    changed = {**other, "model": {}}
    run_c = write_run(tmp_path / "c", rows, better, config=changed)
    comparison = compare_runs(run_a, run_c)
    assert "better" in set(comparison.metrics["verdict"]) and "ctr replay" not in comparison.as_text()


def test_unknown_costs(copies):
    summary = json.loads((copies[0] / "summary.json").read_text())
    del summary["step_ms_p50"]
    summary["examples_per_second"] = None
    summary["parameters_dense"] = 0
    (copies[0] / "summary.json").write_text(json.dumps(summary))
    comparison = compare_runs(*copies)
    assert comparison.as_dict()["cost"]["step_ms_p50"] == {
        "a": None,
        "b": 6.0,
        "ratio": None,
        "ratio_range": None,
    }
    assert comparison.as_dict()["cost"]["parameters_dense"]["ratio"] is None
    assert "–" in comparison.as_text()


def test_settings_that_differ():
    a = {"seed": 1, "model": {"layers": 2, "widths": {}, "units": [4]}, "gone": None}
    b = {"seed": 1, "model": {"layers": 0, "widths": {"c0": 4}, "units": [4]}}
    assert [(entry.key, entry.shown("a"), entry.shown("b")) for entry in differing_keys(a, b)] == [
        ("gone", "null", "–"),
        ("model.layers", "2", "0"),
        ("model.widths.c0", "–", "4"),
    ]


def test_the_dict_is_json(runs):
    comparison = compare_runs(*runs)
    content = json.loads(json.dumps(comparison.as_dict(), allow_nan=False))
    assert list(content["metrics"]) == list(COMPARED)
    assert content["configuration"] == [
        {"key": "model.crosses.layers", "a": 2, "b": 0},
        {"key": "model.crosses.rank", "a": 16},
        {"key": "model.deep.units", "a": [64, 32], "b": []},
        {"key": "model.widths.c0", "b": 4},
    ]
    assert content["environment"] == []
    assert content["prediction_difference"]["only_a"] == 0


def test_the_text_is_aligned(runs):
    text = compare_runs(*runs).as_text()
    lines = text.splitlines()
    assert max(map(len, lines)) <= 110
    assert all(line == line.rstrip() for line in lines)
    header = next(line for line in lines if "b - a" in line)
    table = [
        line
        for line in lines
        if line.startswith(("PerQueryAUC", "AUC", "logloss", "normalized", "calib", "predicted /"))
    ]
    assert len(table) == len(COMPARED)
    for heading in (" a", " b", "b - a", "95% interval", "relative"):
        end = f"{header}  ".index(f"{heading}  ") + len(heading)
        assert all(line[end - 1] != " " and line[end : end + 2] == "  " for line in table)
    assert {line.split()[-1] for line in table} <= {"better", "worse", "differs", "significant"}


def test_a_better_run_is_called_better(rows, tmp_path):
    noise = predict(rows, 5, 0.0)
    run_a = write_run(tmp_path / "a", rows, noise)
    run_b = write_run(tmp_path / "b", rows, noise + 2 * rows["label"].to_numpy() - np.float32(0.6))
    verdicts = {
        line.split()[0]: line.split()[-1]
        for line in compare_runs(run_a, run_b).as_text().splitlines()
        if line
    }
    assert [verdicts[name] for name in ("PerQueryAUC", "AUC", "logloss", "normalized")] == ["better"] * 4
    backwards = {
        line.split()[0]: line.split()[-1]
        for line in compare_runs(run_b, run_a).as_text().splitlines()
        if line
    }
    assert [backwards[name] for name in ("PerQueryAUC", "AUC", "logloss", "normalized")] == ["worse"] * 4


def test_runs_of_one_class(rows, tmp_path):
    rows = rows.assign(label=np.int8(0))
    runs = [write_run(tmp_path / name, rows, predict(rows, seed, 1.0)) for seed, name in enumerate("ab")]
    comparison = compare_runs(*runs)
    content = json.loads(json.dumps(comparison.as_dict(), allow_nan=False))
    undefined = {"a": None, "b": None, "difference": None, "relative_percent": None, "significant": None}
    auc = content["metrics"]["auc"]
    assert "without both a click and a non-click" in auc.pop("no_interval")
    assert auc == {**undefined, "ci95": [None, None], "verdict": "no interval"}
    assert content["metrics"]["logloss"]["difference"] is not None
    assert content["metrics"]["logloss"]["no_interval"] is None
    lines = comparison.as_text().splitlines()
    assert [line.split()[-2:] for line in lines if line.startswith("AUC")] == [["no", "interval"]]
    assert [line for line in lines if line.startswith("no interval for PerQueryAUC, AUC")]


def test_other_environments_are_told(copies):
    path = copies[1] / "environment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"cpu_count": 64}))
    comparison = compare_runs(*copies)
    assert comparison.as_dict()["environment"] == [{"key": "cpu_count", "a": 2, "b": 64}]
    assert "Speeds may differ" in comparison.as_text()


def test_other_logs_are_refused(rows, runs, tmp_path):
    other = write_run(tmp_path / "other", rows, predict(rows, 3, 1.0), log_sha256="b" * 64)
    with pytest.raises(NotComparableError, match="read different logs") as caught:
        compare_runs(runs[0], other)
    assert all(str(part) in str(caught.value) for part in (runs[0], other, "a" * 12, "b" * 12))


def test_other_examples_are_refused(rows, runs, tmp_path):
    part = rows.iloc[: len(rows) // 2]
    other = write_run(tmp_path / "other", part, predict(part, 3, 1.0))
    with pytest.raises(NotComparableError, match="scored different examples"):
        compare_runs(runs[0], other)


def _edit(path, change):
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x55
    path.write_bytes(content)


def _truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def _drop_state(path):
    with np.load(path) as arrays:
        kept = {name: array for name, array in arrays.items() if name != "logloss/loss"}
    np.savez(path, **kept)


FAULTS = {
    "no folder": (lambda run: shutil.rmtree(run), "no such run directory"),
    "not finished": (lambda run: (run / "summary.json").unlink(), "the run is not finished"),
    "no run": (
        lambda run: [(run / name).unlink() for name in ("summary.json", "config.yaml")],
        "this is not a run directory",
    ),
    "summary cut": (lambda run: _truncate(run / "summary.json"), "summary.json: not JSON"),
    "summary a list": (
        lambda run: (run / "summary.json").write_text("[]"),
        "must be a JSON object, got list",
    ),
    "no log hash": (
        lambda run: _edit(run / "summary.json", lambda content: content | {"log_sha256": 5}),
        "log_sha256 must be a string, got 5",
    ),
    "cost no number": (
        lambda run: _edit(run / "summary.json", lambda content: content | {"step_ms_p50": "fast"}),
        "step_ms_p50 must be a number, got 'fast'",
    ),
    "summary of before": (
        lambda run: _edit(run / "summary.json", lambda content: content | {"examples": 7}),
        "summary.json counts 7 examples",
    ),
    "states missing": (lambda run: (run / "metric_states.npz").unlink(), "metric_states.npz: no such file"),
    "states flipped": (lambda run: _flip(run / "metric_states.npz"), "metric_states.npz: damaged"),
    "states cut": (lambda run: _truncate(run / "metric_states.npz"), "metric_states.npz: damaged"),
    "states incomplete": (lambda run: _drop_state(run / "metric_states.npz"), "metric_states.npz: damaged"),
    "states no archive": (
        lambda run: (run / "metric_states.npz").write_bytes(b"\x93NUMPY nonsense"),
        "metric_states.npz: damaged",
    ),
    "config no YAML": (lambda run: (run / "config.yaml").write_text("a: [1\nb: 2"), "config.yaml: not YAML"),
    "config a list": (lambda run: (run / "config.yaml").write_text("- 1"), "must be a mapping"),
    "config no text": (
        lambda run: (run / "config.yaml").write_bytes(b"\xff\xfe\xff"),
        "config.yaml: not readable",
    ),
    "no environment": (lambda run: (run / "environment.json").unlink(), "environment.json: no such file"),
    "predictions cut": (
        lambda run: _truncate(sorted(run.glob("predictions/*"))[1]),
        "parquet: not readable as predictions",
    ),
    "predictions without logit": (
        lambda run: pd.DataFrame({"example_id": [1]}).to_parquet(sorted(run.glob("predictions/*"))[0]),
        "parquet: not readable as predictions",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_input_ends_with_one_line(copies, fault, capsys):
    spoil, message = FAULTS[fault]
    spoil(copies[1])
    with pytest.raises(InputError, match=message) as caught:
        compare_runs(*copies)
    text = str(caught.value)
    assert "\n" not in text
    assert str(copies[1]) in text
    assert main(["compare", *map(str, copies)]) == 1
    assert capsys.readouterr().err == f"error: {text}\n"


@pytest.mark.parametrize("place", [0.001, 0.3, 0.6, 0.999])
def test_no_flipped_byte_goes_unnoticed(copies, place):
    path = copies[0] / "metric_states.npz"
    before = compare_runs(*copies).metrics
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 0xFF
    path.write_bytes(content)
    try:
        after = compare_runs(*copies).metrics
    except InputError:
        return
    # A time stamp in the archive, say, means nothing.
    pd.testing.assert_frame_equal(before, after)


def test_command_line(runs, capsys):
    assert main(["compare", *map(str, runs)]) == 0
    assert capsys.readouterr().out == compare_runs(*runs).as_text() + "\n"
    assert main(["compare", "--json", *map(str, runs)]) == 0
    assert json.loads(capsys.readouterr().out) == compare_runs(*runs).as_dict()


def test_names_tell_runs_apart(tmp_path):
    folders = [tmp_path / name for name in ("x/run", "y/run", "y/other")]
    assert distinct_names(folders) == ["x/run", "y/run", "y/other"]
    assert distinct_names(folders[1:]) == ["run", "other"]
    with pytest.raises(InputError, match="given twice"):
        distinct_names([folders[0], tmp_path / "y" / ".." / "x" / "run"])
