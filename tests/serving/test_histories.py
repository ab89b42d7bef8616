"""Models of histories: the server sends the list, and a log of listens is held out by day."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr.cli import main
from ctr.config import parse_model
from ctr.data.log import read_manifests, read_schema
from ctr.data.reader import rows_of_table
from ctr.data.schema import Schema
from ctr.pipelines.evaluate.run import evaluate
from ctr.serving.export import publish
from ctr.serving.scorer import Scorer
from log_files import rows_of
from model_cases import make_case, packed_ids

HISTORY = {"by": "user", "of": "item", "after": "10m", "last": 5}
SCHEMA = parse_model(
    Schema,
    {
        "features": [
            {"name": "user", "kind": "category", "source": "user"},
            {"name": "item", "kind": "category", "source": "item", "buckets": 30, "width": 4},
            {"name": "liked", "kind": "category", "buckets": 30, "width": 4, "history": HISTORY},
        ]
    },
    "test",
)
MODEL = {"crosses": {"layers": 1, "rank": 3}, "deep": {"units": [8]}, "prior": 0.2, "init_scale": 1.0}
ROWS = 60


@pytest.mark.slow
def test_predictions_are_the_trainers(tmp_path):
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 6, ROWS)
    raw = {
        "user": [f"u{n}" for n in rng.integers(0, 9, ROWS)],
        "item": [f"i{n}" for n in rng.integers(0, 20, ROWS)],
        "liked": [[f"i{n}" for n in rng.integers(0, 20, size)] for size in sizes],
    }
    case = make_case(
        {**MODEL, "pooling": {"liked": "target"}, "without": ["user"]},
        "float32",
        tmp_path / "run",
        schema=SCHEMA,
        raw=raw,
    )
    scorer = Scorer(publish(case.snapshot, tmp_path / "models").path)
    given = {name: values for name, values in raw.items() if name != "user"}
    np.testing.assert_allclose(scorer.score(given)["logit"], case.logit, rtol=0, atol=1e-5)


def write_listens(path, rows=4000, days=6):
    """Listens of users, who like every fourth item."""
    rng = np.random.default_rng(0)
    seconds = np.sort(rng.integers(0, days * 86_400 // 5, rows)) * 5
    user, item = rng.integers(0, 40, rows), rng.integers(0, 40, rows)
    whole = rng.random(rows) < np.where(item % 4, 0.2, 0.9)
    columns = {
        "uid": user.astype(np.uint32),
        "timestamp": seconds.astype(np.uint32),
        "item_id": item.astype(np.uint32),
        "is_organic": rng.integers(0, 2, rows).astype(np.uint8),
        "played_ratio_pct": np.where(whole, 100, 10).astype(np.uint16),
        "track_length_seconds": rng.integers(60, 400, rows).astype(np.uint32),
    }
    pq.write_table(pa.table(columns), path)


@pytest.mark.slow
def test_listens_are_held_out_by_day(tmp_path, capsys):
    write_listens(tmp_path / "listens.parquet")
    log, run, scores = (str(tmp_path / name) for name in ("log", "run", "scores.parquet"))
    changes = [
        "time_range.end=1970-01-05",
        "batch.rows=64",
        "batch.growth=null",
        "model.experts=[linear,network,pairs]",
        "model.pooling.liked=target",
    ]
    assert main(["ingest", "yambda", str(tmp_path), "--out", log]) == 0
    assert main(["train", log, "--out", run, *(part for one in changes for part in ("--set", one))]) == 0
    assert main(["export", run, "--out", str(tmp_path / "models")]) == 0
    assert main(["score", str(tmp_path / "models"), log, "--start", "1970-01-05", "--out", scores]) == 0
    capsys.readouterr()
    assert main(["evaluate", scores, "--by-day"]) == 0
    text = capsys.readouterr().out
    assert "held out: the model was trained on none of these rows" in text
    days = evaluate([tmp_path / "scores.parquet"], by_day=True)["days"]
    assert [*days] == ["1970-01-05", "1970-01-06"] and all(day in text for day in days)
    assert all(one["auc"] > 0.6 for one in days.values())
    # With pairs among the experts, too, a few rows are scored as all of them are.
    schema, scorer = read_schema(tmp_path / "log"), Scorer(tmp_path / "models")
    manifest = read_manifests(tmp_path / "log")[-1]
    rows = rows_of_table(rows_of(tmp_path / "log", manifest), schema, 0)
    expected = dict(
        zip(*(pq.read_table(scores)[name].to_pylist() for name in ("example_id", "logit")), strict=True)
    )
    for begin in range(0, 40, 4):
        part = rows.slice(begin, begin + 4)
        logits = scorer.score_ids(packed_ids(part))["logit"]
        np.testing.assert_allclose(logits, [expected[one] for one in part.example_id.tolist()], atol=1e-5)
