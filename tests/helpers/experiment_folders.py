"""Folders of experiments made by hand, as a replay leaves them, and what was reported of them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from ctr.eval.report.page import PageContext
from ctr.eval.tidy import Numbers, tidy
from ctr.experiments.report.results import read_experiment
from ctr.experiments.report.write import as_text, experiment_context
from report_pages import check_context
from run_directories import run_folder, write_plan, write_run

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


class Results(dict):
    """The written content of the arms by name, under "" that of the experiment; called, the numbers of its table."""

    def __init__(self, text: str) -> None:
        content = json.loads(text)
        super().__init__({arm["name"]: arm for arm in content["arms"]} | {"": content})
        self.numbers = Numbers(tidy(content["results"]))

    def __call__(self, metric: str, arm: str, **keys: object):
        """The value of a number, None where there is none."""
        number = self.numbers(metric, arm=arm, **keys)
        return None if number is None else number.value

    def ends(self, metric: str, arm: str, **keys: object) -> tuple[float | None, float | None]:
        number = self.numbers(metric, arm=arm, **keys)
        return number.low, number.high

    def by_seed(self, metric: str, arm: str, **keys: object) -> dict[str, float | None]:
        return {seed: one.value for seed, one in self.numbers.by("seed", metric, arm=arm, **keys).items()}


def result_of(folder: Path) -> Results:
    return Results((folder / "result.json").read_text())


def message(folder: Path) -> tuple[str, Results]:
    """The tables' text, and the results; of the page what holds of each, without drawing."""
    experiment = read_experiment(folder)
    check_context(experiment_context(experiment))
    return as_text(experiment), Results(experiment.as_json())


def edit(path: Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def write_whole(folder: Path, rows: pd.DataFrame) -> Path:
    """An experiment whose runs are all finished, before it is reported."""
    write_plan(folder, ARMS, title=HOSTILE, note=HOSTILE, teachers={"big": "runs/big"})
    for name, arm in ARMS.items():
        for seed in arm["seeds"]:
            write_small(folder / run_folder(name, seed), rows, logits(rows, name, seed))
    write_costs(folder, {name: cost(name) for name in ARMS})
    return folder


def page_of(folder: Path) -> PageContext:
    return experiment_context(read_experiment(folder))
