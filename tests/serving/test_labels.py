"""Further labels of exported models: the probabilities of the trainer."""

import numpy as np
import pandas as pd
import pytest

from ctr.data.log import create_log
from ctr.data.shards import publish_partition, sort_rows
from ctr.eval.arrays import sigmoid
from ctr.serving.export import publish
from ctr.serving.score import score_log
from ctr.serving.scorer import Scorer
from model_cases import MODELS, SCHEMA, make_case
from small_runs import labeled

LABELS: dict[str, dict[str, str]] = {name: {} for name in ("sale", "u", "x_head")}


@pytest.fixture(scope="module", params=["all experts", pytest.param("ensemble", marks=pytest.mark.slow)])
def model(request, tmp_path_factory):
    """A model and its export; names of labels that end as those of layers do."""
    folder = tmp_path_factory.mktemp("labels")
    case = make_case(MODELS[request.param], "float32", folder / "run", labels=LABELS)
    return case, publish(case.snapshot, folder / "models").path


def test_an_export_predicts_what_the_trainer_does(model):
    case, path = model
    scorer = Scorer(path)
    assert scorer.labels == tuple(LABELS)
    found = scorer.score(case.raw)
    for name, logit in zip(LABELS, case.labels, strict=True):
        assert np.ptp(logit) > 0.1
        np.testing.assert_allclose(found[f"p_{name}"], sigmoid(logit), rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(found["logit"], case.logit, rtol=2e-5, atol=1e-5)
    assert {*found} == {"p", "logit", *(f"p_{name}" for name in LABELS)}


def test_scores_of_a_log_have_a_column_for_each(model, tmp_path):
    case, path = model
    # A model reads logs of the same features, whatever labels they have.
    rows = labeled(sort_rows(case.table), SCHEMA, rent=np.ones(case.table.num_rows))
    create_log(tmp_path / "log", rows["schema"])
    publish_partition(tmp_path / "log", rows["schema"], 0, 10**9, rows["table"])
    score_log(Scorer(path), tmp_path / "log", tmp_path / "scores.parquet")
    scores = pd.read_parquet(tmp_path / "scores.parquet").sort_values("example_id")
    np.testing.assert_allclose(scores["p_sale"], sigmoid(case.labels[0]), rtol=2e-5, atol=1e-6)
    # The command writes over its own files alone, which it knows by their last columns.
    score_log(Scorer(path), tmp_path / "log", tmp_path / "scores.parquet")
