"""Variables of an optimizer, by names that do not depend on the process."""

from collections.abc import Callable, Sequence

import tensorflow as tf

Create = Callable[[str, Sequence[int], tf.DType, float], tf.Variable]


def create_variable(name: str, shape: Sequence[int], dtype: tf.DType, value: float) -> tf.Variable:
    """Creates a plain variable filled with a value."""
    return tf.Variable(tf.fill(list(shape), tf.constant(value, dtype)), trainable=False, name=name)


class Variables(dict[str, tf.Variable]):
    """Variables by name, made by ``create``, and of ``dtype`` where nothing else is asked for."""

    def __init__(self, create: Create, dtype: tf.DType) -> None:
        super().__init__()
        self.create, self.dtype = create, dtype

    def make(
        self, name: str, shape: Sequence[int], dtype: tf.DType | None = None, value: float = 0
    ) -> tf.Variable:
        """Makes and keeps a variable."""
        self[name] = self.create(name, shape, self.dtype if dtype is None else dtype, value)
        return self[name]
