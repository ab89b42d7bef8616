"""Importance of a run's features, from the loss with and without each feature, summed by query bucket.

The arrays have a row for each of the P positions of the pass where the next rows of the log were
scored::

    position          int64 [P], rows of the log before it
    rows              int64 [P], number of scored rows
    weight            float64 [P, K], metric weight of the rows
    loss              float64 [P, K], their logloss times weight
    WAY/FEATURE       float64 [P, K], increase of the loss without the feature, in one of two ways: ``SHARED``, its
                      ids were replaced by an unknown id, or ``SHUFFLED``, by the ids of other rows
"""

from dataclasses import dataclass

import numpy as np

from ctr.eval.arrays import FloatArray, ratio
from ctr.eval.display import Number
from ctr.eval.intervals import Estimate, all_but_one
from ctr.eval.states import BUCKETS, Arrays

SHARED, SHUFFLED = "shared", "shuffled"


@dataclass(frozen=True)
class FeatureImportance:
    """Increase of the logloss without a feature, in nats per row, and as a share of the logloss with it."""

    name: str
    is_shuffled: bool
    increase: Number
    share: Number

    @property
    def matters(self) -> bool:
        """Returns whether the loss grows without the feature: the whole interval is above 0."""
        return self.increase.low is not None and self.increase.low > 0

    @property
    def verdict(self) -> str:
        """Returns in words whether the increase differs from 0."""
        low, high = self.increase.low, self.increase.high
        if low is None or high is None or not np.isfinite(high - low):
            return "no interval"
        return "yes" if low > 0 else "yes, below" if high < 0 else "no"


@dataclass(frozen=True)
class Importance:
    """Importance of all features of a run, in descending order."""

    rows: int  # that were scored
    positions: int
    features: tuple[FeatureImportance, ...]


def importance_of(arrays: Arrays) -> Importance:
    """Computes the importance from a run's arrays. Raises KeyError or ValueError for arrays not described above."""
    count = len(arrays["position"])
    parts = [name.split("/", 1) for name in arrays if "/" in name]
    if arrays["rows"].shape != (count,):
        raise ValueError(f"rows must hold {count} numbers")
    for name in ("weight", "loss", *("/".join(part) for part in parts)):
        array = arrays[name]
        if array.shape != (count, BUCKETS) or array.dtype.kind != "f" or not np.isfinite(array).all():
            raise ValueError(f"{name} must hold finite numbers, [{count}, {BUCKETS}]")
    weight, loss = arrays["weight"].sum(axis=0), arrays["loss"].sum(axis=0)
    features: list[FeatureImportance] = []
    for way, name in parts if weight.any() else ():
        if way not in (SHARED, SHUFFLED):
            raise ValueError(f"{way}/{name}: allowed: {SHARED}/..., {SHUFFLED}/...")
        increase = arrays[f"{way}/{name}"].sum(axis=0)
        of_row, of_loss = (_ratio(increase, whole, weight > 0).number() for whole in (weight, loss))
        features.append(FeatureImportance(name, way == SHUFFLED, of_row, of_loss))
    # Stable: of equal importance the first one of the log.
    features.sort(key=lambda feature: -(feature.increase.value or 0.0))
    return Importance(int(arrays["rows"].sum()), count, tuple(features))


def _ratio(part: FloatArray, whole: FloatArray, occupied: np.ndarray) -> Estimate:
    replicates = ratio(all_but_one(part), all_but_one(whole))
    return Estimate(np.array(ratio(part.sum(), whole.sum())), replicates, occupied)
