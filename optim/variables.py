"""Variables of an optimizer, by names that do not depend on the process."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

Value = float | np.ndarray
"""Initial value of a variable: a number for all elements, or an array of its shape."""

Create = Callable[[str, Sequence[int], tf.DType, Value], tf.Variable]


def filled(shape: Sequence[int], dtype: tf.DType, value: Value) -> tf.Tensor:
    """Returns a tensor of a shape and dtype filled with a number, or with an array's values."""
    return tf.broadcast_to(tf.constant(value, dtype), list(shape))


def create_variable(name: str, shape: Sequence[int], dtype: tf.DType, value: Value) -> tf.Variable:
    """Creates a plain, non-trainable variable filled with ``value``."""
    return tf.Variable(filled(shape, dtype, value), trainable=False, name=name)


class Variables(dict[str, tf.Variable]):
    """Variables by name, created by ``create``, with ``dtype`` as the default."""

    def __init__(self, create: Create, dtype: tf.DType) -> None:
        super().__init__()
        self.create, self.dtype = create, dtype

    def make(
        self, name: str, shape: Sequence[int], dtype: tf.DType | None = None, value: Value = 0
    ) -> tf.Variable:
        """Creates a variable, stores it under ``name`` and returns it."""
        self[name] = self.create(name, shape, self.dtype if dtype is None else dtype, value)
        return self[name]
