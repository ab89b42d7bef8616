"""Runs in MLflow: what is there of one that trains and of one that is finished; logged again, nothing is twice."""

import builtins
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from ctr.cli import main
from run_directories import make_rows, predict, run_folder, write_run

CONFIG = {"seed": 3, "batch": {"rows": 64}, "metrics": {"slices": ["position"], "empty": {}}, "note": None}


@pytest.fixture
def client(tmp_path, monkeypatch) -> Any:
    """A client of a store in a directory."""
    for name in ("MLFLOW_DISABLE_TELEMETRY", "MLFLOW_ALLOW_FILE_STORE"):
        # Set as a side effect, and as it was after the test.
        monkeypatch.setenv(name, "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "store"))
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=str(tmp_path / "store"))


@pytest.fixture
def run(tmp_path) -> Path:
    rows = make_rows(1, 300)
    made = write_run(tmp_path / "runs" / "mine", rows, predict(rows, 1, 1.0), windows=4, config=CONFIG)
    (made / "receipt.json").write_text("{}")
    return made


def logged(capfd: pytest.CaptureFixture[str], *given: object) -> list[dict[str, Any]]:
    assert main(["mlflow", *map(str, given), "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capfd.readouterr().out)["runs"]
    return found


def history(client: Any, run_id: str, key: str) -> list[tuple[int, int, float]]:
    return [(one.step, one.timestamp, one.value) for one in client.get_metric_history(run_id, key)]


def test_a_run_that_trains_is_logged_again_and_again_and_nothing_twice(run, client, capfd):
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    summary = (run / "summary.json").read_text()
    (run / "summary.json").unlink()
    # The third line is not yet there whole.
    (run / "metrics.jsonl").write_text("".join(lines[:2]) + lines[2][:40])
    (first,) = logged(capfd, run)
    assert (first["status"], first["windows"]) == ("RUNNING", 2)
    (run / "metrics.jsonl").write_text("".join(lines))
    (run / "summary.json").write_text(summary)
    (second,) = logged(capfd, run)
    assert second == {**first, "status": "FINISHED", "windows": 2}
    (third,) = logged(capfd, run)
    assert third == {**second, "windows": 0}
    (experiment,) = [one for one in client.search_experiments() if one.name == "ctr"]
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_id, found.info.status, found.info.run_name) == (
        first["run_id"],
        "FINISHED",
        "mine",
    )
    windows = [json.loads(line) for line in lines]
    for key, value_of in (
        ("per_query_auc", lambda window: window["per_query_auc"]),
        ("logloss_low", lambda window: window["logloss_ci95"][0]),
        ("logloss_high", lambda window: window["logloss_ci95"][1]),
        ("window_examples", lambda window: window["window_examples"]),
    ):
        expected = [(one["examples"], one["window_end"] // 1000, value_of(one)) for one in windows]
        assert history(client, first["run_id"], key) == expected
    content = json.loads(summary)
    time = windows[-1]["window_end"] // 1000
    for key, value in (
        ("final/auc", content["auc"]),
        ("final/calibration_ratio_high", content["calibration_ratio_ci95"][1]),
    ):
        assert history(client, first["run_id"], key) == [(content["examples"], time, value)]
    assert found.data.params == {
        "seed": "3",
        "batch.rows": "64",
        "metrics.slices": '["position"]',
        "metrics.empty": "{}",
        "note": "null",
    }
    assert found.data.tags["ctr.log_sha256"] == content["log_sha256"]
    names = {one.path for one in client.list_artifacts(first["run_id"])}
    assert names == {"config.yaml", "environment.json", "summary.json", "receipt.json"}


def test_the_runs_of_an_experiment_are_runs_and_one_that_learned_nothing_has_failed(client, tmp_path, capfd):
    folders = []
    for arm, seed in (("base", 1), ("base", 2), ("other", 1)):
        rows = make_rows(seed, 60)
        config = {"seed": seed, "model": {"widths": {f"a{'b' * 300}": 1, "ünd, so": "x" * 7000}}}
        failure = "nothing was learned" if arm == "other" else None
        folder = tmp_path / "accuracy" / run_folder(arm, seed)
        folders.append(
            write_run(folder, rows, predict(rows, seed, 1.0), config=config, learning_failure=failure)
        )
    found = logged(capfd, *folders, "--experiment", "accuracy")
    assert [one["status"] for one in found] == ["FINISHED", "FINISHED", "FAILED"]
    assert len({one["run_id"] for one in found}) == 3
    assert client.get_run(found[1]["run_id"]).data.params["seed"] == "2"
    # Another configuration in the same directory is another run.
    (folders[0] / "config.yaml").write_text(yaml.safe_dump({"seed": 9}))
    (again,) = logged(capfd, folders[0], "--experiment", "accuracy")
    assert again["run_id"] not in {one["run_id"] for one in found}


def refusal(capfd: pytest.CaptureFixture[str], *given: object) -> str:
    assert main(["mlflow", *map(str, given)]) == 1
    out, err = capfd.readouterr()
    # A longer line is an error and its hint.
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 + ("\nhint: " in err), err
    return err


def test_what_cannot_be_logged_is_refused_in_one_line(run, client, tmp_path, capfd, monkeypatch):
    assert "nothing: no config.yaml, so this is not a run directory" in refusal(capfd, run, "nothing")
    assert not (tmp_path / "store").exists() or not client.search_runs(["0"])
    assert "MLflow at wrong://place: " in refusal(capfd, run, "--tracking-uri", "wrong://place")
    taken = builtins.__import__

    def without(name: str, *more: Any, **named: Any) -> Any:
        if name.partition(".")[0] == "mlflow":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return taken(name, *more, **named)

    with monkeypatch.context() as patched:
        patched.setattr(builtins, "__import__", without)
        assert "requires clicktrain with the extra mlflow" in refusal(capfd, run)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert "allowed: --tracking-uri or the variable MLFLOW_TRACKING_URI" in refusal(capfd, run)


def test_telemetry_is_off_unless_asked_for(run, client, capfd, monkeypatch):
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY")
    logged(capfd, run)
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
