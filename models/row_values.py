"""Initial values of the rows of growing ids, which begin at any time and in any slot."""

import hashlib

import numpy as np

from ctr.io.hashing import splitmix64

# Of splitmix64's sequence: element j of a row is its output for the row's key plus j times this.
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_LOW_HALVES = np.uint64(0x0000FFFF0000FFFF)
# Of a sum of four numbers drawn evenly from 0 to 65535.
_MEAN = 4 * 65535 // 2
_DEVIATION = (4 * (65536**2 - 1) / 12) ** 0.5
# Elements that are computed together: few enough for a processor's cache, and for memory that is used again.
_BLOCK = 2**14


def initial_rows(
    fingerprints: np.ndarray, feature: str, columns: int, scale: float, seed: int, copy: int = 0
) -> np.ndarray:
    """Draws values that depend on the seed, the copy, the feature, the fingerprint and the column alone.

    So they depend neither on the slot that an id gets, nor on the table's size, nor on what other ids there are. Each
    is the sum of the four 16-bit parts of 64 random bits, less its mean and scaled: nearly normal (kurtosis 2.7, no
    value beyond 3.5 deviations). All of it is integer arithmetic but for the scaling, one product in float32; so the
    bits are the same on every machine.

    Args:
        fingerprints: int64 [N].
        feature: the feature's name.
        columns: values of a row; the first ones are the same whatever their number.
        scale: the standard deviation.
        seed: the seed of the run.
        copy: the component of an ensemble that the values are for.

    Returns:
        float32 [N, columns].
    """
    digest = hashlib.sha256(f"{seed}/{copy}/{feature}".encode()).digest()
    first, second = np.frombuffer(digest[:16], "<u8").astype(np.uint64)
    mixed = fingerprints.view(np.uint64)
    steps = np.arange(columns, dtype=np.uint64) * _INCREMENT
    rows = np.empty((len(mixed), columns), np.float32)
    block = max(1, _BLOCK // max(1, columns))
    for begin in range(0, len(rows), block):
        keys = splitmix64(splitmix64(mixed[begin : begin + block] ^ first) ^ second)
        bits = splitmix64(keys[:, np.newaxis] + steps)
        pairs = bits & _LOW_HALVES
        bits >>= np.uint64(16)
        bits &= _LOW_HALVES
        pairs += bits
        halves = pairs.view(np.uint32)
        np.add(halves[:, ::2], halves[:, 1::2], out=rows[begin : begin + block], casting="unsafe")
    # Whole numbers below 2^24 are exact.
    rows -= np.float32(_MEAN)
    rows *= np.float32(scale / _DEVIATION)
    return rows
