"""Pseudo-random numbers that depend on an id and a salt alone: the same in every run, order and log."""

import hashlib

import numpy as np
import numpy.typing as npt

UintArray = npt.NDArray[np.uint64]

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)


def mix64(values: UintArray) -> UintArray:
    """Computes the finalizer of splitmix64, uint64 [N], which decorrelates neighboring values.

    Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
    """
    mixed = values ^ values >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def splitmix64(values: UintArray) -> UintArray:
    """Computes the output function of splitmix64, uint64 [N], on a copy of ``values``."""
    return mix64(values + _INCREMENT)


def uniform_hash(ids: np.ndarray, salt: str) -> np.ndarray:
    """Computes a number in [0, 1) for each id: int64 [N] to float64 [N], multiples of 2^-53.

    Applies splitmix64's output function twice, each time after XOR with 64 bits of the salt's SHA-256: different
    salts give independent numbers. With one round, two salts would give the same sequence of numbers to shifted ids,
    and the empty salt could agree with the query buckets of the intervals.
    """
    digest = hashlib.sha256(salt.encode()).digest()
    first, second = np.frombuffer(digest[:16], "<u8").astype(np.uint64)
    state = splitmix64(ids.astype(np.int64).view(np.uint64) ^ first) ^ second
    return (splitmix64(state) >> np.uint64(11)).astype(np.float64) * 2.0**-53
