"""The card of an exported model states what the run computed, and nothing else; the same bytes each time."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import yaml

from ctr.cli import main
from ctr.serving.export import export_from_run, export_run
from ctr.serving.export import publish as publish_model
from ctr.serving.metadata import check_files
from ctr.training.loop import train
from ctr.training.run.snapshot import read_snapshot
from small_runs import LOGISTIC, config_of, draw_examples, publish

EXAMPLES = draw_examples()
CARD = "assets.extra/MODEL.md"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("card")
    publish(folder / "a|b", EXAMPLES.table())
    config = config_of(LOGISTIC, {"export": {"every_examples": 500, "keep": 9}})
    train(folder / "a|b", config, folder / "run", exporter=export_from_run)
    return folder / "run"


def cells(card: str) -> dict[str, list[str]]:
    """The rows of the tables by their first cell."""
    rows = [line.strip("| ").split(" | ") for line in card.splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows}


def test_the_card_states_what_was_trained_and_measured(run, tmp_path):
    exported = export_run(run, tmp_path / "models")
    card = (exported.path / CARD).read_text()
    _, front, page = card.split("---\n", 2)
    assert yaml.safe_load(front)["library_name"] == "clicktrain" and "license" not in yaml.safe_load(front)
    summary = json.loads((run / "summary.json").read_text())
    rows = cells(page)
    rate = np.average(EXAMPLES.label, weights=EXAMPLES.metric_weight)
    assert rows["log"] == ["a\\|b"] and rows["rows"] == [f"{len(EXAMPLES):,}"]
    assert rows["click rate, weighted"] == [f"{rate:.4f}"] and rows["queries"] == ["240"]
    assert rows["tags"] == ["category", "40 in all", "0", "quality"] and "A logistic regression" in page
    value, (low, high) = summary["auc"], summary["auc_ci95"]
    assert rows["AUC"][0] == f"{value:.3f} [{low:.3f}, {high:.3f}]"
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert rows["AUC"][1].startswith(f"{last['auc']:.3f}"[:4])
    assert f"last window ({last['window_examples']} rows)" in page
    # The slices off 1 by their intervals, the furthest first.
    slices = summary["calibration_slices"]["position"]["heaviest"]
    off = [
        one for one in slices if not one["calibration_ratio_ci95"][0] <= 1 <= one["calibration_ratio_ci95"][1]
    ]
    assert 1 <= len(off) <= 5 and f"Of the 8 slices that were measured (position), {len(off)} are not" in page
    listed = [
        line for line in page.splitlines() if line.startswith("| position | ") and "category" not in line
    ]
    ratios = [float(line.split(" | ")[4].split()[0]) for line in listed]
    assert sorted(ratios) == sorted(round(one["calibration_ratio"], 2) for one in off)
    for key, digest in (
        ("log", summary["log_sha256"]),
        ("configuration", summary["config_sha256"]),
        ("weights of this model", exported.metadata["weights"]),
    ):
        assert rows[f"{key}, SHA-256"] == [f"`{digest}`"]


def test_the_card_is_the_same_bytes_and_the_only_thing_that_it_changes_is_the_list_of_files(run, tmp_path):
    first, second = (export_run(run, tmp_path / name).path for name in ("first", "second"))
    assert (first / CARD).read_bytes() == (second / CARD).read_bytes()
    metadata = json.loads((first / "assets.extra/ctr.json").read_text())
    check_files(first, metadata)
    assert str(tmp_path) not in (first / CARD).read_text() and str(run) not in (first / CARD).read_text()
    bare = publish_model(read_snapshot(run), tmp_path / "bare").path
    without = json.loads((bare / "assets.extra/ctr.json").read_text())
    assert metadata["files"].pop(CARD) and metadata == without


def test_what_the_results_are_not_of_has_no_card(run, tmp_path, capfd):
    assert not list(run.glob(f"exports/*/{CARD}"))
    early = min(int(path.name) for path in (run / "checkpoints").iterdir())
    assert not (export_run(run, tmp_path / "early", early).path / CARD).exists()
    unfinished = Path(shutil.copytree(run, tmp_path / "unfinished"))
    (unfinished / "summary.json").unlink()
    assert not (export_run(unfinished, tmp_path / "models").path / CARD).exists()
    # A damaged file of results leaves the model as it is.
    damaged = Path(shutil.copytree(run, tmp_path / "damaged"))
    (damaged / "metrics.jsonl").write_text("{\n")
    assert main(["export", str(damaged), "--out", str(tmp_path / "others")]) == 0
    assert "the model has no card: " in capfd.readouterr().err
    assert not list((tmp_path / "others").glob(f"*/{CARD}"))


@pytest.mark.slow
def test_the_card_of_a_network_over_ids_that_grow(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["-q", "simulate", "--examples", "3000", "--out", "shop", "--set", "buckets=false"]) == 0
    settings = ("model.crosses={layers: 2, rank: 3}", "model.deep.units=[8, 4]", "batch.rows=64")
    words = [word for setting in settings for word in ("--set", setting)]
    assert main(["-q", "train", "shop", "--out", "run", *words]) == 0
    assert main(["-q", "export", "run", "--out", "models"]) == 0
    (card,) = [path.read_text() for path in Path("models").glob(f"*/{CARD}")]
    assert "DCNv2: 2 crosses of rank 3 and deep layers of 8, 4 units (" in card
    grown = json.loads(next(Path("models").glob("*/assets.extra/ctr.json")).read_text())["model"]["ids"]
    assert grown
    for name, ids in grown.items():
        assert cells(card)[name][1] == f"{ids:,}, each its own"
    assert "uses a row that several share (`" in card and "1970" not in card
    begin, end = cells(card)["period"][0].removesuffix(" UTC").split(" to ")
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    for text, time in ((begin, lines[0]["window_begin"]), (end, lines[-1]["window_end"])):
        assert text == f"{datetime.fromtimestamp(time / 1e6, UTC):%Y-%m-%d %H:%M}"
