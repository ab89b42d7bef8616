"""The report of an experiment: its numbers against those of the predictions, row by row, and the files with them."""

import csv
import io
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss

from ctr.data.log import MAX_TIME_US
from ctr.eval.arrays import sigmoid
from ctr.eval.report.page import PageContext
from ctr.eval.states import query_bucket
from ctr.eval.tidy import as_csv, row, tidy
from ctr.experiments.report.write import write_experiment
from ctr.io.errors import InputError
from experiment_folders import ARMS, HOSTILE, edit, logits, message, page_of, result_of, write_small
from jackknife import margin_of
from report_pages import Html, check_context, figures_of, rows_of, section_of, tables_of, words_of
from run_directories import predict, run_folder, write_plan, write_run

ACCURACY = "Accuracy: changes in percent of the reference's"


def accuracy(table: pd.DataFrame) -> dict[str, float]:
    """PerQueryAUC by all pairs, and logloss by scikit-learn."""
    columns = ["query_id", "label", "logit", "metric_weight"]
    query, label, logit, weight = table.loc[table["metric_weight"] > 0, columns].to_numpy(np.float64).T
    clicked, other = np.nonzero((query[:, None] == query) & (label[:, None] > label))
    weights, above = weight[clicked] * weight[other], np.sign(logit[clicked] - logit[other]) / 2 + 0.5
    sums = pd.DataFrame({"auc": weights * above, "weight": weights}).groupby(query[clicked]).sum()
    loss = log_loss(label, sigmoid(logit), sample_weight=weight)
    return {"per_query_auc": float((sums["auc"] / sums["weight"]).mean()), "logloss": float(loss)}


def recorded(folder: Path, name: str, seed: int) -> pd.DataFrame:
    parts = sorted((folder / run_folder(name, seed)).glob("predictions/*.parquet"))
    return pd.concat([pd.read_parquet(part) for part in parts])


@cache
def accuracy_of(folder: Path, name: str, seed: int) -> dict[str, float]:
    return accuracy(recorded(folder, name, seed))


@pytest.fixture(scope="module")
def context(experiment) -> PageContext:
    return page_of(experiment)


@pytest.mark.parametrize(("name", "reference"), [("dcn", "base"), ("optimizer", "dcn")])
def test_changes_are_those_of_the_predictions(experiment, context, name, reference):
    result = result_of(experiment)
    for metric in ("per_query_auc", "logloss"):
        ours, theirs = (
            [accuracy_of(experiment, one, seed)[metric] for seed in (1, 2, 3)] for one in (name, reference)
        )
        own = np.subtract(ours, theirs)
        percent = 100 * own / theirs
        assert result(metric, name) == pytest.approx(np.mean(ours), abs=1e-12)
        assert list(result.by_seed(metric, name).values()) == pytest.approx(ours, abs=1e-12)
        assert result(f"{metric}_difference", name) == pytest.approx(own.mean(), abs=1e-12)
        change = 100 * own.mean() / np.mean(theirs)
        assert result(f"{metric}_change_percent", name) == pytest.approx(change, abs=1e-9)
        by_seed = result.by_seed(f"{metric}_difference", name)
        assert list(by_seed) == ["1", "2", "3"] and list(by_seed.values()) == pytest.approx(own, abs=1e-12)
        changes = result.by_seed(f"{metric}_change_percent", name)
        assert list(changes.values()) == pytest.approx(percent, abs=1e-9)
        if metric == "per_query_auc":
            spread = rows_of(tables_of(section_of(context, ACCURACY))[0])[name]["by seed ± sd"]
            assert spread.startswith(f"{percent.min():+.2f}..")
            assert spread.endswith(f"± {percent.std(ddof=1):.2f}")


def test_the_interval_is_the_jackknife_of_the_mean_over_seeds(experiment):
    """Of logloss, whose replicates are sums without each bucket."""
    sums = {}
    for name in ("base", "dcn"):
        for seed in (1, 2, 3):
            table = recorded(experiment, name, seed)
            p = 1 / (1 + np.exp(-table["logit"].to_numpy(np.float64)))
            loss = np.where(table["label"] == 1, -np.log(p), -np.log1p(-p)) * table["metric_weight"]
            bucket = query_bucket(table["query_id"].to_numpy())
            sums[name, seed] = [np.bincount(bucket, of, 256) for of in (loss, table["metric_weight"])]
    weight = sums["base", 1][1]
    kept = np.flatnonzero(weight)

    def without(name):
        each = [(total.sum() - total[kept]) / (weight.sum() - weight[kept]) for total, _ in
                (sums[name, seed] for seed in (1, 2, 3))]  # fmt: skip
        return np.mean(each, axis=0)

    result = result_of(experiment)
    low, high = result.ends("logloss_difference", "dcn")
    assert (high - low) / 2 == pytest.approx(margin_of(without("dcn") - without("base")), rel=1e-6)
    low, high = result.ends("logloss_change_percent", "dcn")
    relative = 100 * (without("dcn") / without("base") - 1)
    assert (high - low) / 2 == pytest.approx(margin_of(relative), rel=1e-6)


