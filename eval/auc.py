"""ROC AUC, ties counting half and rows by weight: exact from arrays, and streaming with a stated error bound."""

import math
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from ctr.eval.arrays import (
    FloatArray,
    IntArray,
    check_same_length,
    checked_finite,
    checked_labels,
    checked_weights,
    ratio,
)
from ctr.eval.intervals import Estimate, all_but_one
from ctr.eval.rows import ScoredRows
from ctr.eval.states import BUCKETS, SumState

LOGIT_LIMIT = 16.0  # logits outside -16..16 (probabilities within 1.1e-7 of 0 or 1) fall into the end bins
FINE_BINS = 2**16
COARSE_BINS = 2**10

_FINE_PER_COARSE = FINE_BINS // COARSE_BINS
_FINE_PER_LOGIT = FINE_BINS / (2 * LOGIT_LIMIT)


class LogitHistogram(SumState):
    """Metric weights by logit and class: fine bins over all queries, coarse bins per query bucket.

    Bins are half-open, [low, high): fine ones of 1/2048 logit, coarse ones of 1/32. About 7 MB, most of it
    zero.
    """

    LAYOUT: ClassVar = {
        "fine": ((FINE_BINS, 2), np.float64),
        "coarse": ((BUCKETS, COARSE_BINS, 2), np.float64),
        "coarse_prediction": ((BUCKETS, COARSE_BINS), np.float64),
        "clipped": ((2,), np.int64),
    }

    fine: FloatArray  # [65536, 2], weight of non-clicks and of clicks
    coarse: FloatArray  # [K, 1024, 2], the same per query bucket
    coarse_prediction: FloatArray  # [K, 1024], sum of weight * probability
    clipped: IntArray  # [2], rows below -16, and at or above 16

    def update(self, rows: ScoredRows) -> None:
        clicked = rows.label.astype(np.int64)
        fine_bin = logit_bin(rows.logit)
        coarse_cell = rows.bucket * COARSE_BINS + fine_bin // _FINE_PER_COARSE
        # `add.at` on flat views touches N cells; a bincount would allocate and add all 65536, or 524288.
        np.add.at(self.fine.reshape(-1), 2 * fine_bin + clicked, rows.weight)
        np.add.at(self.coarse.reshape(-1), 2 * coarse_cell + clicked, rows.weight)
        np.add.at(self.coarse_prediction.reshape(-1), coarse_cell, rows.weight * rows.probability)
        self.clipped[0] += np.count_nonzero(rows.logit < -LOGIT_LIMIT)
        self.clipped[1] += np.count_nonzero(rows.logit >= LOGIT_LIMIT)

    def merge(self, other: Self) -> None:
        self.clipped += other.clipped
        # Most of a window's bins were never touched; reading them would cost more than summing the others.
        fine, coarse = other.used_bins()
        self.fine[fine] += other.fine[fine]
        self.coarse[:, coarse] += other.coarse[:, coarse]
        self.coarse_prediction[:, coarse] += other.coarse_prediction[:, coarse]

    def clear(self) -> None:
        fine, coarse = self.used_bins()
        self.fine[fine] = 0
        self.coarse[:, coarse] = 0
        self.coarse_prediction[:, coarse] = 0
        self.clipped[:] = 0

    def coarse_weight(self) -> FloatArray:
        """Returns the weight in each coarse bin over all queries and both classes, float64 [1024]."""
        weight: FloatArray = self.fine.reshape(COARSE_BINS, -1).sum(axis=1)
        return weight

    def used_bins(self) -> tuple[slice, slice]:
        """Returns the ranges of fine and of coarse bins outside which all weights are 0."""
        used = np.flatnonzero(self.coarse_weight())
        first, end = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
        return slice(first * _FINE_PER_COARSE, end * _FINE_PER_COARSE), slice(first, end)


def logit_bin(logit: FloatArray) -> IntArray:
    """Returns the fine bin of each logit [N], int64 [N] in 0..65535."""
    offset = np.clip(logit, -LOGIT_LIMIT, LOGIT_LIMIT)
    offset += LOGIT_LIMIT
    offset *= _FINE_PER_LOGIT
    return np.minimum(offset.astype(np.int64), FINE_BINS - 1)


