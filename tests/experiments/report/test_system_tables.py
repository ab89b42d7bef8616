"""Constrained slices and loops of an experiment, reported from folders made by hand."""

import json
import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ctr.eval.progressive import ProgressiveMetrics
from ctr.experiments.report.write import TABLE_WIDTH, write_experiment
from ctr.io.errors import InputError
from experiment_folders import edit, page_of, result_of, table_of, told, write_small
from report_pages import words_of
from run_directories import run_folder, write_plan

SEEDS = (1, 2, 3)
SHIFT = {"base": 0.5, "bound": 0.1}
LOW = {"name": "low", "log": None, "slices": [f"position {place}" for place in range(14)]}
APART = {"name": "apart", "log": "drawn", "slices": ["position < 6", "position >= 6", "of nothing"]}
SHOWN = [
    {"name": "S2", "title": None, "family": "apart", "index": 1},
    {"name": "S1", "title": "at the top, or just below the top", "family": "low", "index": 1},
]
QUERIES, DAYS = 400, 2


def logits(rows: pd.DataFrame, name: str, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=len(rows))
    return (noise / 4 - 0.85 + SHIFT[name] * (1 + seed / 10)).astype(np.float32)


def loop_folder(name: str, seed: int) -> str:
    return run_folder(name, seed).replace("runs/", "loops/")


def ads(name: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed + 10 * len(name))
    # All serve the same traffic; retrains of one arm differ more than those of the other.
    shown = np.random.default_rng(5).integers(0, 7, QUERIES)
    moved = rng.random(QUERIES) < (0.3 if name == "base" else 0.1)
    return np.maximum(shown + moved * rng.choice([-1, 1, 1], QUERIES), 0)


def shown_table(name: str, seed: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "day": np.repeat(np.arange(DAYS, dtype=np.int32), QUERIES // DAYS),
            "query_id": np.arange(QUERIES, dtype=np.int64) * 13,
            "randomized": np.arange(QUERIES) % 20 == 0,
            "ads": ads(name, seed).astype(np.int16),
        }
    )


def write_loop(folder: Path, name: str, seed: int) -> None:
    table = shown_table(name, seed)
    folder.mkdir(parents=True)
    table.to_parquet(folder / "shown.parquet", index=False)
    same = {"clicks": 10 * seed, "revenue": 5.5 * seed, "more": 1}
    days = [
        {"day": int(day), "queries": len(part), "examples": int(part["ads"].sum()), **same}
        for day, part in table.groupby("day")
    ]
    (folder / "loop.json").write_text(json.dumps({"first_day": 7, "days": days}))


def plan_arm(name: str, **entries: object) -> dict[str, object]:
    runs = [{"seed": s, "folder": run_folder(name, s), "loop": loop_folder(name, s)} for s in SEEDS]
    paper = {"S1": "-15%", "ads_churn": "-85%"} if name == "bound" else {}
    return {"seeds": [*SEEDS], "runs": runs, "families": [LOW, APART], "paper": paper, **entries}


@pytest.fixture(scope="module")
def drawn(rows):
    """The constraint log."""
    return rows.iloc[::-1].head(700).reset_index(drop=True)


@pytest.fixture(scope="module")
def system(rows, drawn, tmp_path_factory):
    folder = tmp_path_factory.mktemp("system") / "out"
    arms = {name: plan_arm(name) for name in SHIFT}
    write_plan(folder, arms, slices=SHOWN, loop_days=DAYS)
    sliced = rows.assign(**{"constraint:low": rows["position"].where(rows["metric_weight"] != 2.5, -1)})
    for name in SHIFT:
        for seed in SEEDS:
            run = folder / run_folder(name, seed)
            write_small(run, sliced, logits(sliced, name, seed), slices=("constraint:low",))
            metrics = ProgressiveMetrics(["constraint:apart"])
            ids = {"constraint:apart": (drawn["position"] >= 6).to_numpy().astype(np.int64)}
            columns = (drawn["label"], logits(drawn, name, seed), drawn["metric_weight"], drawn["query_id"])
            metrics.update(*columns, ids)
            (run / "constraint_states").mkdir()
            np.savez_compressed(run / "constraint_states" / "drawn.npz", **metrics.to_arrays())
            reported = {"drawn": metrics.summary()}
            edit(run / "summary.json", lambda content, own=reported: content.update(constraint_logs=own))
            write_loop(folder / loop_folder(name, seed), name, seed)
    write_experiment(folder)
    return folder


@pytest.fixture
def copy(system, tmp_path):
    return Path(shutil.copytree(system, tmp_path / "copy"))


def bias(rows: pd.DataFrame, name: str, seed: int, inside: pd.Series) -> float:
    p = 1 / (1 + np.exp(-logits(rows, name, seed).astype(np.float64)))
    weight = rows["metric_weight"].to_numpy(np.float64) * inside.to_numpy()
    return float(np.average(rows["label"] - p, weights=weight))


def slices_of(folder: Path) -> dict[tuple[str, int], dict]:
    return {(one["family"], one["index"]): one for one in result_of(folder)["bound"]["slices"]}


