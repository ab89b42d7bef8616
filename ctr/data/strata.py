"""Systematic sampling within strata: of the rows with one value of a feature as many are kept as their rates sum to.

The rows of a stratum lie one after the other on a line, each as long as its rate, and the line begins at a place u in
[0, 1) that a hash of the stratum draws. A row is kept if a whole number lies on it. So each is kept with the
probability of its rate; but the number of rows that are kept of any run of consecutive rows of the stratum differs
from the sum of their rates by less than one. Sums over the rows of one ad, from which its embedding learns, have far
less noise (Madow, "On the Theory of Systematic Sampling, II", Annals of Mathematical Statistics 20, 1949).

Places are whole multiples of 2^-32, so that they do not depend on how the rows are divided into calls.
"""

import numpy as np
import numpy.typing as npt

from ctr.io.hashing import uniform_hash

_UNIT = 2**32
_SHIFT, _FRACTION = np.uint64(32), np.uint64(_UNIT - 1)


class Strata:
    """Places that the strata of a log have reached; ``salt`` names the draw."""

    def __init__(self, salt: str) -> None:
        self._salt = f"{salt} strata"
        self._ids = np.zeros(0, np.int64)
        self._places = np.zeros(0, np.uint64)

    def keep(self, stratum: np.ndarray, rate: np.ndarray) -> npt.NDArray[np.bool_]:
        """Decides on the next rows of the log, by stratum, int64 [N], and rate, float64 in [0, 1]: bool [N]."""
        if not len(stratum):
            return np.zeros(0, np.bool_)
        order = np.argsort(stratum, kind="stable")
        ids = stratum[order].astype(np.int64)
        begins = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))
        lengths = np.diff(np.append(begins, len(ids)))
        steps = np.rint(rate[order] * _UNIT).astype(np.uint64)
        before = np.cumsum(steps) - steps
        first = self._reached(ids[begins])
        # Unsigned numbers wrap around, and back.
        before += np.repeat(first - before[begins], lengths)
        after = before + steps
        self._store(ids[begins], after[begins + lengths - 1] & _FRACTION)
        kept = np.zeros(len(ids), np.bool_)
        kept[order] = (after >> _SHIFT) > (before >> _SHIFT)
        return kept

    def _reached(self, ids: np.ndarray) -> npt.NDArray[np.uint64]:
        """Place of each of these strata, which rise; new ones begin where their hash says."""
        places = np.floor(uniform_hash(ids, self._salt) * _UNIT).astype(np.uint64)
        if len(self._ids):
            at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
            known = self._ids[at] == ids
            places[known] = self._places[at[known]]
        return places

    def _store(self, ids: np.ndarray, places: npt.NDArray[np.uint64]) -> None:
        others = ~np.isin(self._ids, ids)
        ids, places = np.concatenate([self._ids[others], ids]), np.concatenate([self._places[others], places])
        order = np.argsort(ids)
        self._ids, self._places = ids[order], places[order]
