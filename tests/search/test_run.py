"""Searches from their file to their report, of small models, which are trained in a moment."""

import contextlib
import io
import json
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ctr.cli import main
from ctr.config import load_model
from ctr.data.log import read_manifests, read_schema
from ctr.data.stream import Selection, read_selection
from ctr.experiments.jobs import Job, Outcome
from ctr.experiments.run import Options
from ctr.io.errors import InputError
from ctr.search.config import read_search
from ctr.search.run import run_search
from ctr.search.space import make_space, with_widths
from ctr.simulator.config import SimulatorConfig
from ctr.simulator.simulate import simulate
from ctr.training.config import TrainConfig
from ctr.training.session import train
from report_pages import Html
from small_runs import draw_examples, merged, publish
from small_searches import BASE

# The baseline is no candidate.
SPACE: dict[str, list[int]] = {"model.deep.units.0": [3, 10], "model.crosses.layers": [0, 1, 3]}
SEARCH: dict[str, Any] = {
    "title": "Widths & <b>",
    "note": "<script>",
    "config": merged(BASE, {"model": {"experts": ["network"]}}),
    "space": SPACE,
    "prefix": 0.6,
    "target": 0.9,
    "seeds": [1],
}
COMMAND = ["search", "search.yaml", "--log", "log", "--out", "out", "--no-timing"]


