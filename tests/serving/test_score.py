"""`ctr export` and `ctr score`: every row is in the output or, with its reason, in the rejects."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raw_logs
from ctr.cli import main
from ctr.data.log import create_log
from ctr.data.shards import publish_partition, sort_rows
from ctr.eval.arrays import sigmoid
from ctr.io.errors import InputError
from ctr.serving.export import publish
from ctr.serving.metadata import read_metadata
from ctr.serving.score import score_log
from ctr.serving.scorer import Scorer
from model_cases import FEATURES, MODELS, SCHEMA, make_case
from small_runs import labeled

LOG_COLUMNS = ["query_time", "query_id", "example_id", "label", "train_weight", "metric_weight"]


@pytest.fixture
def rows(case):
    return case("factorized").raw


@pytest.fixture
def logit(case):
    """What the trainer predicts for these rows."""
    return case("factorized").logit


@pytest.fixture
def place(copied, tmp_path, monkeypatch):
    """A folder with a model."""
    copied("factorized", "models/123")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def log(place, case, publish_rows):
    """Publishes the rows as a log, some columns of which are others; returns its table."""

    def make(**columns) -> pa.Table:
        table = case("factorized").table
        for name, values in columns.items():
            number = table.schema.get_field_index(name)
            table = table.set_column(number, table.schema.field(number), pa.array(values))
        publish_rows(place / "log", table)
        return table

    return make


def score(*arguments: str) -> pd.DataFrame:
    assert main(["score", "models", *arguments, "--out", "scores.parquet", "--json"]) == 0
    return pd.read_parquet("scores.parquet")


def result(capfd) -> dict:
    return json.loads(capfd.readouterr().out)


def error_line(capfd, *arguments: str) -> str:
    assert main(["score", "models", *arguments, "--out", "scores.parquet"]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert not Path("scores.parquet").exists()
    return err


def rejects() -> list[dict]:
    return [json.loads(line) for line in Path("scores.parquet.rejects.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_no_column_is_needed_of_what_the_model_leaves_out(tmp_path):
    # Without tags as such: their products with prices are still there.
    model = {**MODELS["plain"], "without": ["item", "title", "tags", "size"]}
    made = make_case(model, "float32", tmp_path / "run")
    folder = publish(made.snapshot, tmp_path / "models").path
    columns = {"user:id", "price", "tags", "position"}
    described = read_metadata(folder)
    assert {one["column"] for one in described["requests"]["inputs"].values()} == columns
    assert {one["column"] for one in described["signatures"]["predict"]["inputs"].values()} == columns
    kept = {name: values for name, values in made.raw.items() if name in columns}
    scorer = Scorer(folder)
    np.testing.assert_allclose(scorer.score(kept)["logit"], made.logit, rtol=0, atol=1e-5)
    del kept["tags"]
    with pytest.raises(InputError, match="tags"):
        scorer.score(kept)


def test_a_log_and_a_part_of_it(logit, log, capfd):
    table = log()
    scores = score("log")
    assert result(capfd)["scored"] == 90
    assert list(scores) == [*LOG_COLUMNS, "learned", "logit", "p"]
    for name in LOG_COLUMNS:
        np.testing.assert_array_equal(scores[name], table.column(name).to_numpy())
    np.testing.assert_allclose(scores["logit"], logit, rtol=0, atol=1e-5)
    times = table.column("query_time").to_numpy()
    begin, end = (str(np.datetime64(int(times[row]), "us")) for row in (30, 60))
    part = score("log", f"--start={begin}", f"--end={end}")
    # The end is no part of it; the parts before, between and behind are all there is.
    assert part["example_id"].tolist() == list(range(30, 60)) and result(capfd)["rows"] == 30
    np.testing.assert_allclose(part["logit"], logit[30:60], rtol=0, atol=1e-5)
    assert [len(score("log", f"--end={begin}")), len(score("log", f"--start={end}"))] == [30, 30]


def publish_until(case, place, until: list[int] | None) -> None:
    """Puts a model in the place of the one there that has learned up to a query."""
    snapshot = case("factorized").snapshot
    progress = {**snapshot.progress, "position": {**snapshot.progress["position"], "learned_until": until}}
    shutil.rmtree(place / "models")
    publish(dataclasses.replace(snapshot, progress=progress), place / "models")


@pytest.mark.slow
def test_rows_of_a_log_that_the_model_has_learned_from_are_marked(case, place, log, capfd):
    table = log(label=(np.random.default_rng(4).random(90) < 0.4).astype(np.int8))
    times, queries = (table.column(name).to_numpy() for name in ("query_time", "query_id"))
    publish_until(case, place, [int(times[29]), int(queries[29])])
    scores = score("log")
    assert scores["learned"].tolist() == [True] * 30 + [False] * 60
    assert result(capfd)["learned"] == 30
    assert main(["score", "models", "log", "--out", "scores.parquet"]) == 0
    assert "the model was trained on 30 of these rows" in capfd.readouterr().out
    assert main(["evaluate", "scores.parquet", "--json"]) == 0
    found = result(capfd)
    assert found["training"] == {"learned_rows": 30, "new_rows": 60, "untold_rows": 0, "held_out": False}
    # Of the later rows the same as of these alone.
    pq.write_table(pq.read_table("scores.parquet").slice(30), "new.parquet")
    assert main(["evaluate", "new.parquet", "--json"]) == 0
    alone = result(capfd)
    assert alone["training"] == {"learned_rows": 0, "new_rows": 60, "untold_rows": 0, "held_out": True}
    assert found["new"] == {key: value for key, value in alone.items() if key != "training"}


def test_faulty_rows_of_a_log(log):
    weights = np.ones(90, np.float32)
    weights[[7, 40]] = np.nan
    log(train_weight=weights)
    assert score("log")["example_id"].tolist() == [row for row in range(90) if row not in (7, 40)]
    reason = "train_weight is negative, not finite or above 1e9"
    found = [(one["row"], one["example_id"], one["query_id"], one["reason"]) for one in rejects()]
    assert found == [(7, 7, 2, reason), (40, 40, 13, reason)]


def ingest(rows, out: str, *options: str, labels: list[str] | None, **keys) -> int:
    """Writes the rows as a table and ingests it; ``labels``: its column clicked, None: it has none."""
    frame = pd.DataFrame({**rows, "tags": ["|".join(tags) for tags in rows["tags"]]})
    frame["class"] = frame["class"].astype("Int64")
    frame["request"] = [f"q{row // 3}" for row in range(90)]
    frame["when"], frame["id"] = 1_500_000_000 + np.arange(90) // 3, np.arange(90)
    if labels is not None:
        frame["clicked"], frame["w"] = labels, 2.5
    frame.to_csv("rows.csv", index=False)
    mapping = {
        "input": {"type": "csv"},
        "time": {"column": "when", "unit": "s"},
        "query": {"column": "request"},
        "example_id": "id",
        "label": "clicked",
        "weight": "w",
        "partition": "1d",
        "features": FEATURES,
        **keys,
    }
    Path("mapping.yaml").write_text(json.dumps(mapping))
    return main(["ingest", "table", "rows.csv", "--mapping", "mapping.yaml", "--out", out, *options])


def bytes_of(log: str) -> dict[str, bytes]:
    """The files that readers of a log trust."""
    paths = [Path(log, "schema.json"), *Path(log, "manifests").iterdir(), *Path(log, "shards").iterdir()]
    return {str(path.relative_to(log)): path.read_bytes() for path in paths}


@pytest.mark.slow
def test_a_table_without_labels_is_ingested_and_scored_as_with_labels(rows, logit, place, capfd):
    labels = [str(row % 4 // 3) for row in range(90)]
    assert ingest(rows, "log", labels=labels) == 0
    with_labels = score("log")
    np.testing.assert_array_equal(with_labels["label"], np.arange(90) % 4 // 3)
    assert ingest(rows, "new", "--without-labels", labels=None) == 0
    assert "new: 90 examples, 30 queries, no labels, 1 partitions" in capfd.readouterr().out
    scores = score("new")
    assert list(scores) == ["query_time", "query_id", "example_id", "learned", "logit", "p"]
    pd.testing.assert_frame_equal(scores, with_labels[list(scores)])
    np.testing.assert_allclose(scores.sort_values("example_id")["logit"], logit, rtol=0, atol=1e-5)
    # Empty labels, and a mapping without a label, give the same log.
    assert ingest(rows, "empty", "--without-labels", labels=[""] * 90) == 0
    assert ingest(rows, "null", labels=None, label=None, weight=None) == 0
    assert bytes_of("new") == bytes_of("empty") == bytes_of("null")
    (shard,) = Path("new", "shards").iterdir()
    assert set(pq.read_table(shard).column("label").to_pylist()) == {-1}
    # A label that lacks in a row of other logs is a reject, as ever.
    assert ingest(rows, "partly", "--max-reject-share", "0.5", labels=["", *labels[1:]]) == 0
    assert [one["reason"] for one in raw_logs.read_rejects(place / "partly")] == ["missing"]


@pytest.mark.slow
def test_a_log_without_labels_is_only_scored(rows, place, capfd):
    assert ingest(rows, "new", "--without-labels", labels=None) == 0
    Path("half.yaml").write_text("arms: {a: {}}")
    replay = ["replay", "half.yaml", "--log", "new", "--out", "replayed"]
    sample = ["sample", "new", "--name", "half", "--set", "non_click_rate=0.5"]
    for command in (["train", "new", "--out", "run"], replay, sample, ["inspect", "new"]):
        capfd.readouterr()
        assert main(command) == 1
        out, err = capfd.readouterr()
        assert out == "" and err == (
            "error: new: its rows were ingested without labels, for ctr score alone; ingest them with their labels "
            "into another output directory\n"
        )
    score("new")
    shutil.copy("scores.parquet", "other.parquet")
    capfd.readouterr()
    assert main(["evaluate", "scores.parquet"]) == 1
    err = capfd.readouterr().err
    assert "no columns label and metric_weight, which the metrics require" in err
    assert len(err.splitlines()) == 1
    assert main(["evaluate", "scores.parquet", "--against", "other.parquet"]) == 0
    # Neither is a log of both kinds of rows.
    capfd.readouterr()
    assert ingest(rows, "new", labels=["0"] * 90) == 1
    assert "ingested with label: none, and the mapping now has label: 0 or 1" in capfd.readouterr().err


def test_scores_have_a_column_for_each_further_label(case, exported, tmp_path):
    made, scorer, out = case("labeled"), Scorer(exported("labeled")), tmp_path / "scores.parquet"
    # A model reads logs of the same features, whatever labels they have.
    rows = labeled(sort_rows(made.table), SCHEMA, rent=np.ones(made.table.num_rows))
    create_log(tmp_path / "log", rows["schema"])
    publish_partition(tmp_path / "log", rows["schema"], 0, 10**9, rows["table"])
    # The command writes over its own files alone, which it knows by their last columns.
    for _ in range(2):
        score_log(scorer, tmp_path / "log", out)
    scores = pd.read_parquet(out).sort_values("example_id")
    np.testing.assert_allclose(scores["p_sale"], sigmoid(made.labels[0]), rtol=0, atol=1e-5)


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["log", "--start", "soon"], "start: 'soon' is not allowed: an ISO date or datetime is required"),
            (["log", "--start", "2026-01-02", "--end", "2026-01-02"], "must be before end"),
            (["log", "--start", "2100-01-01"], "log: no partition of the log overlaps --start and --end; it"),
            (["rows.csv"], "rows.csv is a file, not the directory of an example log; ctr quickstart"),
            (["few"], "the log has the features of schema"),
        ],
    )
    def test_inputs_that_cannot_be_scored(self, place, make_rows_log, capfd, arguments, words):
        for name in {"log", "few"} & {*arguments}:
            make_rows_log(place / name, 9, first_features=6 if name == "few" else None)
        (place / "rows.csv").write_text("user:id\nu1\n")
        assert words in error_line(capfd, *arguments)

    def test_an_output_that_is_a_file_of_the_log_or_a_folder_and_no_model(self, place, log, capfd):
        log()
        (shard, *_) = sorted(Path("log", "shards").iterdir())
        (place / "link").symlink_to("log")
        before = shard.read_bytes()
        shutil.rmtree("models")  # What is refused is refused before the model is read.
        for out, words in (
            (str(shard), f"--out {shard}: this is a file of log"),
            (f"log/manifests/../shards/{shard.name}", "this is a file of log"),
            (f"link/shards/{shard.name}", "this is a file of log"),
            ("log", "log: is a directory; allowed: a new file, or predictions of ctr score to replace"),
        ):
            assert main(["score", "models", "log", "--out", out]) == 1
            error = capfd.readouterr().err
            assert words in error and len(error.splitlines()) == 1
        assert shard.read_bytes() == before
        assert "models: neither an exported model" in error_line(capfd, "log")
