"""Constrained slices of an experiment, reported from folders made by hand."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.windows import Sums
from ctr.experiments.report.write import write_experiment
from experiment_folders import edit, message, page_of, result_of, write_small
from report_pages import words_of
from run_directories import run_folder, write_plan, write_sums

SEEDS = (1, 2, 3)
SHIFT = {"base": 0.5, "bound": 0.1}
LOW = {"name": "low", "log": None, "slices": [f"position {place}" for place in range(14)]}
APART = {"name": "apart", "log": "drawn", "slices": ["position < 6", "position >= 6", "of nothing"]}
SHOWN = {
    "S2": {"family": "apart", "index": 1},
    "S1": {"title": "at the top, or just below the top", "family": "low", "index": 1},
}


def logits(rows: pd.DataFrame, name: str, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=len(rows))
    return (noise / 4 - 0.85 + SHIFT[name] * (1 + seed / 10)).astype(np.float32)


def plan_arm(name: str, **entries: object) -> dict[str, object]:
    runs = [{"seed": s, "folder": run_folder(name, s)} for s in SEEDS]
    paper = {"S1": "-15%"} if name == "bound" else {}
    return {"seeds": [*SEEDS], "runs": runs, "families": [LOW, APART], "paper": paper, **entries}


@pytest.fixture(scope="module")
def drawn(rows):
    """The constraint log."""
    return rows.iloc[::-1].head(700).reset_index(drop=True)


@pytest.fixture(scope="module")
def system(rows, drawn, tmp_path_factory):
    folder = tmp_path_factory.mktemp("system") / "out"
    arms = {name: plan_arm(name) for name in SHIFT}
    write_plan(folder, arms, slices=SHOWN)
    sliced = rows.assign(**{"constraint:low": rows["position"].where(rows["metric_weight"] != 2.5, -1)})
    for name in SHIFT:
        for seed in SEEDS:
            run = folder / run_folder(name, seed)
            write_small(run, sliced, logits(sliced, name, seed), slices=("constraint:low",))
            metrics = ProgressiveMetrics(["constraint:apart"])
            ids = {"constraint:apart": (drawn["position"] >= 6).to_numpy().astype(np.int64)}
            columns = (drawn["label"], logits(drawn, name, seed), drawn["metric_weight"], drawn["query_id"])
            metrics.update(*columns, ids)
            sums = Sums()
            sums.add_metrics("log drawn", metrics)
            write_sums(run, sums)
    write_experiment(folder)
    return folder


@pytest.fixture
def copy(system, tmp_path):
    return Path(shutil.copytree(system, tmp_path / "copy"))


def bias(rows: pd.DataFrame, name: str, seed: int, inside: pd.Series) -> float:
    p = 1 / (1 + np.exp(-logits(rows, name, seed).astype(np.float64)))
    weight = rows["metric_weight"].to_numpy(np.float64) * inside.to_numpy()
    return float(np.average(rows["label"] - p, weights=weight))


def test_bias_and_variance_of_slices_are_those_of_their_rows(system, rows, drawn):
    low = [(rows, (rows["position"] == index) & (rows["metric_weight"] != 2.5)) for index in range(12)]
    apart = [(drawn, drawn["position"] < 6), (drawn, drawn["position"] >= 6)]
    wanted = {f"low/{index}": one for index, one in enumerate(low)}
    wanted |= {f"apart/{index}": one for index, one in enumerate(apart)}
    result = result_of(system)
    # Slices without rows are not reported.
    assert set(result.numbers.by("slice", "bias", arm="bound")) == set(wanted)
    significant = []
    for key, (table, inside) in wanted.items():
        ours, theirs = ([bias(table, name, seed, inside) for seed in SEEDS] for name in ("bound", "base"))
        weight = table["metric_weight"][inside].sum()
        assert result("slice_weight", "bound", slice=key) == pytest.approx(weight)
        assert result("bias", "bound", slice=key) == pytest.approx(np.mean(ours), abs=1e-12)
        assert result("reference_bias", "bound", slice=key) == pytest.approx(np.mean(theirs), abs=1e-12)
        by_seed = [100 * (abs(a) / abs(b) - 1) for a, b in zip(ours, theirs, strict=True)]
        check_change(result, "bias_size", key, 100 * (abs(np.mean(ours)) / abs(np.mean(theirs)) - 1), by_seed)
        ends = result.ends("bias_size_change_percent", "bound", slice=key)
        significant.append(result("bias_size_significant", "bound", slice=key))
        assert significant[-1] == ((ends[0] > 0 or ends[1] < 0) and len(set(np.sign(by_seed))) == 1)
    assert any(significant)

    def relative(table, name, seed, inside):
        p = 1 / (1 + np.exp(-logits(table, name, seed).astype(np.float64)))
        weight = table["metric_weight"].to_numpy(np.float64) * inside.to_numpy()
        return bias(table, name, seed, inside) / np.average(p, weights=weight)

    assert set(result.numbers.by("slice", "slice_variance", arm="bound")) == {"low", "apart"}
    for family, slices in (("low", low), ("apart", apart)):
        assert result("slices", "bound", slice=family) == len(slices)
        ours, theirs = (
            [np.var([relative(table, name, seed, inside) for table, inside in slices]) for seed in SEEDS]
            for name in ("bound", "base")
        )
        assert result("slice_variance", "bound", slice=family) == pytest.approx(np.mean(ours), rel=1e-9)
        reference = result("reference_slice_variance", "bound", slice=family)
        assert reference == pytest.approx(np.mean(theirs), rel=1e-9)
        by_seed = [100 * (a / b - 1) for a, b in zip(ours, theirs, strict=True)]
        check_change(result, "slice_variance", family, 100 * (np.mean(ours) / np.mean(theirs) - 1), by_seed)


def check_change(result, metric: str, key: str, change: float, by_seed: list[float]) -> None:
    name = f"{metric}_change_percent"
    assert result(name, "bound", slice=key) == pytest.approx(change, abs=1e-7)
    assert list(result.by_seed(name, "bound", slice=key).values()) == pytest.approx(by_seed, abs=1e-7)
    low, high = result.ends(name, "bound", slice=key)
    assert low < change < high


def test_what_is_told(system):
    text = (system / "table.txt").read_text()
    assert max(map(len, text.splitlines())) <= 140
    for reported in ("S2: position >= 6", "-15%", "How differently the slices"):
        assert reported in text
    # What the experiment names, in its order, and nothing else; all slices are in table.csv.
    assert text.index("S2: ") < text.index("S1: ") and "position 3" not in text
    assert "S1: at the top, or just below the top" in words_of(page_of(system))


def test_without_names_the_slices_of_most_weight_are_shown(copy):
    edit(copy / "plan.json", lambda plan: plan.update(slices={}))
    text, result = message(copy)
    weights = result.numbers.by("slice", "slice_weight", arm="bound")
    first = max(weights, key=lambda key: weights[key].value)
    family, index = first.split("/")
    slices = {"low": LOW, "apart": APART}[family]["slices"]
    shown = text[text.index("Bias of constrained slices") :].splitlines()
    assert slices[int(index)] in shown[2] and "position 3" in text


def test_families_with_other_slices_are_not_compared(copy):
    other = [*LOW["slices"][:3], "position 3 or 4", *LOW["slices"][4:]]
    edit(copy / "plan.json", lambda plan: plan["arms"][1]["families"][0].update(slices=other))
    found = message(copy)[1].numbers.by("slice", "bias", arm="bound")
    assert {key.split("/")[0] for key in found} == {"apart"}
