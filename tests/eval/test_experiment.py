import base64
import csv
import io
import json
import re
import runpy
import shutil
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ctr.eval.buckets import query_bucket
from ctr.eval.experiment import write_experiment
from ctr.eval.experiment_tables import TABLE_WIDTH
from ctr.eval.run_comparison import NotComparableError
from ctr.eval.run_files import RunError

make = runpy.run_path(str(Path(__file__).with_name("run_directories.py")))
make_rows, predict, write_run = make["make_rows"], make["predict"], make["write_run"]
write_plan, run_folder = make["write_plan"], make["run_folder"]

HOSTILE = '<script>alert(1)</script> & "quotes" $x^2$ {{ title }}'
ARMS = {
    "base": {"title": "Deep alone", "seeds": [1, 2, 3]},
    "dcn": {
        "title": HOSTILE,
        "note": HOSTILE,
        "seeds": [1, 2, 3],
        "set": {"model.crosses.rank": 64, "model.note": HOSTILE},
        "paper": {"accuracy": "0.18%", "training_cost": "3% <b>", "inference_cost": "1%", "pd": "17%"},
    },
    "optimizer": {"seeds": [1, 2, 3], "against": "dcn", "paper": {"accuracy": "0.44%"}},
    "dcn@narrow": {"seeds": [1, 2], "of": "dcn", "point": "narrow"},
    "dcn@wide": {"seeds": [1, 2], "of": "dcn", "point": "wide"},
}
SKILL = {"base": 1.0, "dcn": 1.15, "optimizer": 1.3, "dcn@narrow": 0.9, "dcn@wide": 1.25}
FLOPS = {"base": 1000.0, "dcn": 1100.0, "optimizer": 1200.0, "dcn@narrow": 800.0, "dcn@wide": 1500.0}


def write_small(folder: Path, rows: pd.DataFrame, logit: np.ndarray, **entries: object) -> Path:
    return write_run(folder, rows, logit, windows=1, parts=2, **entries)


def logits(rows: pd.DataFrame, name: str, seed: int) -> np.ndarray:
    """Most of the noise is the rows' own, as in a log; some is that of the seed."""
    place = list(SKILL).index(name) if name in SKILL else 9
    shared, own = (np.random.default_rng(key).normal(size=len(rows)) for key in (7, 100 * place + seed))
    label = rows["label"].to_numpy() - 0.5
    return (SKILL.get(name, 1.0) * label + shared + 0.15 * own - 1).astype(np.float32)


def cost(name: str, **entries: object) -> dict[str, object]:
    ratio = FLOPS[name] / FLOPS["base"] * 0.9 if name != "base" else 1.0
    return {
        "train_flops": FLOPS[name],
        "inference_flops": FLOPS[name] / 3,
        "dense_parameters": 500,
        "embedding_parameters": 20_000,
        "step_ms": 10 * ratio,
        "step_ratio": [0.98 * ratio, ratio, 1.05 * ratio],
        "batch_rows": 512,
        "inference_ms": 3 * ratio,
        "inference_ratio": [0.97 * ratio, ratio, 1.02 * ratio],
        "learned_share": 1.0,
        **entries,
    }


def write_costs(folder: Path, arms: dict[str, dict[str, object]]) -> None:
    (folder / "costs.json").write_text(
        json.dumps({"arms": arms, "rounds": 12, "teacher_flops": {"big": 1e7}})
    )


@pytest.fixture(scope="module")
def rows():
    return make_rows(1, queries=250)


@pytest.fixture(scope="module")
def made(rows, tmp_path_factory):
    """A whole experiment."""
    folder = tmp_path_factory.mktemp("experiment")
    write_plan(folder, ARMS, title=HOSTILE, note=HOSTILE, teachers=[{"name": "big", "folder": "runs/big"}])
    for name, arm in ARMS.items():
        for seed in arm["seeds"]:
            write_small(folder / run_folder(name, seed), rows, logits(rows, name, seed))
    write_costs(folder, {name: cost(name) for name in ARMS})
    write_experiment(folder)
    return folder