def test_bias_and_variance_of_slices_are_those_of_their_rows(system, rows, drawn):
    low = [(rows, (rows["position"] == index) & (rows["metric_weight"] != 2.5)) for index in range(12)]
    apart = [(drawn, drawn["position"] < 6), (drawn, drawn["position"] >= 6)]
    wanted = {("low", index): one for index, one in enumerate(low)}
    wanted |= {("apart", index): one for index, one in enumerate(apart)}
    found = slices_of(system)
    # Slices without rows are not reported.
    assert set(found) == set(wanted)
    for key, (table, inside) in wanted.items():
        one = found[key]
        ours, theirs = ([bias(table, name, seed, inside) for seed in SEEDS] for name in ("bound", "base"))
        assert one["weight"] == pytest.approx(table["metric_weight"][inside].sum())
        assert one["bias"]["value"] == pytest.approx(np.mean(ours), abs=1e-12)
        assert one["reference_bias"]["value"] == pytest.approx(np.mean(theirs), abs=1e-12)
        change = 100 * (abs(np.mean(ours)) / abs(np.mean(theirs)) - 1)
        assert one["size_change_percent"]["value"] == pytest.approx(change, abs=1e-9)
        by_seed = [100 * (abs(a) / abs(b) - 1) for a, b in zip(ours, theirs, strict=True)]
        assert list(one["size_change_percent_by_seed"].values()) == pytest.approx(by_seed, abs=1e-9)
        low_end, high_end = one["size_change_percent"]["ci95"]
        assert low_end < change < high_end
        assert one["significant"] == ((low_end > 0 or high_end < 0) and len(set(np.sign(by_seed))) == 1)
    assert any(one["significant"] for one in found.values())

    def relative(table, name, seed, inside):
        p = 1 / (1 + np.exp(-logits(table, name, seed).astype(np.float64)))
        weight = table["metric_weight"].to_numpy(np.float64) * inside.to_numpy()
        return bias(table, name, seed, inside) / np.average(p, weights=weight)

    variances = {one["family"]: one for one in result_of(system)["bound"]["slice_variances"]}
    assert variances.keys() == {"low", "apart"}
    for family, slices in (("low", low), ("apart", apart)):
        one = variances[family]
        assert one["slices"] == len(slices)
        ours, theirs = (
            [np.var([relative(table, name, seed, inside) for table, inside in slices]) for seed in SEEDS]
            for name in ("bound", "base")
        )
        assert one["variance"]["value"] == pytest.approx(np.mean(ours), rel=1e-9)
        assert one["reference_variance"]["value"] == pytest.approx(np.mean(theirs), rel=1e-9)
        change = 100 * (np.mean(ours) / np.mean(theirs) - 1)
        assert one["change_percent"]["value"] == pytest.approx(change, abs=1e-7)
        by_seed = [100 * (a / b - 1) for a, b in zip(ours, theirs, strict=True)]
        assert list(one["change_percent_by_seed"].values()) == pytest.approx(by_seed, abs=1e-7)
        low_end, high_end = one["change_percent"]["ci95"]
        assert low_end < change < high_end


def test_churn_is_that_of_the_ads_that_were_shown(system):
    arms = result_of(system)
    kept = np.arange(QUERIES) % 20 != 0
    means = {}
    for name in SHIFT:
        loops = arms[name]["loops"]
        assert loops["ads_per_query"] == pytest.approx(np.mean([ads(name, seed).mean() for seed in SEEDS]))
        assert loops["clicks_per_1000_queries"] == pytest.approx(1000 * 10 * 2 * DAYS / QUERIES)
        assert loops["revenue_per_1000_queries"] == pytest.approx(1000 * 5.5 * 2 * DAYS / QUERIES)
        for measure in ("mean_churn", "query_churn"):
            pairs = {}
            for one, other in combinations(SEEDS, 2):
                a, b = ads(name, one)[kept], ads(name, other)[kept]
                gap = np.abs(a - b).sum() if measure == "query_churn" else abs(a.sum() - b.sum())
                pairs[f"{one}-{other}"] = 2 * gap / (a.sum() + b.sum())
                signed = 2 * (a.sum() - b.sum()) / (a.sum() + b.sum())
                assert loops["signed_by_pair"][f"{one}-{other}"] == pytest.approx(signed)
            reported = loops["churn"][measure]
            assert {pair: one["value"] for pair, one in reported["by_pair"].items()} == pytest.approx(pairs)
            means[name, measure] = np.mean(list(pairs.values()))
            assert reported["mean"]["value"] == pytest.approx(means[name, measure])
    assert arms["base"]["loops"]["churn"]["query_churn"]["ratio"] is None
    for measure in ("mean_churn", "query_churn"):
        ratio = arms["bound"]["loops"]["churn"][measure]["ratio"]
        assert ratio["value"] == pytest.approx(means["bound", measure] / means["base", measure])
    low, high = arms["bound"]["loops"]["churn"]["query_churn"]["ratio"]["ci95"]
    assert low < ratio["value"] < high < 1


