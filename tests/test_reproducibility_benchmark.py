"""The study of prediction differences: which runs it makes, what it concludes, and a tiny run of all."""

import csv
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from ctr.eval.intervals import Estimate
from ctr.eval.per_query_auc import query_auc
from ctr.eval.run_comparison import compare_runs

ROOT = Path(__file__).resolve().parent.parent


def _imported(name: str) -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield __import__(name)
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    yield from _imported("reproducibility")


@pytest.fixture(scope="module")
def report() -> Iterator[ModuleType]:
    yield from _imported("reproducibility_report")


@pytest.fixture(scope="module")
def plot() -> Iterator[ModuleType]:
    yield from _imported("reproducibility_plot")


def test_runs_that_are_alike_are_made_once(study: ModuleType, tmp_path: Path) -> None:
    wanted = ["smelu 1", "logistic*"]
    jobs, groups = study.plan(study.SIMULATED, tmp_path, tmp_path, wanted, [3, 1, 2], ["varied", "fixed"])
    runs = {(group.arm, group.condition): group.runs for group in groups}
    assert set(runs) == {
        *((arm, condition) for arm in ("relu", "smelu 1") for condition in ("varied", "fixed")),
        ("logistic regression", "varied"),
    }
    for arm in ("relu", "smelu 1"):
        varied, fixed = runs[arm, "varied"], runs[arm, "fixed"]
        assert list(varied) == list(fixed) == [3, 1, 2]
        # With the seed of all embeddings the two conditions are one.
        assert varied[3] == fixed[3] and varied[1] != fixed[1]
    assert len(jobs) == 2 * 5 + 3
    configs = {job.folder: job.config for job in jobs}
    assert configs[runs["relu", "fixed"][2]].model.embedding_seed == 3
    assert configs[runs["relu", "varied"][2]].model.embedding_seed is None
    assert configs[runs["smelu 1", "fixed"][2]].model.deep.activation == "smelu"
    # All arms have two seeds, and so a pair, before any has three.
    assert [job.config.seed for job in jobs] == [3] * 3 + [1] * 5 + [2] * 5


def test_a_run_is_known_by_what_is_no_default(study: ModuleType) -> None:
    plain, named, other = (
        study.config_of(study.SIMULATED, {"model": {"deep": deep}}, 1, 1)
        for deep in ({}, {"smelu_beta": 1.0}, {"smelu_beta": 2.0})
    )
    assert study.settings_key(plain) == study.settings_key(named) != study.settings_key(other)


def test_arms_differ_from_the_base_by_what_they_are_named_after(study: ModuleType, tmp_path: Path) -> None:
    jobs, groups = study.plan(study.SIMULATED, tmp_path, tmp_path, ["*"], [1, 2], ["varied"])
    config = {job.folder: job.config for job in jobs}
    of_arm = {group.arm: config[group.runs[1]] for group in groups}
    assert {name for name in of_arm if name.startswith("smelu ")} == {
        f"smelu {beta}" for beta in (0.1, 0.25, 0.5, 1, 2, 4)
    }
    relu = of_arm["relu"].model
    for name, found in of_arm.items():
        model = found.model
        if name == "logistic regression":
            assert not model.has_network
            continue
        assert model.deep.units == relu.deep.units and model.crosses == relu.crosses
        kind = name.split()[0]
        assert model.ensemble.components == (3 if kind in ("ensemble", "anti-distillation") else 1)
        pushed = found.objective.anti_distillation
        assert (pushed is not None) == (kind == "anti-distillation")
        if pushed is not None:
            assert pushed.weight == float(name.split()[1])
        if "smelu" in name:
            assert (model.deep.activation, model.deep.smelu_beta) == ("smelu", float(name.split()[-1]))
        else:
            assert model.deep.activation == (kind if kind in ("swish", "gelu") else "relu")


