import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ctr.data.log import MAX_TIME_US
from ctr.eval.states import query_bucket
from ctr.experiments.report.write import write_experiment
from ctr.io.errors import InputError
from experiment_folders import ARMS, edit, logits, result_of, write_small
from jackknife import margin_of
from run_directories import predict, run_folder, write_plan, write_run


def brute(table: pd.DataFrame) -> dict[str, float]:
    """PerQueryAUC and logloss, row by row."""
    table = table[table["metric_weight"] > 0].astype({"metric_weight": np.float64})
    aucs = []
    for _, part in table.groupby("query_id"):
        click = part[part["label"] == 1]
        none = part[part["label"] == 0]
        if len(click) and len(none):
            above = np.sign(click["logit"].to_numpy()[:, None] - none["logit"].to_numpy()[None]) / 2 + 0.5
            weight = np.outer(click["metric_weight"], none["metric_weight"])
            aucs.append(np.average(above, weights=weight))
    p = 1 / (1 + np.exp(-table["logit"].to_numpy(np.float64)))
    loss = np.where(table["label"] == 1, -np.log(p), -np.log1p(-p))
    return {
        "per_query_auc": float(np.mean(aucs)),
        "logloss": float(np.average(loss, weights=table["metric_weight"])),
    }


def recorded(folder: Path, name: str, seed: int) -> pd.DataFrame:
    parts = sorted((folder / run_folder(name, seed)).glob("predictions/*.parquet"))
    return pd.concat([pd.read_parquet(part) for part in parts])


@pytest.mark.slow(first=1)
@pytest.mark.parametrize(("name", "reference"), [("dcn", "base"), ("optimizer", "dcn")])
def test_changes_are_those_of_the_predictions(experiment, name, reference):
    values = {
        (arm, seed): brute(recorded(experiment, arm, seed)) for arm in (name, reference) for seed in (1, 2, 3)
    }
    arm = result_of(experiment)[name]
    assert arm["against"] == reference
    for metric in ("per_query_auc", "logloss"):
        ours, theirs = ([values[one, seed][metric] for seed in (1, 2, 3)] for one in (name, reference))
        own = np.subtract(ours, theirs)
        change = arm["changes"][metric]
        assert arm["metrics"][metric]["value"] == pytest.approx(np.mean(ours), abs=1e-12)
        assert change["difference"]["value"] == pytest.approx(own.mean(), abs=1e-12)
        assert change["percent"]["value"] == pytest.approx(100 * own.mean() / np.mean(theirs), abs=1e-9)
        assert list(change["by_seed"]) == ["1", "2", "3"]
        assert list(change["by_seed"].values()) == pytest.approx(own, abs=1e-12)
        assert list(change["percent_by_seed"].values()) == pytest.approx(100 * own / theirs, abs=1e-9)
        assert change["seeds_lowest"] == pytest.approx(own.min(), abs=1e-12)
        assert change["seeds_highest"] == pytest.approx(own.max(), abs=1e-12)
        assert change["seeds_deviation"] == pytest.approx(own.std(ddof=1), abs=1e-12)


