"""Logloss and normalized entropy, from logits."""

from typing import ClassVar

import numpy as np

from ctr.eval.arrays import FloatArray, ratio
from ctr.eval.intervals import Estimate, deletions
from ctr.eval.rows import ScoredRows
from ctr.eval.states import BUCKETS, SumState


class Logloss(SumState):
    """Weighted mean logloss in nats, and normalized entropy: logloss over the entropy of the base rate.

    Normalized entropy is 1 for the best constant prediction and below 1 for a better one; it is comparable between logs
    of different click rates (He et al., "Practical Lessons from Predicting Clicks on Ads at Facebook", ADKDD
    2014). Weights of the classes are two sums, so that rounding does not lose the smaller class beside a huge one.
    """

    LAYOUT: ClassVar = {"class_weight": ((BUCKETS, 2), np.float64), "loss": ((BUCKETS,), np.float64)}

    class_weight: FloatArray  # [K, 2], weight of non-clicks and of clicks
    loss: FloatArray  # [K], sum of weight * logloss

    def update(self, rows: ScoredRows) -> None:
        cell = 2 * rows.bucket + rows.label
        self.class_weight += np.bincount(cell, rows.weight, 2 * BUCKETS).reshape(BUCKETS, 2)
        self.loss += np.bincount(rows.bucket, rows.weight * rows.loss, BUCKETS)

    def result(self) -> float:
        """Returns the mean logloss; NaN without rows."""
        return float(ratio(self.loss.sum(), self.class_weight.sum()))

    def normalized_entropy(self) -> float:
        """Returns the logloss over the base rate's entropy; NaN when a class is absent."""
        return float(_normalized_entropy(self.loss.sum(), self.class_weight.sum(axis=0)))

    def estimate(self) -> Estimate:
        weight = self.class_weight.sum(axis=1)
        replicates = ratio(deletions() @ self.loss, deletions() @ weight)
        return Estimate(np.array(self.result()), replicates, weight > 0, "log")

    def normalized_entropy_estimate(self) -> Estimate:
        point, occupied = np.array(self.normalized_entropy()), self.class_weight.sum(axis=1) > 0
        replicates = _normalized_entropy(deletions() @ self.loss, deletions() @ self.class_weight)
        return Estimate(point, replicates, occupied, "log")


def _normalized_entropy(loss: FloatArray, class_weight: FloatArray) -> FloatArray:
    """Computes the normalized entropy [...] from sums of losses [...] and class weights [..., 2]."""
    weight = class_weight.sum(axis=-1)
    rarer = ratio(class_weight.min(axis=-1), weight)
    # log1p keeps the entropy of base rates beside which 1 - rate rounds to 1; a rate of 0 gives 0 * -inf.
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -(rarer * np.log(rarer) + (1 - rarer) * np.log1p(-rarer))
    return ratio(ratio(loss, weight), entropy)
