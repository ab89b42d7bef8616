"""Searches from their file to their report, with logistic regressions, which are trained in a moment."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from ctr.cli import main
from ctr.config import load_model
from ctr.data.log import read_manifests
from ctr.experiments.jobs import Job, Outcome
from ctr.experiments.run import Options
from ctr.io.errors import InputError
from ctr.search.run import run_search
from ctr.training.config import TrainConfig
from ctr.training.loop import train
from report_pages import Html
from small_runs import LOGISTIC, draw_examples, merged, publish
from small_searches import BASE

RATES = [0.001, 0.05, 0.1, 0.8]
SEARCH: dict[str, Any] = {
    "title": "Rates & <b>",
    "config": merged(LOGISTIC, {"optimizer": {"embeddings": {"linear_learning_rate": 0.05}}}),
    "method": "random",
    "space": {"optimizer.embeddings.linear_learning_rate": RATES},
    "prefix": 0.6,
    "seeds": [1, 2],
    "candidates": 4,
}


@pytest.fixture
def place(log, tmp_path, monkeypatch) -> Path:
    """A folder with a log and a search, in which runs are trained by this process, one after the other."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log").symlink_to(log)
    write(SEARCH)
    monkeypatch.setattr("ctr.experiments.run.run_jobs", run_here)
    return tmp_path


@pytest.fixture(scope="module")
def searched(log, tmp_path_factory):
    """A finished search: its folder, and its record."""
    folder = tmp_path_factory.mktemp("searched")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("ctr.experiments.run.run_jobs", run_here)
        (folder / "log").symlink_to(log)
        write(SEARCH)
        record, failures = search(timing=False)
    assert failures == {}
    return folder, record


