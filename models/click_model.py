"""The dense part of the click model: plain or factorized, with one or several components (FF 4.3, 5, 6).

A plain model reads the features of both towers::

    logit = w . DCN(e_0) + b + sum of linear weights

In a factorized model Q depends only on the features of the Quality tower, and U on those of the UI tower::

    p = tau(Q . U),   Q = [W_q DCN(e_0), linear, 1],   U = [W_u MLP(e_0) + b_u, 1, linear]

so that the linear weights are still added; an ``Architecture`` without them lacks these terms and their
factors. An ensemble's prediction is the mean of its components' probabilities.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ctr.models.architecture import Architecture, Factors
from ctr.models.dcn import Weights, stacked, tower_outputs


class TowerInput(NamedTuple):
    """The input of a tower for B rows; c is 1, or the number of components if each has separate embeddings.

    Attributes:
        e0: [c, B, m], the concatenated embeddings, float32 or in the compute dtype.
        linear: float32 [c, B], the summed linear weights.
    """

    e0: tf.Tensor
    linear: tf.Tensor


class Scores(NamedTuple):
    """Scores of n components for B rows.

    Attributes:
        logits: float32 [n, B], the click's logits.
        rank_scores: float32 [n, B], scores of the rank head, which only training uses; without one, the logits.
        labels: by name, the logits of ``Architecture.labels``, float32 [n, B] each.
    """

    logits: tf.Tensor
    rank_scores: tf.Tensor
    labels: Mapping[str, tf.Tensor] = MappingProxyType({})

    @property
    def predictions(self) -> list[tf.Tensor]:
        """Returns the ensemble's logits for the click and each label, float32 [B]."""
        return [ensemble_logit(logits) for logits in (self.logits, *self.labels.values())]


def forward(
    architecture: Architecture,
    weights: Weights,
    inputs: Mapping[str, TowerInput],
    alpha2: tf.Tensor,
    compiled: bool = False,
) -> Scores:
    """Computes the scores of B rows.

    Args:
        weights: see ``ctr.models.initial_weights``; weights of a rank head, which only training uses, may be missing.
        inputs: the input of each tower of a factorized model, otherwise of ``quality`` alone.
        alpha2: float32 scalar in [0, 1].
        compiled: see ``ctr.models.dcn.hidden_layers``.
    """
    a, components = architecture, architecture.by_component(weights)
    if a.factors is None:
        return _plain_scores(a, components, inputs["quality"], alpha2, compiled)
    q, *ranked = tower_outputs(a, components, "quality", inputs["quality"].e0, alpha2, compiled)
    (u,) = tower_outputs(a, components, "ui", inputs["ui"].e0, alpha2, compiled)
    both = _with_linear(a, q, inputs["quality"], True), _with_linear(a, u, inputs["ui"], False)
    logits = _transfers(a, components, tf.reduce_sum(both[0] * both[1], axis=2))
    # The ranking has a separate Q for the same U.
    return Scores(logits, tf.reduce_sum(ranked[0] * u, axis=2) if ranked else logits)


def rounded_weights(architecture: Architecture, weights: Weights) -> dict[str, tf.Tensor]:
    """Casts weights of crosses and deep layers to the compute dtype: equal scores, in bfloat16 at half the size."""
    dtype = architecture.compute_dtype
    layers = {f"{tower}/{kind}" for tower in architecture.towers for kind in ("cross_", "deep_")}
    return {
        name: tf.cast(weight, dtype) if any(layer in name for layer in layers) else weight
        for name, weight in weights.items()
    }


def _plain_scores(
    a: Architecture,
    components: Sequence[Weights],
    inputs: TowerInput,
    alpha2: tf.Tensor,
    compiled: bool,
) -> Scores:
    bias = stacked(components, "output_bias")[:, tf.newaxis]
    logits = inputs.linear + bias if a.linear else bias
    outputs = tower_outputs(a, components, "quality", inputs.e0, alpha2, compiled)
    network, *others = [tf.squeeze(output, axis=2) for output in outputs]
    ranked = others[: len(others) - len(a.labels)]
    labels = dict(zip(a.labels, others[len(ranked) :], strict=True))
    logits += network
    return Scores(logits, ranked[0] if ranked else logits, labels)


