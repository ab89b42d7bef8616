"""What ``import ctr`` offers: the results of the commands, for paths and for frames; predictions of any model."""

import doctest
import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import log_loss, roc_auc_score

import ctr
import ctr.api
from ctr.cli import main
from ctr.io.errors import InputError
from ctr.training.run.summary import TIMING

NAMES = ["Scorer", "compare", "evaluate", "export", "ingest", "optim", "report", "train"]


def table_of_clicks(rows: int = 400) -> pa.Table:
    random = np.random.default_rng(3)
    ad, page = random.integers(0, 9, rows), random.integers(0, 120, rows)
    clicked = random.random(rows) < 0.1 + 0.08 * ad
    return pa.table(
        {
            "clicked": pa.array(clicked.astype(int)),
            "ad": pa.array([f"a{one}" for one in ad]),
            "page": pa.array([f"p{one}" for one in page]),
            "price": pa.array(random.random(rows)),
        }
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a table and the log that ``ctr quickstart`` and ``ctr ingest`` make of it."""
    folder = tmp_path_factory.mktemp("api")
    pq.write_table(table_of_clicks(), folder / "frame.parquet")
    given = f"quickstart {folder}/frame.parquet --label clicked --query page --drop price --out {folder}/q --dry-run"
    assert main(given.split()) == 0
    given = f"ingest table {folder}/frame.parquet --mapping {folder}/q/mapping.yaml --out {folder}/log"
    assert main(given.split()) == 0
    return folder


def shards(log: Path) -> dict[str, bytes]:
    return {path.relative_to(log).as_posix(): path.read_bytes() for path in log.glob("shards/**/*.parquet")}


def test_importing_loads_nothing_and_shows_what_there_is(fresh_python, root, tmp_path):
    code = (
        "import sys, ctr\n"
        "print(*dir(ctr))\n"
        "print(sorted({'tensorflow', 'pandas', 'pyarrow', 'numpy', 'click'} & set(sys.modules)))\n"
        "try: ctr.nothing\n"
        "except AttributeError as error: print(error)"
    )
    lines = fresh_python("-c", code, cwd=tmp_path, path=root).stdout.splitlines()
    assert lines == [" ".join(NAMES), "[]", "module 'ctr' has no attribute 'nothing'"]
    assert all(callable(getattr(ctr, name)) for name in NAMES if name != "optim")
    assert ctr.optim.__name__ == "ctr.optim"


class Stream:
    """A frame that gives its columns by Arrow's PyCapsule interface and is of no package that is known."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def frames() -> dict[str, object]:
    table = table_of_clicks()
    pandas = table.to_pandas()
    # The index is no column, whatever it is.
    pandas.index = pandas.index[::-1]
    found = {"pandas": pandas, "Arrow": table, "any other": Stream(table)}
    try:
        import polars
    except ModuleNotFoundError:
        return found
    return {**found, "polars": polars.from_arrow(table)}


@pytest.mark.parametrize("kind", [*frames(), "path"])
def test_a_log_of_a_frame_is_that_of_the_commands(place, tmp_path, kind):
    table = place / "frame.parquet" if kind == "path" else frames()[kind]
    roles = {"label": "clicked", "query": "page", "drop": ["price"]}
    by_roles = ctr.ingest(table, tmp_path / "a", **roles)
    by_file = ctr.ingest(table, tmp_path / "b", mapping=place / "q/mapping.yaml")
    assert by_roles["examples"] == by_file["examples"] == 400 and "mapping" not in by_file
    expected = shards(place / "log")
    assert expected and shards(tmp_path / "a") == shards(tmp_path / "b") == expected
    assert by_roles["mapping"] == (place / "q/mapping.yaml").read_text()


def test_tables_and_roles_that_cannot_be_are_refused(place, tmp_path):
    table = table_of_clicks()
    for given, roles, message in (
        (table, {}, r"^the table: --label is required: .*clicked"),
        (
            table,
            {"label": "click"},
            "--label click: no such column; the columns are clicked, ad, page, price",
        ),
        (table, {"label": "clicked", "mapping": {}}, "do not go with it"),
        (table, {"mapping": {"label": "clicked"}}, r"^mapping: input: missing; "),
        ([1], {"label": "clicked"}, "^list is no table; allowed: a path, and a frame of pandas, polars or"),
        (place / "no.csv", {"label": "clicked"}, "no.csv: no such file"),
    ):
        with pytest.raises(InputError, match=message):
            ctr.ingest(given, tmp_path / "log", **roles)
    assert not (tmp_path / "log").exists()


@pytest.mark.slow
def test_runs_reports_and_models_are_those_of_the_commands(place, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keys = {"model": {"experts": ["linear"]}}
    Path("run.yaml").write_text(json.dumps(keys))
    log = Path("log")
    log.symlink_to(place / "log")
    assert main(shlex.split(f"train {log} --config run.yaml --out a --json")) == 0
    by_command = json.loads(capfd.readouterr().out)
    summary = ctr.train(log, "b", keys)
    assert {key: value for key, value in summary.items() if key not in TIMING} == {
        key: value for key, value in by_command.items() if key not in TIMING
    }
    # The same call again is the run as it is.
    assert ctr.train(log, "b", "run.yaml") == summary
    assert main(["compare", "a", "b", "--json"]) == 0
    assert ctr.compare("a", "b") == json.loads(capfd.readouterr().out)
    assert ctr.report("b") == Path("b/report.html") and Path("b/report.html").stat().st_size > 0
    assert main(["export", "a", "--out", "exports"]) == 0
    version = ctr.export("b", "others")
    ads = {"ad": ["a1", "a8"], "page": ["p1", "p2"]}
    predictions = [ctr.Scorer(folder).predict(ads) for folder in ("exports", version)]
    np.testing.assert_array_equal(*predictions)
    # The examples train the same run.
    shutil.copytree("b", "run")
    examples = doctest.testmod(ctr.api, extraglobs={"ctr": ctr})
    assert examples.failed == 0 and examples.attempted == 10


# ---------------------------------------------------------------- predictions of any model


def predictions_of(seed: int, rows: int = 500) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    p = random.random(rows)
    return pd.DataFrame(
        {
            "y": (random.random(rows) < p).astype(int),
            "p": p,
            "w": random.integers(1, 4, rows),
            "page": [f"page {one}" for one in random.integers(0, 80, rows)],
            "country": random.choice(["de", "fr", None], rows),
        }
    )


def test_metrics_are_those_of_independent_computations():
    frame = predictions_of(1)
    found = ctr.evaluate(frame, label="y", prediction="p", query="page", weight="w", slice="country")
    weights = {"sample_weight": frame.w}
    assert found["examples"] == 500 and found["queries"] == frame.page.nunique()
    assert found["auc"] == pytest.approx(roc_auc_score(frame.y, frame.p, **weights), abs=1e-3)
    assert found["logloss"] == pytest.approx(log_loss(frame.y, frame.p, **weights))
    base_rate = np.full(len(frame), np.average(frame.y, weights=frame.w))
    entropy = log_loss(frame.y, base_rate, **weights)
    assert found["normalized_entropy"] == pytest.approx(found["logloss"] / entropy)
    ratio = (frame.p * frame.w).sum() / (frame.y * frame.w).sum()
    assert found["calibration_ratio"] == pytest.approx(ratio)
    pages = [
        roc_auc_score(page.y, page.p, sample_weight=page.w)
        for _, page in frame.groupby("page")
        if page.y.nunique() == 2
    ]
    assert found["per_query_auc"] == pytest.approx(np.mean(pages))
    low, high = found["per_query_auc_ci95"]
    assert low < found["per_query_auc"] < high
    slices = found["calibration_slices"]["country"]["heaviest"]
    assert {row["id"] for row in slices} == {"de", "fr", "(none)"}
    (france,) = (row for row in slices if row["id"] == "fr")
    part = frame[frame.country == "fr"]
    assert france["logloss"] == pytest.approx(log_loss(part.y, part.p, sample_weight=part.w))


def test_files_frames_probabilities_and_logits_give_the_same(tmp_path, capfd):
    frame = predictions_of(2).assign(z=lambda table: np.log(table.p) - np.log1p(-table.p))
    frame["number"] = frame.page.str.removeprefix("page ").astype(int)
    frame.to_csv(tmp_path / "p.csv", index=False)
    frame.to_csv(tmp_path / "p.tsv.gz", index=False, sep="\t")
    frame.to_parquet(tmp_path / "p.parquet")
    columns = {"label": "y", "query": "page", "weight": "w", "slice": ["country"]}
    expected = ctr.evaluate(frame, prediction="p", **columns)
    for source in (*(tmp_path / f"p.{kind}" for kind in ("csv", "tsv.gz", "parquet")), pa.table(frame)):
        assert ctr.evaluate(source, prediction="p", **columns) == expected
    assert ctr.evaluate(frame, logit="z", **columns)["logloss"] == expected["logloss"]
    options = "--label y --prediction p --query page --weight w --slice country"
    assert main(["evaluate", str(tmp_path / "p.csv"), *options.split(), "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == expected
    assert main(["evaluate", str(tmp_path / "p.csv"), *options.split()]) == 0
    out = capfd.readouterr().out
    assert out.startswith("500 examples, ") and "\ncountry  " in out and "\n(none)  " in out
    # Queries may be numbers; then these are the ids.
    numbers = ctr.evaluate(frame, label="y", prediction="p", query="number")
    texts = ctr.evaluate(frame, label="y", prediction="p", query="page")
    assert numbers["per_query_auc"] == pytest.approx(texts["per_query_auc"])
    # Without queries each row is its own.
    assert ctr.evaluate(frame, label="y", prediction="p")["per_query_auc"] is None


def test_two_models_are_compared_row_by_row(tmp_path, capfd):
    a = predictions_of(3)
    b = a.assign(p=np.clip(0.5 * a.p + 0.2, 0, 1))
    for name, frame in (("a", a), ("b", b)):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    columns = {"label": "y", "prediction": "p", "query": "page"}
    found = ctr.evaluate(a, against=b, **columns)
    difference = np.mean(2 * (a.p - b.p).abs() / (a.p + b.p))
    assert found["prediction_difference"]["value"] == pytest.approx(difference)
    loss = log_loss(b.y, b.p) - log_loss(a.y, a.p)
    assert found["metrics"]["logloss"]["difference"] == pytest.approx(loss)
    low, high = found["metrics"]["logloss"]["ci95"]
    assert low < loss < high
    words = ["evaluate", str(tmp_path / "a.csv"), "--against", str(tmp_path / "b.csv")]
    words += ["--label", "y", "--prediction", "p", "--query", "page"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["metrics"] == found["metrics"]
    assert main(words) == 0
    assert "prediction difference: " in capfd.readouterr().out
    for other, message in (
        (b[::-1], "row 1: label, weight or query is not"),
        (b[:9], "has 500 rows, the table 9"),
    ):
        with pytest.raises(InputError, match=f"{message}.*; allowed: the same rows in the same order"):
            ctr.evaluate(a, against=other, **columns)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": "z", "query": "pagee"}, "no column z, pagee; the columns are y, p, w, page, country"),
        ({"prediction": None}, "one of prediction, probabilities from 0 to 1, and logit is required"),
        ({"label": "p"}, r"the table row 1: p is 0\.\d+; allowed: 0 or 1"),
        ({"prediction": "w"}, r"the table row \d+: w is [23]; allowed: probabilities from 0 to 1"),
        ({"query": "country"}, r"the table row \d+: country has no value; allowed: a value in every row"),
    ],
)
def test_wrong_columns_and_values_are_named(changes, message):
    with pytest.raises(InputError, match=message):
        ctr.evaluate(predictions_of(4), **{"label": "y", "prediction": "p", "query": "page", **changes})


def test_options_of_other_predictions_need_a_label(tmp_path, capfd):
    for words, message in (
        ("a.csv --prediction p --query q", "--prediction, --query: --label is required, too"),
        ("a.csv b.csv --label y --prediction p", "--label is of one file"),
        ("a.csv --label y --prediction p --by-day", "--by-day and --beam-options do not go with it"),
        ("no.csv --label y --prediction p", "no.csv: no such file; allowed: a CSV, TSV or Parquet file"),
    ):
        assert main(["evaluate", *words.split()]) == 1
        assert message in capfd.readouterr().err
