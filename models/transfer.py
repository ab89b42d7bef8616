"""The transfer function tau of a factorized model, p = tau(Q . U), in logits (FF section 6).

Both kinds start increasing in Q . U, with tau(0) = prior.
"""

import numpy as np
import tensorflow as tf

from ctr.models.architecture import Factors
from ctr.models.dcn import Weights


def transfer(factors: Factors, weights: Weights, s: tf.Tensor) -> tf.Tensor:
    """Computes logits, float32 [B], of products s, float32 [B].

    Without pieces, scale * s + bias. Otherwise a learned continuous function of linear pieces, each of which increases:
    a slope is the softplus of its weight, so it is always above 0. The first and the last piece are unbounded.

    Args:
        weights: of the component.
    """
    if not factors.pieces:
        return weights["transfer_scale"] * s + weights["transfer_bias"]
    inner = _joints(factors)
    lower, upper = np.append(np.float32(-np.inf), inner), np.append(inner, np.float32(np.inf))

    def clip(s: tf.Tensor) -> tf.Tensor:
        """Clips s to each piece."""
        # At a joint the slope is that of the piece above: minimum and maximum alone would give both pieces'.
        outside = tf.stop_gradient(tf.minimum(tf.maximum(s, lower), upper))
        return tf.where((s >= lower) & (s < upper), s, outside)

    # The length of the way from 0 to s in each piece.
    lengths = clip(s[:, tf.newaxis]) - clip(tf.constant(0.0))
    return tf.linalg.matvec(lengths, tf.nn.softplus(weights["transfer_slopes"])) + weights["transfer_bias"]


def _joints(factors: Factors) -> np.ndarray:
    """Evenly spaced over [-reach, reach]; a single one is at 0."""
    if factors.pieces == 2:
        return np.zeros(1, np.float32)
    return np.linspace(-factors.reach, factors.reach, factors.pieces - 1, dtype=np.float32)
