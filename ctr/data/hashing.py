"""Pseudo-random numbers that depend on an id and a salt alone: the same in every run, order and log."""

import hashlib

import numpy as np

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR_2 = np.uint64(0x94D049BB133111EB)


def _mix(state: np.ndarray) -> None:
    """The output function of splitmix64, in place on uint64 [N]."""
    state += _INCREMENT
    state ^= state >> np.uint64(30)
    state *= _FACTOR_1
    state ^= state >> np.uint64(27)
    state *= _FACTOR_2
    state ^= state >> np.uint64(31)


def uniform_hash(ids: np.ndarray, salt: str) -> np.ndarray:
    """A number in [0, 1) for each id.

    Two rounds of splitmix64's output function (as in ``ctr.eval.buckets``), before each of them 64 bits of the
    salt's SHA-256. With one round, two salts would give the same sequence of numbers to shifted ids, and the
    empty salt could agree with the query buckets of the intervals.

    Args:
        ids: int64 [N].
        salt: numbers of different salts are independent.

    Returns:
        float64 [N], multiples of 2^-53.
    """
    digest = hashlib.sha256(salt.encode()).digest()
    first, second = np.frombuffer(digest[:16], "<u8").astype(np.uint64)
    state = ids.astype(np.int64).view(np.uint64)  # astype copies: the rounds work in place
    state ^= first
    _mix(state)
    state ^= second
    _mix(state)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
