"""A query with more rows than a batch may have, such as a robot's page: the run goes on as if it were not there."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from ctr.cli import main
from ctr.config import load_model
from ctr.training.config import TrainConfig
from growing_logs import read_predictions, whole_and_in_parts

START, HOUR = 1_767_600_000, 3600
MAPPING = {
    "input": {"type": "csv"},
    "time": {"column": "t", "unit": "s"},
    "query": {"column": "q"},
    "example_id": "id",
    "label": "click",
    "partition": "1h",
    "features": [{"name": name, "kind": "category", "source": name} for name in ("user", "item")],
}
CONFIG = {
    # So that a batch begins where the robot's query does, with it or without.
    "batch": {"rows": 16, "max_query_rows": 20, "within_partitions": True},
    "model": {"experts": ["linear"], "crosses": {"layers": 0}, "deep": {"units": []}, "query_size": False},
    "jit": False,
    "checkpoint": {"every_examples": 100},
    "metrics": {"window_examples": 10**6},
}
METRICS = ("examples", "logloss", "auc", "per_query_auc", "trained_rows")


def make_log(folder: Path, robots: list[int]) -> Path:
    """Makes a log of four hours; at the beginning of the second one are queries of so many rows."""
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, 6, 400)
    seconds = np.repeat(np.sort(rng.integers(1, 4 * HOUR, 400)), sizes)
    rows = pd.DataFrame({"t": START + seconds, "q": np.repeat([f"q{n}" for n in range(400)], sizes)})
    pages = [pd.DataFrame({"t": START + HOUR, "q": [f"robot{n}"] * size}) for n, size in enumerate(robots)]
    rows = pd.concat([rows, *pages]).reset_index(drop=True)
    # The others' rows are the same ones.
    rows["user"], rows["item"] = rows.index * 7 % 11, rows.index**2 % 13
    rows["click"], rows["id"] = (rows.index * 5 % 7 < 2).astype(int), rows.index
    folder.mkdir()
    rows.to_csv(folder / "rows.csv", index=False)
    (folder / "mapping.yaml").write_text(yaml.safe_dump(MAPPING))
    (folder / "run.yaml").write_text(yaml.safe_dump(CONFIG))
    ingest = ["ingest", "table", str(folder / "rows.csv"), "--mapping", str(folder / "mapping.yaml")]
    assert main([*ingest, "--out", str(folder / "log")]) == 0
    assert main(["sample", str(folder / "log"), "--name", "half", "--set", "non_click_rate=0.5"]) == 0
    return folder


def train(folder: Path, out: Path, *options: str) -> int:
    command = ["train", str(folder / "log"), "--config", str(folder / "run.yaml"), "--out", str(out)]
    return main([*command, *options])


def results(run: Path) -> tuple[dict[str, float], pd.DataFrame]:
    summary = json.loads((run / "summary.json").read_text())
    return {name: summary[name] for name in METRICS}, read_predictions(run)


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    # The first one has more rows than all others have together: a single query stops no run.
    return make_log(folder / "plain", []), make_log(folder / "robots", [2000, 40])


@pytest.mark.slow(first=1)
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--set", "label_delay=600", "--set", "sampling={name: half, score: kept}"),
        ("--workers", "2"),
    ],
    ids=str,
)
def test_the_run_is_that_over_the_log_without_it(logs, tmp_path, capfd, options):
    plain, robots = logs
    assert train(plain, tmp_path / "plain", *options) == 0
    capfd.readouterr()
    assert train(robots, tmp_path / "run", *options) == 0
    out, err = capfd.readouterr()
    (expected, rows), (found, same_rows) = results(tmp_path / "plain"), results(tmp_path / "run")
    assert found == expected
    pd.testing.assert_frame_equal(same_rows, rows, check_exact=True)
    # Counted, and named.
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    first, second = sorted(summary["set_aside"], key=lambda query: query["rows"], reverse=True)
    assert summary["set_aside_rows"] == first["rows"] + second["rows"] and summary["rejected_rows"] == 0
    if "sampling" not in str(options):
        assert (first["rows"], second["rows"]) == (2000, 40)
        assert first["end"] - first["begin"] == 2000
    for query in (first, second):
        rows_of = f"rows {query['begin']} to {query['end']}"
        warning = (
            f"warning: {tmp_path / 'run'}: query_id {query['query_id']}, {rows_of} of {robots / 'log'}, has "
        )
        assert f"{warning}{query['rows']} rows and is set aside" in err
        assert f"{query['query_id']} ({rows_of})" in out
    lines = (tmp_path / "run" / "rejects.jsonl").read_text().splitlines()
    assert [json.loads(line)["rows"] for line in lines] == [
        query["rows"] for query in sorted((first, second), key=lambda query: query["begin"])
    ]


@pytest.mark.slow
def test_a_run_that_is_stopped_before_it_ends_in_the_same_bits(logs, tmp_path):
    config = load_model(TrainConfig, logs[1] / "run.yaml", "config")
    summary = whole_and_in_parts(logs[1] / "log", config, tmp_path, 250)
    assert min(query["begin"] for query in summary["set_aside"]) > 250


@pytest.mark.soak
def test_a_run_that_follows_and_is_stopped_around_it_ends_in_the_same_bits(logs, tmp_path):
    _, robots = logs
    assert train(robots, tmp_path / "whole") == 0
    shutil.copytree(robots, tmp_path / "grown")
    log = tmp_path / "grown" / "log"
    later = sorted((log / "manifests").iterdir())
    for path in later:
        path.rename(tmp_path / path.name)
    for path in later:
        (tmp_path / path.name).rename(path)
        assert train(tmp_path / "grown", tmp_path / "run", "--follow", "--stop-when-idle", "0") == 0
    assert train(tmp_path / "grown", tmp_path / "run") == 0
    whole, run = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("whole", "run"))
    assert [run[name] for name in (*METRICS, "set_aside")] == [
        whole[name] for name in (*METRICS, "set_aside")
    ]
    pd.testing.assert_frame_equal(
        results(tmp_path / "run")[1], results(tmp_path / "whole")[1], check_exact=True
    )


def test_a_share_of_rows_in_several_such_queries_stops_the_run(tmp_path, capfd):
    folder = make_log(tmp_path / "made", [200, 100, 60])
    capfd.readouterr()
    assert train(folder, tmp_path / "run") == 1
    [error] = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    words = "rows that were read are in queries of more rows than batch.max_query_rows"
    read = re.match(re.escape(f"error: {folder / 'log'}: 300 of the first ") + f"([0-9]+) {words}", error)
    assert 300 < int(read[1]) < 1000


def test_a_log_of_such_queries_alone_teaches_nothing(tmp_path, capfd):
    folder = make_log(tmp_path / "made", [30])
    end = "2026-01-05T09:00:01Z"
    capfd.readouterr()
    span = f"time_range={{start: '2026-01-05T09:00:00Z', end: '{end}'}}"
    assert train(folder, tmp_path / "run", "--set", span) == 1
    words = "nothing was learned: all 30 rows are in queries of more than 20 rows (batch.max_query_rows)"
    assert f"error: {tmp_path / 'run'}: {words}" in capfd.readouterr().err.splitlines()