@pytest.fixture
def copy(made, tmp_path):
    return shutil.copytree(made, tmp_path / "copy")


def result_of(folder: Path) -> dict:
    content = json.loads((folder / "result.json").read_text())
    return {arm["name"]: arm for arm in content["arms"]} | {"": content}


def table_of(folder: Path) -> dict[str, dict[str, str]]:
    return {row["arm"]: row for row in csv.DictReader(io.StringIO((folder / "table.csv").read_text()))}


def edit(path: Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


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


def half_width(replicates: np.ndarray) -> float:
    n = len(replicates)
    return float(stats.t.ppf(0.975, n - 1) * np.sqrt((n - 1) * np.var(replicates)))


@pytest.mark.parametrize(("name", "reference"), [("dcn", "base"), ("optimizer", "dcn")])
def test_changes_are_those_of_the_predictions(made, name, reference):
    values = {
        (arm, seed): brute(recorded(made, arm, seed)) for arm in (name, reference) for seed in (1, 2, 3)
    }
    arm = result_of(made)[name]
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


def test_the_interval_is_the_jackknife_of_the_mean_over_seeds(made):
    """Of logloss, whose replicates are sums without each bucket."""
    sums = {}
    for name in ("base", "dcn"):
        for seed in (1, 2, 3):
            table = recorded(made, name, seed)
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

    change = result_of(made)["dcn"]["changes"]["logloss"]
    low, high = change["difference"]["ci95"]
    assert (high - low) / 2 == pytest.approx(half_width(without("dcn") - without("base")), rel=1e-6)
    low, high = change["percent"]["ci95"]
    relative = 100 * (without("dcn") / without("base") - 1)
    assert (high - low) / 2 == pytest.approx(half_width(relative), rel=1e-6)


def test_prediction_difference_is_that_of_the_pairs(made, rows):
    times = rows["query_time"].to_numpy()
    middle = times[0] + (times[-1] - times[0] + 1) // 2
    result = result_of(made)
    assert result[""]["late_from"] == middle
    values = {}
    for name in ("base", "dcn", "dcn@narrow"):
        probabilities = {}
        for seed in ARMS[name]["seeds"]:
            table = recorded(made, name, seed).sort_values("example_id")
            probabilities[seed] = 1 / (1 + np.exp(-table["logit"].to_numpy(np.float64)))
            late = (table["query_time"] >= middle).to_numpy()
        for part, chosen in (("late", late), ("whole", np.full(len(late), True))):
            told = result[name]["prediction_difference"][part]
            for one, other in combinations(probabilities, 2):
                p, q = probabilities[one][chosen], probabilities[other][chosen]
                values[name, part, f"{one}-{other}"] = np.mean(np.abs(p - q) / ((p + q) / 2))
            own = {pair: value for (arm, of, pair), value in values.items() if (arm, of) == (name, part)}
            assert told["by_pair"] == pytest.approx(own, rel=1e-9)
            assert told["mean"]["value"] == pytest.approx(np.mean(list(own.values())), rel=1e-9)
            if name == "base":
                assert told["ratio"] is None
                continue
            # Against the baseline's same pairs alone.
            theirs = {pair: values["base", part, pair] for pair in own}
            expected = np.mean(list(own.values())) / np.mean(list(theirs.values()))
            assert told["ratio"]["value"] == pytest.approx(expected, rel=1e-9)
            assert told["ratio_by_pair"] == pytest.approx({pair: own[pair] / theirs[pair] for pair in own})


def test_tuning_points_use_the_seeds_of_the_sweep(made):
    accuracy = {
        name: np.mean([brute(recorded(made, name, seed))["per_query_auc"] for seed in (1, 2)])
        for name in ("base", "dcn", "dcn@narrow", "dcn@wide")
    }
    curve = [accuracy[name] for name in ("dcn@narrow", "dcn", "dcn@wide")]
    assert curve == sorted(curve)
    tuning = result_of(made)["dcn"]["tuning"]
    for kind, costs in (("flops", [800, 1100, 1500]), ("time", [720, 990, 1350])):
        told = tuning[kind]
        assert told["points"] == ["dcn", "dcn@narrow", "dcn@wide"] and told["seeds"] == [1, 2]
        read = np.interp(np.log(1000), np.log(costs), curve)
        expected = read / accuracy["base"] - 1
        assert told["accuracy_at_neutral_cost"]["relative"] == pytest.approx(expected, abs=1e-9)
        low, high = told["accuracy_at_neutral_cost"]["ci95"]
        assert low < expected < high
        crossing = np.exp(np.interp(accuracy["base"], curve, np.log(costs))) / 1000 - 1
        assert told["cost_at_neutral_accuracy"]["relative"] == pytest.approx(crossing, abs=1e-9)
        assert told["cost_at_neutral_accuracy"]["bound"] is None


def test_calibration_is_that_of_all_seeds_together(made):
    tables = [recorded(made, "dcn", seed) for seed in (1, 2, 3)]
    weight = sum(table["metric_weight"].sum() for table in tables)
    label = sum((table["metric_weight"] * table["label"]).sum() for table in tables)
    deciles = result_of(made)["dcn"]["calibration"]
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
    assert result_of(tmp_path)["arm"]["prediction_difference_unavailable"] == "it takes two finished seeds"


def test_an_arm_equal_to_its_reference_did_not_change(rows, tmp_path):
    write_plan(tmp_path, {"base": {}, "same": {}})
    for name in ("base", "same"):
        for seed in (1, 2):
            write_small(tmp_path / run_folder(name, seed), rows, predict(rows, seed, 1.0))
    write_experiment(tmp_path)
    change = result_of(tmp_path)["same"]["changes"]["per_query_auc"]
    assert change["difference"] == {"value": 0.0, "ci95": [0.0, 0.0]} and not change["significant"]


def test_failed_missing_and_damaged_runs_are_told_and_the_rest_too(copy):
    folder = copy / run_folder("dcn", 2)
    shutil.rmtree(folder)
    shutil.rmtree(copy / run_folder("optimizer", 3))
    (copy / run_folder("base", 3) / "metric_states.npz").write_bytes(b"no")
    (copy / "failures").mkdir()
    (copy / "failures" / "dcn-seed-2.txt").write_text("Traceback\n  somewhere\nerror: out of <memory>\n\n")
    (copy / "failures" / "teacher-big-seed-1.txt").write_text("no such column\n")
    text = write_experiment(copy)
    assert "- dcn seed 2 failed: out of <memory>" in text
    assert "- teacher big failed: no such column" in text
    assert re.search(r"- optimizer seed 3 missing: runs/optimizer-seed-3-\w+: not run, or not finished", text)
    assert re.search(r"- base seed 3 unreadable: .*metric_states.npz: damaged", text)
    result = result_of(copy)
    assert list(result["dcn"]["changes"]["auc"]["by_seed"]) == ["1"]
    assert list(result["optimizer"]["changes"]["auc"]["by_seed"]) == ["1"]
    assert [run["state"] for run in result["dcn"]["runs"]] == ["finished", "failed", "finished"]
    # The sweep is read at the seed that both sides still have.
    assert result["dcn"]["tuning"]["flops"]["left_out"] == ["dcn"]
    assert "out of &lt;memory&gt;" in (copy / "report.html").read_text()


def test_without_a_finished_baseline_the_arms_are_told(copy):
    for seed in (1, 2, 3):
        shutil.rmtree(copy / run_folder("base", seed))
    text = write_experiment(copy)
    assert "- dcn not compared: no seed was finished by both dcn and base" in text
    result = result_of(copy)
    assert result["optimizer"]["changes"] and not result["dcn"]["changes"]
    assert result["dcn"]["tuning"]["flops"]["unavailable"] == "base has not finished a seed of the sweep"
    read_page(copy)


def test_no_run_at_all(tmp_path):
    write_plan(tmp_path, {"base": {}, "arm": {}})
    text = write_experiment(tmp_path)
    assert text.count("not run, or not finished") == 4
    read_page(tmp_path)
    assert result_of(tmp_path)["arm"]["metrics"]["auc"] is None


@pytest.mark.parametrize("queries", [1, 40])
def test_a_log_without_a_click_leaves_accuracy_undefined(tmp_path, queries):
    quiet = make_rows(2, queries=queries, click_rate=0.0)
    write_plan(tmp_path, {**{name: arm for name, arm in ARMS.items() if "dcn" in name}, "base": {}})
    for name in ("base", "dcn", "dcn@narrow", "dcn@wide"):
        for seed in (1, 2):
            write_small(tmp_path / run_folder(name, seed), quiet, predict(quiet, seed, 1.0))
    write_costs(tmp_path, {name: cost(name) for name in ARMS})
    write_experiment(tmp_path)
    _, plots = read_page(tmp_path)
    assert not any("nan" in svg.lower() for svg in plots)
    arm = result_of(tmp_path)["dcn"]
    change = arm["changes"]["per_query_auc"]
    assert change["difference"] == {"value": None, "ci95": [None, None]} and not change["significant"]
    assert arm["tuning"]["flops"]["unavailable"] == "its accuracy is undefined"
    # Its predictions are those of the baseline.
    assert arm["prediction_difference"]["whole"]["ratio"]["value"] == 1


def test_runs_over_another_log_are_refused(rows, copy):
    folder = copy / run_folder("dcn", 2)
    shutil.rmtree(folder)
    write_small(folder, rows, logits(rows, "dcn", 2), log_sha256="b" * 64)
    with pytest.raises(NotComparableError, match=r"dcn-seed-2.*read another log .*bbbbbbbbbbbb") as error:
        write_experiment(copy)
    assert "\n" not in str(error.value)
    edit(copy / "plan.json", lambda plan: plan.update(log_sha256=None))
    with pytest.raises(NotComparableError, match=r"dcn-seed-2.*read another log"):
        write_experiment(copy)


def test_an_arm_that_scored_other_examples_is_told_but_not_compared(rows, copy):
    fewer = rows[rows["query_id"].isin(rows["query_id"].unique()[:200])]
    for seed in (1, 2, 3):
        folder = copy / run_folder("optimizer", seed)
        shutil.rmtree(folder)
        write_small(folder, fewer, logits(rows, "optimizer", seed)[: len(fewer)])
    text = write_experiment(copy)
    line = next(line for line in text.splitlines() if line.startswith("- optimizer not compared"))
    assert f"({len(fewer)} and {len(rows)}" in line and "allowed: runs that scored the same" in line
    result = result_of(copy)
    assert result["optimizer"]["changes"] == {} and result["optimizer"]["metrics"]["auc"]
    assert result["dcn"]["changes"]


def test_absent_costs_are_absent(copy):
    costs = {name: cost(name) for name in ARMS}
    costs["dcn"] = {"train_flops": 1100.0, "learned_share": None, "step_ms": None}
    del costs["optimizer"]
    write_costs(copy, costs)
    text = write_experiment(copy)
    result = result_of(copy)
    assert set(result["dcn"]["cost_ratio"].values()) == {None}
    assert result["optimizer"]["costs"] is None
    assert result["dcn@wide"]["cost_ratio"]["train_flops"]["value"] == pytest.approx(1.5)
    assert result["dcn"]["tuning"]["flops"]["left_out"] == ["dcn"]
    assert "2 of 3" in text
    (copy / "costs.json").unlink()
    text = write_experiment(copy)
    assert "Costs" not in text
    assert result_of(copy)["dcn"]["tuning"]["time"]["unavailable"] == "the cost of base is not known"
    read_page(copy)


def test_predictions_that_were_not_recorded_or_are_damaged_leave_out_pd_alone(copy):
    shutil.rmtree(copy / run_folder("dcn", 1) / "predictions")
    next((copy / run_folder("optimizer", 2)).glob("predictions/*.parquet")).write_bytes(b"PAR1")
    write_experiment(copy)
    result = result_of(copy)
    assert "no predictions were recorded" in result["dcn"]["prediction_difference_unavailable"]
    assert "not readable as predictions" in result["optimizer"]["prediction_difference_unavailable"]
    assert result["optimizer"]["prediction_difference"]["late"]["ratio"] is None
    assert result["dcn"]["changes"]
    assert result["base"]["prediction_difference"]["late"]["mean"]


def test_the_terminal_table_fits_and_shows_the_paper_beside_ours(made):
    text = (made / "table.txt").read_text()
    assert max(map(len, text.splitlines())) <= TABLE_WIDTH == 120
    for told in ("0.18%", "0.44%", "3% <b>", "17%", "optimizer against dcn", "± "):
        assert told in text


def test_long_names_and_papers_still_fit(rows, tmp_path):
    name = "a-technique-of-which-the-name-alone-would-fill-most-of-a-line-of-a-terminal"
    paper = {key: "between 0.41% and 0.46%,\nas FF says" for key in ("accuracy", "training_cost", "pd")}
    write_plan(
        tmp_path, {"base": {"seeds": [1, 2, 3]}, name: {"seeds": [1, 2, 3], "paper": paper}}, title="a\nb"
    )
    for arm in ("base", name):
        for seed in (1, 2, 3):
            write_small(tmp_path / run_folder(arm, seed), rows, predict(rows, seed, 1.0 + 0.4 * seed))
    (tmp_path / "costs.json").write_text(
        json.dumps({"arms": {"base": cost("base"), name: cost("dcn", step_ratio=[11.0, 12.3, 14.5])}})
    )
    text = write_experiment(tmp_path)
    assert max(map(len, text.splitlines())) <= TABLE_WIDTH
    assert text.count("…") >= 6
    assert table_of(tmp_path)[name]["paper_pd"] == paper["pd"]


def test_the_csv_has_raw_numbers_under_plain_names(made):
    result, table = result_of(made), table_of(made)
    assert list(table) == list(ARMS)
    row, arm = table["dcn"], result["dcn"]
    change = arm["changes"]["per_query_auc"]
    assert float(row["per_query_auc_change_percent"]) == change["percent"]["value"]
    assert float(row["per_query_auc_difference_seed_deviation"]) == change["seeds_deviation"]
    assert row["per_query_auc_significant"] == str(change["significant"])
    assert float(row["train_time_ratio_upper_quartile"]) == arm["cost_ratio"]["train_time"]["quartiles"][1]
    assert float(row["pd_last_half_ratio"]) == arm["prediction_difference"]["late"]["ratio"]["value"]
    assert row["paper_accuracy"] == "0.18%" and row["title"] == HOSTILE
    told = arm["tuning"]["flops"]["cost_at_neutral_accuracy"]["relative"]
    assert float(row["flops_change_at_neutral_accuracy"]) == told
    assert table["base"]["per_query_auc_difference"] == "" and table["dcn@wide"]["sweep_of"] == "dcn"
    assert all(key and " " not in key for key in row)


def test_the_same_runs_give_the_same_bytes(made, copy):
    write_experiment(copy)
    for name in ("result.json", "table.csv", "table.txt", "report.html"):
        assert (copy / name).read_bytes() == (made / name).read_bytes()
    assert not list(copy.glob("*.partial-*"))


class Page(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in {"meta", "img", "br", "col"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words += data


def read_page(folder: Path) -> tuple[Page, list[str]]:
    """Parses a report, and checks what holds of every report; its plots as SVG."""
    html = (folder / "report.html").read_text()
    page = Page(html)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert {attributes["href"] for tag, attributes in page.elements if tag == "a"} == {f"#{i}" for i in ids}
    assert not re.search(r"https?://|@import|url\(", html)
    assert "script" not in {tag for tag, _ in page.elements}
    assert not re.search(r"\bnan\b|\bNone\b|\binf\b", page.words)
    images = [attributes for tag, attributes in page.elements if tag == "img"]
    assert all(len(str(image["alt"])) > 20 for image in images)
    prefix = "data:image/svg+xml;base64,"
    plots = [base64.b64decode(str(image["src"]).removeprefix(prefix)).decode() for image in images]
    for svg in plots:
        ElementTree.fromstring(svg)
    return page, plots


def test_the_report_is_whole_and_escaped(made):
    page, plots = read_page(made)
    # Accuracy against cost; PD against accuracy; calibration of the three arms.
    assert len(plots) == 5
    for name in ("narrow", "wide", "optimizer", "base"):
        assert name in plots[0]
    assert page.words.count(HOSTILE) >= 5
    for told in (
        "ctr replay experiment.yaml",
        "a" * 64,
        "2026-01-02T03:04:05Z",
        "model.crosses.rank: 64",
        "3% <b>",
    ):
        assert told in page.words
    for name, arm in ARMS.items():
        for seed in arm["seeds"]:
            assert run_folder(name, seed) in page.words
    assert "3.11.7" in page.words
    # One configuration an arm.
    assert page.words.count("layers: 2") == len(ARMS)


def test_runs_of_different_environments_are_told_apart(copy):
    edit(copy / run_folder("dcn", 1) / "environment.json", lambda content: content.update(python="3.12.1"))
    write_experiment(copy)
    page, _ = read_page(copy)
    assert "times of different ones are not to be compared" in page.words and "3.12.1" in page.words
    result = result_of(copy)["dcn"]["runs"]
    assert [run["environment"]["python"] for run in result] == ["3.12.1", "3.11.7", "3.11.7"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda plan: plan.pop("baseline"), r"baseline: Field required"),
        (lambda plan: plan.update(baseline="other"), r"baseline must be the name of an arm, got 'other'"),
        (
            lambda plan: plan["arms"][1].update(against="x"),
            r"arms.1.against must be the name of an arm, got 'x'",
        ),
        (lambda plan: plan["arms"][1].update(name="../x"), r"arms.1.name must be letters.*got '../x'"),
        (lambda plan: plan["arms"][1].update(name="base"), r"arms.1.name must differ.*'base' twice"),
        (lambda plan: plan["arms"][0]["runs"][0].update(seed="1"), r"arms.0.runs.0.seed: .*integer, got '1'"),
    ],
)
def test_a_wrong_plan_is_one_line(tmp_path, change, told):
    write_plan(tmp_path, {"base": {}, "arm": {}})
    edit(tmp_path / "plan.json", change)
    with pytest.raises(RunError, match=rf"plan\.json: {told}") as error:
        write_experiment(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"arms": {"base": {"step_ratio": [1, 2]}}}',
        '{"arms": {"base": {"train_flops": -1}}}',
        '{"arms": {"base": {"step_ms": NaN}}}',
    ],
)
def test_damaged_costs_are_one_line(tmp_path, content):
    write_plan(tmp_path, {"base": {}})
    (tmp_path / "costs.json").write_text(content)
    with pytest.raises(RunError, match=r"costs\.json: ") as error:
        write_experiment(tmp_path)
    assert "\n" not in str(error.value)


def test_a_folder_without_a_plan(tmp_path):
    with pytest.raises(RunError, match=r"no plan\.json, so this is no experiment"):
        write_experiment(tmp_path)