def coarse_edges() -> FloatArray:
    """Returns the logits at the edges of the coarse bins, float64 [1025]; the outermost are infinite."""
    edges = np.linspace(-LOGIT_LIMIT, LOGIT_LIMIT, COARSE_BINS + 1)
    edges[[0, -1]] = -np.inf, np.inf
    return edges


_COARSE_TIES = 0.1


def roc_auc(label: npt.ArrayLike, score: npt.ArrayLike, weight: npt.ArrayLike | None = None) -> float:
    """Computes the exact weighted ROC AUC, by sorting; NaN when a class is absent (or has no weight).

    ``label`` is 0 or 1 [N], ``score`` finite [N], ``weight`` [N] at least 0. Raises ValueError otherwise.

    Example:
        >>> roc_auc(label=[0, 1, 0, 1], score=[0.1, 0.4, 0.4, 0.8])
        0.875
    """
    clicked = checked_labels(label)
    scores = checked_finite("score", score)
    weights = np.ones(len(clicked)) if weight is None else checked_weights(weight)
    check_same_length(label=clicked, score=scores, weight=weights)
    _, rank = np.unique(scores, return_inverse=True)
    by_score = np.zeros((2, len(scores)))
    np.add.at(by_score, (clicked.astype(np.int64), rank), weights)
    return float(_auc(by_score[0], by_score[1]))


class StreamingAUC(LogitHistogram):
    """ROC AUC over a stream, from the histogram of logits.

    Rows of one bin count as tied, so the result errs by at most

       error_bound = 1/2 * sum over bins of (weight of clicks * weight of non-clicks in the bin)
                     / (weight of clicks * weight of non-clicks)

    which is about 1e-4 for logits of standard deviation 1. The error is far less: it reaches the bound only if
    every pair inside a bin is ordered the same way; true ties are in the bound too. `result` and its bound use
    fine bins (1/2048 logit), the replicates coarse ones (1/32 logit), which serve the spread alone. Where
    coarse bins tie more than a tenth of the pairs that fine bins tell apart (logits of standard deviation
    below 0.1), the spread would be too small, and the interval is undefined.
    """

    def result(self) -> float:
        fine, _ = self.used_bins()
        return float(_auc(self.fine[fine, 0], self.fine[fine, 1]))

    def error_bound(self) -> float:
        """Returns the largest possible distance of `result` from the exact AUC; NaN when a class is absent."""
        fine, _ = self.used_bins()
        return _tied_pairs(self.fine[fine]) / 2

    def estimate(self) -> Estimate:
        """Returns `result` with its delete-one-bucket replicates; NaN replicates where coarse bins tie too much."""
        fine, coarse = self.used_bins()
        weight, per_bucket = self.fine[fine], self.coarse[:, coarse]
        others = all_but_one(per_bucket)
        replicates = _auc(others[..., 0], others[..., 1])
        if _tied_pairs(per_bucket.sum(axis=0)) - _tied_pairs(weight) > _COARSE_TIES:
            replicates[:] = np.nan
        occupied = per_bucket.sum(axis=(1, 2)) > 0
        return Estimate(_auc(weight[:, 0], weight[:, 1]), replicates, occupied, "logit")


def _tied_pairs(weight: FloatArray) -> float:
    """Computes the share of pairs of a non-click and a click that fall into one bin, from their weights [B, 2]."""
    # Column by column: NumPy sums over rows of two far slower.
    negative, positive = weight[:, 0].sum(), weight[:, 1].sum()
    if not (negative > 0 and positive > 0):
        return math.nan
    return float(np.sum((weight[:, 0] / negative) * (weight[:, 1] / positive)))


def _auc(negative: FloatArray, positive: FloatArray) -> FloatArray:
    """Computes AUC [...] from the weights of non-clicks and of clicks by ascending score, each [..., B]."""
    # As shares, unlike the products of two classes' weights, they neither overflow nor vanish.
    with np.errstate(invalid="ignore"):
        share = negative / negative.sum(axis=-1, keepdims=True)
    below = np.cumsum(share, axis=-1)
    won = np.einsum("...b,...b->...", positive, below) - np.einsum("...b,...b->...", positive, share) / 2
    # With no bins at all, an absent class would not give NaN.
    return np.where(negative.sum(axis=-1) > 0, ratio(won, positive.sum(axis=-1)), np.nan)
