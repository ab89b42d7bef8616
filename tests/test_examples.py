"""The programs and the notebook among the examples run and do what they show."""

import json
import runpy
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from command_tree import all_commands


@pytest.mark.soak
def test_shampoo_trains_a_model_of_tensorflow_recommenders(root, fresh_python, tmp_path):
    done = fresh_python(root / "examples" / "recommenders.py", cwd=tmp_path, path=root)
    first, *_, last = map(float, done.stdout.splitlines()[-1].rpartition(":")[2].split())
    assert last < 0.95 * first < 0.7


@pytest.mark.soak
def test_logs_runs_and_losses_work_in_tensorflow_recommenders(root, fresh_python, tmp_path):
    example = root / "examples" / "recommenders_bridge.py"
    done = fresh_python(example, tmp_path / "bridge", cwd=tmp_path, path=root)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("largest difference")]
    assert float(line.rpartition(":")[2]) < 1e-5
    assert done.stdout.count("PerQueryAUC") == 3
    losses, labels = {}, {}
    for name in ("ranking", "carried", "continued"):
        table = pq.read_table(tmp_path / "bridge" / f"{name}.parquet")
        logit, labels[name] = (table[column].to_numpy().astype(np.float64) for column in ("logit", "label"))
        losses[name] = np.mean(np.logaddexp(0, logit) - labels[name] * logit)
    clicks = labels["carried"].mean()
    base = -clicks * np.log(clicks) - (1 - clicks) * np.log(1 - clicks)
    # All have learned; the run that went on by both losses is no worse than the run.
    assert losses["ranking"] < 0.96 * base and losses["carried"] < 0.94 * base
    assert losses["continued"] < losses["carried"] + 0.001
    table = tmp_path / "bridge" / "continued.parquet"
    evaluated = fresh_python("-m", "ctr", "evaluate", table, "--json", cwd=root)
    assert json.loads(evaluated.stdout)["logloss"] == pytest.approx(losses["continued"], rel=1e-5)


@pytest.mark.soak
def test_the_notebook_runs_from_the_first_cell_to_the_last(root, fresh_python, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    content = json.loads((root / "examples" / "notebooks" / "one_pass.ipynb").read_text())
    assert not any(cell.get("outputs") for cell in content["cells"])
    cells = ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]
    printed = fresh_python("-c", "\n".join(cells), cwd=tmp_path, path=root).stdout
    verdicts = {line.split()[0]: line.split()[-1] for line in printed.splitlines() if line}
    assert verdicts["PerQueryAUC"] == verdicts["logloss"] == "better"


