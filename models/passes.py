"""The element-wise parts of layers, each as one pass over memory, in both directions.

On a CPU every element-wise operation reads and writes whole activations, and in bfloat16 converts each number twice
besides. So what lies between two products is compiled into one pass, which computes in float32 and rounds what it
writes. A model that is served has no use for it: then everything is made of plain operations, and the last bits may
differ.

All activations are [n, B, m], of n towers side by side.
"""

import functools
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

Activation = Callable[[tf.Tensor], tf.Tensor]
BiasedActivation = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@functools.cache
def one_pass(
    function: Callable[..., list[tf.Tensor]], compiled: bool, rounded: bool = True
) -> Callable[..., list[tf.Tensor]]:
    """An element-wise function in float32, whose results are rounded to the dtype of its first argument.

    Args:
        function: of tensors of any shapes.
        compiled: whether XLA compiles it, once in a process for all models with layers of these sizes.
        rounded: False: they stay float32.
    """

    def in_float32(*inputs: tf.Tensor) -> list[tf.Tensor]:
        outputs = function(*(tf.cast(one, tf.float32) for one in inputs))
        return [tf.cast(one, inputs[0].dtype) for one in outputs] if rounded else outputs

    @functools.cache
    def traced(dtypes: tuple[tf.DType, ...]) -> Callable[..., list[tf.Tensor]]:
        # One trace for layers and batches of all sizes; XLA compiles for each when it is run.
        specs = [tf.TensorSpec(None, dtype) for dtype in dtypes]
        return tf.function(in_float32, input_signature=specs, jit_compile=True, autograph=False)

    if not compiled:
        return in_float32
    return lambda *inputs: traced(tuple(one.dtype for one in inputs))(*inputs)


def sum_of_rows(values: tf.Tensor) -> tf.Tensor:
    """[n, 1, m]: the sums over B, as a product, which is faster than a reduction and adds up in float32."""
    return tf.matmul(tf.ones([1, 1, tf.shape(values)[1]], values.dtype), values)


@functools.cache
def biased_activation(activation: Activation, compiled: bool) -> BiasedActivation:
    """``activation(z + bias)`` of z [n, B, m] and bias [n, 1, m]."""

    def value(z: tf.Tensor, bias: tf.Tensor) -> list[tf.Tensor]:
        return [activation(z + bias)]

    def slope(z: tf.Tensor, bias: tf.Tensor, upstream: tf.Tensor) -> list[tf.Tensor]:
        total = z + bias
        with tf.GradientTape() as tape:
            tape.watch(total)
            result = activation(total)
        return [tape.gradient(result, total, output_gradients=upstream)]

    forward, backward = one_pass(value, compiled), one_pass(slope, compiled)
    if not compiled:
        return lambda z, bias: forward(z, bias)[0]

    @tf.custom_gradient
    def biased(z: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], list[tf.Tensor]]]:
        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            with tf.name_scope("gradient_tape/deep"):
                (own,) = backward(z, bias, upstream)
                own = tf.ensure_shape(own, z.shape)
                return [own, sum_of_rows(own)]

        (result,) = forward(z, bias)
        return tf.ensure_shape(result, z.shape), gradient

    return biased


Crosses = Callable[[tf.Tensor, tf.Tensor, Sequence[tuple[Sequence[tf.Tensor], tf.Tensor]]], tf.Tensor]


def _forward_cross(
    x: tf.Tensor, product: tf.Tensor, bias: tf.Tensor, e0: tf.Tensor, alpha2: tf.Tensor
) -> list[tf.Tensor]:
    return [alpha2 * e0 * (product + bias) + x]


def _first_backward(
    upstream: tf.Tensor, product: tf.Tensor, bias: tf.Tensor, e0: tf.Tensor, alpha2: tf.Tensor
) -> list[tf.Tensor]:
    scaled = alpha2 * upstream
    return [scaled * e0, scaled * (product + bias)]


def _next_backward(
    upstream: tf.Tensor,
    product: tf.Tensor,
    bias: tf.Tensor,
    e0: tf.Tensor,
    alpha2: tf.Tensor,
    more: tf.Tensor,
    of_e0: tf.Tensor,
) -> list[tf.Tensor]:
    total = upstream + more
    scaled = alpha2 * total
    return [scaled * e0, scaled * (product + bias) + of_e0, total]