@pytest.mark.slow
def test_retrains_differ_by_kind_with_intervals_over_seeds(copy, rows):
    """By what they differ in: against runs of the same seed, and the pairs of seeds beside them."""
    noise = {"base": 0.3, "dcn": 0.1}

    def add(plan) -> None:
        for arm in plan["arms"]:
            if arm["name"] in noise:
                names = {kind: f"{arm['name']}~{kind}" for kind in ("rounding", "order")}
                arm["retrains"] = {
                    kind: [{"seed": seed, "folder": run_folder(name, seed)} for seed in (1, 2, 3)]
                    for kind, name in names.items()
                }

    edit(copy / "plan.json", add)
    late = (rows["query_time"] >= result_of(copy)[""]["late_from"]).to_numpy()
    expected: dict[str, dict[str, float]] = {"base": {}, "dcn": {}}
    for name, size in noise.items():
        for seed in (1, 2, 3):
            own = logits(rows, name, seed)
            again = own + size * np.random.default_rng(seed).normal(size=len(own)).astype(np.float32)
            write_small(copy / run_folder(f"{name}~rounding", seed), rows, again)
            p, q = (1 / (1 + np.exp(-one[late].astype(float))) for one in (own, again))
            expected[name][str(seed)] = float(np.mean(np.abs(p - q) / ((p + q) / 2)))
    text, result = message(copy)
    for name in noise:
        metric, rounding = "retrain_difference", {"slice": "rounding"}
        kinds = [*result.numbers.by("slice", "retrain_pairs_planned", arm=name)]
        assert kinds == ["rounding", "order", "seed"]
        assert result.by_seed(metric, name, **rounding) == pytest.approx(expected[name], rel=1e-6)
        values = np.array([*expected[name].values()])
        assert result(metric, name, **rounding) == pytest.approx(values.mean(), rel=1e-6)
        # The jackknife's interval of a mean is Student's.
        low, high = result.ends(metric, name, **rounding)
        assert (high - low) / 2 == pytest.approx(4.302653 * values.std(ddof=1) / np.sqrt(3), rel=1e-5)
        assert f"{name}~order seed 1 missing" in text and not result.by_seed(metric, name, slice="order")
        pairs = result.by_seed("prediction_difference", name, window="last half")
        assert result.by_seed(metric, name, slice="seed") == pytest.approx(pairs)
        without = [np.mean([value for pair, value in pairs.items() if one not in pair]) for one in "123"]
        low, high = result.ends(metric, name, slice="seed")
        spread = np.sqrt(2 / 3 * np.square(np.array(without) - np.mean(without)).sum())
        assert (high - low) / 2 >= 4.302653 * spread * (1 - 1e-6)
    means = [np.mean([*expected[name].values()]) for name in ("dcn", "base")]
    ratio = result("retrain_difference_ratio", "dcn", slice="rounding")
    assert ratio == pytest.approx(means[0] / means[1], rel=1e-6)
    assert not result.numbers.by("slice", "retrain_pairs_planned", arm="optimizer")
    # One that did not finish is left out, and counted.
    (copy / run_folder("dcn~rounding", 2) / "summary.json").unlink()
    text, result = message(copy)
    assert "- dcn~rounding seed 2 missing: runs/dcn~rounding-seed-2-0a1b2c: not run, or not finished" in text
    assert list(result.by_seed("retrain_difference", "dcn", slice="rounding")) == ["1", "3"]
    assert result("retrain_pairs_planned", "dcn", slice="rounding") == 3


def test_prediction_difference_is_that_of_the_pairs(experiment, rows):
    times = rows["query_time"].to_numpy()
    middle = times[0] + (times[-1] - times[0] + 1) // 2
    result = result_of(experiment)
    assert result[""]["late_from"] == middle
    values = {}
    for name in ("base", "dcn", "dcn@narrow"):
        probabilities = {}
        for seed in ARMS[name]["seeds"]:
            table = recorded(experiment, name, seed).sort_values("example_id")
            probabilities[seed] = 1 / (1 + np.exp(-table["logit"].to_numpy(np.float64)))
            late = (table["query_time"] >= middle).to_numpy()
        for part, chosen in (("last half", late), ("", np.full(len(late), True))):
            metric, keys = "prediction_difference", {"window": part}
            for one, other in combinations(probabilities, 2):
                p, q = probabilities[one][chosen], probabilities[other][chosen]
                values[name, part, f"{one}-{other}"] = np.mean(np.abs(p - q) / ((p + q) / 2))
            own = {pair: value for (arm, of, pair), value in values.items() if (arm, of) == (name, part)}
            assert result.by_seed(metric, name, **keys) == pytest.approx(own, rel=1e-9)
            assert result(metric, name, **keys) == pytest.approx(np.mean(list(own.values())), rel=1e-9)
            if name == "base":
                assert result(f"{metric}_ratio", name, **keys) is None
                continue
            # Against the baseline's same pairs alone.
            theirs = {pair: values["base", part, pair] for pair in own}
            expected = np.mean(list(own.values())) / np.mean(list(theirs.values()))
            assert result(f"{metric}_ratio", name, **keys) == pytest.approx(expected, rel=1e-9)
            ratios = {pair: own[pair] / theirs[pair] for pair in own}
            assert result.by_seed(f"{metric}_ratio", name, **keys) == pytest.approx(ratios)