def test_the_job_for_kubernetes_gives_ctr_what_it_takes(root):
    account, job = yaml.safe_load_all((root / "examples" / "kubernetes" / "train.yaml").read_text())
    pod = job["spec"]["template"]
    containers = {one["name"]: one for one in [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]}
    commands = {words[0]: command for words, command in all_commands() if words}
    taken = {}
    for name, (command, *arguments) in ((name, one["args"]) for name, one in containers.items()):
        params = commands[command].make_context("", arguments).params
        taken[name] = SimpleNamespace(command=command, **params)
    train = taken.pop("train")
    assert train.command == "train" and "--log-format=json" in containers["train"]["args"]
    # What it reads is copied before, and what it writes, beside it and at the end, to where the next pod finds it.
    ways = {name: (one.command, one.src, one.dst, one.follow) for name, one in taken.items()}
    bucket, run = ways["run"][1:3]
    assert run == str(train.out) and ways["log"][2] == str(train.log)
    assert ways["config"][2] == str(train.config.parent)
    assert ways["save"] == ("sync", run, bucket, True) and ways["finish"] == ("sync", run, bucket, False)
    assert list(containers) == ["log", "config", "run", "save", "train", "finish"]
    assert [name for name, one in containers.items() if one.get("restartPolicy") == "Always"] == ["save"]
    # The image's entry point is ctr, run by the same user.
    image = (root / "Dockerfile").read_text()
    assert 'ENTRYPOINT ["ctr"]' in image and f"USER {pod['spec']['securityContext']['runAsUser']}" in image
    assert not any("command" in one for one in containers.values())
    assert pod["spec"]["serviceAccountName"] == account["metadata"]["name"]
    # What the command reads and writes lies on a volume.
    container = containers["train"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert all(place.is_relative_to(mounts["data"]) for place in (train.log, train.config, train.out))
    threads = {one["value"] for one in container["env"] if one["name"].endswith("THREADS")}
    assert threads == {container["resources"]["requests"]["cpu"]} == {container["resources"]["limits"]["cpu"]}


MLFLOW = """
import contextlib, json
def note(*given): print(json.dumps(given))
def set_tracking_uri(uri): note("uri", uri)
def set_experiment(name): note("experiment", name)
def start_run(run_name): note("run", run_name); return contextlib.nullcontext()
def log_params(params): note("params", params)
def log_metrics(metrics, step=None): note("metrics", metrics, step)
def log_artifact(path): note("artifact", path.rpartition("/")[2])
"""


@pytest.fixture
def run_folder(tmp_path):
    """The files of a run that other programs read."""
    folder = tmp_path / "first"
    folder.mkdir()
    (folder / "config.yaml").write_text("model: {deep: {units: [8]}}\nseed: 1\n")
    (folder / "metrics.jsonl").write_text(
        '{"examples": 100, "logloss": 0.5}\n{"examples": 200, "logloss": 0.25, "per_query_auc": null}\n'
    )
    (folder / "summary.json").write_text('{"logloss": 0.375, "log_sha256": "0"}')
    return folder


def test_a_run_is_logged_to_mlflow(root, fresh_python, run_folder, tmp_path):
    (tmp_path / "mlflow.py").write_text(MLFLOW)
    script = root / "examples" / "tools" / "log_to_mlflow.py"
    done = fresh_python(script, run_folder, "--tracking-uri", "there", cwd=tmp_path, path=tmp_path)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        ["uri", "there"],
        ["experiment", "ctr"],
        ["run", "first"],
        ["params", {"seed": "1", "model.deep.units": "[8]"}],
        ["metrics", {"examples": 100, "logloss": 0.5}, 100],
        ["metrics", {"examples": 200, "logloss": 0.25}, 200],
        ["metrics", {"final/logloss": 0.375}, None],
        ["artifact", "config.yaml"],
        ["artifact", "summary.json"],
    ]


def test_the_last_window_is_served_to_prometheus(root, run_folder):
    path = root / "examples" / "tools" / "serve_metrics.py"
    text = runpy.run_path(str(path))["metrics_text"](run_folder)
    assert text == "ctr_examples 200\nctr_logloss 0.25\n"


def test_excess_losses_are_divergences_from_the_truth(root, tmp_path):
    tool = runpy.run_path(str(root / "examples" / "tools" / "treatments.py"))
    (tmp_path / "predictions").mkdir()
    part = tmp_path / "predictions" / f"{3:020d}.parquet"
    table = pa.table({"example_id": [3, 1, 2], "logit": pa.array([0.0, 0.0, -2.0], pa.float32())})
    pq.write_table(table, part)
    rows = pd.DataFrame({"probability": [0.5, 0.5, 0.2], "query_key": [7, 7, 8]}, index=[1, 2, 3])
    found = tool["with_losses"](rows, tmp_path)
    by_hand = [0.0, np.log(np.cosh(1.0)), 0.2 * np.log(0.4) + 0.8 * np.log(1.6)]
    np.testing.assert_allclose(found.loss, by_hand, atol=1e-7)
    assert [*found.late] == [False, False, True]
    assert tool["ratio"](found.assign(loss=2 * found.loss), found) == "2.000 [2.000, 2.000]"