def write(content: dict[str, Any]) -> None:
    Path("search.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


class Stop(BaseException):
    """What ends a search before its next run."""


LEFT = [10**6]
"""How many runs may still be made."""


def run_here(jobs: Sequence[Job], workers: int, report, beam_options: str, outcomes: Path) -> None:
    for job in jobs:
        if not LEFT[0]:
            raise Stop
        LEFT[0] -= 1
        command, log, _, config, _, out = job.arguments
        assert command == "train"
        try:
            train(Path(log), load_model(TrainConfig, Path(config), "config"), Path(out))
            report(job, Outcome(True, 1.0))
        except InputError as error:
            report(job, Outcome(False, 1.0, str(error), str(error)))


def search(out: str = "out", replay: bool = True, timing: bool = True):
    options = Options("ctr search ...", timing=timing)
    return run_search(Path("search.yaml"), Path("log"), Path(out), options, is_judged=replay)


def logloss(rate: float, end: str | None) -> float:
    """The progressive logloss of a rate up to a time, trained alone, in float64."""
    content = merged(SEARCH["config"], {"optimizer": {"embeddings": {"linear_learning_rate": rate}}})
    config = TrainConfig.model_validate({**content, "time_range": {"end": end}})
    run = Path(f"alone-{rate}-{end and end[-12:]}".replace(":", "-"))
    train(Path("log"), config, run)
    rows = pd.concat([pd.read_parquet(part) for part in sorted((run / "predictions").glob("*.parquet"))])
    label, logit, weight = (rows[name].to_numpy(np.float64) for name in ("label", "logit", "metric_weight"))
    losses = np.logaddexp(0, logit) - label * logit
    return float((weight * losses).sum() / weight.sum())


def result_files(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in ("search.json", "best.yaml", "search.yaml")}


@pytest.mark.soak
def test_a_search_finds_the_best_of_all_candidates(searched, place):
    folder, record = searched
    losses = {rate: logloss(rate, record.prefix_end) for rate in RATES}
    best = min(RATES, key=losses.get)
    shown = {one.values.get(*record.space) if one.values else 0.05: one.logloss for one in record.tried}
    assert shown == pytest.approx(losses, rel=1e-6)
    assert record.values == ({} if best == 0.05 else {"optimizer.embeddings.linear_learning_rate": best})
    result = load_model(TrainConfig, folder / "out" / "best.yaml", "config")
    assert result.optimizer.embeddings.linear_learning_rate == best
    assert result.time_range.end is None and result.record_predictions
    # A step of each rate takes as many operations, so that these are the rows that were read.
    assert record.passes == pytest.approx(len(RATES) * record.prefix_rows / record.rows)
    rows = {one.window: one.value for one in record.judged.results if one.metric == "rows"}
    assert rows == {"rest": record.rows - record.prefix_rows, "whole": record.rows}
    changes = [
        one for one in record.judged.results if (one.metric, one.window) == ("logloss_difference", "rest")
    ]
    assert {one.seed for one in changes} == {"", "1", "2"}


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("runs", [4, 1, 7])
def test_a_search_that_was_interrupted_ends_with_the_same_bits(searched, place, runs):
    LEFT[0] = runs
    try:
        with pytest.raises(Stop):
            search(timing=False)
    finally:
        LEFT[0] = 10**6
    search(timing=False)
    assert result_files(Path("out")) == result_files(searched[0] / "out")


@pytest.mark.slow
def test_another_search_needs_another_directory(searched, place):
    shutil.copytree(searched[0] / "out", "out")
    before = result_files(Path("out"))
    for changes, words in (
        ({"seed": 2}, "out: holds another search: seed was 1, is 2; use another directory"),
        (
            {"config": merged(SEARCH["config"], {"model": {"prior": 0.2}})},
            r"holds another search: config.model.prior was 0.3, is 0.2",
        ),
    ):
        write({**SEARCH, **changes})
        with pytest.raises(InputError, match=words):
            search()
    write(SEARCH)
    Path("log").unlink()
    publish(Path("log"), draw_examples(seed=1).table())
    with pytest.raises(InputError, match="out: holds a search of another log"):
        search()
    shutil.rmtree("log")
    Path("log").symlink_to(searched[0] / "log")
    search(timing=False)
    assert result_files(Path("out")) == before
    # Other words are no other search, and what ended before anything was trained is none.
    write({**SEARCH, "title": "Other words", "note": "New."})
    search(timing=False)
    write({**SEARCH, "target": 1e-9})
    with pytest.raises(InputError, match="none of 4 candidates"):
        search("new")
    write(SEARCH)
    LEFT[0] = 0
    try:
        with pytest.raises(Stop):
            search("new")
    finally:
        LEFT[0] = 10**6


@pytest.mark.slow
def test_a_random_search_leaves_out_what_fails_and_has_a_report(place, monkeypatch, capsys):
    broken: list[str] = []

    def failing(jobs, *rest):
        for job in jobs:
            if not broken and not job.name.startswith("baseline"):
                broken.append(job.name.split()[0])
                rest[1](job, Outcome(False, 1.0, "it broke", "it broke"))
            else:
                run_here([job], *rest)

    monkeypatch.setattr("ctr.experiments.run.run_jobs", failing)
    write({**SEARCH, "candidates": 2, "prefix": 1.0, "note": "<script>"})
    record, _ = search(replay=False)
    *tried, failed = record.tried
    assert ([failed.name], failed.failure) == (broken, "it broke") and record.chosen != failed.name
    assert len(tried) == 2 and record.prefix_end is None and record.judged is None
    assert [one.logloss for one in tried] == sorted(one.logloss for one in tried)
    assert main(["search", "--report", "--out", "out"]) == 0
    text = capsys.readouterr().out
    words = "Method random, 4 candidates, target 1 of the baseline's training cost by operations, seed 1."
    assert words in text and "no held-out rows are left" in text
    shown = Html(Path("out/report.html").read_text())
    shown.check()
    assert "Rates & <b>" in shown.words and "<script>" in shown.words and len(shown.images()) == 1
    files = result_files(Path("out")), Path("out/report.html").read_text()
    assert main(["search", "--report", "--out", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(Path("out/search.json").read_text())
    assert (result_files(Path("out")), Path("out/report.html").read_text()) == files


@pytest.mark.slow
def test_a_supernet_and_its_report(place, capsys):
    # The baseline is no candidate.
    space = {"model.deep.units.0": [3, 10], "model.crosses.layers": [0, 1, 3]}
    write({"title": "Weights", "config": BASE, "space": space, "prefix": 0.6, "target": 0.9, "seeds": [1]})
    assert main(["search", "search.yaml", "--log", "log", "--out", "out", "--no-timing"]) == 0
    text = capsys.readouterr().out
    assert "Method supernet, 6 candidates, target 0.9 of the baseline's training cost by operations" in text
    record = json.loads(Path("out/search.json").read_text())
    assert record["examples"] == record["prefix_rows"] < record["rows"]
    lines = [json.loads(line) for line in Path("out/supernet/controller.jsonl").read_text().splitlines()]
    likely = {name: space[name][int(np.argmax(of))] for name, of in lines[-1]["probabilities"].items()}
    assert record["values"] == likely
    result = load_model(TrainConfig, Path("out/best.yaml"), "config").model
    assert result.deep.units == (likely["model.deep.units.0"], 6)
    assert result.crosses.layers == likely["model.crosses.layers"]
    assert {one["window"] for one in record["judged"]["results"]} == {"rest", "whole"}
    page = Path("out/report.html").read_text()
    assert page.count("<figure>") == 6 and "model.deep.units.0 <small>probability of each choice" in page
    files = result_files(Path("out"))
    assert main(["search", "search.yaml", "--log", "log", "--out", "out", "--no-timing"]) == 0
    assert result_files(Path("out")) == files


def test_bad_searches_end_in_one_line(place, capsys):
    for content, message in (
        ({"method": "guess"}, "method: 'guess' is not allowed: Input should be 'supernet' or 'random'"),
        ({"config": {"batch": {"row": 3}}}, "config.batch.row: unknown key"),
        ({"candidates": 0}, "candidates: 0 is not allowed"),
        ({"base": "nothing.yaml"}, "nothing.yaml: no such file"),
        ({"target": 1e-9}, "space: none of 4 candidates costs at most 1e-09 of the baseline's"),
        ({"prefix": 1e-9}, "rows; a larger prefix is required"),
    ):
        write({**SEARCH, **content})
        assert main(["search", "search.yaml", "--log", "log", "--out", "out"]) == 1
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1
        assert message in error


def test_the_example_is_a_search_of_a_simulated_log(root, tmp_path, monkeypatch):
    from ctr.data.log import read_schema
    from ctr.search.config import read_search
    from ctr.search.space import make_space, with_widths
    from ctr.simulator.config import SimulatorConfig
    from ctr.simulator.simulate import simulate

    log = tmp_path / "log"
    simulate(SimulatorConfig(examples=300), log)
    content, base = read_search(root / "examples" / "search.yaml")
    schema = read_schema(log)
    base = with_widths(base, content, schema, read_manifests(log), "example")
    space = make_space(content, base, schema, "example")
    assert space.size == 3**5 * 2
    # The baseline is a candidate, but for the width of ids in so small a log.
    assert (
        space.baseline({**base, "model": {**base["model"], "widths": {"user_id": 16, "ad_id": 16}}})
        is not None
    )


def test_settings_change_the_search_and_its_configuration(root):
    from ctr.search.config import read_search

    file = root / "examples" / "search.yaml"
    before, base = read_search(file)
    after, changed = read_search(file, ["target=0.8", "seeds=[1, 2, 3]", "config.batch.rows=512"])
    assert after.model_copy(update={"config": before.config}) == before.model_copy(
        update={"target": 0.8, "seeds": (1, 2, 3)}
    )
    assert changed == {**base, "batch": {**base["batch"], "rows": 512}}
    with pytest.raises(InputError, match=r"^search .*search\.yaml: tarket: .*target"):
        read_search(file, ["tarket=1"])
    with pytest.raises(InputError, match=r"seeds: 1 appears twice"):
        read_search(file, ["seeds=[1, 1]"])