def quality(architecture: Architecture, weights: Weights, inputs: TowerInput, alpha2: tf.Tensor) -> tf.Tensor:
    """Computes Q, float32 [B, n, K + 2], with the K learned numbers first; [B, n, K] unless ``architecture.linear``."""
    components = architecture.by_component(weights)
    learned = tower_outputs(architecture, components, "quality", inputs.e0, alpha2)[0]
    return tf.transpose(_with_linear(architecture, learned, inputs, True), [1, 0, 2])


def ui(architecture: Architecture, weights: Weights, inputs: TowerInput) -> tf.Tensor:
    """Computes U of a factorized model, of the same shape as ``quality``."""
    components = architecture.by_component(weights)
    (learned,) = tower_outputs(architecture, components, "ui", inputs.e0, tf.constant(0.0))
    return tf.transpose(_with_linear(architecture, learned, inputs, False), [1, 0, 2])


def combine(architecture: Architecture, weights: Weights, quality: tf.Tensor, ui: tf.Tensor) -> tf.Tensor:
    """Computes the logit of tau(Q . U) for each component, float32 [n, B].

    Args:
        quality: the result of ``quality``.
        ui: the result of ``ui``.
    """
    products = tf.transpose(tf.reduce_sum(quality * ui, axis=2))
    return _transfers(architecture, architecture.by_component(weights), products)


def _with_linear(a: Architecture, learned: tf.Tensor, inputs: TowerInput, is_quality: bool) -> tf.Tensor:
    """Appends to Q or U, [n, B, K], its summed linear weights and a 1, by which the other's are multiplied."""
    if not a.linear:
        return learned
    linear = tf.broadcast_to(inputs.linear[:, :, tf.newaxis], tf.concat([tf.shape(learned)[:2], [1]], 0))
    ones = tf.ones_like(linear)
    return tf.concat([learned, *((linear, ones) if is_quality else (ones, linear))], axis=2)


def _transfers(a: Architecture, components: Sequence[Weights], products: tf.Tensor) -> tf.Tensor:
    assert a.factors is not None
    return tf.stack([transfer(a.factors, weights, products[i]) for i, weights in enumerate(components)])


def ensemble_logit(logits: tf.Tensor) -> tf.Tensor:
    """Computes the logit of the mean of n components' probabilities, exact for logits of any size.

    Args:
        logits: float32 [n, B].

    Returns:
        float32 [B].
    """
    if logits.shape[0] == 1:
        return logits[0]
    # Both sums have n terms, so that the divisor n cancels.
    clicked = tf.reduce_logsumexp(-tf.nn.softplus(-logits), axis=0)
    return clicked - tf.reduce_logsumexp(-tf.nn.softplus(logits), axis=0)


def transfer(factors: Factors, weights: Weights, s: tf.Tensor) -> tf.Tensor:
    """Computes the logit of tau(s), float32 [B], for products s = Q . U, float32 [B] (FF section 6).

    Without pieces it is scale * s + bias. Otherwise it is a learned, continuous, increasing piecewise-linear function:
    each slope is the softplus of its weight. The first and the last piece are unbounded. The initial function increases
    and has tau(0) = prior.

    Args:
        weights: the component's weights.
    """
    if not factors.pieces:
        return weights["transfer_scale"] * s + weights["transfer_bias"]
    inner = _joints(factors)
    lower, upper = np.append(np.float32(-np.inf), inner), np.append(inner, np.float32(np.inf))

    def clip(s: tf.Tensor) -> tf.Tensor:
        """Clips s to the interval of each piece."""
        # At a joint only the piece above has a slope: minimum and maximum alone would count the slopes of both pieces.
        outside = tf.stop_gradient(tf.minimum(tf.maximum(s, lower), upper))
        return tf.where((s >= lower) & (s < upper), s, outside)

    # The part of the interval from 0 to s in each piece.
    lengths = clip(s[:, tf.newaxis]) - clip(tf.constant(0.0))
    return tf.linalg.matvec(lengths, tf.nn.softplus(weights["transfer_slopes"])) + weights["transfer_bias"]


def _joints(factors: Factors) -> np.ndarray:
    """Returns the joints of the pieces, spaced evenly over [-reach, reach]; a single joint is at 0."""
    if factors.pieces == 2:
        return np.zeros(1, np.float32)
    return np.linspace(-factors.reach, factors.reach, factors.pieces - 1, dtype=np.float32)
