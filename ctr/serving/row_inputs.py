"""Inputs of the network that are no embeddings, in NumPy: lists that are pooled by attention, numbers as values.

As ``ctr.models.pooling`` and ``ctr.models.numbers`` compute them for batches.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ctr.data.ids.values import Ids
from ctr.data.number_bits import numbers_of_ids
from ctr.data.schema import MISSING_ID
from ctr.models.rows import CLIP, Numbers, Pooled


def attend(
    pooled: Pooled, weights: Mapping[str, np.ndarray], lists: np.ndarray, target: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pools a list's embeddings, float32 [l, w], the latest one last, seen from the target's, [t].

    Returns what is pooled, and its product with the target, float32 [w] each.
    """
    own = {part: weights[f"pooling/{pooled.name}/{part}"] for part in pooled.shapes}
    count, scale = len(lists), np.float32(1 / max(pooled.width, 1) ** 0.5)
    if not count:
        return np.zeros(pooled.width, np.float32), np.zeros(pooled.width, np.float32)
    query = target @ own["query"]
    scores = scale * (lists @ query) + own["recency"][-count:]
    largest = max(scores.max(), np.float32(0))
    parts = np.exp(scores - largest)
    made: np.ndarray = (parts / (parts.sum() + np.exp(-largest))) @ lists
    return made, np.float32(pooled.scale) * made * query


def number_inputs(one: Numbers, statistics: np.ndarray, ids: Ids) -> np.ndarray:
    """Makes the inputs of a feature of N rows, float32 [N, size + 1], of what rows have in the place of ids."""
    lists: Sequence[Any] = ids
    rows = (
        [row if len(row) == one.size else [MISSING_ID] * one.size for row in lists]
        if one.single is None
        else ids
    )
    values = numbers_of_ids(np.array(rows, np.int64).reshape(-1, one.size))
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
