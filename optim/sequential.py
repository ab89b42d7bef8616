"""The products of a Keras Sequential model, of either Keras (``ctr.optim.record``)."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ctr.optim.record import Product


def is_sequential(model: Any) -> bool:
    """Whether a model is a Sequential of Keras 2 or Keras 3."""
    return type(model).__name__ == "Sequential" and hasattr(model, "layers")


def record_sequential(model: Any, inputs: tf.Tensor) -> tuple[tf.Tensor, Sequence[Product]]:
    """The outputs of a model, [B, C], and its products.

    Layers are run one by one, dense ones by their product and their activation. Others may have no trainable weights.

    Args:
        model: Sequential and built; its first layer takes ``inputs``.
        inputs: [B, ...].

    Raises:
        ValueError: a layer's products are not known.
    """
    values, products = inputs, []
    for layer in model.layers:
        if type(layer).__name__ != "Dense":
            if layer.trainable_weights:
                raise ValueError(
                    f"the layer {layer.name} ({type(layer).__name__}) has trainable weights whose gradients by rows "
                    "are not known; allowed: Dense, and layers without trainable weights"
                )
            values = layer(values, training=False) if _takes_training(layer) else layer(values)
            continue
        if len(values.shape) != 2:
            raise ValueError(
                f"the layer {layer.name} has inputs of shape {values.shape}; allowed: [rows, numbers]"
            )
        matrix = tf.convert_to_tensor(layer.kernel)
        values = tf.cast(values, matrix.dtype)
        outputs = tf.matmul(values, matrix)
        if layer.use_bias:
            outputs += tf.convert_to_tensor(layer.bias)
        product = Product((layer.name,), values, outputs, bool(layer.use_bias), matrix=matrix)
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            activated = layer.activation(outputs) if layer.activation is not None else tf.identity(outputs)
        element_wise = activated.shape == outputs.shape and not _mixes(layer)
        slope = tape.gradient(activated, outputs) if element_wise else None
        values = activated
        products.append(product._replace(slope=slope))
    return values, products


def _takes_training(layer: Any) -> bool:
    return type(layer).__name__ in ("Dropout", "GaussianNoise", "GaussianDropout", "AlphaDropout")


def _mixes(layer: Any) -> bool:
    """Whether an activation is not element-wise."""
    return getattr(layer.activation, "__name__", "") in ("softmax", "log_softmax")
