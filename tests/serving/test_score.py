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

from ctr.cli import main
from ctr.serving.export import publish
from ctr.serving.metadata import read_metadata
from ctr.serving.scorer import Scorer
from model_cases import MODELS, make_case

LOG_COLUMNS = ["query_time", "query_id", "example_id", "label", "train_weight", "metric_weight"]


@pytest.fixture
def rows(case):
    return case("factorized").raw


@pytest.fixture
def logit(case):
    """What the trainer predicts for these rows."""
    return case("factorized").logit


@pytest.fixture
def place(rows, copied, tmp_path, monkeypatch):
    """A folder with a model and its rows as a table."""
    copied("factorized", "models/123")
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
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


def as_texts(raw: dict) -> pd.DataFrame:
    """The rows as a CSV file has them."""
    frame = pd.DataFrame({**raw, "tags": ["|".join(tags) for tags in raw["tags"]]})
    return frame.assign(**{"class": frame["class"].astype("Int64")})


def test_a_table_and_its_parts_in_their_order(rows, logit, place, capfd):
    scores = score("rows.parquet")
    counts = {"rows": 90, "scored": 90, "rejected": 0, "reject_reasons": {}, "rejects_file": ""}
    about = {"learned": None, "learned_until": None, "model": "models/123"}
    assert result(capfd) | {"seconds": 0} == {**counts, **about, "seconds": 0}
    assert list(scores) == ["file", "row", "logit", "p"]
    assert scores["row"].tolist() == list(range(1, 91)) and set(scores["file"]) == {"rows.parquet"}
    np.testing.assert_allclose(scores["logit"], logit, rtol=0, atol=1e-5)
    (place / "parts").mkdir()
    names = [f"part_{part}.parquet" for part in (9, 10, 11)]
    for part, name in enumerate(names):
        pq.write_table(pa.table(rows).slice(30 * part, 30), place / "parts" / name)
    parts = score(*(f"parts/{name}" for name in names))
    assert parts["file"].tolist() == [name for name in names for _ in range(30)]
    assert parts["row"].tolist() == list(range(1, 31)) * 3
    np.testing.assert_allclose(parts["logit"], scores["logit"], rtol=0, atol=1e-6)
    pq.write_table(pa.table(rows).slice(0, 0), place / "empty.parquet")
    assert list(score("empty.parquet")) == list(scores) and not len(score("empty.parquet"))


