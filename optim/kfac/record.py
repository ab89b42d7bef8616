"""Records of a model's linear products, for optimizers and statistics that do not look at its layers.

A *product* is z = a W (+ b) for the rows of a batch; the gradients of W and b of row n are a_n (x) dz_n and dz_n.
Where W is used once, this holds in any model: crosses, bottlenecks, ensembles whose components are computed at once.
"""

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

_PROBABILITIES = ("sigmoid", "softmax", "hard_sigmoid", "log_softmax", "log_sigmoid")


class Product(NamedTuple):
    """A linear product, or n that are computed at once.

    Attributes:
        names: of W, one for each of the n products.
        inputs: a, [B, in] or [n, B, in]; [1, B, in] where all n have the same inputs.
        outputs: z, [B, units] or [n, B, units], with or without its bias.
        slope: the derivative by z of the next product's inputs, or of the model's outputs, where each number of
            these depends on its own of z alone; None: it does not, or that is not known.
        matrix: W, [in, units]; None: not known.
    """

    names: tuple[str, ...]
    inputs: tf.Tensor
    outputs: tf.Tensor
    has_bias: bool
    slope: tf.Tensor | None = None
    matrix: tf.Tensor | None = None


class Recorded(Protocol):
    """A model that reports its products."""

    def record(self, inputs: Any) -> tuple[tf.Tensor, Sequence[Product]]:
        """Returns the outputs for a batch, [B, C], and their products, in the order of the work."""


def singly(product: Product, gradients: tf.Tensor) -> Iterator[tuple[str, tf.Tensor, tf.Tensor]]:
    """Yields of each of the n products the name, a [B, in] and the gradients by z [B, units]."""
    if len(gradients.shape) == 2:
        yield product.names[0], product.inputs, gradients
        return
    for number, name in enumerate(product.names):
        yield name, product.inputs[min(number, product.inputs.shape[0] - 1)], gradients[number]


def is_sequential(model: Any) -> bool:
    """Tells whether a model is a Sequential of Keras 2 or Keras 3."""
    return type(model).__name__ == "Sequential" and hasattr(model, "layers")


def is_dense(layer: Any) -> bool:
    """Tells whether a layer is Keras' own dense one: another of that name may compute anything."""
    return type(layer).__name__ == "Dense" and type(layer).__module__.partition(".")[0] in (
        "keras",
        "tf_keras",
    )


def record_sequential(
    model: Any, inputs: tf.Tensor, slopes: bool = False
) -> tuple[tf.Tensor, Sequence[Product]]:
    """Computes the outputs of a built model, [B, C], and its products, with ``slopes`` not in a ``tf.function``.

    Raises:
        ValueError: a layer's products are not known, as of one with weights that is not dense.
    """
    with contextlib.ExitStack() as stack:
        return _record_layers(model, inputs, stack if slopes else None)


def _record_layers(
    model: Any, inputs: tf.Tensor, stack: contextlib.ExitStack | None
) -> tuple[tf.Tensor, Sequence[Product]]:
    """Runs the layers; on the stack is, with slopes, the tape of what follows the last product."""
    values, products = inputs, []
    tape = None
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
        if len(values.shape) != 2:
            raise ValueError(
                f"the layer {layer.name} has inputs of shape {values.shape}; allowed: [rows, numbers]"
            )
        if tape is not None and stack is not None:
            stack.close()
            products[-1] = products[-1]._replace(slope=_slope(tape, products[-1].outputs, values))
        matrix = tf.convert_to_tensor(layer.kernel)
        if values.dtype == tf.string or values.shape[1] != matrix.shape[0]:
            raise ValueError(
                f"the layer {layer.name} has inputs of shape {values.shape} and {values.dtype.name}; allowed: numbers "
                f"of shape [rows, {matrix.shape[0]}]"
            )
        values = tf.cast(values, matrix.dtype)
        outputs = tf.matmul(values, matrix)
        if layer.use_bias:
            outputs += tf.convert_to_tensor(layer.bias)
        products.append(Product((layer.name,), values, outputs, bool(layer.use_bias), matrix=matrix))
        if stack is not None:
            tape = stack.enter_context(tf.GradientTape(persistent=True, watch_accessed_variables=False))
            tape.watch(outputs)
        values = outputs if layer.activation is None else layer.activation(outputs)
    if tape is not None and stack is not None:
        stack.close()
        products[-1] = products[-1]._replace(slope=_slope(tape, products[-1].outputs, values))
    return values, products


def _slope(tape: tf.GradientTape, outputs: tf.Tensor, following: tf.Tensor) -> tf.Tensor | None:
    """The derivative of what follows a product, of its shape; None where not each number depends on its own alone.

    Where it does, the derivative of a sum with any weights is these weights times that of the plain sum.
    """
    if following.shape != outputs.shape:
        return None
    weights = tf.random.stateless_normal(tf.shape(outputs), (1, 2), dtype=outputs.dtype)
    found = [
        tape.gradient(following, outputs, sent, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        for sent in (tf.ones_like(outputs), weights)
    ]
    gap = tf.reduce_max(tf.abs(found[1] - weights * found[0]))
    # Numbers that are not finite say nothing of it, and stay what they are.
    return None if gap > 1e-4 * tf.reduce_max(tf.abs(found[1])) else found[0]


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
    """Tells whether a layer may behave differently in training, as dropout and batch normalization do."""
    # Lambda passes it on to a function that takes it.
    return "training" in inspect.signature(getattr(layer, "function", layer.call)).parameters
