"""Singular values of a weight matrix: what they tell about a bottleneck in its place (FF 3.1).

FF finds that "the top half of singular values contribute to over 90% of the norm of singular values", and
leaves open which norm. Here are both: of order 2, the Frobenius norm, the root of the sum of their squares;
and of order 1, their sum.
"""

from dataclasses import dataclass

import numpy as np

from ctr.eval.arrays import FloatArray

KEPT_SHARE = 0.9

# Singular values are known to 7 digits, of weights that are: a share that misses its limit by less reaches it.
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class WeightSpectrum:
    """Singular values of a matrix W [m, n], or of a product U V of [m, k] and [k, n]."""

    name: str
    shape: tuple[int, int]  # m and n
    inner_rank: int | None = None  # k; None of a matrix
    singular_values: FloatArray | None = None  # descending, as many as `full_rank`; None where there are none
    omitted: str = ""  # why there are no singular values

    @property
    def full_rank(self) -> int:
        """Largest rank that a matrix of this shape can have, min(m, n); of a product min(m, k, n)."""
        return min(*self.shape, *([] if self.inner_rank is None else [self.inner_rank]))

    @property
    def multiply_adds(self) -> int:
        """Of one example with the weight as it is: m n, of a product k (m + n)."""
        if self.inner_rank is not None:
            return self.through_bottleneck(self.inner_rank)
        return self.shape[0] * self.shape[1]

    def through_bottleneck(self, rank: int) -> int:
        """Multiply-adds of one example with a bottleneck of that rank in its place."""
        return rank * (self.shape[0] + self.shape[1])


def cumulative_shares(singular_values: FloatArray, order: int) -> FloatArray:
    """Norm of the first k singular values as a share of that of all, for each k from 0.

    ``singular_values``: float64 [R], descending. ``order``: of the norm, 1 or 2. Returns float64 [R + 1],
    from 0 to 1; NaN when all singular values are 0.
    """
    largest = singular_values.max(initial=0.0)
    if largest == 0:
        return np.full(len(singular_values) + 1, np.nan)
    # Squares of the values themselves may leave the range of numbers.
    sums = np.cumsum(np.concatenate([[0.0], (singular_values / largest) ** order]))
    shares: FloatArray = (sums / sums[-1]) ** (1 / order)
    return shares


def rank_keeping(singular_values: FloatArray, order: int, share: float = KEPT_SHARE) -> int:
    """Smallest k whose first k singular values have that share of the norm; 0 when all are 0."""
    shares = cumulative_shares(singular_values, order)
    return int(np.argmax(shares >= share - _TOLERANCE))


def top_half_share(singular_values: FloatArray, order: int) -> float:
    """Share of the norm in the larger half of the singular values, the middle one of an odd number included."""
    return float(cumulative_shares(singular_values, order)[(len(singular_values) + 1) // 2])