def test_tuning_points_use_the_seeds_of_the_sweep(experiment):
    accuracy = {
        name: np.mean([accuracy_of(experiment, name, seed)["per_query_auc"] for seed in (1, 2)])
        for name in ("base", "dcn", "dcn@narrow", "dcn@wide")
    }
    curve = [accuracy[name] for name in ("dcn@narrow", "dcn", "dcn@wide")]
    assert curve == sorted(curve)
    result = result_of(experiment)
    for kind, costs in (("flops", [800, 1100, 1500]), ("time", [720, 990, 1350])):
        read = np.interp(np.log(1000), np.log(costs), curve)
        expected = read / accuracy["base"] - 1
        assert result(f"accuracy_change_at_neutral_{kind}", "dcn") == pytest.approx(expected, abs=1e-9)
        low, high = result.ends(f"accuracy_change_at_neutral_{kind}", "dcn")
        assert low < expected < high
        crossing = np.exp(np.interp(accuracy["base"], curve, np.log(costs))) / 1000 - 1
        assert result(f"{kind}_change_at_neutral_accuracy", "dcn") == pytest.approx(crossing, abs=1e-9)


def test_calibration_is_that_of_all_seeds_together(experiment):
    tables = [recorded(experiment, "dcn", seed) for seed in (1, 2, 3)]
    weight = sum(table["metric_weight"].sum() for table in tables)
    label = sum((table["metric_weight"] * table["label"]).sum() for table in tables)
    result = result_of(experiment)
    deciles = [f"decile {decile}" for decile in range(1, 11)]
    weights = [result("weight", "dcn", slice=decile) for decile in deciles]
    labels = [result("mean_label", "dcn", slice=decile) for decile in deciles]
    assert sum(weights) == pytest.approx(weight)
    assert np.dot(weights, labels) == pytest.approx(label)


@pytest.mark.slow
def test_whether_a_change_is_significant(rows, tmp_path):
    """By the interval alone ``mixed`` would be: the seeds move far apart, one against the rest."""
    better, worse, base = (predict(rows, 5, skill) for skill in (3.0, 0.95, 1.0))
    arms = {"base": (base, base), "mixed": (better, worse), "all": (better, better), "equal": (base, base)}
    write_plan(tmp_path, {**{name: {} for name in arms}, "one": {"seeds": [1]}})
    for name, of_seed in {**arms, "one": (better,)}.items():
        for seed, logit in enumerate(of_seed, start=1):
            write_small(tmp_path / run_folder(name, seed), rows, logit)
    text, result = message(tmp_path)
    metric = "per_query_auc"
    significant = {name: result(f"{metric}_significant", name) for name in ("mixed", "all", "equal", "one")}
    assert significant == {"mixed": 0, "all": 1, "equal": 0, "one": 1}
    assert result.ends(f"{metric}_difference", "mixed")[0] > 0
    assert result(f"{metric}_difference", "equal") == 0
    assert result.ends(f"{metric}_difference", "equal") == (0, 0)
    context = page_of(tmp_path)
    lines = rows_of(tables_of(section_of(context, ACCURACY))[0])
    changes = {name: lines[name]["change, % [95%]"] for name in significant}
    assert "]*" in changes["all"] and "]*" not in changes["mixed"]
    assert "all seeds have one sign" in text
    # A single run has no PD, and nothing was timed.
    assert lines["one"]["by seed ± sd"] == "one" and "Costs" not in text and "Tuning" not in text
    assert not result.numbers.by("seed", "prediction_difference", arm="one", window="last half")
    assert [text.split(":")[0] for text in context.verdict] == [
        "mixed is neither better nor worse than base for certain",
        "all is better than base",
        "equal is neither better nor worse than base for certain",
        "one is better than base",
    ]