@pytest.fixture
def place(log, tmp_path, monkeypatch) -> Path:
    """A folder with a log and a search, in which runs are trained by this process, one after the other."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log").symlink_to(log)
    write(SEARCH)
    monkeypatch.setattr("ctr.experiments.run.run_jobs", run_here)
    return tmp_path


@pytest.fixture(scope="module")
def searched(log, tmp_path_factory) -> tuple[Path, str]:
    """A finished search: its folder, and what the command printed."""
    folder = tmp_path_factory.mktemp("searched")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.chdir(folder)
        patch.setattr("ctr.experiments.run.run_jobs", run_here)
        (folder / "log").symlink_to(log)
        write(SEARCH)
        assert main(COMMAND) == 0
    return folder, printed.getvalue()


def write(content: dict[str, Any]) -> None:
    Path("search.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def run_here(jobs: Sequence[Job], workers: int, report, beam_options: str, outcomes: Path) -> None:
    for job in jobs:
        command, log, _, config, _, out = job.arguments
        assert command == "train"
        report(job, None)
        train(Path(log), load_model(TrainConfig, Path(config), "config"), Path(out))
        report(job, Outcome(1.0))


def search():
    # What ran is written beside the result.
    options = Options(shlex.join(["ctr", *COMMAND]), timing=False)
    return run_search(Path("search.yaml"), Path("log"), Path("out"), options)


def result_files(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in ("search.json", "best.yaml", "search.yaml")}


@pytest.mark.slow
def test_a_search_that_was_interrupted_ends_with_the_same_bits(searched, place):
    """While the result was trained beside the baseline; tests/search/test_supernet.py interrupts the search itself."""
    before = searched[0] / "out"
    shutil.copytree(before, "out")
    Path("out/search.json").unlink()
    (run,) = Path("out/replay/runs").glob("searched-*")
    shutil.rmtree(run)
    search()
    assert result_files(Path("out")) == result_files(before)
    folder = run.relative_to("out")
    summaries = [json.loads((out / folder / "summary.json").read_text()) for out in (Path("out"), before)]
    for key in ("weights_sha256", "predictions_sha256", "per_query_auc"):
        assert summaries[0][key] == summaries[1][key] is not None


@pytest.mark.slow
def test_another_search_needs_another_directory(searched, place):
    shutil.copytree(searched[0] / "out", "out")
    before = result_files(Path("out"))
    for changes, words in (
        ({"seed": 2}, "out: holds another search: seed was 1, is 2; use another directory"),
        (
            {"config": merged(SEARCH["config"], {"model": {"prior": 0.2}})},
            "config.model.prior was 0.3, is 0.2",
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
    search()
    assert result_files(Path("out")) == before
    # Other words are no other search.
    write({**SEARCH, "title": "Other words", "note": "New."})
    search()


@pytest.mark.slow
def test_a_supernet_and_its_report(searched, monkeypatch, capsys):
    folder, text = searched
    monkeypatch.chdir(folder)
    monkeypatch.setattr("ctr.experiments.run.run_jobs", run_here)
    assert "6 candidates, target 0.9 of the baseline's training cost by operations" in text
    record = json.loads(Path("out/search.json").read_text())
    assert record["examples"] == record["prefix_rows"] < record["rows"]
    lines = [json.loads(line) for line in Path("out/supernet/controller.jsonl").read_text().splitlines()]
    likely = {name: SPACE[name][int(np.argmax(of))] for name, of in lines[-1]["probabilities"].items()}
    assert record["values"] == likely
    result = load_model(TrainConfig, Path("out/best.yaml"), "config").model
    assert result.deep.units == (likely["model.deep.units.0"], 6)
    assert result.crosses.layers == likely["model.crosses.layers"]
    # The comparison is on the rows that the search has not read.
    plan = json.loads(Path("out/replay/plan.json").read_text())
    log = Path("log")
    blocks = read_selection(log, read_schema(log), read_manifests(log), Selection())
    rows = np.concatenate([block.query_time for block in blocks])
    assert (rows < plan["scored_us"][0]).sum() == record["prefix_rows"]
    shown = Html(Path("out/report.html").read_text())
    shown.check()
    assert "Widths & <b>" in shown.words and "<script>" in shown.words
    assert "model.deep.units.0 probability of each choice" in shown.words
    files = result_files(Path("out")), Path("out/report.html").read_text()
    assert main(COMMAND) == 0
    capsys.readouterr()
    assert main(["search", "--report", "--out", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == record
    assert (result_files(Path("out")), Path("out/report.html").read_text()) == files


def test_bad_searches_end_in_one_line(place, capsys):
    for content, message in (
        ({"method": "random"}, "method: unknown key"),
        ({"config": {"batch": {"row": 3}}}, "config.batch.row: unknown key"),
        ({"space": {"batch.rows": [1, 2]}}, "space.batch.rows: is no part of the architecture; allowed: "),
        ({"base": "nothing.yaml"}, "nothing.yaml: no such file"),
        ({"prefix": 1e-9}, "rows; a larger prefix is required"),
    ):
        write({**SEARCH, **content})
        assert main(["search", "search.yaml", "--log", "log", "--out", "out"]) == 1
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1
        assert message in error


def test_the_example_is_a_search_of_a_simulated_log(root, tmp_path, monkeypatch):
    log = tmp_path / "log"
    simulate(SimulatorConfig(examples=300), log)
    content, base = read_search(root / "examples" / "search.yaml")
    schema = read_schema(log)
    base = with_widths(base, content, schema, read_manifests(log), "example")
    space = make_space(content, base, schema, "example")
    assert space.size == 3**5 * 2
    # The baseline is a candidate, but for the width of ids in so small a log.
    widths = {"user_id": 16, "ad_id": 16}
    assert space.baseline({**base, "model": {**base["model"], "widths": widths}}) is not None


def test_settings_change_the_search_and_its_configuration(root):
    file = root / "examples" / "search.yaml"
    before, base = read_search(file)
    after, changed = read_search(file, ["target=0.8", "seeds=[1, 2, 3]", "config.batch.rows=512"])
    wanted = before.model_copy(update={"target": 0.8, "seeds": (1, 2, 3)})
    assert after.model_copy(update={"config": before.config}) == wanted
    assert changed == {**base, "batch": {**base["batch"], "rows": 512}}
    with pytest.raises(InputError, match=r"^search .*search\.yaml: tarket: .*target"):
        read_search(file, ["tarket=1"])
    with pytest.raises(InputError, match=r"seeds: \[1, 1\] is not allowed: 1 appears twice"):
        read_search(file, ["seeds=[1, 1]"])
