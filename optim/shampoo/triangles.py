"""Symmetric d x d matrices packed in d (d + 1) / 2 numbers, by moving whole blocks, never single elements.

With r = ceil(d / 2) and h = d - r, the lower triangles of A11 [r, r] and A22 [h, h] fill a rectangle of r x (h + 1),
one unchanged and one transposed (rectangular full packed format; Gustavson et al., ACM TOMS 37(2), 2010)::

    A11 lower       a b' b'      A22 lower, transposed and one to the right: b'
                    a a  b'
                    a a  a

The packed numbers are the rows of A21 [h, r], then those of the rectangle. Only lower triangles are read.
"""

from functools import lru_cache

import numpy as np
import tensorflow as tf


def packed_size(size: int) -> int:
    """Returns d (d + 1) / 2, the packed length of a d x d matrix."""
    return size * (size + 1) // 2


def pack(matrices: tf.Tensor) -> tf.Tensor:
    """Packs [..., d, d] into [..., d (d + 1) / 2], of any floating dtype, with graph operations."""
    size = int(matrices.shape[-1])
    rows = size - size // 2
    half = size - rows
    leading = list(matrices.shape[:-2])
    low = tf.linalg.band_part(matrices[..., :rows, :rows], -1, 0)
    high = tf.linalg.band_part(tf.linalg.matrix_transpose(matrices[..., rows:, rows:]), 0, -1)
    outer = [[0, 0]] * len(leading)
    rectangle = tf.pad(low, [*outer, [0, 0], [0, half + 1 - rows]])
    rectangle += tf.pad(high, [*outer, [0, rows - half], [1, 0]])
    parts = [
        tf.reshape(matrices[..., rows:, :rows], [*leading, half * rows]),
        tf.reshape(rectangle, [*leading, rows * (half + 1)]),
    ]
    return tf.concat(parts, axis=-1)


def unpack(packed: tf.Tensor, size: int) -> tf.Tensor:
    """Unpacks [..., d (d + 1) / 2] into symmetric [..., d, d], d = ``size``, with graph operations."""
    return tf.reshape(tf.gather(packed, _places(size), axis=-1), [*packed.shape[:-1], size, size])


def unpack_arrays(packed: np.ndarray, size: int) -> np.ndarray:
    """Unpacks a NumPy array [..., d (d + 1) / 2] into symmetric [..., d, d], d = ``size``."""
    return packed[..., _places(size)].reshape(*packed.shape[:-1], size, size)


def multiplicities(size: int) -> np.ndarray:
    """Returns how often each packed number occurs in the matrix, 1 or 2; float64 [d (d + 1) / 2]."""
    return np.bincount(_places(size), minlength=packed_size(size)).astype(np.float64)


@lru_cache(maxsize=64)
def _places(size: int) -> np.ndarray:
    """Returns the index in the packed form of each element of a matrix, int32 [d * d]."""
    rows = size - size // 2
    half = size - rows
    i, j = np.indices([size, size])
    i, j = np.maximum(i, j), np.minimum(i, j)
    in_low = half * rows + i * (half + 1) + j
    in_high = half * rows + (j - rows) * (half + 1) + i - rows + 1
    places = np.where(i < rows, in_low, np.where(j < rows, (i - rows) * rows + j, in_high))
    return places.ravel().astype(np.int32)
