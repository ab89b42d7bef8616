"""The hidden layers of a tower: crosses, then deep layers. The towers of several components are computed at once."""

import random
from collections.abc import Iterator, Sequence

import tensorflow as tf

from ctr.models.activations import Activation
from ctr.models.crosses import crosses, fused_crosses, make_cross_layers
from ctr.models.deep import biased_activation, deep_layers, make_deep_layers
from ctr.models.linear import is_recording, stack_weights


class DCN(tf.Module):
    """Crosses, then deep layers.

    Args:
        width: m of the inputs.
        cross_layers: number of crosses; 0 for none.
        cross_rank: k, the rank of U_i V_i; 0 for full matrices.
        deep_units: widths of the deep layers.
        deep_ranks: the rank of each deep layer's bottleneck, 0 for none; empty for none at all.
        activation: of the deep layers.
        compute_dtype: ``float32`` or ``bfloat16``; weights are float32 in both.
        compiled: whether XLA compiles what lies between the products (``ctr.models.passes``).
        seeds: of the initial weights.
    """

    def __init__(
        self,
        width: int,
        cross_layers: int,
        cross_rank: int,
        deep_units: Sequence[int],
        deep_ranks: Sequence[int],
        activation: Activation,
        compute_dtype: str,
        compiled: bool,
        seeds: random.Random,
    ) -> None:
        super().__init__()
        self.compute_dtype = compute_dtype
        self.units = deep_units[-1] if deep_units else width
        self.activation = biased_activation(activation, compiled)
        self.cross = fused_crosses if compiled else crosses
        self.crosses = make_cross_layers(cross_layers, width, cross_rank, compute_dtype, seeds)
        self.deep = make_deep_layers(width, deep_units, deep_ranks, compute_dtype, seeds)

    def weights(self) -> Iterator[tuple[str, tf.Variable]]:
        """Yields all weights with readable names: ``cross_0/u``, ``cross_0/v``, ``cross_0/v_bias``, ``deep_0/w``."""
        for kind, layers in (("cross", self.crosses), ("deep", self.deep)):
            for index, layer in enumerate(layers):
                for name, weight in layer.weights():
                    yield f"{kind}_{index}/{name}", weight


def hidden_layers(towers: Sequence[DCN], e0: tf.Tensor, alpha2: tf.Tensor) -> tf.Tensor:
    """Computes the last hidden layer of n towers of one shape.

    Args:
        e0: [n, B, m], the concatenated embeddings, or [1, B, m], the same for all towers; float32 or the compute dtype.
        alpha2: float32 scalar in [0, 1].

    Returns:
        float32 [n, B, h]; ``e0`` where the towers have no layers.
    """
    first, hidden = towers[0], e0
    if first.crosses:
        with tf.name_scope("crosses"):
            layers = [stack_weights(same) for same in zip(*(tower.crosses for tower in towers), strict=True)]
            cross = crosses if is_recording() else first.cross
            hidden = cross(tf.cast(hidden, first.compute_dtype), alpha2, layers)
    if first.deep:
        with tf.name_scope("deep"):
            layers = [stack_weights(same) for same in zip(*(tower.deep for tower in towers), strict=True)]
            hidden = deep_layers(tf.cast(hidden, first.compute_dtype), layers, first.activation)
    return tf.cast(hidden, tf.float32)
