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

_EPSILON = np.float32(1e-6)


def attend(
    pooled: Pooled,
    weights: Mapping[str, np.ndarray],
    lists: np.ndarray,
    target: np.ndarray,
    ages: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Pools a list's embeddings, float32 [l, w], the latest one last, seen from the target's, [t].

    ``ages``, float32 [k, a], are the embeddings of the values' ages, as far as they are known of the latest ones.

    Returns what is pooled, and its product with the target, float32 [w] each.
    """
    own = {part: weights[f"pooling/{pooled.name}/{part}"] for part in pooled.shapes}
    count, scale = len(lists), np.float32(1 / max(pooled.width, 1) ** 0.5)
    if not count:
        return np.zeros(pooled.width, np.float32), np.zeros(pooled.width, np.float32)
    if ages is not None:
        ages = np.concatenate([np.zeros((count, ages.shape[1]), np.float32), ages])[-count:]
    if pooled.kind == "sequence":
        inputs = lists if ages is None else lists + ages @ own["age_inputs"]
        lists = lists + _block(own, inputs + own["places"][-count:], pooled.most, scale)
    query = target @ own["query"]
    scores = scale * (lists @ query) + own["recency"][-count:]
    if ages is not None:
        scores += scale * (ages @ own["age"])
    largest = max(scores.max(), np.float32(0))
    parts = np.exp(scores - largest)
    made: np.ndarray = (parts / (parts.sum() + np.exp(-largest))) @ lists
    return made, np.float32(pooled.scale) * made * query


def _block(own: Mapping[str, np.ndarray], inputs: np.ndarray, most: int, scale: np.float32) -> np.ndarray:
    count = len(inputs)
    u, v, q, k = np.split(_silu(inputs @ own["block"]), 4, axis=1)
    distance = np.arange(count)[:, np.newaxis] - np.arange(count)
    attention = _silu(scale * (q @ k.T) + own["distances"][np.maximum(distance, 0)])
    mixed = np.where(distance >= 0, attention, np.float32(0)) / np.float32(most) @ v
    centered = mixed - mixed.mean(axis=1, keepdims=True)
    normed = centered / np.sqrt(np.square(centered).mean(axis=1, keepdims=True) + _EPSILON)
    made: np.ndarray = (normed * u) @ own["block_out"]
    return made


def _silu(values: np.ndarray) -> np.ndarray:
    return values / (1 + np.exp(-values))


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
