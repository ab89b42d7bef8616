"""Ids of numbers in NumPy, equal to those of ``ctr.data.feature_ops.number_ids``."""

import numpy as np

from ctr.data.schema import MISSING_ID, Number

# TensorFlow's kernels take subnormal numbers as 0 in some threads and not in others; here they are all 0.
_SMALLEST_NORMAL = np.finfo(np.float32).tiny


def number_edges(feature: Number) -> np.ndarray:
    """Returns the boundaries between a feature's buckets, float32, rising."""
    edges = np.asarray(feature.edges(), np.float32)
    edges[np.abs(edges) < _SMALLEST_NORMAL] = 0
    return edges


def ids_of_numbers(edges: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Makes the ids of float32 [N], int32 [N]; NaN is missing."""
    normal = np.where(np.abs(values) < _SMALLEST_NORMAL, np.float32(0), values)
    ids = np.searchsorted(edges, normal, side="right").astype(np.int32)
    ids += 1
    ids[np.isnan(values)] = MISSING_ID
    return ids
