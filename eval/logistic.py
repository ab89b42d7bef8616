"""The logistic function and its loss, exact for any finite logit."""

import numpy as np
import numpy.typing as npt

from ctr.eval.arrays import BoolArray, FloatArray


def sigmoid(logit: npt.ArrayLike) -> FloatArray:
    """1 / (1 + exp(-logit)), without overflow; float64 [...]."""
    logit = np.asarray(logit, dtype=np.float64)
    decay: FloatArray = np.exp(-np.abs(logit))
    numerator: FloatArray = np.where(logit >= 0, 1.0, decay)
    return numerator / (1.0 + decay)


def row_logloss(label: BoolArray, logit: FloatArray) -> FloatArray:
    """-log of the probability that `logit` [N] gives to `label` [N], in nats, float64 [N].

    Computed as max(z, 0) + log(1 + exp(-abs(z))) with z = -logit for a click and z = logit otherwise, which
    neither overflows nor loses the loss of a confident prediction (a probability rounded to 1 would).
    """
    wrong_way = np.where(label, -logit, logit)
    return np.maximum(wrong_way, 0.0) + np.log1p(np.exp(-np.abs(logit)))
