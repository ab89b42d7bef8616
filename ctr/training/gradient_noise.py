"""Gradient noise of a batch, layer by layer: from the norms of the gradients of its rows (BACKPACK table 1).

With g_n the gradient of row n's logistic loss by a matrix, G their mean over the N rows of a batch, and

    S = 1/N sum |g_n|^2,   |g_n|^2 = |a_n|^2 |dz_n|^2        a: inputs of the product, dz: gradient by its outputs

the trace of the gradients' covariance is T = N / (N - 1) (S - |G|^2), and |G|^2 - T / N estimates the squared norm of
the true gradient without bias. Then

    noise_scale = T / (|G|^2 - T / N)      rows of a batch at which noise and signal are equal
    signal_to_noise = |G|^2 / (T / N)      of this batch; 1 of pure noise

Other terms of the loss, which may couple rows, do not count.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def squared_norms(
    inputs: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor], present: tf.Tensor
) -> tf.Tensor:
    """Computes |G|^2 and S of each product, float32 [P, 2]; components of an ensemble count as one.

    ``inputs`` are those of products, [n or 1, B, in]; ``gradients``: of the sum of the rows' losses by their outputs,
    [n, B, units]; ``present``: [B], 1 for rows and 0 for padding.
    """
    count = tf.reduce_sum(present)
    found = []
    for own, gradient in zip(inputs, gradients, strict=True):
        rows, sent = tf.cast(own, tf.float32), tf.cast(gradient, tf.float32) * present[:, tf.newaxis]
        mean = tf.matmul(rows, sent, transpose_a=True) / count
        each = tf.reduce_sum(tf.square(rows), axis=2) * tf.reduce_sum(tf.square(sent), axis=2)
        found.append(tf.stack([tf.reduce_sum(tf.square(mean)), tf.reduce_sum(each) / count]))
    return tf.stack(found)


def noise_numbers(names: Sequence[str], norms: np.ndarray, rows: int) -> dict[str, Any]:
    """``noise_scale/NAME`` and ``signal_to_noise/NAME`` of what ``squared_norms`` returned, where they are defined."""
    found: dict[str, Any] = {}
    if rows < 2:
        return found
    for name, (mean, total) in zip(names, norms.astype(float), strict=True):
        trace = rows / (rows - 1) * (total - mean)
        signal = mean - trace / rows
        if trace > 0 and math.isfinite(trace):
            found[f"signal_to_noise/{name}"] = mean / (trace / rows)
            if signal > 0:
                found[f"noise_scale/{name}"] = trace / signal
    return found
