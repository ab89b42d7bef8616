"""Relative prediction difference PD of two models on the same examples (FF section 5)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from ctr.eval.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    check_same_length,
    checked_finite,
    checked_ids,
    checked_probabilities,
    ratio,
)
from ctr.eval.buckets import BUCKETS, query_bucket
from ctr.eval.intervals import Estimate, check_multiplicity, deletions
from ctr.eval.logistic import sigmoid
from ctr.eval.states import SumState


class PredictionDifference(SumState):
    """PD over a stream of aligned predictions."""

    LAYOUT: ClassVar = {"difference": ((BUCKETS,), np.float64), "examples": ((BUCKETS,), np.int64)}

    difference: FloatArray  # [K], sum of the relative differences
    examples: IntArray  # [K]

    def update(self, first: npt.ArrayLike, second: npt.ArrayLike, query_id: npt.ArrayLike) -> None:
        """Adds examples, each given once: probabilities p1 [N] and p2 [N], and int64 ids [N].

        A query may be spread over several calls. Raises ValueError where a column is not as described, or
        lengths differ.
        """
        difference = _row_difference(first, second)
        ids = checked_ids("query_id", query_id)
        check_same_length(predictions=difference, query_id=ids)
        bucket = query_bucket(ids)
        self.difference += np.bincount(bucket, difference, BUCKETS)
        self.examples += np.bincount(bucket, minlength=BUCKETS)

    def result(self) -> float:
        return float(ratio(self.difference.sum(), self.examples.sum()))

    def replicates(self, multiplicity: FloatArray) -> FloatArray:
        """PD [R] with each bucket counted as often as `multiplicity` [R, K] says."""
        check_multiplicity(multiplicity)
        return ratio(multiplicity @ self.difference, multiplicity @ self.examples)

    def occupied(self) -> BoolArray:
        return self.examples > 0

    def estimate(self) -> Estimate:
        return Estimate(np.array(self.result()), self.replicates(deletions()), self.occupied())


@dataclass(frozen=True)
class JoinedPredictions:
    """Two models' predictions of the M examples that both have, by ascending example_id."""

    example_id: IntArray  # [M]
    query_id: IntArray  # [M]
    first: FloatArray  # [M], probability by the first model
    second: FloatArray  # [M], probability by the second model
    only_first: int  # examples that the second table lacks
    only_second: int  # examples that the first table lacks


def join_predictions(first: pd.DataFrame, second: pd.DataFrame) -> JoinedPredictions:
    """Aligns two prediction tables by example_id.

     Both have columns example_id (int64, each once), query_id (int64), logit (finite); others are ignored.

    Raises:
        ValueError: a column is missing or not as described, an example_id repeats, or an example belongs to
            different queries in the two tables.
    """
    ids_1, queries_1, logits_1 = _prediction_columns("first", first)
    ids_2, queries_2, logits_2 = _prediction_columns("second", second)
    example_id, rows_1, rows_2 = np.intersect1d(ids_1, ids_2, assume_unique=True, return_indices=True)
    query_id = queries_1[rows_1]
    differs = np.flatnonzero(query_id != queries_2[rows_2])
    if len(differs):
        row = differs[0]
        raise ValueError(
            "an example must have one query_id in both prediction tables, got "
            f"{query_id[row]} and {queries_2[rows_2[row]]} for example_id {example_id[row]}"
        )
    return JoinedPredictions(
        example_id=example_id,
        query_id=query_id,
        first=sigmoid(logits_1[rows_1]),
        second=sigmoid(logits_2[rows_2]),
        only_first=len(ids_1) - len(example_id),
        only_second=len(ids_2) - len(example_id),
    )


def _prediction_columns(name: str, table: pd.DataFrame) -> tuple[IntArray, IntArray, FloatArray]:
    missing = {"example_id", "query_id", "logit"} - set(table.columns)
    if missing:
        raise ValueError(f"the {name} prediction table must have columns {', '.join(sorted(missing))}")
    ids = checked_ids(f"{name} example_id", table["example_id"].to_numpy())
    distinct, count = np.unique(ids, return_counts=True)
    if len(distinct) < len(ids):
        repeated = distinct[np.argmax(count)]
        raise ValueError(f"{name} example_id must hold each example once, got {repeated} {count.max()} times")
    queries = checked_ids(f"{name} query_id", table["query_id"].to_numpy())
    return ids, queries, checked_finite(f"{name} logit", table["logit"].to_numpy())


def _row_difference(first: npt.ArrayLike, second: npt.ArrayLike) -> FloatArray:
    """abs(p1 - p2) / ((p1 + p2) / 2) of each example, 0 where both are 0; float64 [N]."""
    p1 = checked_probabilities("first", first)
    p2 = checked_probabilities("second", second)
    check_same_length(first=p1, second=p2)
    total = p1 + p2
    relative = np.zeros(len(total))
    np.divide(2 * np.abs(p1 - p2), total, out=relative, where=total > 0)
    return relative
