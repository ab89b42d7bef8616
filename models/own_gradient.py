"""Functions with custom gradients, which are freed with the graph that traced them.

``tf.custom_gradient`` stores the gradient of each call in a graph in a registry of the process, for ever, and
with it the graph: a process that trains a hundred models would hold all of their steps. Here the graph holds the
gradient, and the registry only a reference to it, freed with the graph.

``one_pass`` makes element-wise functions that XLA compiles into one pass over memory. On a CPU every element-wise
operation reads and writes whole activations, and in bfloat16 also converts each number twice. So the code between two
products is compiled into one pass, which computes in float32 and rounds its results. An exported model contains no
XLA: it has plain operations, and the last bits may differ.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.ops import gradient_registry


def own_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function that returns its results and their gradient function, like ``tf.custom_gradient``."""
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
    """Keeps the gradient function of a result alive as long as the result's graph."""
    registered = gradient_registry._registry  # There is no public way to take one out.
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
    """Makes an element-wise function compute in float32 and round its results to the dtype of its first argument.

    Args:
        function: takes tensors of any shape.
        compiled: whether XLA compiles it, once per process for all models with layers of these sizes.
        rounded: False: the results stay float32.
    """

    def in_float32(*inputs: tf.Tensor) -> list[tf.Tensor]:
        outputs = function(*(tf.cast(value, tf.float32) for value in inputs))
        return [tf.cast(value, inputs[0].dtype) for value in outputs] if rounded else outputs

    @functools.cache
    def traced(dtypes: tuple[tf.DType, ...]) -> Callable[..., list[tf.Tensor]]:
        # One trace for layers and batches of all sizes; XLA compiles for each when it is run.
        specs = [tf.TensorSpec(None, dtype) for dtype in dtypes]
        return tf.function(in_float32, input_signature=specs, jit_compile=True, autograph=False)

    if not compiled:
        return in_float32
    return lambda *inputs: traced(tuple(value.dtype for value in inputs))(*inputs)


def sum_of_rows(values: tf.Tensor) -> tf.Tensor:
    """Sums [n, B, m] over B to [n, 1, m], as a product: faster than a reduction, with sums in float32."""
    return tf.matmul(tf.ones([1, 1, tf.shape(values)[1]], values.dtype), values)
