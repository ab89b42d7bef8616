"""A page's size, from a table of pages to predictions: every way to score a page gives what the run predicted for it.

Of each page one row is clicked, at random: only how many rows it has tells rows apart.
"""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml

from ctr.cli import main
from ctr.config import parse_model
from ctr.data.log import read_manifests, read_schema
from ctr.data.reader import join_rows, read_rows
from ctr.data.shards import read_shard
from ctr.io.errors import InputError
from ctr.serving.score import score_rows
from ctr.serving.scorer import Scorer
from ctr.training.config import TrainConfig
from ctr.training.session import open_session, train

PAGES = 500
MAPPING = {
    "input": {"type": "csv"},
    "time": {"column": "time", "unit": "s"},
    "query": {"column": "page"},
    "example_id": "example",
    "label": "click",
    "partition": "1h",
    "features": [
        {"name": "user", "kind": "category", "source": "user", "buckets": 20},
        {"name": "place", "kind": "category", "source": "place", "buckets": 8, "tower": "ui"},
    ],
}
SMALL = {"deep": {"units": [8]}, "crosses": {"layers": 1, "rank": 2}}
CONFIG = {"batch": {"rows": 300}, "model": SMALL, "compute_dtype": "float32"}
CONFIG |= {"checkpoint": {"every_examples": 1, "keep": 99}}


def draw_pages() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    sizes = np.minimum(2 + rng.geometric(0.1, PAGES), 60)
    page = np.repeat(np.arange(PAGES), sizes)
    rows = pd.DataFrame({"page": page, "time": 1_600_000_000 + 20 * page, "example": np.arange(len(page))})
    rows["click"] = 0
    rows.loc[rows.groupby("page").sample(1, random_state=1).index, "click"] = 1
    rows["user"], rows["place"] = rng.integers(0, 15, len(page)), rng.integers(0, 6, len(page))
    # The first partition, which decides, has pages alone. Then there are sessions, too.
    rows["time"] += rows.groupby("page").cumcount() * ((page > 200) & (page % 9 == 4))
    return rows


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> SimpleNamespace:
    """The table in two files, its rows in no order, and their log."""
    folder = tmp_path_factory.mktemp("pages")
    rows = draw_pages()
    mixed = rows.sample(frac=1, random_state=2)
    files = [folder / "a.csv", folder / "b.csv"]
    for file, part in zip(files, (mixed[::2], mixed[1::2]), strict=True):
        part.to_csv(file, index=False)
    (folder / "mapping.yaml").write_text(yaml.safe_dump(MAPPING))
    mapping = ["--mapping", str(folder / "mapping.yaml")]
    assert main(["ingest", "table", *map(str, files), *mapping, "--out", str(folder / "log"), "--quiet"]) == 0
    given = [*map(str, files), *mapping]
    return SimpleNamespace(rows=rows, files=files, given=given, log=folder / "log", folder=folder)


def configured(**changes) -> TrainConfig:
    return parse_model(TrainConfig, {**CONFIG, **changes}, "test")


@pytest.fixture(scope="module")
def run(made) -> SimpleNamespace:
    """A run, and the export of its checkpoint before the batch ``part`` of its predictions."""
    folder = made.folder / "run"
    summary = train(made.log, configured(), folder)
    begin, end = sorted(int(path.name) for path in (folder / "checkpoints").iterdir())[-3:-1]
    export = ["export", str(folder), "--out", str(made.folder / "models"), "--checkpoint", str(begin)]
    assert main([*export, "--quiet"]) == 0
    parts = [pd.read_parquet(path) for path in sorted((folder / "predictions").iterdir())]
    found = pd.concat(parts).iloc[begin:end].set_index("example_id")["logit"]
    assert len(found) > 200 and found.std() > 0.1
    return SimpleNamespace(
        folder=folder, summary=summary, model=made.folder / "models" / str(begin), part=found
    )


def check(found: pd.Series, expected: pd.Series, tolerance: float = 2e-6) -> None:
    np.testing.assert_allclose(found[expected.index], expected, rtol=0, atol=tolerance)


