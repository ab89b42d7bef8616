"""Linear products of a model, recorded in a forward pass, and tensors sent back through them from the outputs.

A *product* is z_t = a_t W (+ b) for the rows of a batch and T positions: one position of a dense layer, all pixels of
the outputs of a convolution, whose a_t are patches of its inputs (Grosse and Martens, 2016). The gradients of W and b
of a row are sum_t a_t (x) dz_t and sum_t dz_t. A normalization is z_t = a_t * gamma + beta with normalized a_t, and the
gradients of gamma and beta are sum_t a_t * dz_t and sum_t dz_t.

The tensors sent back have the outputs' shape: gradients of a loss, gradients for drawn labels, or columns of a root of
the Hessian (``output_losses.py``).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

_PROBABILITIES = ("sigmoid", "softmax", "hard_sigmoid", "log_softmax", "log_sigmoid")
_MODELS = ("Sequential", "Functional")
_TAKEN = "Dense, Conv2D of one group with channels last"


class Product(NamedTuple):
    """The product of a layer.

    Attributes:
        name: the name of the layer.
        inputs: a [B, T, in].
        outputs: z [B, T, units]; in and units are equal for a normalization.
        has_bias: whether there is a b, or beta.
        shape: the shape of the layer's weight, with the elements of W [in, units]; (units,) of a normalization.
    """

    name: str
    inputs: tf.Tensor
    outputs: tf.Tensor
    has_bias: bool
    shape: tuple[int, ...]


class Recording(NamedTuple):
    """A recorded forward pass.

    Attributes:
        outputs: the model's outputs [B, C].
        products: the products in the order of execution.
        values: the outputs of each module of the model, in the same order; products and activations are modules.
        tape: gradient tape of all that depends on the products.
    """

    outputs: tf.Tensor
    products: Sequence[Product]
    values: Sequence[tf.Tensor]
    tape: tf.GradientTape

    def send(self, by_outputs: tf.Tensor) -> list[tf.Tensor]:
        """Propagates a tensor [B, C] back to every product: [B, T, units] each; 0 where no gradient arrives."""
        targets = [product.outputs for product in self.products]
        zero = tf.UnconnectedGradients.ZERO
        return self.tape.gradient(self.outputs, targets, by_outputs, unconnected_gradients=zero)


def record(model: Any, inputs: tf.Tensor, in_training: bool = False) -> Recording:
    """Runs the forward pass of a built model and records its products, including those of frozen layers.

    Args:
        model: Sequential or Functional, of layers that ``refuse_layers`` allows.
        inputs: inputs of the model's shape.
        in_training: whether batch normalizations use the moments of the batch; their averages stay unchanged.

    Raises:
        ValueError: the inputs have another shape, the outputs are not [B, C], or a layer is called twice.
    """
    check_inputs(model, inputs)
    products: dict[str, Product] = {}
    values: list[tf.Tensor] = []
    layers = leaves(model)

    def call_recorded(
        layer: Any, call: Callable[..., Any], entering: Any, *arguments: Any, **options: Any
    ) -> Any:
        """Computes a layer's outputs, by its recorded product if it has one; appends each module's to ``values``."""
        product, activation = _product(layer, entering, in_training)
        if product is None:
            values.append(call(entering, *arguments, **options))
            return values[-1]
        if product.name in products:
            raise ValueError(
                f"the layer {layer.name} is called twice, or another has its name; allowed: one call of each layer"
            )
        shape = tf.concat([tf.shape(product.outputs)[:1], product.outputs.shape[1:]], axis=0)
        positions = math.prod(product.outputs.shape[1:-1])
        flat_inputs, flat_outputs = (
            tf.reshape(side, [-1, positions, side.shape[-1]]) for side in (product.inputs, product.outputs)
        )
        # Outputs of a frozen layer are not watched automatically.
        tape.watch(flat_outputs)
        products[product.name] = product._replace(inputs=flat_inputs, outputs=flat_outputs)
        outputs = tf.reshape(flat_outputs, shape)
        values.append(flat_outputs)
        if activation is not None:
            outputs = activation(outputs)
            values.append(outputs)
        return outputs

    with tf.GradientTape(persistent=True) as tape:
        # Keras has no hooks. The attribute is not set by way of Keras, which would track it.
        for layer in layers:
            object.__setattr__(layer, "call", partial(call_recorded, layer, layer.call))
        try:
            outputs = model(inputs, training=in_training)
        finally:
            for layer in layers:
                object.__delattr__(layer, "call")
    if len(outputs.shape) != 2:
        raise ValueError(f"{model.name} has outputs of shape {outputs.shape}; allowed: [rows, outputs]")
    return Recording(outputs, list(products.values()), values, tape)


def check_inputs(model: Any, inputs: tf.Tensor) -> None:
    """Raises ValueError unless a model has one input and one output, and ``inputs`` are numbers of its input shape."""
    shape: Any = model.input_shape
    if isinstance(shape, list | dict) or isinstance(model.output_shape, list | dict):
        raise ValueError(f"{model.name} has several inputs or outputs; allowed: one tensor each")
    if inputs.dtype == tf.string or not inputs.shape.is_compatible_with(shape):
        raise ValueError(
            f"{model.name} has inputs of shape {inputs.shape} and {inputs.dtype.name}; allowed: numbers of shape "
            f"{['rows', *shape[1:]]}"
        )


def _product(layer: Any, entering: Any, in_training: bool) -> tuple[Product | None, Any]:
    """Returns a layer's product, its tensors in the layer's shapes, and the activation after it; None: no product."""
    if is_normalization(layer):
        if not in_training or not layer.trainable:
            return None, None
        rank = len(entering.shape)
        if [axis % rank for axis in tf.nest.flatten(layer.axis)] != [rank - 1]:
            raise ValueError(f"the layer {layer.name} normalizes axis {layer.axis}; allowed: the last one")
        axes = list(range(rank - 1)) if type(layer).__name__ == "BatchNormalization" else [-1]
        mean, variance = tf.nn.moments(entering, axes, keepdims=True)
        normalized = (entering - mean) * tf.math.rsqrt(variance + layer.epsilon)
        scaled = normalized * tf.convert_to_tensor(layer.gamma) if layer.gamma is not None else normalized
        if layer.beta is not None:
            scaled += tf.convert_to_tensor(layer.beta)
        shape = (entering.shape[-1],)
        return Product(layer.name, normalized, scaled, layer.beta is not None, shape), None
    if not has_matrix(layer):
        return None, None
    kernel = tf.convert_to_tensor(layer.kernel)
    if len(kernel.shape) == 2:
        if len(entering.shape) != 2:
            raise ValueError(
                f"the layer {layer.name} has inputs of shape {entering.shape}; allowed: [rows, numbers]"
            )
        inputs, outputs = entering, tf.matmul(entering, kernel)
    else:
        padding, rates = layer.padding.upper(), layer.dilation_rate
        sizes, strides, steps = ([1, *sides, 1] for sides in (layer.kernel_size, layer.strides, rates))
        # The backward pass goes through the convolution itself, not through the patches.
        inputs = tf.image.extract_patches(tf.stop_gradient(entering), sizes, strides, steps, padding)
        outputs = tf.nn.conv2d(entering, kernel, layer.strides, padding, dilations=rates)
    if layer.use_bias:
        outputs += tf.convert_to_tensor(layer.bias)
    product = Product(layer.name, inputs, outputs, bool(layer.use_bias), tuple(kernel.shape))
    return product, layer.activation


def leaves(model: Any) -> list[Any]:
    """Returns the layers of a model and its submodels that hold no layers themselves."""
    inner = getattr(model, "layers", None)
    return [model] if inner is None else [leaf for layer in inner for leaf in leaves(layer)]


def is_chain(model: Any) -> bool:
    """Returns whether a model is a chain of modules: a Sequential model whose submodels are Sequential, too."""
    inner = getattr(model, "layers", None)
    return inner is None or (type(model).__name__ == "Sequential" and all(map(is_chain, inner)))


def check_model(model: Any) -> None:
    """Raises ValueError unless ``model`` is a built Sequential or Functional model of either Keras."""
    if type(model).__name__ not in _MODELS or not hasattr(model, "layers"):
        raise ValueError(
            f"{type(model).__name__} is not a Sequential model; allowed: that or a Functional one"
        )
    for layer in (model, *leaves(model)):
        if not layer.built:
            raise ValueError(
                f"the layer {layer.name} is not built; allowed: a model that is built or was called"
            )


def refuse_layers(model: Any, takes_normalizations: bool) -> None:
    """Raises ValueError for a layer with trainable weights and no product, or a normalization that is not allowed."""
    for layer in leaves(model):
        taken = has_matrix(layer) or (takes_normalizations and is_normalization(layer))
        if layer.trainable_weights and not taken:
            allowed = _TAKEN + (", normalizations along the last axis" if takes_normalizations else "")
            raise ValueError(
                f"the layer {layer.name} ({type(layer).__name__}) has trainable weights whose gradients by rows are "
                f"not known; allowed: {allowed}, and layers without trainable weights"
            )


def _is_keras(layer: Any, *names: str) -> bool:
    # Another class of that name may compute anything.
    return type(layer).__name__ in names and type(layer).__module__.partition(".")[0] in ("keras", "tf_keras")


def has_matrix(layer: Any) -> bool:
    """Returns whether a layer is Keras' ``Dense``, or a ``Conv2D`` that is supported here."""
    if _is_keras(layer, "Conv2D"):
        return layer.groups == 1 and layer.data_format == "channels_last" and layer.padding != "causal"
    return _is_keras(layer, "Dense")


def is_normalization(layer: Any) -> bool:
    """Returns whether a layer is Keras' normalization by moments of the batch or of each row."""
    return _is_keras(layer, "BatchNormalization", "LayerNormalization") and not getattr(
        layer, "renorm", False
    )


def refuse_probabilities(model: Any, loss: str) -> None:
    """Raises ValueError where a loss of logits would receive probabilities: the last layer has a sigmoid or softmax."""
    if not loss.endswith("crossentropy") or not model.layers:
        return
    last = model.layers[-1]
    activation = getattr(getattr(last, "activation", None), "__name__", type(last).__name__.lower())
    if activation.removesuffix("_v2") in _PROBABILITIES:
        raise ValueError(
            f"the last layer {last.name} has the activation {activation}, and {loss} takes logits; allowed: no "
            "activation behind the last product"
        )
