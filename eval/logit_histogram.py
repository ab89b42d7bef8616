"""Histogram over the logit, from which streaming AUC and calibration by decile are read."""

from typing import ClassVar, Self

import numpy as np

from ctr.eval.arrays import FloatArray, IntArray
from ctr.eval.buckets import BUCKETS
from ctr.eval.rows import ScoredRows
from ctr.eval.states import SumState

LOGIT_LIMIT = 16.0
"""Logits outside -16..16 (probabilities within 1.1e-7 of 0 or 1) fall into the end bins."""
FINE_BINS = 2**16
COARSE_BINS = 2**10

_FINE_PER_COARSE = FINE_BINS // COARSE_BINS
_FINE_PER_LOGIT = FINE_BINS / (2 * LOGIT_LIMIT)


class LogitHistogram(SumState):
    """Metric weights by logit and class: finely over all queries, coarsely per query bucket.

    Bins are half-open, [low, high), of equal width: 1/2048 logit the fine ones, 1/32 the coarse ones. About
    7 MB, most of it zero and never touched.
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
        # Most of a window's bins were never touched, and to read them costs more than the others' sums.
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
        """Weight in each coarse bin over all queries and both classes, float64 [1024]."""
        weight: FloatArray = self.fine.reshape(COARSE_BINS, -1).sum(axis=1)
        return weight

    def used_bins(self) -> tuple[slice, slice]:
        """Fine bins, and the coarse bins that they make up, outside which there is no weight."""
        used = np.flatnonzero(self.coarse_weight())
        first, end = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
        return slice(first * _FINE_PER_COARSE, end * _FINE_PER_COARSE), slice(first, end)


def logit_bin(logit: FloatArray) -> IntArray:
    """Fine bin of each logit [N], int64 [N] in 0..65535."""
    offset = np.clip(logit, -LOGIT_LIMIT, LOGIT_LIMIT)
    offset += LOGIT_LIMIT
    offset *= _FINE_PER_LOGIT
    return np.minimum(offset.astype(np.int64), FINE_BINS - 1)


def coarse_edges() -> FloatArray:
    """Logits between which the coarse bins lie, float64 [1025]; the outermost are infinite."""
    edges = np.linspace(-LOGIT_LIMIT, LOGIT_LIMIT, COARSE_BINS + 1)
    edges[[0, -1]] = -np.inf, np.inf
    return edges
