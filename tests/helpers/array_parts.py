"""Parts of arrays, taken from the whole."""

import numpy as np

from ctr.workers.parts import Part


def taken(part: Part, whole: np.ndarray) -> np.ndarray:
    """A worker's part of an array."""
    return (whole if part.shape is None else whole.reshape(-1))[part.rows]
