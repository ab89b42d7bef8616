"""Exports in the middle of a run: where they come, what they change (nothing), and what a resume does with them."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.io.errors import InputError
from ctr.serving.export import export_from_run, export_run
from ctr.serving.metadata import read_metadata, versions
from ctr.serving.scorer import Scorer
from ctr.training.config import TrainConfig
from ctr.training.run.snapshot import read_snapshot
from ctr.training.session import train
from fault_points import flip
from model_cases import draw_raw, saved_variables

LINEAR = {"crosses": {"layers": 0}, "deep": {"units": []}, "init_scale": 0.05}
# AdaGrad alone; batches of 48 rows, so that the first positions past 100 and 200 are 144 and 240.
CONFIG: dict[str, Any] = {
    "batch": {"rows": 48},
    "model": LINEAR,
    "optimizer": {"dense": {"shampoo": {"start_preconditioning_step": None}}},
    "checkpoint": {"every_examples": 130, "keep": 9},
    "compute_dtype": "float32",
    "max_rejected_share": 0,
}
NETWORK = {"crosses": {"layers": 1, "rank": 2, "ramp": 300}, "deep": {"units": [6]}}
EVERY = {"every_examples": 200, "keep": 3}


def configured(**changes) -> TrainConfig:
    return parse_model(TrainConfig, {**CONFIG, **changes}, "test")


class StoppedError(Exception):
    pass


@pytest.fixture(scope="module")
def log(make_rows_log, tmp_path_factory):
    return make_rows_log(tmp_path_factory.mktemp("continuous") / "log", 480)


@pytest.fixture(scope="module")
def finished(log, tmp_path_factory):
    """A run of a network with exports."""
    run = tmp_path_factory.mktemp("continuous") / "run"
    train(log, configured(export=EVERY, model=NETWORK), run, exporter=export_from_run)
    return run


def exports(run: Path) -> list[int]:
    return [int(path.name) for path in versions(run / "exports")]


def models(run: Path) -> list[tuple[dict[str, Any], list[bytes]]]:
    """Metadata without hashes of files, and variables of the exports of a run. Graphs may differ in bytes."""
    return [
        ({**read_metadata(path), "files": None}, [one.tobytes() for one in saved_variables(path)])
        for path in versions(run / "exports")
    ]


def times_of(run: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in versions(run / "exports")}


@pytest.mark.slow
def test_they_come_after_every_so_many_examples_and_are_the_models_of_their_positions(
    log, finished, tmp_path
):
    assert exports(finished) == [240, 432, 480]
    # The run's own export at its end, and the export of its last checkpoint.
    other, raw = export_run(finished, tmp_path / "models"), draw_raw(8)
    both = [Scorer(path).predict(raw) for path in (finished / "exports", other.path)]
    np.testing.assert_array_equal(*both)
    first = read_metadata(finished / "exports" / "240")
    assert first["position"]["trained_examples"] == 240
    assert first["model"]["alpha2"] == pytest.approx(0.8)
    predictions = [Scorer(path).predict(raw) for path in (finished / "exports" / "240", other.path)]
    assert not np.array_equal(*predictions)
    # A finished run that is asked for again stays as it is.
    before = times_of(finished)
    train(log, configured(export=EVERY, model=NETWORK), finished, exporter=export_from_run)
    assert times_of(finished) == before

    # They change nothing else.
    train(log, configured(model=NETWORK), tmp_path / "run")
    last = Path("checkpoints", f"{480:020d}", "arrays.npz")
    arrays = [np.load(run / last) for run in (tmp_path / "run", finished)]
    assert set(arrays[0]) == set(arrays[1])
    for name in arrays[0]:
        np.testing.assert_array_equal(arrays[0][name], arrays[1][name])


@pytest.mark.slow
def test_a_resumed_run_makes_those_that_are_missing(log, finished, tmp_path):
    run, config = tmp_path / "run", configured(export=EVERY)

    def stop(position, _):
        if position >= 288:
            raise StoppedError

    with pytest.raises(StoppedError):
        train(log, config, run, stop, exporter=export_from_run)
    assert exports(run) == [240]
    # The checkpoint lies before the export, which is made again or found.
    made = times_of(run)
    train(log, config, run, exporter=export_from_run)
    assert exports(run) == exports(finished)
    assert times_of(run).items() >= made.items()
    # One that was lost is made equal.
    lost = shutil.copytree(run, tmp_path / "lost")
    for path in (lost / "checkpoints").iterdir():
        if path.name.isdigit() and int(path.name) > 144:
            shutil.rmtree(path)
    shutil.rmtree(lost / "exports" / "240")
    (lost / "summary.json").unlink()
    train(log, config, lost, exporter=export_from_run)
    assert models(lost) == models(run)


def test_without_an_exporter_it_says_so(log, tmp_path):
    with pytest.raises(InputError, match=r"config: export: .*exporter="):
        train(log, configured(export=EVERY), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def change_schema(run: Path) -> None:
    content = json.loads((run / "schema.json").read_text())
    content["features"][0]["buckets"] = 41
    (run / "schema.json").write_text(json.dumps(content))


def change_units(run: Path) -> None:
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("- 6\n", "- 7\n"))


@pytest.mark.slow
def test_runs_that_cannot_be_exported_are_refused(finished, make_rows_log, tmp_path):
    last = Path("checkpoints", f"{480:020d}", "arrays.npz")
    faults = [
        (lambda run: flip(run / last), r"000480: the checkpoint is damaged .*; there are 144, 288"),
        (shutil.rmtree, "run: no such run directory"),
        (lambda run: (run / "schema.json").write_text("{"), r"schema\.json: .*not JSON"),
        (lambda run: (run / "schema.json").write_text('{"format": 9}'), "made by an unreleased version"),
        (change_schema, r"schema\.json: .*the file was changed"),
        (lambda run: shutil.rmtree(run / "checkpoints"), "checkpoints: there is no checkpoint"),
        (change_units, "the checkpoint is of another model than config.yaml"),
    ]
    for number, (spoil, words) in enumerate(faults):
        run = shutil.copytree(finished, tmp_path / str(number) / "run")
        spoil(run)
        with pytest.raises(InputError, match=words) as refusal:
            export_run(run, tmp_path / "models")
        assert "\n" not in str(refusal.value)
        if not number:
            assert read_snapshot(run, 432).examples == 432
    with pytest.raises(InputError, match="there is no checkpoint 7; there are 144, 288, 432, 480"):
        export_run(finished, tmp_path / "models", 7)
    assert not (tmp_path / "models").exists()
    run = shutil.copytree(finished, tmp_path / "run")
    other = make_rows_log(tmp_path / "log", 60, first_features=6)
    with pytest.raises(InputError, match="was started on a log with other features"):
        train(other, configured(export=EVERY, model=NETWORK), run, exporter=export_from_run)