def _add(*terms: tf.Tensor) -> list[tf.Tensor]:
    return [functools.reduce(tf.add, terms)]


@functools.cache
def make_crosses(compiled: bool) -> Crosses:
    """A function that computes all crosses of n towers, with one pass a cross in each direction.

        e_i = alpha2 * (e_0 * (e_{i-1} K_1 .. K_p + b)) + e_{i-1}

    Its arguments: e_0, [n, B, m], or [1, B, m] for all towers; alpha2, scalar; and for each cross its matrices K,
    [n, ., .], and its bias [n, 1, m]; all but alpha2 of one dtype. alpha2 has no gradient, that of e_0 is float32.
    """
    forward = one_pass(_forward_cross, compiled)
    first_backward, next_backward = one_pass(_first_backward, compiled), one_pass(_next_backward, compiled)
    # Sums over a batch come next, for which it would be converted to float32 anyway.
    add = one_pass(_add, compiled, rounded=False)

    def crosses(
        e0: tf.Tensor, alpha2: tf.Tensor, layers: Sequence[tuple[Sequence[tf.Tensor], tf.Tensor]]
    ) -> tf.Tensor:
        counts = [len(kernels) for kernels, _ in layers]
        towers = layers[0][1].shape[0]
        shape = [towers, None, e0.shape[2]]

        def layers_of(weights: Sequence[tf.Tensor]) -> Iterator[tuple[Sequence[tf.Tensor], tf.Tensor]]:
            for count in counts:
                yield weights[:count], weights[count]
                weights = weights[count + 1 :]

        def values(e0: tf.Tensor, weights: Sequence[tf.Tensor]) -> tuple[tf.Tensor, list[list[tf.Tensor]]]:
            """The last e_i, and of each cross its input and all products."""
            x, chains = e0, []
            for kernels, bias in layers_of(weights):
                chain = [x]
                for kernel in kernels:
                    chain.append(tf.matmul(chain[-1], kernel))
                chains.append(chain)
                (x,) = forward(x, chain[-1], bias, e0, alpha2)
                if compiled:
                    x = tf.ensure_shape(x, shape)
            return x, chains

        @tf.custom_gradient
        def with_gradient(
            e0: tf.Tensor, *weights: tf.Tensor
        ) -> tuple[tf.Tensor, Callable[[tf.Tensor], list[tf.Tensor]]]:
            x, chains = values(e0, weights)

            def of_all(upstream: tf.Tensor) -> list[tf.Tensor]:
                found: list[tf.Tensor] = []
                more = of_e0 = None
                for (kernels, bias), chain in zip(
                    reversed(list(layers_of(weights))), reversed(chains), strict=True
                ):
                    given = upstream, chain[-1], bias, e0, alpha2
                    if more is None:
                        inner, of_e0 = first_backward(*given)
                    else:
                        inner, of_e0, upstream = next_backward(*given, more, of_e0)
                    inner, of_e0 = tf.ensure_shape(inner, shape), tf.ensure_shape(of_e0, shape)
                    of_layer = [sum_of_rows(inner)]
                    for kernel, before in zip(reversed(kernels), reversed(chain[:-1]), strict=True):
                        of_layer.append(tf.matmul(before, inner, transpose_a=True))
                        inner = tf.matmul(inner, kernel, transpose_b=True)
                    more = inner
                    found = [*reversed(of_layer), *found]
                (of_e0,) = add(of_e0, upstream, more)
                if e0.shape[0] != towers:
                    of_e0 = tf.reduce_sum(of_e0, axis=0, keepdims=True)
                return [tf.ensure_shape(of_e0, e0.shape), *found]

            def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
                with tf.name_scope("gradient_tape/crosses"):
                    return of_all(upstream)

            return x, gradient

        weights = [weight for kernels, bias in layers for weight in (*kernels, bias)]
        return with_gradient(e0, *weights) if compiled else values(e0, weights)[0]

    return crosses
