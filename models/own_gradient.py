"""Functions with a gradient of their own, which is forgotten with the graph that it was traced in.

``tf.custom_gradient`` puts the gradient of each call in a graph into a registry of the process, where it stays, and
with it the graph: a process that trains a hundred models would keep all of their steps. Here the graph holds the
gradient, and the registry only a way to find it, which goes with the graph.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.ops import gradient_registry


def own_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """``tf.custom_gradient`` of a function that returns its results and the function of their gradients."""
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
    """Lets the gradient of a result live as long as the result's graph."""
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
