"""Linear products of a model, recorded in a forward pass, and what is sent back through them from the outputs.

A *product* is z = a W (+ b) for the rows of a batch; the gradients of W and b of row n are a_n (x) dz_n and dz_n.
What is sent back is a tensor of the outputs' shape: gradients of a loss, those of drawn labels, or columns of a root of
its Hessian (``output_losses.py``).
"""

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

_PROBABILITIES = ("sigmoid", "softmax", "hard_sigmoid", "log_softmax", "log_sigmoid")


class Product(NamedTuple):
    """A linear product z = a W (+ b): W's name, a [B, in], z [B, units], whether it has a bias, and W [in, units]."""

    name: str
    inputs: tf.Tensor
    outputs: tf.Tensor
    has_bias: bool
    matrix: tf.Tensor


class Sent(NamedTuple):
    """What has come back to one product: with its inputs a [B, in] a tensor dz [B, units]."""

    name: str
    inputs: tf.Tensor
    gradients: tf.Tensor
    has_bias: bool


class Recording(NamedTuple):
    """A forward pass: outputs [B, C], products in the order of the work, and the tape of what depends on them."""

    outputs: tf.Tensor
    products: Sequence[Product]
    tape: tf.GradientTape

    def send(self, by_outputs: tf.Tensor) -> list[Sent]:
        """Sends a tensor of the outputs' shape back to every product; 0 where nothing comes back."""
        targets = [product.outputs for product in self.products]
        zero = tf.UnconnectedGradients.ZERO
        gradients = self.tape.gradient(self.outputs, targets, by_outputs, unconnected_gradients=zero)
        return [
            Sent(product.name, product.inputs, gradient, product.has_bias)
            for product, gradient in zip(self.products, gradients, strict=True)
        ]


def record(model: Any, inputs: tf.Tensor) -> Recording:
    """Runs the forward pass of a Sequential model and records it (``sequential_products``)."""
    with tf.GradientTape(persistent=True) as tape:
        return Recording(*sequential_products(model, inputs), tape)


def is_sequential(model: Any) -> bool:
    """Returns whether a model is a Sequential of Keras 2 or Keras 3."""
    return type(model).__name__ == "Sequential" and hasattr(model, "layers")


def is_dense(layer: Any) -> bool:
    """Returns whether a layer is Keras' own dense one: another of that name may compute anything."""
    package = type(layer).__module__.partition(".")[0]
    return type(layer).__name__ == "Dense" and package in ("keras", "tf_keras")


def sequential_products(model: Any, inputs: tf.Tensor) -> tuple[tf.Tensor, Sequence[Product]]:
    """Computes the outputs of a built Sequential model, [B, C], and its products, which also frozen layers have.

    Raises:
        ValueError: a layer's products are not known, as of one with weights that is not dense.
    """
    values, products = inputs, []
    for layer in model.layers:
        if not layer.built:
            raise ValueError(
                f"the layer {layer.name} is not built; allowed: a model that is built or was called"
            )
        if not is_dense(layer):
            if layer.trainable_weights:
                raise ValueError(
                    f"the layer {layer.name} ({type(layer).__name__}) has trainable weights whose gradients by rows "
                    "are not known; allowed: Dense, and layers without trainable weights"
                )
            values = layer(values, training=False) if takes_training(layer) else layer(values)
            continue
        matrix = tf.convert_to_tensor(layer.kernel)
        if values.dtype == tf.string or len(values.shape) != 2 or values.shape[1] != matrix.shape[0]:
            raise ValueError(
                f"the layer {layer.name} has inputs of shape {values.shape} and {values.dtype.name}; allowed: numbers "
                f"of shape [rows, {matrix.shape[0]}]"
            )
        values = tf.cast(values, matrix.dtype)
        outputs = tf.matmul(values, matrix)
        if layer.use_bias:
            outputs += tf.convert_to_tensor(layer.bias)
        products.append(Product(layer.name, values, outputs, bool(layer.use_bias), matrix))
        values = outputs if layer.activation is None else layer.activation(outputs)
    return values, products


def refuse_probabilities(model: Any, loss: str) -> None:
    """Raises ValueError where a loss of logits would be given probabilities: a last sigmoid or softmax."""
    if not loss.endswith("crossentropy") or not is_sequential(model) or not model.layers:
        return
    last = model.layers[-1]
    activation = getattr(getattr(last, "activation", None), "__name__", type(last).__name__.lower())
    if activation.removesuffix("_v2") in _PROBABILITIES:
        raise ValueError(
            f"the last layer {last.name} has the activation {activation}, and {loss} takes logits; allowed: no "
            "activation behind the last product"
        )


def takes_training(layer: Any) -> bool:
    """Returns whether a layer may behave differently in training, as dropout and batch normalization do."""
    # Lambda passes it on to a function that takes it.
    return "training" in inspect.signature(getattr(layer, "function", layer.call)).parameters