def test_metrics_are_those_of_the_times_that_count(rows, tmp_path):
    copy, (start, end) = tmp_path, (int(time) for time in np.quantile(rows["query_time"], [0.4, 0.8]))
    write_plan(copy, {"base": {}, "dcn": {}}, scored_us=[start, end])
    # An arm may have begun later than another.
    for name, begin in (("base", 0), ("dcn", start)):
        for seed in (1, 2):
            later = (rows["query_time"] >= begin).to_numpy()
            own, logit = rows[later].reset_index(drop=True), logits(rows, name, seed)[later]
            write_run(copy / run_folder(name, seed), own, logit, windows=1, parts=1)
    text, result = message(copy)
    for name in ("base", "dcn"):
        values = []
        for seed in (1, 2):
            table = recorded(copy, name, seed)
            values.append(accuracy(table[(table["query_time"] >= start) & (table["query_time"] < end)]))
        for metric in ("per_query_auc", "logloss"):
            assert result(metric, name) == pytest.approx(np.mean([one[metric] for one in values]), abs=1e-12)
    assert result("per_query_auc_significant", "dcn") is not None
    assert f"from {pd.Timestamp(start, unit='us')} before {pd.Timestamp(end, unit='us')} (UTC)" in text
    assert result[""]["scored_us"] == [start, end]
    edit(copy / "plan.json", lambda content: content.update(scored_us=[0, end]))
    assert f"Only predictions before {pd.Timestamp(end, unit='us')} (UTC) count." in message(copy)[0]
    edit(copy / "plan.json", lambda content: content.update(scored_us=[start + 10**15, MAX_TIME_US]))
    with pytest.raises(InputError, match="no prediction was recorded in the query times that count"):
        write_experiment(copy)


def test_the_csv_is_the_table_of_the_json_as_it_is(experiment):
    table = pd.read_csv(experiment / "table.csv", keep_default_na=False, dtype=str)
    assert list(table) == ["metric", "run", "arm", "seed", "slice", "window", "value", "low", "high"]
    records = result_of(experiment)[""]["results"]
    assert len(records) == len(table) > 100
    for record, line in zip(records, table.to_dict("records"), strict=True):
        numbers = {key: None if line[key] == "" else float(line[key]) for key in ("value", "low", "high")}
        assert {**line, **numbers} == record
    assert not table.duplicated(["metric", "run", "arm", "seed", "slice", "window"]).any()
    assert set(table["arm"]) == set(ARMS)
    text = (experiment / "table.txt").read_text()
    assert max(map(len, text.splitlines())) <= 130
    for reported in ("0.18%", "0.44%", "3% <b>", "17%", "optimizer against dcn", "± "):
        assert reported in text


def test_text_runs_in_no_spreadsheet():
    texts = ["=cmd|' /C calc'!A0", "+1+cmd", "-2+3", "@SUM(A1)", "\t=1", " =1", "＝1"]  # noqa: RUF001
    lines = as_csv(tidy([row("auc", 0.5, slice=text) for text in [*texts, "-0.29%", "a=1"]]))
    found = [one["slice"] for one in csv.DictReader(io.StringIO(lines))]
    assert found == [*(f"'{text}" for text in texts), "-0.29%", "a=1"]


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes(experiment, copy):
    write_experiment(copy)
    for name in ("result.json", "table.csv", "table.txt", "report.html"):
        assert (copy / name).read_bytes() == (experiment / name).read_bytes()
    assert not list(copy.glob("*.partial-*"))


def test_the_report_is_whole_and_escaped(experiment, context):
    html = Html((experiment / "report.html").read_text())
    html.check()
    assert len(html.images()) == 5 and html.words.count(HOSTILE) >= 4
    assert figures_of(context)[1:3] == ["PerQueryAUC over training FLOPs", "Change in PerQueryAUC, %"]
    check_context(context)
    # Arms have colors and signs, which the legend names.
    assert all(f">{name}</text>" in html.images()[0] for name in ("narrow", "wide"))
    result = result_of(experiment)
    cells = rows_of(tables_of(section_of(context, ACCURACY))[0])["dcn"]
    assert cells["change, % [95%]"].startswith(f"{result('per_query_auc_change_percent', 'dcn'):+.1f} [")
    difference = result("per_query_auc_difference", "dcn")
    assert context.verdict[0].startswith(f"dcn is better than base: PerQueryAUC {difference:+.3f} [+")
    assert context.verdict[0].endswith("; 0.99× the training time.") and len(context.verdict) == 2
    words = words_of(context)
    for reported in ("ctr replay experiment.yaml", "a" * 64, "model.crosses.rank: 64", "3% <b>"):
        assert reported in words
    assert all(run_folder(name, seed) in words for name, arm in ARMS.items() for seed in arm["seeds"])
    # The configuration of the baseline, from which those of the arms differ as they say.
    assert words.count("layers: 2") == 1
