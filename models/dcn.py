"""A tower: crosses, then deep layers, then heads, computed for several components at once.

    h_i = activation(h_{i-1} W_i + b_i), or with a bottleneck activation(h_{i-1} U_i V_i + b_i)     (FF 3.1)

A layer with several sources adds up its products with all of them (``Tower.sources``).
"""

import functools
from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr.models.activations import biased_activation, make_activation
from ctr.models.architecture import NETWORK, Architecture, Network, label_weights
from ctr.models.crosses import Layer, crosses, fused_crosses

Weights = Mapping[str, tf.Tensor]
"""Weights by the names of ``ctr.models.initial_weights``; float32, or from ``rounded_weights``."""


def tower_outputs(
    architecture: Architecture,
    components: Sequence[Weights],
    tower: str,
    e0: tf.Tensor,
    alpha2: tf.Tensor,
    compiled: bool = False,
) -> list[tf.Tensor]:
    """Computes the outputs of the heads for n components, float32 [n, B, units]: click, ranking, further labels.

    For the arguments see ``hidden_layers``.
    """
    hidden = hidden_layers(architecture, components, tower, e0, alpha2, compiled)
    hidden[-1] = tf.cast(hidden[-1], tf.float32)
    heads = [f"{tower}_head", *(["rank_head"] if tower == "quality" else [])]
    outputs = []
    for head in heads:
        if head not in components[0]:
            continue
        bias = stacked(components, f"{head}_bias") if f"{head}_bias" in components[0] else None
        matrices = {
            -1: stacked(components, head),
            **_detours(architecture, components, tower, len(hidden) - 1),
        }
        read = _read(hidden, matrices)
        outputs.append(read if bias is None else read + tf.expand_dims(bias, 1))
    for matrix, bias in map(label_weights, architecture.labels if tower == "quality" else ()):
        read = tf.matmul(hidden[-1], stacked(components, matrix))
        outputs.append(read + stacked(components, bias)[:, tf.newaxis, tf.newaxis])
    return outputs


def hidden_layers(
    architecture: Architecture,
    components: Sequence[Weights],
    tower: str,
    e0: tf.Tensor,
    alpha2: tf.Tensor,
    compiled: bool = False,
) -> list[tf.Tensor]:
    """Computes the inputs of the deep layers and the head: e_0 or the last e_i, then each h_i, [n, B, h].

    Args:
        components: the weights of each component.
        tower: name of the tower.
        e0: [n, B, m], the concatenated embeddings, or [1, B, m] if shared; float32 or the compute dtype.
        alpha2: float32 scalar in [0, 1].
        compiled: whether XLA compiles the operations between the products (``ctr.models.own_gradient``).
    """
    shape, dtype, hidden = architecture.towers[tower], architecture.compute_dtype, [e0]
    if architecture.network is not None and tower == "quality":
        return [e0, _network(architecture.network, components, tf.cast(e0, dtype), tf.cast(alpha2, dtype))]
    if shape.crosses:
        with tf.name_scope("crosses"):
            layers = [_layer(components, f"{tower}/cross_{number}", dtype) for number in range(shape.crosses)]
            e0 = tf.cast(e0, dtype)
            hidden = [(fused_crosses if compiled else crosses)(e0, alpha2, layers)]
    if shape.units:
        with tf.name_scope("deep"):
            activation = make_activation(architecture.activation, architecture.smelu_beta)
            biased = biased_activation(activation, compiled)
            count, hidden = len(shape.units), [tf.cast(hidden[0], dtype)]
            layers = [_layer(components, f"{tower}/deep_{number}", dtype) for number in range(count)]
            for index, ((first, *rest), bias) in enumerate(layers):
                matrices = {-1: first, **_detours(architecture, components, tower, index)}
                read = _read(hidden, matrices)
                hidden.append(biased(functools.reduce(tf.matmul, rest, read), bias))
    return hidden


def _network(network: Network, components: Sequence[Weights], e0: tf.Tensor, alpha2: tf.Tensor) -> tf.Tensor:
    """Computes the outputs, [n, B, units], of the network that replaces the layers, in the dtype of ``e0``."""
    inputs, outputs = tf.unstack(e0), []
    for number, component in enumerate(components):
        weights = {
            name.removeprefix(NETWORK): tf.cast(weight, e0.dtype)
            for name, weight in component.items()
            if name.startswith(NETWORK)
        }
        outputs.append(network.forward(weights, inputs[number % len(inputs)], alpha2))
    return stack(outputs)


def _read(hidden: Sequence[tf.Tensor], matrices: Mapping[int, tf.Tensor]) -> tf.Tensor:
    """Adds up the products of layer outputs with matrices, which are given by the index of the layer in ``hidden``."""
    read = [tf.matmul(tf.cast(hidden[source], matrix.dtype), matrix) for source, matrix in matrices.items()]
    return read[0] if len(read) == 1 else tf.add_n(read)


def _detours(
    architecture: Architecture, components: Sequence[Weights], tower: str, index: int
) -> dict[int, tf.Tensor]:
    """Returns the skip connections of a deep layer or the head: a matrix for each earlier layer that it reads."""
    shape = architecture.towers[tower]
    is_head = index == len(shape.units)
    reader, dtype = ("head", "float32") if is_head else (f"deep_{index}", architecture.compute_dtype)
    return {
        source: stacked(components, f"{tower}/{reader}_from_{source}", dtype)
        for source in shape.sources[index]
    }


def _layer(components: Sequence[Weights], name: str, dtype: str) -> Layer:
    """Stacks a layer's weights over n components."""
    names = ["w"] if f"{name}/w" in components[0] else ["u", "v"]
    bias = stacked(components, f"{name}/{names[-1]}_bias", dtype)
    return [stacked(components, f"{name}/{part}", dtype) for part in names], tf.expand_dims(bias, 1)


def stacked(components: Sequence[Weights], name: str, dtype: str = "float32") -> tf.Tensor:
    """Stacks a weight over n components, [n, ...]."""
    return stack([tf.cast(component[name], dtype) for component in components])


def stack(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Stacks tensors of equal shape along a new first axis, without a copy if there is only one."""
    return tf.expand_dims(tensors[0], 0) if len(tensors) == 1 else tf.stack(tensors)
