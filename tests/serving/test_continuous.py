"""Exports in the middle of a run: where they come, what they change (nothing), and what a resume does with them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ctr.config import apply_settings, parse_model
from ctr.io.errors import InputError
from ctr.serving.export import export_from_run, export_run
from ctr.serving.metadata import read_metadata, versions
from ctr.serving.scorer import Scorer
from ctr.training.config import TrainConfig
from ctr.training.loop import train
from ctr.training.run.snapshot import read_snapshot

pytestmark = pytest.mark.slow

CONFIG = {
    "batch": {"rows": 48},
    "model": {"crosses": {"layers": 1, "rank": 2, "ramp": 300}, "deep": {"units": [6]}},
    "checkpoint": {"every_examples": 130, "keep": 9},
    "compute_dtype": "float32",
    "max_rejected_share": 0,
}
EVERY = {"every_examples": 200, "keep": 3}


def configured(**changes) -> TrainConfig:
    return parse_model(TrainConfig, {**CONFIG, **changes}, "test")


@pytest.fixture(scope="module")
def log(make_rows_log, tmp_path_factory) -> Path:
    return make_rows_log(tmp_path_factory.mktemp("continuous") / "log", 600)


@pytest.fixture(scope="module")
def finished(log, tmp_path_factory) -> Path:
    """A run with exports."""
    run = tmp_path_factory.mktemp("continuous") / "run"
    train(log, configured(export=EVERY), run, exporter=export_from_run)
    return run


def exports(run: Path) -> list[int]:
    return [int(path.name) for path in versions(run / "exports")]


def checkpoints(run: Path) -> list[int]:
    return sorted(int(path.name) for path in (run / "checkpoints").iterdir() if path.name.isdigit())


def test_they_come_after_every_so_many_examples_and_at_the_end(finished):
    # Batches have 48 rows: the first positions past 200 and 400, and the log's end.
    assert exports(finished) == [240, 432, 600]


@pytest.mark.soak
def test_they_change_nothing_else(log, finished, tmp_path):
    train(log, configured(), tmp_path / "run")
    for run in (finished, tmp_path / "run"):
        assert 600 in checkpoints(run)
    arrays = [
        np.load(run / "checkpoints" / f"{600:020d}" / "arrays.npz") for run in (finished, tmp_path / "run")
    ]
    assert set(arrays[0]) == set(arrays[1])
    for name in arrays[0]:
        np.testing.assert_array_equal(arrays[0][name], arrays[1][name])


def test_they_are_the_models_of_their_positions(log, finished, tmp_path):
    # The run's own export at its end, and the export of its last checkpoint.
    other = export_run(finished, tmp_path / "models")
    assert other.path.name == "600"
    raw = {"user:id": ["u1", "u2"], "class": [1, 2], "price": [1.0, None], "tags": [["t1"], []]}
    raw |= {"title": ["red", ""], "position": ["1", "2"], "size": [1.0, 2.0]}
    np.testing.assert_array_equal(
        Scorer(finished / "exports").predict(raw), Scorer(tmp_path / "models").predict(raw)
    )
    first = read_metadata(finished / "exports" / "240")
    assert first["position"]["trained_examples"] == 240
    assert first["model"]["alpha2"] == pytest.approx(0.8)
    assert not np.array_equal(
        Scorer(finished / "exports" / "240").predict(raw), Scorer(other.path).predict(raw)
    )


@pytest.mark.soak
def test_the_newest_are_kept(log, tmp_path):
    train(log, configured(export={**EVERY, "keep": 1}), tmp_path / "run", exporter=export_from_run)
    assert exports(tmp_path / "run") == [600]


class StoppedError(Exception):
    pass


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("stop_at", [288, 432])
def test_a_resumed_run_makes_those_that_are_missing(log, finished, tmp_path, stop_at):
    run = tmp_path / "run"

    def stop(position, _):
        if position >= stop_at:
            raise StoppedError

    with pytest.raises(StoppedError):
        train(log, configured(export=EVERY), run, stop, exporter=export_from_run)
    assert exports(run) == [240]
    # The checkpoint lies before the export, which is made again or found.
    made = {path: path.stat().st_mtime_ns for path in versions(run / "exports")}
    train(log, configured(export=EVERY), run, exporter=export_from_run)
    assert exports(run) == exports(finished)
    assert {path: path.stat().st_mtime_ns for path in made} == made


@pytest.mark.soak
def test_one_that_fails_is_made_after_a_resume(log, finished, tmp_path):
    """Also where a checkpoint is due at the same position: it comes after the export."""
    assert 432 in checkpoints(finished)
    run = tmp_path / "run"

    def fail(snapshot):
        if snapshot.examples == 432:
            raise OSError("no space left on device")
        export_from_run(snapshot)

    with pytest.raises(OSError, match="no space"):
        train(log, configured(export=EVERY), run, exporter=fail)
    assert exports(run) == [240]
    train(log, configured(export=EVERY), run, exporter=export_from_run)
    assert exports(run) == exports(finished)


@pytest.mark.soak
def test_one_that_was_lost_is_made_equal(log, finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    for position in checkpoints(run):
        if position > 144:
            shutil.rmtree(run / "checkpoints" / f"{position:020d}")
    shutil.rmtree(run / "exports" / "240")
    (run / "summary.json").unlink()
    train(log, configured(export=EVERY), run, exporter=export_from_run)
    assert exports(run) == exports(finished)
    raw = {"user:id": "u1", "class": 1, "price": 1.0, "tags": "t1", "title": "", "position": "1", "size": 1.0}
    scores = [Scorer(folder / "exports" / "240").score(raw)["logit"] for folder in (run, finished)]
    np.testing.assert_array_equal(*scores)


def test_without_an_exporter_it_says_so(log, tmp_path):
    with pytest.raises(InputError, match=r"config: export: .*exporter="):
        train(log, configured(export=EVERY), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_finished_run_that_is_asked_for_again(log, finished):
    before = {path: path.stat().st_mtime_ns for path in versions(finished / "exports")}
    train(log, configured(export=EVERY), finished, exporter=export_from_run)
    assert {path: path.stat().st_mtime_ns for path in versions(finished / "exports")} == before


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("export.every_examples=0", "export.every_examples: 0 is not allowed"),
        ("export.keep=0", "export.keep: 0 is not allowed"),
        ("export={}", "export.every_examples: missing"),
        ("export.every=5", "export.every: unknown key"),
    ],
)
def test_settings_of_exports_that_do_not_fit_are_refused(setting, words):
    with pytest.raises(InputError, match=words):
        parse_model(TrainConfig, apply_settings(CONFIG, [setting]), "test")


class TestRunsThatCannotBeExported:
    @pytest.fixture
    def run(self, finished, tmp_path) -> Path:
        shutil.copytree(finished, tmp_path / "run")
        return tmp_path / "run"

    def refused(self, run, words, checkpoint=None):
        with pytest.raises(InputError, match=words) as refusal:
            export_run(run, run.parent / "models", checkpoint)
        assert "\n" not in str(refusal.value)
        assert not (run.parent / "models").exists()

    def test_no_run(self, tmp_path):
        self.refused(tmp_path / "nothing", "nothing: no such run directory")

    def test_no_schema(self, run):
        (run / "schema.json").unlink()
        self.refused(run, r"schema\.json: no such file")

    @pytest.mark.parametrize(
        ("content", "words"),
        [("{", "not JSON"), ("[]", "a JSON object"), ('{"format": 9}', "made by an unreleased version")],
    )
    def test_damaged_schema(self, run, content, words):
        (run / "schema.json").write_text(content)
        self.refused(run, rf"schema\.json: .*{words}")

    def test_a_schema_changed_by_hand(self, run):
        content = json.loads((run / "schema.json").read_text())
        content["features"][0]["buckets"] = 41
        (run / "schema.json").write_text(json.dumps(content))
        self.refused(run, r"schema\.json: .*the file was changed")

    def test_no_checkpoint(self, run):
        shutil.rmtree(run / "checkpoints")
        self.refused(run, "checkpoints: there is no checkpoint")

    def test_an_unknown_checkpoint(self, run):
        self.refused(run, r"there is no checkpoint 7; there are 144, 288, 432, 576, 600", checkpoint=7)

    def test_a_damaged_checkpoint_is_not_passed_over(self, run):
        path = run / "checkpoints" / f"{600:020d}" / "arrays.npz"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        self.refused(run, r"000600: the checkpoint is damaged .*; there are 144, 288")
        assert read_snapshot(run, 576).examples == 576

    def test_no_environment(self, run):
        (run / "environment.json").unlink()
        self.refused(run, r"environment\.json: no such file")

    def test_another_configuration(self, run):
        text = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(text.replace("- 6\n", "- 7\n"))
        self.refused(run, "the checkpoint is of another model than config.yaml")


def test_a_run_refuses_a_log_of_other_features(log, finished, make_rows_log, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    other = make_rows_log(tmp_path / "log", 60, first_features=6)
    with pytest.raises(InputError, match="was started on a log with other features"):
        train(other, configured(export=EVERY), tmp_path / "run", exporter=export_from_run)
