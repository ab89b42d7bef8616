"""Numbers in the place of ids: the bits of a float32 as an int32, so that logs carry them as they do ids.

The bits are combined, by exclusive or, with those of NaN: a missing number is id 0, as of all features.
"""

import numpy as np

NAN_BITS = int(np.float32(np.nan).view(np.int32))


def ids_of_numbers(numbers: np.ndarray) -> np.ndarray:
    """Makes int32 of float32 of any shape; every NaN is 0."""
    plain = np.where(np.isnan(numbers), np.float32(np.nan), numbers.astype(np.float32, copy=False))
    return plain.view(np.int32) ^ np.int32(NAN_BITS)


def numbers_of_ids(ids: np.ndarray) -> np.ndarray:
    """Inverts ``ids_of_numbers``, also of int64, which logs have with ids that grow."""
    return (ids.astype(np.int32) ^ np.int32(NAN_BITS)).view(np.float32)
