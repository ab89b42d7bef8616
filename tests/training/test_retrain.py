"""Retrains with the same seed: what each kind of them changes, and that it changes nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ctr.training.session import train
from growing_logs import ADAGRAD, read_predictions
from small_runs import make_config


def trained(log: Path, out: Path, logistic: bool = False, **retrain: Any) -> pd.DataFrame:
    """Predictions in the order in which they were made; without roots rounding stays small for some batches."""
    train(log, make_config({**ADAGRAD, **({"retrain": retrain} if retrain else {})}, logistic), out)
    return read_predictions(out)


@pytest.fixture(scope="module")
def original(log, tmp_path_factory) -> pd.DataFrame:
    return trained(log, tmp_path_factory.mktemp("original") / "run")


def largest_difference(one: pd.DataFrame, other: pd.DataFrame, rows: slice) -> float:
    both = one.iloc[rows].merge(other, on="example_id")
    assert len(both) == len(one.iloc[rows])
    return float(np.abs(both["logit_x"] - both["logit_y"]).max())


@pytest.mark.parametrize("kind", ["order", pytest.param("rounding", marks=pytest.mark.slow)])
def test_another_rounding_or_order_within_queries_stays_rounding(log, original, tmp_path, kind):
    retrain = trained(log, tmp_path / "run", kind=kind)
    assert 0 < largest_difference(original, retrain, slice(None)) < 1e-3
    assert largest_difference(original, retrain, slice(0, 40)) < 1e-6
    assert retrain["query_id"].tolist() == original["query_id"].tolist()
    assert (retrain["example_id"].tolist() == original["example_id"].tolist()) == (kind == "rounding")
    columns = ["example_id", "query_id", "query_time", "label", "train_weight", "metric_weight"]
    pd.testing.assert_frame_equal(
        retrain[columns].sort_values("example_id", ignore_index=True),
        original[columns].sort_values("example_id", ignore_index=True),
    )


@pytest.mark.slow
def test_dropped_queries_are_scored_and_not_learned_from(log, tmp_path):
    original = trained(log, tmp_path / "original", logistic=True)
    retrain = trained(log, tmp_path / "run", logistic=True, kind="drop_rows", share=0.3)
    assert retrain["example_id"].tolist() == original["example_id"].tolist()
    weighted = original["train_weight"] > 0
    dropped = weighted & (retrain["train_weight"] == 0)
    kept = weighted & (retrain["train_weight"] == original["train_weight"])
    assert (dropped | kept)[weighted].all()
    of_query = dropped[weighted].groupby(original["query_id"][weighted]).agg(["min", "max"])
    assert (of_query["min"] == of_query["max"]).all()
    assert 0.2 < of_query["min"].mean() < 0.4
    # Each number is a draw of its own.
    other = trained(log, tmp_path / "other", logistic=True, kind="drop_rows", share=0.3, number=2)
    assert (other["train_weight"] != retrain["train_weight"]).any()
    # Where all are dropped nothing is learned.
    whole = trained(log, tmp_path / "whole", logistic=True, kind="drop_rows", share=1)
    assert whole["logit"].std() < 1e-6 < 0.1 < original["logit"].std()
