"""Element-wise functions that XLA compiles into one pass over memory.

On a CPU every element-wise operation reads and writes whole activations, and in bfloat16 also converts each number
twice. So what lies between two products is compiled into one pass, which computes in float32 and rounds what it writes.
An exported model contains no XLA: there everything consists of plain operations, and the last bits may differ.
"""

import functools
from collections.abc import Callable

import tensorflow as tf


@functools.cache
def one_pass(
    function: Callable[..., list[tf.Tensor]], compiled: bool = True, rounded: bool = True
) -> Callable[..., list[tf.Tensor]]:
    """Makes an element-wise function compute in float32 and round its results to the dtype of its first argument.

    Args:
        function: takes tensors of any shapes.
        compiled: whether XLA compiles it, once in a process for all models with layers of these sizes.
        rounded: False: the results stay float32.
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
    """Sums [n, B, m] over B to [n, 1, m], as a product: faster than a reduction, and it adds up in float32."""
    return tf.matmul(tf.ones([1, 1, tf.shape(values)[1]], values.dtype), values)
