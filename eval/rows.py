"""Scored rows: one batch of whole queries, validated once for all metrics."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ctr.eval.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    check_same_length,
    checked_finite,
    checked_ids,
    checked_labels,
    checked_weights,
    row_logloss,
    sigmoid,
)
from ctr.eval.states import query_bucket


@dataclass(frozen=True)
class ScoredRows:
    """Rows of positive metric weight, N of them, from Q whole queries."""

    examples: int  # rows read, including weight 0
    queries: int  # Q, queries read, including queries without any weight
    has_weight: BoolArray  # [examples], whether a row read has positive weight
    label: BoolArray  # [N], clicked or not
    logit: FloatArray  # [N]
    weight: FloatArray  # [N], metric weight, above 0
    query: IntArray  # [N], 0..Q-1, numbering the queries in the order of their ids
    query_buckets: IntArray  # [Q], the bucket of each query

    @cached_property
    def bucket(self) -> IntArray:
        """Returns the query bucket of each row, int64 [N]."""
        return self.query_buckets[self.query]

    @cached_property
    def probability(self) -> FloatArray:
        return sigmoid(self.logit)

    @cached_property
    def loss(self) -> FloatArray:
        """Returns the logloss of each row in nats, float64 [N]."""
        return row_logloss(self.label, self.logit)


def scored_rows(
    label: npt.ArrayLike, logit: npt.ArrayLike, weight: npt.ArrayLike, query_id: npt.ArrayLike
) -> ScoredRows:
    """Checks a batch of whole queries and drops its rows of weight 0.

    ``label`` is 0 or 1 [N], ``logit`` finite [N], the prediction of record, ``weight`` [N] at least 0,
    ``query_id`` int64 [N]; the rows of a query may be in any order, but must all be in the batch. Raises
    ValueError otherwise.
    """
    clicked = checked_labels(label)
    logits = checked_finite("logit", logit)
    weights = checked_weights(weight)
    ids = checked_ids("query_id", query_id)
    check_same_length(label=clicked, logit=logits, weight=weights, query_id=ids)
    distinct, query = _distinct(ids)
    mask = weights > 0
    if not mask.all():
        clicked, logits, weights, query = clicked[mask], logits[mask], weights[mask], query[mask]
    return ScoredRows(
        examples=len(ids),
        queries=len(distinct),
        has_weight=mask,
        label=clicked,
        logit=logits,
        weight=weights,
        query=query,
        query_buckets=query_bucket(distinct),
    )


def _distinct(ids: IntArray) -> tuple[IntArray, IntArray]:
    """Returns the distinct ids, ascending, and the index of each row's id among them.

    Only the first row of each run of equal ids is sorted, and not even these where they ascend.
    """
    first_of_run = np.ones(len(ids), dtype=np.bool_)
    np.not_equal(ids[1:], ids[:-1], out=first_of_run[1:])
    starts = np.flatnonzero(first_of_run)
    firsts = ids[starts]
    if (firsts[1:] > firsts[:-1]).all():
        return firsts, np.cumsum(first_of_run) - 1
    distinct, index = np.unique(firsts, return_inverse=True)
    return distinct, np.repeat(index, np.diff(starts, append=len(ids)))