@pytest.mark.slow
def test_no_column_is_needed_of_what_the_model_leaves_out(tmp_path, monkeypatch, capfd):
    # Without tags as such: their products with prices are still there.
    model = {**MODELS["plain"], "without": ["item", "title", "tags", "size"]}
    made = make_case(model, "float32", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    folder = publish(made.snapshot, tmp_path / "models").path
    columns = {"user:id", "price", "tags", "position"}
    described = read_metadata(folder)
    assert {one["column"] for one in described["requests"]["inputs"].values()} == columns
    assert {one["column"] for one in described["signatures"]["predict"]["inputs"].values()} == columns
    kept = {name: values for name, values in made.raw.items() if name in columns}
    np.testing.assert_allclose(Scorer(folder).score(kept)["logit"], made.logit, rtol=0, atol=1e-5)
    pq.write_table(pa.table(kept), "rows.parquet")
    np.testing.assert_allclose(score("rows.parquet")["logit"], made.logit, rtol=0, atol=1e-5)
    pq.write_table(pa.table(kept).drop_columns(["tags"]), "rows.parquet")
    Path("scores.parquet").unlink()
    capfd.readouterr()
    assert "tags" in error_line(capfd, "rows.parquet")


def test_faulty_rows_are_set_aside(rows, place, capfd):
    raw = {name: values[:6] for name, values in rows.items()}
    raw["tags"] = [["a"], ["b|c", "d"], [], ["e"], ["|"], []]
    raw["price"] = ["1", "2", "x", "4", "5", ""]
    pq.write_table(pa.table(raw), place / "faulty.parquet")
    scores, counts = score("faulty.parquet"), result(capfd)
    assert (counts["rows"], counts["scored"], counts["rejected"]) == (6, 3, 3)
    separator = "a value contains the separator"
    assert counts["reject_reasons"] == {f"tags: {separator}": 2, "price: not a number": 1}
    assert scores["row"].tolist() == [1, 4, 6]
    found = [(reject["file"], reject["row"], reject["key"], reject["reason"]) for reject in rejects()]
    assert found == [
        ("faulty.parquet", 3, "price", "not a number"),
        ("faulty.parquet", 2, "tags", separator),
        ("faulty.parquet", 5, "tags", separator),
    ]
    # Another scoring to the same file takes the old rejects away.
    score("rows.parquet")
    assert not Path("scores.parquet.rejects.jsonl").exists()


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


def labeled_rows(rows, place, **keys) -> None:
    """rows.csv with labels, weights, queries and times, and mapping.yaml, which says where they are."""
    rng = np.random.default_rng(5)
    frame = as_texts(rows).rename(columns={"title": "headline"})
    frame["clicked"] = rng.integers(0, 2, 90)
    frame["w"] = rng.choice([0.0, 1.0, 2.5], 90)
    frame["request"] = [f"q{row // 3}" for row in range(90)]
    frame["when"] = 1_500_000_000 + np.arange(90)
    frame.to_csv(place / "rows.csv", index=False)
    mapping = {
        "input": {"type": "csv"},
        "time": {"column": "when", "unit": "s"},
        "query": {"column": "request"},
        "label": "clicked",
        "weight": "w",
        "derive": {"title": {"from": "headline"}, "hour": {"from": "time", "part": "hour"}},
        "partition": "1d",
        "features": [{"name": "user", "kind": "category", "source": "user:id", "buckets": 9}],
        **keys,
    }
    (place / "mapping.yaml").write_text(json.dumps(mapping))


def test_a_mapping_and_the_labels_of_an_ingest_of_the_same_files(rows, logit, place):
    """Columns of other names, one of them derived; without ``--labels`` labels and times are not needed."""
    names = ["query_id", "example_id", "label", "train_weight", "metric_weight"]
    for number, keys in enumerate(({}, {"query": None}, {"example_id": "when"})):
        labeled_rows(rows, place, **keys)
        scores = score("rows.csv", "--mapping", "mapping.yaml", "--labels")
        assert list(scores) == ["file", "row", *names, "learned", "logit", "p"]
        np.testing.assert_allclose(scores["logit"], logit, rtol=0, atol=1e-5)
        out = f"ingested-{number}"
        assert main(["ingest", "table", "rows.csv", "--mapping", "mapping.yaml", "--out", out]) == 0
        shards = [
            pq.ParquetFile(path).read(names).to_pandas() for path in sorted(Path(out, "shards").iterdir())
        ]
        ingested = pd.concat(shards).set_index("example_id")
        assert ingested.index.is_unique and len(ingested) == 90
        for name in names:
            if name != "example_id":
                np.testing.assert_array_equal(scores[name], ingested.loc[scores["example_id"], name])
    labeled_rows(rows, place, label="bought", example_id="request", time={"column": "never", "unit": "s"})
    scores = score("rows.csv", "--mapping", "mapping.yaml")
    assert list(scores) == ["file", "row", "example_id", "logit", "p"]
    np.testing.assert_allclose(scores["logit"], logit, rtol=0, atol=1e-5)


def test_raw_rows_that_the_model_has_learned_from_are_marked(case, rows, place, capfd):
    labeled_rows(rows, place)
    publish_until(case, place, [(1_500_000_000 + 39) * 1_000_000, 7])
    scores = score("rows.csv", "--mapping", "mapping.yaml", "--labels")
    assert scores["learned"].tolist() == [True] * 40 + [False] * 50
    assert result(capfd)["learned"] == 40
    # The number of a row in its file says nothing about what the model has seen.
    labeled_rows(rows, place, time={"row_order": {"start": "2017-01-01", "step_us": 1_000_000}})
    scores = score("rows.csv", "--mapping", "mapping.yaml", "--labels")
    assert scores["learned"].isna().all()
    assert result(capfd)["learned"] is None
    assert main(["evaluate", "scores.parquet"]) == 0
    assert "the model may have been trained on them" in capfd.readouterr().out


def test_a_row_without_a_label_is_set_aside_where_labels_are_asked_for(rows, place):
    labeled_rows(rows, place)
    frame = pd.read_csv("rows.csv", dtype=str, keep_default_na=False)
    frame.loc[4, "clicked"] = ""
    frame.to_csv("rows.csv", index=False)
    assert len(score("rows.csv", "--mapping", "mapping.yaml")) == 90
    assert len(score("rows.csv", "--mapping", "mapping.yaml", "--labels")) == 89
    assert [(one["row"], one["key"], one["reason"]) for one in rejects()] == [(6, "label", "missing")]


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["log", "--labels"], "--labels goes with --format or --mapping"),
            (["rows.parquet", "--labels"], "--labels goes with --format or --mapping"),
            (["log", "--start", "soon"], "start: 'soon' is not allowed: an ISO date or datetime is required"),
            (["log", "--start", "2026-01-02", "--end", "2026-01-02"], "must be before end"),
            (["log", "--start", "2100-01-01"], "log: no partition of the log overlaps --start and --end; it"),
            (["rows.parquet", "--start", "2026-01-01"], "--start and --end go with an example log: raw rows"),
            (["log", "log"], "input log: an example log is scored alone"),
            (["rows.parquet", "log"], "input log: an example log is scored alone"),
            (["a.csv", "c.csv.gz", "b.jsonl"], "input b.jsonl: a jsonl file after a.csv, a csv file: all"),
            (["other.csv"], "--mapping FILE says which columns"),
            (["narrow.parquet"], "narrow.parquet: no column price; the columns found are user:id, class"),
            (["few"], "the log has the features of schema"),
        ],
    )
    def test_inputs_that_cannot_be_scored(self, rows, place, make_rows_log, capfd, arguments, words):
        for name in {"log", "few"} & {*arguments}:
            make_rows_log(place / name, 9, first_features=6 if name == "few" else None)
        for name in ("a.csv", "b.jsonl", "c.csv.gz"):
            (place / name).write_text("")
        (place / "other.csv").write_text("who\nu1\n")
        pq.write_table(pa.table(rows).drop_columns(["price"]), place / "narrow.parquet")
        assert words in error_line(capfd, *arguments)

    @pytest.mark.parametrize(
        ("keys", "words"),
        [
            ({"query": {"session": {"by": "request", "gap": "1h"}}}, "queries of the mapping are sessions"),
            ({"label": "bought"}, "rows.csv: no column bought"),
        ],
    )
    def test_labels_that_are_not_to_be_had(self, rows, place, capfd, keys, words):
        labeled_rows(rows, place, **keys)
        assert words in error_line(capfd, "rows.csv", "--mapping", "mapping.yaml", "--labels")

    def test_an_output_that_is_an_input_or_a_folder_and_no_model(self, place, capfd):
        (place / "parts").mkdir()
        shutil.copy("rows.parquet", "parts/a.parquet")
        (place / "link.parquet").symlink_to("rows.parquet")
        before = Path("rows.parquet").read_bytes()
        shutil.rmtree("models")  # What is refused is refused before the model is read.
        for out, words in (
            ("rows.parquet", "--out rows.parquet: this is a file of the input rows.parquet"),
            ("parts/../rows.parquet", "a file of the input rows.parquet"),
            ("link.parquet", "a file of the input rows.parquet"),
            ("parts/a.parquet", "--out parts/a.parquet: this is a file of the input parts"),
            ("parts", "parts: is a directory; allowed: a new file, or predictions of ctr score to replace"),
        ):
            assert main(["score", "models", "rows.parquet", "parts", "--out", out]) == 1
            error = capfd.readouterr().err
            assert words in error and len(error.splitlines()) == 1
        assert Path("rows.parquet").read_bytes() == Path("parts/a.parquet").read_bytes() == before
        assert "models: neither an exported model" in error_line(capfd, "rows.parquet")


@pytest.mark.slow
def test_export_says_what_it_made(make_rows_log, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    make_rows_log(tmp_path / "log", 60)
    Path("run.yaml").write_text("{batch: {rows: 32}, model: {crosses: {layers: 0}, deep: {units: []}}}")
    assert main(["train", "log", "--config", "run.yaml", "--out", "run"]) == 0
    capfd.readouterr()
    assert main(["export", "run", "--out", "models"]) == 0
    assert capfd.readouterr().out == "models/60\n"
    assert main(["export", "run", "--out", "models", "--json"]) == 0
    again = json.loads(capfd.readouterr().out)
    assert (again["model"], again["made"], again["position"]["examples"]) == ("models/60", False, 60)
    assert main(["export", "run", "--out", "models", "--checkpoint", "7"]) == 1
    assert capfd.readouterr().err == "error: run/checkpoints: there is no checkpoint 7; there are 60\n"
