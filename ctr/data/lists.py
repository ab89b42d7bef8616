"""Lists of rows as arrays: the values of all rows one after the other, and how many each row has."""

import numpy as np


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Returns where the values of each of N rows begin, and where the last ones end: int64 [N + 1]."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def places_of(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns the places of values of lists that begin anywhere, list after list: int64 [V]."""
    offsets = offsets_of(lengths)
    return np.repeat(begins - offsets[:-1], lengths) + np.arange(offsets[-1])
