"""DCNv2 with low-rank crosses under a ramp: the hidden layers of one tower, of one or of several components at once.

    e_i = alpha2 * (e_0 * (U_i V_i e_{i-1} + b_i)) + e_{i-1}          (FF 4.3; b_i as in DCNv2)
    h_i = activation(h_{i-1} W_i + b_i), or with a bottleneck activation(h_{i-1} U_i V_i + b_i)     (FF 3.1)

``alpha2`` ramps from 0 to 1, so that training starts as if there were no crosses (ReZero).
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import tensorflow as tf
import tensorflow_recommenders as tfrs

from ctr.models.passes import Activation, BiasedActivation, biased_activation, make_crosses


class LowRankCross(tfrs.layers.dcn.Cross):
    """tensorflow-recommenders' cross, whose inner layers compute in this layer's dtype.

    The base class gives them its variable dtype, so under ``mixed_bfloat16`` they would compute in
    float32.
    """

    def build(self, input_shape: tf.TensorShape) -> None:
        super().build(input_shape)
        width = input_shape[-1]
        for layer in self.products.values():
            layer._set_dtype_policy(self.dtype_policy)
            layer.build([None, width])
            width = layer.units

    @property
    def products(self) -> dict[str, tf.keras.layers.Dense]:
        """The inner layers in order, by the names of their matrices in the formula."""
        return (
            {"w": self._dense} if self._projection_dim is None else {"u": self._dense_u, "v": self._dense_v}
        )


class DCN(tf.Module):
    """Crosses, then deep layers.

    Args:
        cross_layers: number of crosses; 0 for none.
        cross_rank: k, the rank of U_i V_i; 0 for full matrices.
        deep_units: widths of the deep layers.
        deep_ranks: the rank of each deep layer's bottleneck, 0 for none; empty for none at all.
        activation: of the deep layers.
        compute_dtype: ``float32`` or ``bfloat16``; weights are float32 in both.
        compiled: whether XLA compiles what lies between the products (``ctr.models.passes``).
    """

    def __init__(
        self,
        cross_layers: int,
        cross_rank: int,
        deep_units: Sequence[int],
        deep_ranks: Sequence[int],
        activation: Activation,
        compute_dtype: str,
        compiled: bool = True,
    ) -> None:
        super().__init__()
        self.activation, self.cross = biased_activation(activation, compiled), make_crosses(compiled)
        policy = "mixed_bfloat16" if compute_dtype == "bfloat16" else "float32"
        self.crosses = [
            LowRankCross(projection_dim=cross_rank or None, dtype=policy, name=f"cross_{index}")
            for index in range(cross_layers)
        ]
        self.deep: list[tf.keras.layers.Dense] = []
        for index, (units, rank) in enumerate(zip_longest(deep_units, deep_ranks, fillvalue=0)):
            name = f"deep_{index}/w"
            if rank:
                # Linear, without a bias: the variance of its inputs is kept, as he_normal presumes for what follows.
                self.deep.append(
                    tf.keras.layers.Dense(
                        rank,
                        use_bias=False,
                        kernel_initializer="lecun_normal",
                        dtype=policy,
                        name=f"deep_{index}/u",
                    )
                )
                name = f"deep_{index}/v"
            self.deep.append(
                tf.keras.layers.Dense(units, kernel_initializer="he_normal", dtype=policy, name=name)
            )

    def weights(self) -> Iterator[tuple[str, tf.Variable]]:
        """All weights, once they are there, with readable names: ``cross_0/u``, ``cross_0/v``, ``deep_0/w_bias``."""
        for cross in self.crosses:
            for matrix, layer in cross.products.items():
                yield from _weights_of(f"{cross.name}/{matrix}", layer)
        for layer in self.deep:
            yield from _weights_of(layer.name, layer)


def _weights_of(name: str, layer: tf.keras.layers.Dense) -> Iterator[tuple[str, tf.Variable]]:
    yield name, layer.kernel
    if layer.use_bias:
        yield f"{name}_bias", layer.bias


def hidden_layers(towers: Sequence[DCN], e0: tf.Tensor, alpha2: tf.Tensor) -> tf.Tensor:
    """The last hidden layer of n towers of one shape.

    Args:
        e0: [n, B, m], the concatenated embeddings, or [1, B, m], the same for all towers; float32 or the compute dtype.
        alpha2: float32 scalar in [0, 1].

    Returns:
        float32 [n, B, h]; where the towers have no layers ``e0``.
    """
    first = towers[0]
    hidden = e0
    if first.crosses:
        for cross in (cross for tower in towers for cross in tower.crosses if not cross.built):
            cross.build(e0.shape)
            cross.built = True
        with tf.name_scope("crosses"):
            hidden = first.cross(
                tf.cast(e0, first.crosses[0].compute_dtype),
                alpha2,
                [_weights_of_cross(same) for same in zip(*(tower.crosses for tower in towers), strict=True)],
            )
    with tf.name_scope("deep"):
        for layers in zip(*(tower.deep for tower in towers), strict=True):
            hidden = dense(layers, hidden, first.activation)
    return tf.cast(hidden, tf.float32)


def _weights_of_cross(same: Sequence[LowRankCross]) -> tuple[list[tf.Tensor], tf.Tensor]:
    layers = list(zip(*(cross.products.values() for cross in same), strict=True))
    return [kernels(each) for each in layers], biases(layers[-1])


def kernels(layers: Sequence[tf.keras.layers.Dense]) -> tf.Tensor:
    """The matrices of n layers of one shape, [n, m, units], in their compute dtype."""
    return _stack([tf.cast(layer.kernel, layer.compute_dtype) for layer in layers])


def biases(layers: Sequence[tf.keras.layers.Dense]) -> tf.Tensor:
    """The biases of n layers of one shape, [n, 1, units], in their compute dtype."""
    return tf.expand_dims(_stack([tf.cast(layer.bias, layer.compute_dtype) for layer in layers]), 1)


def dense(
    layers: Sequence[tf.keras.layers.Dense], inputs: tf.Tensor, activation: BiasedActivation = tf.add
) -> tf.Tensor:
    """n layers of one shape as one batched product.

    Args:
        inputs: [n, B, m], or [1, B, m] for all of them.
        activation: of product and bias, where the layers have a bias.

    Returns:
        [n, B, units] in the layers' compute dtype.
    """
    first = layers[0]
    for layer in layers:
        if not layer.built:
            layer.build(inputs.shape)
    product = tf.matmul(tf.cast(inputs, first.compute_dtype), kernels(layers))
    return activation(product, biases(layers)) if first.use_bias else product


def _stack(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Tensors one upon the other; of a single one no copy."""
    return tf.expand_dims(tensors[0], 0) if len(tensors) == 1 else tf.stack(tensors)