def test_the_interval_is_the_jackknife_of_the_mean_over_seeds(experiment):
    """Of logloss, whose replicates are sums without each bucket."""
    sums = {}
    for name in ("base", "dcn"):
        for seed in (1, 2, 3):
            table = recorded(experiment, name, seed)
            p = 1 / (1 + np.exp(-table["logit"].to_numpy(np.float64)))
            loss = np.where(table["label"] == 1, -np.log(p), -np.log1p(-p)) * table["metric_weight"]
            bucket = query_bucket(table["query_id"].to_numpy())
            sums[name, seed] = (
                np.bincount(bucket, loss, 256),
                np.bincount(bucket, table["metric_weight"], 256),
            )
    weight = sums["base", 1][1]
    kept = np.flatnonzero(weight)

    def without(name: str) -> np.ndarray:
        each = [(total.sum() - total[kept]) / (weight.sum() - weight[kept]) for total, _ in
                (sums[name, seed] for seed in (1, 2, 3))]  # fmt: skip
        return np.mean(each, axis=0)

    change = result_of(experiment)["dcn"]["changes"]["logloss"]
    low, high = change["difference"]["ci95"]
    assert (high - low) / 2 == pytest.approx(margin_of(without("dcn") - without("base")), rel=1e-6)
    low, high = change["percent"]["ci95"]
    relative = 100 * (without("dcn") / without("base") - 1)
    assert (high - low) / 2 == pytest.approx(margin_of(relative), rel=1e-6)


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
        for part, chosen in (("late", late), ("whole", np.full(len(late), True))):
            reported = result[name]["prediction_difference"][part]
            for one, other in combinations(probabilities, 2):
                p, q = probabilities[one][chosen], probabilities[other][chosen]
                values[name, part, f"{one}-{other}"] = np.mean(np.abs(p - q) / ((p + q) / 2))
            own = {pair: value for (arm, of, pair), value in values.items() if (arm, of) == (name, part)}
            assert reported["by_pair"] == pytest.approx(own, rel=1e-9)
            assert reported["mean"]["value"] == pytest.approx(np.mean(list(own.values())), rel=1e-9)
            if name == "base":
                assert reported["ratio"] is None
                continue
            # Against the baseline's same pairs alone.
            theirs = {pair: values["base", part, pair] for pair in own}
            expected = np.mean(list(own.values())) / np.mean(list(theirs.values()))
            assert reported["ratio"]["value"] == pytest.approx(expected, rel=1e-9)
            assert reported["ratio_by_pair"] == pytest.approx(
                {pair: own[pair] / theirs[pair] for pair in own}
            )


@pytest.mark.slow
def test_tuning_points_use_the_seeds_of_the_sweep(experiment):
    accuracy = {
        name: np.mean([brute(recorded(experiment, name, seed))["per_query_auc"] for seed in (1, 2)])
        for name in ("base", "dcn", "dcn@narrow", "dcn@wide")
    }
    curve = [accuracy[name] for name in ("dcn@narrow", "dcn", "dcn@wide")]
    assert curve == sorted(curve)
    tuning = result_of(experiment)["dcn"]["tuning"]
    for kind, costs in (("flops", [800, 1100, 1500]), ("time", [720, 990, 1350])):
        reported = tuning[kind]
        assert reported["points"] == ["dcn", "dcn@narrow", "dcn@wide"] and reported["seeds"] == [1, 2]
        read = np.interp(np.log(1000), np.log(costs), curve)
        expected = read / accuracy["base"] - 1
        assert reported["accuracy_at_neutral_cost"]["relative"] == pytest.approx(expected, abs=1e-9)
        low, high = reported["accuracy_at_neutral_cost"]["ci95"]
        assert low < expected < high
        crossing = np.exp(np.interp(accuracy["base"], curve, np.log(costs))) / 1000 - 1
        assert reported["cost_at_neutral_accuracy"]["relative"] == pytest.approx(crossing, abs=1e-9)
        assert reported["cost_at_neutral_accuracy"]["bound"] is None


def test_calibration_is_that_of_all_seeds_together(experiment):
    tables = [recorded(experiment, "dcn", seed) for seed in (1, 2, 3)]
    weight = sum(table["metric_weight"].sum() for table in tables)
    label = sum((table["metric_weight"] * table["label"]).sum() for table in tables)
    deciles = result_of(experiment)["dcn"]["calibration"]
    assert len(deciles) == 10
    assert sum(row["weight"] for row in deciles) == pytest.approx(weight)
    assert sum(row["weight"] * row["mean_label"] for row in deciles) == pytest.approx(label)


