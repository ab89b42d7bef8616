"""Pooling by attention of one row's list, as ``ctr.models.pooling`` computes it for batches, in NumPy."""

from collections.abc import Mapping

import numpy as np

from ctr.models.rows import Pooled

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
