"""ROC AUC: exact from arrays, and streaming with a stated error bound.

AUC is the probability that a click, drawn by weight, has a higher score than a non-click drawn by weight,
a tie counting half.
"""

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
from ctr.eval.intervals import Estimate, check_multiplicity, deletions
from ctr.eval.logit_histogram import COARSE_BINS, LogitHistogram

_COARSE_TIES = 0.1


def roc_auc(label: npt.ArrayLike, score: npt.ArrayLike, weight: npt.ArrayLike | None = None) -> float:
    """Exact weighted ROC AUC, by sorting.

    Args:
        label: 0 or 1 [N].
        score: finite float [N], any increasing function of the prediction.
        weight: float [N], at least 0; all 1 by default.

    Returns:
        AUC; NaN when a class is absent (or has no weight).

    Raises:
        ValueError: a column is not as described, or lengths differ.
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

    which is reached only if every pair inside a bin is ordered the same way; true ties are in it too. Fine
    bins (1/2048 logit) give `result` and its bound: about 1e-4 for logits of standard deviation 1, and far
    less in error. Coarse bins (1/32 logit) give the replicates, of which only the spread is used; where they
    tie more than a tenth of the pairs that fine bins tell apart (logits of standard deviation below 0.1),
    the spread would be too small, and the interval is undefined.
    """

    def result(self) -> float:
        """AUC over all rows; NaN when a class is absent."""
        return float(_auc(self.fine[:, 0], self.fine[:, 1]))

    def error_bound(self) -> float:
        """Largest possible distance of `result` from the exact AUC; NaN when a class is absent."""
        return _tied_pairs(self.fine) / 2

    def replicates(self, multiplicity: FloatArray) -> FloatArray:
        """AUC (coarse bins) with each bucket counted as often as `multiplicity` [R, K] says, [R]."""
        check_multiplicity(multiplicity)
        used = self.coarse_weight() > 0
        negative, positive = (multiplicity @ self.coarse[:, used, clicked] for clicked in (0, 1))
        return _auc(negative, positive)

    def occupied(self) -> BoolArray:
        """Buckets that hold weight, bool [K]."""
        weight: FloatArray = self.coarse.sum(axis=(1, 2))
        return weight > 0

    def estimate(self) -> Estimate:
        """`result` with its delete-one-bucket replicates; NaN replicates where coarse bins tie too much."""
        replicates = self.replicates(deletions())
        coarse = self.fine.reshape(COARSE_BINS, -1, 2).sum(axis=1)
        if _tied_pairs(coarse) - _tied_pairs(self.fine) > _COARSE_TIES:
            replicates[:] = np.nan
        return Estimate(np.array(self.result()), replicates, self.occupied())


def _tied_pairs(weight: FloatArray) -> float:
    """Share of pairs of a non-click and a click that fall into one bin; from their weights [B, 2]."""
    return float(np.sum(_share(weight[:, 0]) * _share(weight[:, 1])))


def _auc(negative: FloatArray, positive: FloatArray) -> FloatArray:
    """AUC [...] from the weights of non-clicks and of clicks by ascending score, each [..., B]."""
    share = _share(negative)
    below = np.cumsum(share, axis=-1) - share / 2
    # The sum over no bins at all would be 0; the classes then are as absent as with empty bins.
    both = (negative.sum(axis=-1) > 0) & (positive.sum(axis=-1) > 0)
    return np.where(both, np.sum(_share(positive) * below, axis=-1), np.nan)


def _share(weight: FloatArray) -> FloatArray:
    """Each of `weight` [..., B] as a share of their sum; NaN when that is 0.

    Shares, unlike products of two classes' weights, neither overflow nor vanish.
    """
    return ratio(weight, weight.sum(axis=-1, keepdims=True))