def test_what_is_told(system):
    text = (system / "table.txt").read_text()
    assert max(map(len, text.splitlines())) <= TABLE_WIDTH
    for reported in ("S2: position >= 6", "-15%", "-85%", "Serving 2 days", "How differently the slices"):
        assert reported in text
    # What the experiment names comes first, in its order; the rest is in the report alone.
    assert text.index("S2: ") < text.index("S1: ") and "position 3" not in text
    words = words_of(page_of(system))
    assert "position 3" in words and "S1: at the top, or just below the top" in words
    row, arm = table_of(system)["bound"], result_of(system)["bound"]
    assert float(row["slice_S1_bias"]) == slices_of(system)["low", 1]["bias"]["value"]
    assert float(row["query_churn_ratio"]) == arm["loops"]["churn"]["query_churn"]["ratio"]["value"]
    assert float(row["ads_per_query"]) == arm["loops"]["ads_per_query"] and row["loops_finished"] == "3"
    assert [one["name"] for one in arm["slices"][:3]] == ["S2", "S1", None]


def test_runs_without_states_of_constraint_logs_are_told_by_their_summaries(system, copy):
    for path in copy.glob("runs/*/constraint_states"):
        shutil.rmtree(path)
    result = told(copy)[1]
    before = slices_of(system)["apart", 1]
    [after] = [one for one in result["bound"]["slices"] if (one["family"], one["index"]) == ("apart", 1)]
    assert after["bias"] == {"value": pytest.approx(before["bias"]["value"]), "ci95": [None, None]}
    assert after["weight"] == before["weight"] and not after["significant"]
    path = copy / run_folder("base", 2) / "summary.json"
    edit(path, lambda content: content.pop("constraint_logs"))
    with pytest.raises(InputError, match=r"constraint_logs\.drawn\.calibration_slices: not as"):
        write_experiment(copy)


def test_churn_of_retrains_is_that_of_loops_of_the_same_seed(copy):
    def add(plan) -> None:
        for arm in plan["arms"]:
            name = f"{arm['name']}~order"
            arm["retrains"] = {
                "order": [
                    {"seed": seed, "folder": run_folder(name, seed), "loop": loop_folder(name, seed)}
                    for seed in SEEDS
                ]
            }

    edit(copy / "plan.json", add)
    for seed in SEEDS[1:]:
        write_loop(copy / loop_folder("bound~order", seed), "bound~order", seed)
    text, result = told(copy)
    found = result["bound"]["retrains"]["mean_churn"]["order"]
    counts = shown_table("bound", 1)["randomized"].to_numpy()
    expected = {}
    for seed in SEEDS[1:]:
        one, other = (ads(name, seed)[~counts].mean() for name in ("bound", "bound~order"))
        expected[str(seed)] = abs(one - other) / ((one + other) / 2)
    assert found["by_pair"] == pytest.approx(expected) and found["pairs_planned"] == 3
    assert result["base"]["retrains"]["mean_churn"]["order"]["unavailable"] == "no pair of runs is finished"
    assert "bound~order seed 1 loop missing" in text and "churn of retrains" in text
    seeds = result["bound"]["retrains"]["mean_churn"]["seed"]["by_pair"]
    reported = result["bound"]["loops"]["churn"]["mean_churn"]["by_pair"]
    assert seeds == pytest.approx({pair: one["value"] for pair, one in reported.items()})


def test_slices_and_loops_that_cannot_be_compared_are_told(copy):
    plan = json.loads((copy / "plan.json").read_text())
    plan["arms"][1]["families"][0]["slices"][3] = "position 3 or 4"
    (copy / "plan.json").write_text(json.dumps(plan))
    shown = copy / loop_folder("bound", 3) / "shown.parquet"
    pd.read_parquet(shown).iloc[:-1].to_parquet(shown, index=False)
    result = told(copy)[1]["bound"]
    assert {one["family"] for one in result["slices"]} == {"apart"}
    assert "served different queries" in result["loops"]["churn_unavailable"]
    assert result["loops"]["churn"]["query_churn"]["mean"] is None
    assert result["loops"]["ads_per_query"] is not None
    (copy / "failures").mkdir()
    (copy / "failures" / "bound-seed-1-loop.txt").write_text("Traceback\nerror: it was tired\n")
    for seed in (1, 2):
        (copy / loop_folder("bound", seed) / "loop.json").unlink()
    edit(copy / loop_folder("base", 2) / "loop.json", lambda content: content["days"].pop())
    wrong = copy / loop_folder("base", 1) / "loop.json"
    edit(wrong, lambda content: content["days"][0].update(clicks="many"))
    text, result = told(copy)
    for reported in ("bound seed 1 loop failed: it was tired", "base seed 2 loop missing"):
        assert reported in text
    assert f"bound seed 2 loop missing: {loop_folder('bound', 2)}: not run, or not finished" in text
    assert "base seed 1 loop unreadable" in text
    loops = result["bound"]["loops"]
    assert loops["churn_unavailable"] == "two finished loops are required"
    assert loops["churn"]["mean_churn"] == {"mean": None, "by_pair": {}, "ratio": None, "ratio_by_pair": {}}
    assert [one["state"] for one in loops["runs"]] == ["failed", "missing", "finished"]
