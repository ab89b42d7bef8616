"""Custom gradients that are freed with their graph, and element-wise functions that XLA compiles to one pass.

For each call in a graph, ``tf.custom_gradient`` stores the gradient function, and with it the graph, in a registry of
the process forever: a process that trains a hundred models would hold all of their steps. Here the graph holds the
gradient function, and the registry only a weak reference, removed with the graph.

``one_pass`` makes element-wise functions that XLA compiles to one pass over memory. On a CPU every element-wise
operation reads and writes whole activations, and in bfloat16 also converts each number twice. So the code between two
products is compiled to one pass, which computes in float32 and rounds its results. An exported model contains no
XLA: it has plain operations, and the last bits may differ.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.ops import gradient_registry


def own_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function that returns results and a gradient function, like ``tf.custom_gradient``, without its leak."""
    with_gradient = tf.custom_gradient(function)

    @tf.autograph.experimental.do_not_convert
    @functools.wraps(function)
    def call(*arguments: tf.Tensor) -> Any:
        results = with_gradient(*arguments)
        if not tf.executing_eagerly():
            _tie_to_graph(tf.nest.flatten(results)[0])
        return results

    return call


def _tie_to_graph(result: tf.Tensor) -> None:
    """Ties the lifetime of a result's gradient function to the result's graph."""
    registered = gradient_registry._registry  # There is no public way to remove an entry.
    name = result.op.get_attr("_gradient_op_type").decode()
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, "own_gradients"):
        graph.own_gradients = {}
    graph.own_gradients[name] = gradient_registry.lookup(name)
    del registered[name]
    reference: Callable[[], Any] = weakref.ref(graph)

    @tf.RegisterGradient(name)
    def gradient(operation: Any, *upstream: tf.Tensor) -> Any:
        return reference().own_gradients[name](operation, *upstream)

    weakref.finalize(graph, registered.pop, name, None).atexit = False


@functools.cache
def one_pass(
    function: Callable[..., list[tf.Tensor]], compiled: bool = True, rounded: bool = True
) -> Callable[..., list[tf.Tensor]]:
    """Wraps an element-wise function to compute in float32 and round its results to the dtype of its first argument.

    Args:
        function: takes tensors of any shape, and returns a list.
        compiled: whether XLA compiles it, once per process for all models with layers of equal sizes.
        rounded: whether results are rounded; otherwise they stay float32.
    """

    def in_float32(*inputs: tf.Tensor) -> list[tf.Tensor]:
        outputs = function(*(tf.cast(value, tf.float32) for value in inputs))
        return [tf.cast(value, inputs[0].dtype) for value in outputs] if rounded else outputs

    @functools.cache
    def traced(dtypes: tuple[tf.DType, ...]) -> Callable[..., list[tf.Tensor]]:
        # One trace for layers and batches of all sizes; XLA compiles each size when it first runs.
        specs = [tf.TensorSpec(None, dtype) for dtype in dtypes]
        return tf.function(in_float32, input_signature=specs, jit_compile=True, autograph=False)

    if not compiled:
        return in_float32
    return lambda *inputs: traced(tuple(value.dtype for value in inputs))(*inputs)


def sum_of_rows(values: tf.Tensor) -> tf.Tensor:
    """Sums values, [n, B, m], over B: [n, 1, m], by a product, which is faster than a reduction and sums in float32."""
    return tf.matmul(tf.ones([1, 1, tf.shape(values)[1]], values.dtype), values)
