"""Models of histories: the server sends the list."""

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.data.schema import Schema
from ctr.serving.export import publish
from ctr.serving.scorer import Scorer
from model_cases import make_case

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
