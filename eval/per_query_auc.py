"""PerQueryAUC: ROC AUC inside each query, averaged over queries."""

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from ctr.eval.arrays import BoolArray, FloatArray, IntArray, ratio
from ctr.eval.intervals import Estimate, deletions
from ctr.eval.rows import ScoredRows
from ctr.eval.states import BUCKETS, SumState

# Loaded where it is needed: commands that need no tables start sooner.
if TYPE_CHECKING:
    import pandas as pd

SIZE_LIMITS = 2 ** np.arange(1, 12)
"""Largest query of each size bin: 2, 4, 8, ..., 2048; one more bin holds larger queries."""
SIZE_NAMES = ("2", *(f"{low + 1}-{2 * low}" for low in SIZE_LIMITS[:-1]), f"{SIZE_LIMITS[-1] + 1}+")


class PerQueryAUC(SumState):
    """Mean over queries of the ROC AUC inside the query.

    Only queries with both a click and a non-click have one; each such query counts the same, independent of its
    size or weight. Metric weights act inside a query, ties count half, rows of weight 0 are ignored. On a
    log whose rows were sampled after the fact this is not the PerQueryAUC of the full log: sampling changes
    which queries still have both classes.
    """

    LAYOUT: ClassVar = {
        "auc_sum": ((BUCKETS, len(SIZE_NAMES)), np.float64),
        "scored": ((BUCKETS, len(SIZE_NAMES)), np.int64),
        "one_class": ((BUCKETS,), np.int64),
    }

    auc_sum: FloatArray  # [K, 12], sum of the queries' AUCs by size bin (`SIZE_NAMES`)
    scored: IntArray  # [K, 12], queries with both classes
    one_class: IntArray  # [K], queries left out because all their rows are of one class

    def update(self, rows: ScoredRows) -> None:
        """Adds a batch of whole queries: a query split over two batches would count as two."""
        auc = query_auc(rows.label, rows.logit, rows.weight, rows.query, rows.queries)
        size = np.bincount(rows.query, minlength=rows.queries)
        scored = np.isfinite(auc)
        bins = len(SIZE_NAMES)
        cell = rows.query_buckets[scored] * bins + np.searchsorted(SIZE_LIMITS, size[scored])
        self.auc_sum += np.bincount(cell, auc[scored], BUCKETS * bins).reshape(BUCKETS, bins)
        self.scored += np.bincount(cell, minlength=BUCKETS * bins).reshape(BUCKETS, bins)
        self.one_class += np.bincount(rows.query_buckets[~scored & (size > 0)], minlength=BUCKETS)

    def result(self) -> float:
        return float(ratio(self.auc_sum.sum(), self.scored.sum()))

    def estimate(self) -> Estimate:
        scored = self.scored.sum(axis=1)
        replicates = ratio(deletions() @ self.auc_sum.sum(axis=1), deletions() @ scored)
        return Estimate(np.array(self.result()), replicates, scored > 0, "logit")

    def by_size(self) -> "pd.DataFrame":
        """Returns a table by query size (rows of positive weight): size, queries, auc, ci95_low, ci95_high."""
        import pandas as pd

        estimate = Estimate(
            point=ratio(self.auc_sum.sum(axis=0), self.scored.sum(axis=0)),
            replicates=ratio(deletions() @ self.auc_sum, deletions() @ self.scored.astype(np.float64)),
            occupied=self.scored > 0,
            scale="logit",
        )
        low, high = estimate.interval()
        table = pd.DataFrame(
            {
                "size": SIZE_NAMES,
                "queries": self.scored.sum(axis=0),
                "auc": estimate.point,
                "ci95_low": low,
                "ci95_high": high,
            }
        )
        return table[table["queries"] > 0].reset_index(drop=True)


def query_auc(
    label: BoolArray, score: FloatArray, weight: FloatArray, query: IntArray, queries: int
) -> FloatArray:
    """Computes the exact ROC AUC of every query, float64 [Q]; NaN where a class is absent (or has no weight).

    ``label`` is bool [N], ``score`` finite [N], ``weight`` [N] at least 0, ``query`` int64 [N] in 0..queries-1.

    Example:
        >>> clicked, query = np.array([True, False, True]), np.array([0, 0, 1])
        >>> query_auc(clicked, np.array([0.2, 0.1, 0.3]), np.ones(3), query, queries=2)
        array([ 1., nan])
    """
    positive = np.where(label, weight, 0.0)
    negative = np.where(label, 0.0, weight)
    positive_total = np.bincount(query, positive, queries)
    negative_total = np.bincount(query, negative, queries)
    scored = (positive_total > 0) & (negative_total > 0)
    auc = np.full(queries, np.nan)
    if not scored.any():
        return auc
    # Most queries of a click log have no click: only the others are worth sorting.
    rows = np.flatnonzero(scored[query])
    rows = rows[_order(query[rows], score[rows])]
    query, score = query[rows], score[rows]
    # As shares of the query's class, the running sum below stays near the number of queries: a query of huge
    # weights takes no digits from the others.
    positive = positive[rows] / positive_total[query]
    negative = negative[rows] / negative_total[query]

    new_query = _changed(query)
    query_starts = np.flatnonzero(new_query)
    tie_starts = np.flatnonzero(new_query | _changed(score))
    positive = np.add.reduceat(positive, tie_starts)
    negative = np.add.reduceat(negative, tie_starts)
    first_tie = np.searchsorted(tie_starts, query_starts)
    below = np.cumsum(negative) - negative
    below -= np.repeat(below[first_tie], np.diff(first_tie, append=len(tie_starts)))
    auc[query[query_starts]] = np.add.reduceat(positive * (below + negative / 2), first_tie)
    return auc


def _order(query: IntArray, score: FloatArray) -> npt.NDArray[np.intp]:
    """Returns the order by query, then score. Ties are in any order, as they are summed."""
    by_score = np.argsort(score)
    # NumPy sorts 16-bit integers by radix, eight times faster than wider ones.
    narrow = query[by_score].astype(np.uint16 if query.max() < 2**16 else np.int64)
    return by_score[np.argsort(narrow, kind="stable")]


def _changed(values: npt.NDArray[np.generic]) -> BoolArray:
    """Returns whether each of `values` [N] differs from the previous value; True for the first."""
    changed = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=changed[1:])
    return changed