def test_an_arm_that_is_not_there_is_refused(study: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--arms tanh: no such arm; allowed: relu, smelu 0\.1, "):
        study.plan(study.SIMULATED, tmp_path, tmp_path, ["tanh"], [1, 2], ["varied"])


def estimate(value: float, spread: float) -> Estimate:
    noise = np.random.default_rng(1).normal(0, spread / 256, 256)
    return Estimate(np.array(value), value + noise, np.ones(256, np.bool_))


def measured(report: ModuleType, arm: str, difference: float, accuracy: float, condition: str = "varied"):
    """Three runs of which both parts of the pass say the same."""
    values = (0.9 * difference, difference, 1.1 * difference)
    pairs = {
        pair: estimate(value, 0.02) for pair, value in zip(combinations((1, 2, 3), 2), values, strict=True)
    }
    metrics = {seed: {name: estimate(accuracy, 0.02) for name in report.METRICS} for seed in (1, 2, 3)}
    parts = report.PARTS
    return report.Measured(
        arm, condition, dict.fromkeys(parts, pairs), dict.fromkeys(parts, metrics), (10, 100)
    )


@pytest.mark.parametrize(
    ("differences", "accuracies", "said"),
    [
        # The interval of ReLU is about 0.0025 to each side.
        (
            (0.08, 0.06),
            (0.76, 0.76),
            r"is reached; nearest is smelu 2 with 0\.600 \[.*\] and 0\.76000, inside",
        ),
        ((0.08, 0.07), (0.76, 0.76), r"is not reached; nearest is smelu 2 with 0\.700 \[.*, inside"),
        ((0.08, 0.05), (0.76, 0.75), r"is not reached; nearest is smelu 1 with 0\.800 \[.*, inside"),
        ((0.05, 0.08), (0.77, 0.76), r"is reached; nearest is smelu 1 with 0\.500 \[.*, above it"),
        ((0.05, 0.04), (0.75, 0.75), r"is not reached; nearest is smelu 2 with 0\.400 \[.*, below it"),
    ],
)
def test_how_near_smelu_comes_to_its_goal(
    report: ModuleType, differences: tuple[float, ...], accuracies: tuple[float, ...], said: str
) -> None:
    relu = measured(report, "relu", 0.1, 0.76)
    low, high = relu.metric("half", "per_query_auc").interval()
    assert 0.002 < high - 0.76 < 0.003 and 0.002 < 0.76 - low < 0.003
    arms = [
        measured(report, f"smelu {beta}", *values)
        for beta, *values in zip((1, 2), differences, accuracies, strict=True)
    ]
    # An ensemble is no answer to what SmeLU does.
    others = [measured(report, name, 0.01, 0.76) for name in ("ensemble + smelu 1", "logistic regression")]
    lines = report.verdicts([relu, *arms, *others], relu)
    assert len(lines) == 2 and lines[0].startswith("- whole pass: 0.6 of ReLU's PD")
    assert all(re.search(said, line) for line in lines)


def test_the_frontier_has_every_pair_of_values_and_no_date(
    report: ModuleType, plot: ModuleType, tmp_path: Path
) -> None:
    shown = [
        measured(report, arm, 0.1 + 0.01 * place, 0.76, condition)
        for condition in ("varied", "fixed")
        for place, arm in enumerate(("relu", "smelu 0.5", "smelu 2", "swish", "ensemble shared"))
    ]
    left_out = measured(report, "logistic regression", 0.0, 0.7)
    for name in ("a.svg", "b.svg"):
        plot.frontier_svg([*shown, left_out], "relu", tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", text)
    assert texts.count("0.5") == texts.count("2") == texts.count("shared") == 2
    assert texts.count("relu") == texts.count("swish") == 1
    assert "logistic regression" not in text and not re.search(r"<dc:date>|20\d\d-\d\d-\d\d", text)
    assert len(text) < 60_000
    plot.frontier_svg([left_out], "relu", tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/reproducibility.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=True)


def _predictions(folder: Path) -> pd.DataFrame:
    return pd.concat([pd.read_parquet(path) for path in sorted((folder / "predictions").glob("*.parquet"))])


@pytest.mark.slow
def test_a_tiny_study_says_what_its_runs_say(tmp_path: Path) -> None:
    arms = ("--arms", "smelu 1", "logistic*", "--seeds", 1, 2, "--set", "model.deep.units=[8, 4]")
    arguments = ("--out", tmp_path, "--only", "simulated", "--examples", 3000, *arms)
    done = run(*arguments)
    assert "[8/8, 0 min left]" in done.stderr
    rows = [line.split(" | ")[0].removeprefix("| ") for line in done.stdout.splitlines() if " | " in line]
    assert rows == ["model", "relu", "smelu 1", "logistic regression", "model", "relu", "smelu 1"]
    assert done.stdout.count("- last half: 0.6 of ReLU's PD") == 2
    with (tmp_path / "simulated-3000-pairs.csv").open() as file:
        pairs = {(row["arm"], row["condition"], row["part"]): row for row in csv.DictReader(file)}
    with (tmp_path / "simulated-3000.csv").open() as file:
        numbers = {(row["arm"], row["condition"], row["part"]): row for row in csv.DictReader(file)}
    assert set(pairs) == set(numbers) and len(pairs) == 2 * 5
    # A logistic regression starts without any choice of a seed.
    assert float(pairs["logistic regression", "varied", "whole"]["pd"]) == 0
    found = [float(pairs["relu", condition, "whole"]["pd"]) for condition in ("varied", "fixed")]
    assert found[0] != found[1] and min(found) > 0.01
    folders = {
        (arm, seed): next((tmp_path / "simulated-3000").glob(f"{arm}-seed-{seed}-*"))
        for arm in ("relu", "smelu-1")
        for seed in (1,)
    }
    # The other seed's run of each condition is told by its configuration.
    for arm, name in (("relu", "relu"), ("smelu-1", "smelu 1")):
        for folder in (tmp_path / "simulated-3000").glob(f"{arm}-seed-2-*"):
            fixed = "embedding_seed: 1" in (folder / "config.yaml").read_text()
            folders[arm, "fixed" if fixed else "varied"] = folder
        for condition in ("varied", "fixed"):
            compared = compare_runs(folders[arm, 1], folders[arm, condition]).as_dict()
            pair = pairs[name, condition, "whole"]
            assert float(pair["pd"]) == pytest.approx(compared["prediction_difference"]["value"], rel=1e-9)
            ends = [float(pair["pd_low"]), float(pair["pd_high"])]
            assert ends == pytest.approx(compared["prediction_difference"]["ci95"], rel=1e-9)
    found = [
        compare_runs(folders["relu", seed], folders["smelu-1", seed]).as_dict()["metrics"]["logloss"][
            "difference"
        ]
        for seed in (1, "varied")
    ]
    assert float(numbers["smelu 1", "varied", "whole"]["logloss_change"]) == pytest.approx(np.mean(found))
    # The last half begins with a query, and all of its rows are counted.
    table = _predictions(folders["relu", 1])
    begins = np.flatnonzero(table["query_id"].to_numpy()[1:] != table["query_id"].to_numpy()[:-1]) + 1
    half = table.iloc[begins[begins >= len(table) // 2][0] :]
    other = _predictions(folders["relu", "varied"])["logit"].to_numpy()[-len(half) :]
    first, second = (1 / (1 + np.exp(-logit.astype(float))) for logit in (half["logit"].to_numpy(), other))
    relative = np.abs(first - second) / ((first + second) / 2)
    assert float(pairs["relu", "varied", "half"]["pd"]) == pytest.approx(relative.mean(), rel=1e-6)
    accuracies = []
    for seed in (1, "varied"):
        part = _predictions(folders["relu", seed]).iloc[-len(half) :]
        codes, queries = pd.factorize(part["query_id"])
        auc = query_auc(
            part["label"].to_numpy() > 0,
            part["logit"].to_numpy(np.float64),
            part["metric_weight"].to_numpy(np.float64),
            codes.astype(np.int64),
            len(queries),
        )
        accuracies.append(np.nanmean(auc))
    assert float(numbers["relu", "varied", "half"]["per_query_auc"]) == pytest.approx(np.mean(accuracies))
    assert not list(tmp_path.glob("simulated-3000/*/checkpoints"))
    # What is there is not computed again, and told alike.
    drawn = (tmp_path / "simulated-3000.svg").read_bytes()
    assert run(*arguments, "--report").stdout == done.stdout
    again = run(*arguments)
    assert again.stdout == done.stdout and "min left" not in again.stderr
    assert (tmp_path / "simulated-3000.svg").read_bytes() == drawn
    timed = run(*arguments, "--steps").stdout
    assert re.search(r"\| relu \|.*\| [0-9.]+ \(× 1\.00\) \|", timed)
    assert re.search(r"\| smelu 1 \|.*\| [0-9.]+ \(× [0-9.]+\) \|", timed)
    assert re.sub(r"\| [0-9.]+ \(× [0-9.]+\) \|", "|  |", timed) == done.stdout
