"""Inputs of features whose numbers the network reads, as ``ctr.models.numbers`` computes them, in NumPy."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ctr.data.ids.values import Ids
from ctr.data.number_bits import numbers_of_ids
from ctr.data.schema import MISSING_ID
from ctr.models.rows import CLIP, Numbers


def number_inputs(one: Numbers, statistics: np.ndarray, ids: Ids) -> np.ndarray:
    """Makes the inputs of a feature of N rows, float32 [N, size + 1], of what rows have in the place of ids."""
    values = _values(one, ids)
    missing = np.isnan(values).any(axis=1, keepdims=True)
    inputs = values
    if one.normalize:
        count, mean, squares = statistics[:, one.first : one.first + one.size]
        variance = squares / np.maximum(count, 1.0)
        deviation = np.sqrt(np.where(variance > 0, variance, 1.0))
        scaled = values.astype(np.float64)
        scaled = np.sign(scaled) * np.log1p(np.abs(scaled)) if one.log else scaled
        inputs = np.clip((scaled - mean) / deviation, -CLIP, CLIP).astype(np.float32)
    return np.concatenate([np.where(missing, np.float32(0), inputs), missing.astype(np.float32)], axis=1)


def _values(one: Numbers, ids: Ids) -> np.ndarray:
    """Finds the numbers of N rows, float32 [N, size], NaN where they are missing."""
    if one.single is not None:
        return numbers_of_ids(np.array(ids, np.int64))[:, np.newaxis]
    lists: Sequence[Any] = ids
    rows = [row if len(row) == one.size else [MISSING_ID] * one.size for row in lists]
    return numbers_of_ids(np.array(rows, np.int64).reshape(-1, one.size))
