"""Values of rows as arrays: numbers stored like ids, and lists.

A number is the bits of its float32 as an int32, so that logs carry it as they do ids. The bits are XORed with
the bits of NaN: a missing number is id 0, as in all features. Lists are the values of all rows, concatenated, and the
number of values of each row.
"""

import numpy as np

NAN_BITS = int(np.float32(np.nan).view(np.int32))


def ids_of_numbers(numbers: np.ndarray) -> np.ndarray:
    """Converts float32 of any shape to int32 ids; every NaN is 0."""
    plain = np.where(np.isnan(numbers), np.float32(np.nan), numbers.astype(np.float32, copy=False))
    return plain.view(np.int32) ^ np.int32(NAN_BITS)


def numbers_of_ids(ids: np.ndarray) -> np.ndarray:
    """Inverts ``ids_of_numbers``; int64 ids, as in logs with growing ids, are allowed too."""
    return (ids.astype(np.int32) ^ np.int32(NAN_BITS)).view(np.float32)


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Returns the start of each of N rows' values, and the end of the last row's: int64 [N + 1]."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def places_of(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns the indices of the values of lists that start at ``begins``, list after list: int64 [V]."""
    offsets = offsets_of(lengths)
    return np.repeat(begins - offsets[:-1], lengths) + np.arange(offsets[-1])


def first_positions(codes: np.ndarray) -> np.ndarray:
    """Returns the position of the first occurrence of each code, ascending; codes are int [N], from 0."""
    first = np.full(codes.max(initial=-1) + 1, len(codes))
    np.minimum.at(first, codes, np.arange(len(codes)))
    return np.sort(first[first < len(codes)])
