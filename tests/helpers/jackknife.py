"""The interval of the jackknife, written out on its own."""

from collections.abc import Sequence

import numpy as np
from scipy import stats


def degrees_of(values: Sequence[float] | np.ndarray) -> int:
    """Satterthwaite's degrees of freedom of the variance of values, from their kurtosis."""
    if np.ptp(values) == 0:
        return len(values) - 1
    kurtosis = stats.kurtosis(values, fisher=False)
    return int(min(len(values) - 1, 2 * len(values) / max(kurtosis - 1, 1e-12)))


def margin_of(replicates: Sequence[float] | np.ndarray) -> float:
    """Half-width of the 95% interval, from the replicates of the buckets that hold anything."""
    spread = np.sqrt((len(replicates) - 1) * np.var(replicates))
    return float(stats.t.ppf(0.975, degrees_of(replicates)) * spread)
