"""ROC AUC: exact from arrays, and streaming with a stated error bound.

AUC is the probability that a click, drawn by weight, has a higher score than a non-click drawn by weight,
a tie counting half.
"""

import math

import numpy as np
import numpy.typing as npt

from ctr.eval.arrays import (
    BoolArray,
    FloatArray,
    check_same_length,
    checked_finite,
    checked_labels,
    checked_weights,
    ratio,
)
from ctr.eval.intervals import Estimate, all_but_one, check_multiplicity
from ctr.eval.logit_histogram import LogitHistogram

_COARSE_TIES = 0.1


def roc_auc(label: npt.ArrayLike, score: npt.ArrayLike, weight: npt.ArrayLike | None = None) -> float:
    """Exact weighted ROC AUC, by sorting; NaN when a class is absent (or has no weight).

    Args:
        label: 0 or 1 [N].
        score: finite float [N], any increasing function of the prediction.
        weight: float [N], at least 0; all 1 by default.

    Raises:
        ValueError: a column is not as described, or lengths differ.

    Example:
        >>> roc_auc(label=[0, 1, 0, 1], score=[0.1, 0.4, 0.4, 0.8])
        0.875
    """
    clicked = checked_labels(label)
    scores = checked_finite("score", score)
    weights = np.ones(len(clicked)) if weight is None else checked_weights(weight)
    check_same_length(label=clicked, score=scores, weight=weights)
    _, place = np.unique(scores, return_inverse=True)
    by_score = np.zeros((2, len(scores)))
    np.add.at(by_score, (clicked.astype(np.int64), place), weights)
    return float(_auc(by_score[0], by_score[1]))


class StreamingAUC(LogitHistogram):
    """ROC AUC over a stream, from the histogram of logits.

    Rows of one bin count as tied, so the result errs by at most

       error_bound = 1/2 * sum over bins of (weight of clicks * weight of non-clicks in the bin)
                     / (weight of clicks * weight of non-clicks)

    about 1e-4 for logits of standard deviation 1, and far less in error. `result` and its bound use fine
    bins (1/2048 logit), the replicates coarse ones (1/32 logit): of those only the spread is used. Where
    coarse bins tie more than a tenth of the pairs that fine bins tell apart (logits of standard deviation
    below 0.1), the spread would be too small, and the interval is undefined.
    """

    def result(self) -> float:
        fine, _ = self.used_bins()
        return float(_auc(self.fine[fine, 0], self.fine[fine, 1]))

    def error_bound(self) -> float:
        """Largest possible distance of `result` from the exact AUC; NaN when a class is absent."""
        fine, _ = self.used_bins()
        return _tied_pairs(self.fine[fine]) / 2

    def replicates(self, multiplicity: FloatArray) -> FloatArray:
        """AUC (coarse bins) with each bucket counted as often as `multiplicity` [R, K] says, [R]."""
        check_multiplicity(multiplicity)
        _, coarse = self.used_bins()
        negative, positive = (multiplicity @ self.coarse[:, coarse, clicked] for clicked in (0, 1))
        return _auc(negative, positive)

    def occupied(self) -> BoolArray:
        _, coarse = self.used_bins()
        return _occupied(self.coarse[:, coarse])

    def estimate(self) -> Estimate:
        """`result` with its delete-one-bucket replicates; NaN replicates where coarse bins tie too much."""
        fine, coarse = self.used_bins()
        weight, per_bucket = self.fine[fine], self.coarse[:, coarse]
        others = all_but_one(per_bucket)
        replicates = _auc(others[..., 0], others[..., 1])
        if _tied_pairs(per_bucket.sum(axis=0)) - _tied_pairs(weight) > _COARSE_TIES:
            replicates[:] = np.nan
        return Estimate(_auc(weight[:, 0], weight[:, 1]), replicates, _occupied(per_bucket), "logit")


def _occupied(per_bucket: FloatArray) -> BoolArray:
    weight: FloatArray = per_bucket.sum(axis=(1, 2))
    return weight > 0


def _tied_pairs(weight: FloatArray) -> float:
    """Share of pairs of a non-click and a click that fall into one bin, from their weights [B, 2]."""
    # Column by column: NumPy sums over rows of two far slower.
    negative, positive = weight[:, 0].sum(), weight[:, 1].sum()
    if not (negative > 0 and positive > 0):
        return math.nan
    return float(np.sum((weight[:, 0] / negative) * (weight[:, 1] / positive)))


def _auc(negative: FloatArray, positive: FloatArray) -> FloatArray:
    """AUC [...] from the weights of non-clicks and of clicks by ascending score, each [..., B]."""
    # As shares, unlike the products of two classes' weights, they neither overflow nor vanish.
    with np.errstate(invalid="ignore"):
        share = negative / negative.sum(axis=-1, keepdims=True)
    below = np.cumsum(share, axis=-1)
    won = np.einsum("...b,...b->...", positive, below) - np.einsum("...b,...b->...", positive, share) / 2
    # Over no bins at all the share of a class that is absent would be no NaN.
    return np.where(negative.sum(axis=-1) > 0, ratio(won, positive.sum(axis=-1)), np.nan)
