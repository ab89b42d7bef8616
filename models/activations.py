"""The activations of the deep layers.

On a CPU every element-wise operation is a pass over memory. So a smooth activation and its derivative are compiled,
each into one pass: SmeLU and its gradient then cost about 1.5 times what ReLU's cost, and 4 to 7 times otherwise.
"""

import functools
from collections.abc import Callable

import tensorflow as tf

Activation = Callable[[tf.Tensor], tf.Tensor]


def smelu(z: tf.Tensor, beta: float) -> tf.Tensor:
    """Smooth ReLU (FF eq. 1): 0 below -beta, (z + beta)^2 / (4 beta) between, z above beta.

    The derivative goes straight from 0 to 1 between the two joints.

    Args:
        z: of any floating dtype and shape.
        beta: half the width of the smooth part, above 0.
    """
    smooth = tf.square(tf.nn.relu(z + beta)) / (4 * beta)
    # NaN fails the comparison: it stays NaN by way of the square.
    return tf.where(z >= beta, z, smooth)


ACTIVATIONS: dict[str, Activation] = {
    "gelu": tf.nn.gelu,
    "swish": tf.nn.silu,
    "mish": tf.keras.activations.mish,
    "softplus": tf.nn.softplus,
    "tanh": tf.nn.tanh,
    "elu": tf.nn.elu,
    "relu": tf.nn.relu,
}


def make_activation(name: str, smelu_beta: float, compiled: bool) -> Activation:
    """An activation, computed in float32 and rounded to the dtype that comes in.

    Args:
        name: ``smelu`` or a key of ``ACTIVATIONS``.
        smelu_beta: the beta of SmeLU.
        compiled: whether XLA makes one pass of each of the two directions; where it is not, as in a model that is
            served, the last bits may differ.
    """
    if name == "relu":
        # One pass as it is; and TensorFlow fuses it with the product before it.
        return tf.nn.relu
    function = functools.partial(smelu, beta=smelu_beta) if name == "smelu" else ACTIVATIONS[name]

    def in_float32(z: tf.Tensor) -> tf.Tensor:
        return tf.cast(function(tf.cast(z, tf.float32)), z.dtype)

    return _compiled(in_float32) if compiled else in_float32


def _compiled(function: Activation) -> Activation:
    def backward(z: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(z)
            value = function(z)
        return tape.gradient(value, z, output_gradients=upstream)

    @functools.cache
    def compiled(dtype: tf.DType) -> tuple[Activation, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]]:
        # One trace for layers and batches of all sizes; XLA compiles for each when it is run.
        spec = tf.TensorSpec(None, dtype)
        return (
            tf.function(function, input_signature=[spec], jit_compile=True, autograph=False),
            tf.function(backward, input_signature=[spec, spec], jit_compile=True, autograph=False),
        )

    @tf.custom_gradient
    def activation(z: tf.Tensor) -> tuple[tf.Tensor, Activation]:
        forward, slope = compiled(z.dtype)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return tf.ensure_shape(slope(z, upstream), z.shape)

        return tf.ensure_shape(forward(z), z.shape), gradient

    return activation
