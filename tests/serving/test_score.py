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
from sklearn.metrics import log_loss, roc_auc_score

from ctr.cli import main
from ctr.serving.export import publish
from ctr.serving.metadata import read_metadata
from ctr.serving.scorer import Scorer
from model_cases import MODELS

LOG_COLUMNS = ["query_time", "query_id", "example_id", "label", "train_weight", "metric_weight"]


@pytest.fixture
def place(case, exported, tmp_path, monkeypatch) -> Path:
    """A folder with a model and its rows as a table."""
    shutil.copytree(exported("factorized"), tmp_path / "models" / "123")
    raw = pa.table(case("factorized").raw)
    pq.write_table(raw, tmp_path / "rows.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def score(*arguments: str) -> dict:
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


def test_a_table(case, place, capfd):
    scores = score("rows.parquet")
    assert result(capfd) | {"seconds": 0} == {
        **{"rows": 90, "scored": 90, "rejected": 0, "reject_reasons": {}, "rejects_file": "", "seconds": 0},
        **{"learned": None, "learned_until": None},
        "model": str(Path("models/123")),
    }
    assert list(scores) == ["file", "row", "logit", "p"]
    assert scores["row"].tolist() == list(range(1, 91))
    assert set(scores["file"]) == {"rows.parquet"}
    np.testing.assert_allclose(scores["logit"], case("factorized").logit, rtol=0, atol=1e-5)


def test_no_column_is_needed_of_what_the_model_leaves_out(make_model_case, tmp_path, monkeypatch, capfd):
    # Without tags as such: their products with prices are still there.
    model = {**MODELS["plain"], "without": ["item", "title", "tags", "size"]}
    made = make_model_case(model, "float32", tmp_path / "run")
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
    del kept["tags"]
    pq.write_table(pa.table(kept), "rows.parquet")
    Path("scores.parquet").unlink()
    capfd.readouterr()
    assert "tags" in error_line(capfd, "rows.parquet")


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("suffix", ["jsonl", "csv", "tsv"])
def test_rows_are_scored_from_files_of_every_format(case, place, suffix):
    raw = case("factorized").raw
    path = place / f"rows.{suffix}"
    if suffix == "jsonl":
        rows = [dict(zip(raw, values, strict=True)) for values in zip(*raw.values(), strict=True)]
        for row in rows:
            row["price"] = None if row["price"] != row["price"] else row["price"]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        frame = pd.DataFrame({**raw, "tags": ["|".join(tags) for tags in raw["tags"]]})
        frame["class"] = frame["class"].astype("Int64")
        frame.to_csv(path, index=False, sep="," if suffix == "csv" else "\t")
    scores = score(path.name)
    np.testing.assert_allclose(scores["logit"], case("factorized").logit, rtol=0, atol=1e-5)


def test_several_files_in_order(case, place):
    raw = pa.table(case("factorized").raw)
    (place / "parts").mkdir()
    for part in range(3):
        pq.write_table(raw.slice(30 * part, 30), place / "parts" / f"part_{9 + part}.parquet")
    scores = score("parts/part_9.parquet", "parts/part_10.parquet", "parts/part_11.parquet")
    assert scores["file"].tolist() == [name for n in (9, 10, 11) for name in [f"part_{n}.parquet"] * 30]
    assert scores["row"].tolist() == list(range(1, 31)) * 3
    np.testing.assert_allclose(scores["logit"], case("factorized").logit, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_faulty_rows_are_set_aside(case, place, capfd):
    raw = {name: values[:6] for name, values in case("factorized").raw.items()}
    raw["tags"] = [["a"], ["b|c", "d"], [], ["e"], ["|"], []]
    raw["price"] = ["1", "2", "x", "4", "5", ""]
    pq.write_table(pa.table(raw), place / "faulty.parquet")
    scores = score("faulty.parquet")
    counts = result(capfd)
    assert (counts["rows"], counts["scored"], counts["rejected"]) == (6, 3, 3)
    assert counts["reject_reasons"] == {"tags: a value contains the separator": 2, "price: not a number": 1}
    assert scores["row"].tolist() == [1, 4, 6]
    found = [(reject["file"], reject["row"], reject["key"], reject["reason"]) for reject in rejects()]
    assert found == [
        ("faulty.parquet", 3, "price", "not a number"),
        ("faulty.parquet", 2, "tags", "a value contains the separator"),
        ("faulty.parquet", 5, "tags", "a value contains the separator"),
    ]
    # Another scoring to the same file takes the old rejects away.
    score("rows.parquet")
    assert not Path("scores.parquet.rejects.jsonl").exists()


def test_lines_that_cannot_be_read(place):
    header = b"user:id,class,price,tags,title,position,size\n"
    lines = [b"u1,1,1,a|b,Red,1,1\n", b"u1,2\n", b"u1,1,1,,\xff\xfe,1,1\n", b"u2,1,1,,,2,\n"]
    (place / "rows.csv").write_bytes(header + b"".join(lines))
    assert score("rows.csv")["row"].tolist() == [2, 5]
    assert [(reject["row"], reject["reason"]) for reject in rejects()] == [
        (3, "wrong number of fields"),
        (4, "invalid UTF-8"),
    ]


def test_no_rows_at_all(case, place):
    pq.write_table(pa.table(case("factorized").raw).slice(0, 0), place / "empty.parquet")
    scores = score("empty.parquet")
    assert list(scores) == ["file", "row", "logit", "p"]
    assert len(scores) == 0


def test_a_log(case, place, publish_rows, capfd):
    publish_rows(place / "log", case("factorized").table)
    scores = score("log")
    assert result(capfd)["scored"] == 90
    assert list(scores) == [*LOG_COLUMNS, "learned", "logit", "p"]
    for name in LOG_COLUMNS:
        np.testing.assert_array_equal(scores[name], case("factorized").table.column(name).to_numpy())
    assert scores["example_id"].tolist() == list(range(90))
    assert scores["query_id"].tolist() == [row // 3 for row in range(90)]
    np.testing.assert_allclose(scores["logit"], case("factorized").logit, rtol=0, atol=1e-5)


def test_a_part_of_a_log(case, place, publish_rows, capfd):
    table = case("factorized").table
    publish_rows(place / "log", table)
    times = table.column("query_time").to_numpy()
    begin, end = times[30], times[60]
    options = [
        f"--{name}={np.datetime64(int(time), 'us')}" for name, time in (("start", begin), ("end", end))
    ]
    scores = score("log", *options)
    inside = (times >= begin) & (times < end)
    assert 0 < inside.sum() < 90
    assert scores["example_id"].tolist() == np.flatnonzero(inside).tolist()
    np.testing.assert_allclose(scores["logit"], case("factorized").logit[inside], rtol=0, atol=1e-5)
    assert result(capfd)["rows"] == inside.sum()
    # The parts before, between and behind are all there is.
    parts = [
        score("log", options[1].replace("end", "start")),
        score("log", options[0].replace("start", "end")),
    ]
    assert sum(map(len, parts)) + len(scores) == 90


def publish_until(case, place, until: list[int] | None) -> None:
    """Puts a model in the place of the one there that has learned up to a query."""
    snapshot = case("factorized").snapshot
    progress = {**snapshot.progress, "position": {**snapshot.progress["position"], "learned_until": until}}
    shutil.rmtree(place / "models")
    publish(dataclasses.replace(snapshot, progress=progress), place / "models")


def test_rows_of_a_log_that_the_model_has_learned_from_are_marked(case, place, publish_rows, capfd):
    table = case("factorized").table
    rng = np.random.default_rng(4)
    labels = pa.array((rng.random(90) < 0.4).astype(np.int8))
    table = table.set_column(table.column_names.index("label"), "label", labels)
    publish_rows(place / "log", table)
    times, queries = (table.column(name).to_numpy() for name in ("query_time", "query_id"))
    publish_until(case, place, [int(times[29]), int(queries[29])])
    scores = score("log")
    assert scores["learned"].tolist() == [True] * 30 + [False] * 60
    assert result(capfd)["learned"] == 30
    assert main(["score", "models", "log", "--out", "scores.parquet"]) == 0
    assert "the model was trained on 30 of these rows" in capfd.readouterr().out
    assert main(["evaluate", "scores.parquet", "--json"]) == 0
    found = result(capfd)
    counts = {"learned_rows": 30, "new_rows": 60, "untold_rows": 0, "held_out": False}
    assert found["training"] == counts
    assert main(["evaluate", "scores.parquet"]) == 0
    assert "not held out: the model was trained on 30 of these 90 rows" in capfd.readouterr().out

    # Of the later rows the same as of these alone.
    pq.write_table(pq.read_table("scores.parquet").slice(30), "new.parquet")
    assert main(["evaluate", "new.parquet", "--json"]) == 0
    alone = result(capfd)
    assert alone["training"] == {"learned_rows": 0, "new_rows": 60, "untold_rows": 0, "held_out": True}
    assert found["new"] == {key: value for key, value in alone.items() if key != "training"}
    assert main(["evaluate", "scores.parquet", "--against", "scores.parquet", "--json"]) == 0
    compared = result(capfd)
    assert [compared[side]["training"] for side in ("a", "b")] == [counts, counts]


@pytest.mark.slow
def test_scores_of_a_log_are_measured(case, place, publish_rows, capfd):
    rng = np.random.default_rng(4)
    table = case("factorized").table
    columns = {
        "label": (rng.random(90) < 0.4).astype(np.int8),
        "metric_weight": rng.choice([0.0, 1.0, 2.5], 90).astype(np.float32),
    }
    for name, values in columns.items():
        place_of = table.schema.get_field_index(name)
        table = table.set_column(place_of, table.schema.field(place_of), pa.array(values))
    publish_rows(place / "log", table)
    score("log")
    capfd.readouterr()
    assert main(["evaluate", "scores.parquet", "--json"]) == 0
    found = result(capfd)
    label, weight = columns["label"], columns["metric_weight"].astype(float)
    logit = pd.read_parquet("scores.parquet")["logit"].to_numpy(float)
    p = 1 / (1 + np.exp(-logit))
    assert found["auc"] == pytest.approx(roc_auc_score(label, logit, sample_weight=weight), abs=1e-3)
    assert found["logloss"] == pytest.approx(log_loss(label, p, sample_weight=weight), rel=1e-9)
    clicks = (weight * label).sum()
    assert found["calibration_ratio"] == pytest.approx((weight * p).sum() / clicks, rel=1e-9)
    query, kept = np.arange(90) // 3, weight > 0
    by_query = [
        roc_auc_score(label[own], logit[own], sample_weight=weight[own])
        for own in (kept & (query == number) for number in range(30))
        if len(set(label[own])) == 2
    ]
    assert found["queries_scored"] == len(by_query)
    assert found["per_query_auc"] == pytest.approx(np.mean(by_query), rel=1e-9)
    low, high = found["calibration_ratio_ci95"]
    assert low < found["calibration_ratio"] < high

    # Another model's scores of the same rows are compared, paired.
    other = pq.read_table("scores.parquet")
    pq.write_table(other.set_column(7, "logit", pa.array(logit + 1.0)), "other.parquet")
    assert main(["evaluate", "other.parquet", "--against", "scores.parquet", "--json"]) == 0
    row = result(capfd)["metrics"]["calibration_ratio"]
    shifted = (weight / (1 + np.exp(-logit - 1.0))).sum() / clicks
    assert (row["a"], row["b"]) == pytest.approx((shifted, found["calibration_ratio"]), rel=1e-9)
    assert row["ci95"][0] < row["difference"] < row["ci95"][1]
    assert main(["evaluate", "other.parquet", "--against", "scores.parquet"]) == 0
    assert "predicted / actual clicks" in capfd.readouterr().out


def test_faulty_rows_of_a_log(case, place, publish_rows):
    table = case("factorized").table
    weights = table.column("train_weight").to_numpy().copy()
    weights[[7, 40]] = np.nan
    position = table.schema.get_field_index("train_weight")
    table = table.set_column(position, table.schema.field(position), pa.array(weights))
    publish_rows(place / "log", table)
    scores = score("log")
    assert scores["example_id"].tolist() == [row for row in range(90) if row not in (7, 40)]
    found = [(reject["row"], reject["example_id"], reject["query_id"]) for reject in rejects()]
    assert found == [(7, 7, 2), (40, 40, 13)]
    assert {reject["reason"] for reject in rejects()} == {"train_weight is negative, not finite or above 1e9"}


def test_a_mapping(case, place):
    """Columns of other names, one of them derived; labels and times are not needed."""
    raw = case("factorized").raw
    frame = pd.DataFrame({**raw, "tags": ["|".join(tags) for tags in raw["tags"]]})
    frame = frame.rename(columns={"title": "headline"})
    frame["class"] = frame["class"].astype("Int64")
    frame["impression"] = [f"i{row}" for row in range(len(frame))]
    frame.to_csv(place / "rows.csv", index=False)
    features = Scorer("models").metadata["schema"]["features"]
    mapping = {
        "input": {"type": "csv"},
        "time": {"column": "when", "unit": "s"},
        "label": "clicked",
        "example_id": "impression",
        "derive": {"title": {"from": "headline"}, "hour": {"from": "time", "part": "hour"}},
        "partition": "1d",
        "features": [{"name": "user", "kind": "category", "source": "user:id", "buckets": 9}],
    }
    (place / "mapping.yaml").write_text(json.dumps(mapping))
    assert {feature["name"] for feature in features} >= {"title", "position_x_user"}
    scores = score("rows.csv", "--mapping", "mapping.yaml")
    assert list(scores) == ["file", "row", "example_id", "logit", "p"]
    assert scores["example_id"].is_unique
    np.testing.assert_allclose(scores["logit"], case("factorized").logit, rtol=0, atol=1e-5)


def labeled_rows(case, place, **keys) -> None:
    """rows.csv with labels, weights, queries and times, and mapping.yaml, which says where they are."""
    rng = np.random.default_rng(5)
    raw = case("factorized").raw
    frame = pd.DataFrame({**raw, "tags": ["|".join(tags) for tags in raw["tags"]]})
    frame["class"] = frame["class"].astype("Int64")
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
        "partition": "1d",
        "features": [{"name": "user", "kind": "category", "source": "user:id", "buckets": 9}],
        **keys,
    }
    (place / "mapping.yaml").write_text(json.dumps(mapping))


def test_columns_of_other_names_name_the_mapping(case, place, capfd):
    (place / "rows.csv").write_text("who\nu1\n")
    assert "--mapping FILE says which columns" in error_line(capfd, "rows.csv")


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("keys", [{}, {"query": None}, {"example_id": "when"}])
def test_labels_are_those_of_an_ingest_of_the_same_files(case, place, keys, capfd):
    labeled_rows(case, place, **keys)
    scores = score("rows.csv", "--mapping", "mapping.yaml", "--labels")
    names = ["query_id", "example_id", "label", "train_weight", "metric_weight"]
    assert list(scores) == ["file", "row", *names, "learned", "logit", "p"]
    np.testing.assert_allclose(scores["logit"], case("factorized").logit, rtol=0, atol=1e-5)
    assert main(["ingest", "table", "rows.csv", "--mapping", "mapping.yaml", "--out", "ingested"]) == 0
    parts = [read_shards(path) for path in sorted(Path("ingested/shards").iterdir())]
    log = pd.concat(parts).set_index("example_id")
    assert log.index.is_unique and len(log) == 90
    for name in names:
        if name != "example_id":
            np.testing.assert_array_equal(scores[name], log.loc[scores["example_id"], name])
    capfd.readouterr()
    assert main(["evaluate", "scores.parquet", "--json"]) == 0
    assert result(capfd)["weight_sum"] == pytest.approx(scores["metric_weight"].sum())


def test_raw_rows_that_the_model_has_learned_from_are_marked(case, place, capfd):
    labeled_rows(case, place)
    publish_until(case, place, [(1_500_000_000 + 39) * 1_000_000, 7])
    scores = score("rows.csv", "--mapping", "mapping.yaml", "--labels")
    assert scores["learned"].tolist() == [True] * 40 + [False] * 50
    assert result(capfd)["learned"] == 40

    # The number of a row in its file says nothing about what the model has seen.
    labeled_rows(case, place, time={"row_order": {"start": "2017-01-01", "step_us": 1_000_000}})
    scores = score("rows.csv", "--mapping", "mapping.yaml", "--labels")
    assert scores["learned"].isna().all()
    assert result(capfd)["learned"] is None
    assert main(["evaluate", "scores.parquet"]) == 0
    assert "the model may have been trained on them" in capfd.readouterr().out


def read_shards(path: Path) -> pd.DataFrame:
    columns = ["query_id", "example_id", "label", "train_weight", "metric_weight"]
    return pq.ParquetFile(path).read(columns).to_pandas()


@pytest.mark.slow
def test_a_row_without_a_label_is_set_aside_where_labels_are_asked_for(case, place):
    labeled_rows(case, place)
    lines = (place / "rows.csv").read_text().splitlines()
    header = lines[0].split(",")
    cells = lines[5].split(",")
    cells[header.index("clicked")] = ""
    lines[5] = ",".join(cells)
    (place / "rows.csv").write_text("\n".join(lines) + "\n")
    assert len(score("rows.csv", "--mapping", "mapping.yaml")) == 90
    assert len(score("rows.csv", "--mapping", "mapping.yaml", "--labels")) == 89
    assert [(one["row"], one["key"], one["reason"]) for one in rejects()] == [(6, "label", "missing")]


class TestRefusals:
    def test_labels_without_a_mapping(self, place, make_rows_log, capfd):
        make_rows_log(place / "log", 9)
        for given in ("log", "rows.parquet"):
            assert "--labels goes with --format or --mapping" in error_line(capfd, given, "--labels")

    def test_labels_of_sessions(self, case, place, capfd):
        labeled_rows(case, place, query={"session": {"by": "request", "gap": "1h"}})
        line = error_line(capfd, "rows.csv", "--mapping", "mapping.yaml", "--labels")
        assert "the queries of the mapping are sessions" in line

    def test_a_file_without_the_label(self, case, place, capfd):
        labeled_rows(case, place, label="bought")
        line = error_line(capfd, "rows.csv", "--mapping", "mapping.yaml", "--labels")
        assert "rows.csv: no column bought" in line

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (
                ["--start", "soon"],
                "start: 'soon' is not allowed: an ISO date or datetime is required, e.g. 2026-01-31",
            ),
            (["--start", "2026-01-02", "--end", "2026-01-02"], "must be before end"),
            (["--start", "2100-01-01"], "log: no partition of the log overlaps --start and --end; it has "),
        ],
    )
    def test_times_that_are_none_or_not_of_the_log(self, case, place, publish_rows, capfd, options, words):
        publish_rows(place / "log", case("factorized").table)
        assert words in error_line(capfd, "log", *options)

    def test_times_of_raw_rows(self, place, capfd):
        words = "--start and --end go with an example log: raw rows are scored whole"
        assert words in error_line(capfd, "rows.parquet", "--start", "2026-01-01")

    def test_a_log_of_other_features(self, place, make_rows_log, capfd):
        make_rows_log(place / "log", 9, first_features=6)
        line = error_line(capfd, "log")
        assert "the log has the features of schema" in line
        assert "both must have the same" in line

    def test_a_log_with_other_inputs(self, place, make_rows_log, capfd):
        for name in ("log", "other"):
            make_rows_log(place / name, 9)
        words = "input log: an example log is scored alone"
        for inputs in (["log", "other"], ["log", "rows.parquet"], ["rows.parquet", "log"]):
            assert words in error_line(capfd, *inputs)

    def test_files_of_different_types(self, place, capfd):
        for name in ("a.csv", "b.jsonl", "c.csv.gz"):
            (place / name).write_text("")
        words = "input b.jsonl: a jsonl file after a.csv, a csv file: all must be of one type"
        assert words in error_line(capfd, "a.csv", "c.csv.gz", "b.jsonl")

    def test_a_missing_column(self, case, place, capfd):
        raw = pa.table(case("factorized").raw).drop_columns(["price"])
        pq.write_table(raw, place / "rows.parquet")
        assert "rows.parquet: no column price; the columns found are user:id, class" in error_line(
            capfd, "rows.parquet"
        )

    @pytest.mark.parametrize(
        ("column", "values", "words"),
        [
            ("class", [{"x": 1}] * 90, "the column class is of type struct"),
            ("class", [["a"]] * 90, "the column class holds lists"),
            ("price", [["a"]] * 90, "the column price is of type list"),
        ],
    )
    def test_a_column_of_another_type(self, case, place, capfd, column, values, words):
        raw = {**case("factorized").raw, column: values}
        pq.write_table(pa.table(raw), place / "rows.parquet")
        assert words in error_line(capfd, "rows.parquet")

    def test_what_is_no_input(self, place, capfd):
        (place / "rows.txt").write_text("x")
        assert "its name does not show its format; allowed: .csv" in error_line(capfd, "rows.txt")
        assert "nothing.csv: no such file or folder" in error_line(capfd, "nothing.csv")

    def test_a_damaged_file(self, place, capfd):
        content = (place / "rows.parquet").read_bytes()
        (place / "rows.parquet").write_bytes(content[: len(content) // 2])
        assert "damaged, truncated or not of this format" in error_line(capfd, "rows.parquet")

    @pytest.mark.parametrize(
        ("out", "words"),
        [
            ("rows.parquet", "--out rows.parquet: this is a file of the input rows.parquet"),
            ("parts/../rows.parquet", "a file of the input rows.parquet"),
            ("link.parquet", "a file of the input rows.parquet"),
            ("parts/a.parquet", "--out parts/a.parquet: this is a file of the input parts"),
            ("parts", "parts: is a directory; allowed: a new file, or predictions of ctr score to replace"),
        ],
    )
    def test_an_output_that_is_an_input_or_a_folder(self, place, capfd, out, words):
        (place / "parts").mkdir()
        shutil.copy("rows.parquet", "parts/a.parquet")
        (place / "link.parquet").symlink_to("rows.parquet")
        before = Path("rows.parquet").read_bytes()
        shutil.rmtree("models")  # What is refused is refused before the model is read.
        assert main(["score", "models", "rows.parquet", "parts", "--out", out]) == 1
        error = capfd.readouterr().err
        assert words in error
        assert len(error.splitlines()) == 1
        assert Path("rows.parquet").read_bytes() == Path("parts/a.parquet").read_bytes() == before

    def test_no_model(self, place, capfd):
        shutil.rmtree("models")
        assert "models: neither an exported model" in error_line(capfd, "rows.parquet")

    def test_format_and_mapping_exclude_each_other(self, place, capfd):
        with pytest.raises(SystemExit) as end:
            main(["score", "models", "x", "--out", "o", "--format", "mind", "--mapping", "m"])
        assert end.value.code == 2
        assert "not allowed with argument" in capfd.readouterr().err


@pytest.mark.slow
def test_export_says_what_it_made(make_rows_log, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    make_rows_log(tmp_path / "log", 60)
    Path("run.yaml").write_text("{batch: {rows: 32}, model: {crosses: {layers: 0}, deep: {units: []}}}")
    assert main(["train", "log", "--config", "run.yaml", "--out", "run"]) == 0
    capfd.readouterr()
    assert main(["export", "run", "--out", "models"]) == 0
    printed = capfd.readouterr().out
    assert printed.startswith("models/60\n\n# Calls of this model\n")
    assert "localhost:8501/v1/models/models:predict" in printed and 'Scorer("models")' in printed
    assert main(["export", "run", "--out", "models", "--json"]) == 0
    again = json.loads(capfd.readouterr().out)
    assert (again["model"], again["made"], again["position"]["examples"]) == ("models/60", False, 60)
    assert main(["export", "run", "--out", "models", "--checkpoint", "7"]) == 1
    assert capfd.readouterr().err == "error: run/checkpoints: there is no checkpoint 7; there are 60\n"