def test_a_change_of_which_seeds_disagree_is_not_significant(rows, tmp_path):
    """Both by the interval alone would be: the seeds move far apart, one against the rest."""
    write_plan(tmp_path, {"base": {}, "mixed": {}, "same": {}})
    better, worse, base = (predict(rows, 5, skill) for skill in (3.0, 0.95, 1.0))
    for name, of_seed in {
        "base": (base, base), "mixed": (better, worse), "same": (better, better)
    }.items():  # fmt: skip
        for seed, logit in enumerate(of_seed, start=1):
            write_small(tmp_path / run_folder(name, seed), rows, logit)
    text = write_experiment(tmp_path)
    result = result_of(tmp_path)
    change = result["mixed"]["changes"]["per_query_auc"]
    assert change["difference"]["ci95"][0] > 0 and not change["significant"]
    assert result["same"]["changes"]["per_query_auc"]["significant"]
    same, mixed = (
        next(line for line in text.splitlines() if line.startswith(one)) for one in ("same", "mixed")
    )
    assert "]*" in same and "]*" not in mixed
    assert "all seeds have one sign" in text


def test_one_seed_says_so(rows, tmp_path):
    write_plan(tmp_path, {"base": {"seeds": [4]}, "arm": {"seeds": [4]}})
    for name, skill in (("base", 0.5), ("arm", 2.0)):
        write_small(tmp_path / run_folder(name, 4), rows, predict(rows, 4, skill))
    text = write_experiment(tmp_path)
    change = result_of(tmp_path)["arm"]["changes"]["per_query_auc"]
    assert change["one_seed"] and change["seeds_deviation"] is None and change["significant"]
    assert "one seed" in next(line for line in text.splitlines() if line.startswith("arm"))
    # A single run has no PD, and nothing was timed.
    assert "Prediction difference" not in text and "Costs" not in text and "Tuning" not in text
    assert (
        result_of(tmp_path)["arm"]["prediction_difference_unavailable"] == "two finished seeds are required"
    )


def test_an_arm_equal_to_its_reference_did_not_change(rows, tmp_path):
    write_plan(tmp_path, {"base": {}, "same": {}})
    for name in ("base", "same"):
        for seed in (1, 2):
            write_small(tmp_path / run_folder(name, seed), rows, predict(rows, seed, 1.0))
    write_experiment(tmp_path)
    change = result_of(tmp_path)["same"]["changes"]["per_query_auc"]
    assert change["difference"] == {"value": 0.0, "ci95": [0.0, 0.0]} and not change["significant"]


@pytest.mark.slow
def test_metrics_are_those_of_the_times_that_count(experiment, rows, tmp_path):
    folder = Path(shutil.copytree(experiment, tmp_path / "copy"))
    start, end = (int(time) for time in np.quantile(rows["query_time"], [0.4, 0.8]))
    edit(folder / "plan.json", lambda content: content.update(scored_us=[start, end]))
    # An arm may have begun later than another.
    for name, begin in (("base", 0), ("dcn", start)):
        for seed in (1, 2, 3):
            later = (rows["query_time"] >= begin).to_numpy()
            shutil.rmtree(folder / run_folder(name, seed))
            write_run(
                folder / run_folder(name, seed),
                rows[later].reset_index(drop=True),
                logits(rows, name, seed)[later],
                windows=1,
                parts=1,
            )
    write_experiment(folder)
    for name in ("base", "dcn"):
        values = []
        for seed in (1, 2, 3):
            table = recorded(folder, name, seed)
            values.append(brute(table[(table["query_time"] >= start) & (table["query_time"] < end)]))
        for metric in ("per_query_auc", "logloss"):
            found = result_of(folder)[name]["metrics"][metric]["value"]
            assert found == pytest.approx(np.mean([one[metric] for one in values]), abs=1e-12)
    assert result_of(folder)["dcn"]["changes"]["per_query_auc"]["significant"] is not None
    shown = f"predictions from {pd.Timestamp(start, unit='us')} before {pd.Timestamp(end, unit='us')} (UTC)"
    assert shown in (folder / "table.txt").read_text()
    assert result_of(folder)[""]["scored_us"] == [start, end]
    edit(folder / "plan.json", lambda content: content.update(scored_us=[0, end]))
    write_experiment(folder)
    shown = f"Only predictions before {pd.Timestamp(end, unit='us')} (UTC) count."
    assert shown in (folder / "table.txt").read_text()
    edit(folder / "plan.json", lambda content: content.update(scored_us=[start + 10**15, MAX_TIME_US]))
    with pytest.raises(InputError, match="no prediction was recorded in the query times that count"):
        write_experiment(folder)