@pytest.mark.slow
def test_it_is_a_feature_by_itself(run):
    # Without it nothing tells rows apart.
    assert run.summary["auc"] > 0.65
    found = yaml.safe_load((run.folder / "config.yaml").read_text())["model"]
    assert found["query_size"] is True and found["widths"]["query_size"] == 8
    slices = run.summary["calibration_slices"]["query_size"]
    assert 10 < slices["slices"] <= 20
    assert main(["report", str(run.folder)]) == 0
    page = (run.folder / "report.html").read_text()
    assert '<th scope="row">query_size</th>' in page


@pytest.mark.slow
def test_scores_of_logs_with_and_without_labels_are_the_runs(made, run):
    out, unlabeled = made.folder / "scores.parquet", made.folder / "unlabeled"
    ingest = ["ingest", "table", *made.given, "--without-labels", "--out", str(unlabeled), "--quiet"]
    assert main(ingest) == 0
    for log in (made.log, unlabeled):
        assert main(["score", str(run.model), str(log), "--out", str(out), "--quiet"]) == 0
        check(pd.read_parquet(out).set_index("example_id")["logit"], run.part, 1e-5)


@pytest.mark.slow
def test_scores_of_pages_and_of_rows_in_a_process_are_the_runs(made, run):
    scorer = Scorer(run.model)
    # An export asks for it by its name.
    request = scorer.metadata["requests"]["inputs"]["query_size"]
    assert request["dtype"] == "float32" and "rows of its query" in request["meaning"]
    asked = made.rows[made.rows["example"].isin(run.part.index)]
    logit = {}
    # A page of up to eight rows is scored in NumPy, others in TensorFlow.
    for _, page in asked.groupby("page"):
        columns = {name: page[name].astype(str).tolist() for name in ("user", "place")}
        size = len(page) if page["time"].nunique() == 1 else None
        found = scorer.score({**columns, "query_size": size})["logit"]
        logit |= dict(zip(page["example"], found, strict=True))
    check(pd.Series(logit), run.part, 1e-5)
    with pytest.raises(InputError, match="query_size"):
        scorer.predict({"user": "1", "place": "2"})
    schema, manifests = read_schema(made.log), read_manifests(made.log)
    rows = join_rows(list(read_rows(made.log, schema, manifests)))
    check(pd.Series(score_rows(scorer, rows), rows.example_id), run.part, 1e-5)
    # The trainer's own, at its last position.
    with open_session(made.log, configured(), run.folder) as session:
        expected = pd.Series(session.score(rows), rows.example_id)
        for shard in (read_shard(made.log, one, schema) for part in manifests for one in part.shards):
            check(expected, pd.Series(session.score(shard), shard["example_id"].to_numpy()))
        counted = join_rows(list(read_rows(made.log, session.inputs.schema, manifests)))
        some = counted.keep(np.arange(len(counted)) % 3 == 0)
        check(expected, pd.Series(session.score(some), some.example_id))
    assert main(["export", str(run.folder), "--out", str(made.folder / "last"), "--quiet"]) == 0
    last = score_rows(Scorer(made.folder / "last"), rows)
    check(pd.Series(last, rows.example_id), expected, 1e-5)


@pytest.mark.soak
def test_a_page_is_context_and_no_part_of_quality(made):
    for number, chosen in enumerate((None, ["place"])):
        model = {**SMALL, "factorized": {"width": 4, "ui_features": chosen}}
        folder = made.folder / f"factorized-{number}"
        train(made.log, configured(model=model), folder)
        assert main(["export", str(folder), "--out", str(folder / "models"), "--quiet"]) == 0
        scorer = Scorer(folder / "models")
        columns = {"user": ["1", "2"], "place": ["3", "4"], "query_size": [2, 40]}
        q = scorer.quality({"user": ["1", "2"]})
        u = scorer.ui({name: columns[name] for name in list(columns)[1:]})
        np.testing.assert_allclose(scorer.combine(q, u), scorer.predict(columns), rtol=1e-5)
    model = {**SMALL, "factorized": {"ui_features": []}}
    with pytest.raises(InputError, match="no feature with a width above 0 is in the tower ui"):
        train(made.log, configured(model=model), made.folder / "no-tower")
