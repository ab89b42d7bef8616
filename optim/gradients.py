"""Gradients of dense weights, and of tables by the rows that a batch touches.

Gradients of repeated rows are summed before anything else. Then ``values^T values`` is exactly G^T G of the whole
table's gradient (PSO App. D's shortcut through the layer's outputs holds only when no row repeats).

**Weights without a gradient** in a step, and their state, stay unchanged to the bit. They are known at tracing time,
so that a step in which all weights have a gradient has no operation for this. As in PyTorch's Distributed
Shampoo, Shampoo counts steps and collections for all variables together: averages of a variable that missed some are
corrected like all others. Adafactor's moments decay by the steps in which the weight had a gradient.
"""

from collections.abc import Collection, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices | None"

Present: TypeAlias = "np.ndarray | None"
"""Mask of the tensors, blocks or matrices that have a gradient in this step, bool [N]; None: all of them."""


def present_among(indices: Collection[int], count: int) -> Present:
    """Returns the mask of the tensors ``indices`` among ``count`` tensors, bool [count]; None if it has all."""
    present = np.isin(np.arange(count), list(indices))
    return None if present.all() else present


def of_tensors(present: Present, tensors: Sequence[int] | np.ndarray) -> Present:
    """Returns the mask of the blocks or matrices whose tensor is present; ``tensors`` has the tensor index of each."""
    if present is None:
        return None
    marked = present[np.asarray(tensors, np.int64)]
    return None if marked.all() else marked


def keep(new: tf.Tensor, old: tf.Tensor, present: Present) -> tf.Tensor:
    """Returns the new rows of [N, ...] that are present, and the old rows elsewhere."""
    if present is None:
        return new
    return tf.where(present.reshape([-1] + [1] * (len(new.shape) - 1)), new, old)


def powers(base: float, count: tf.Tensor, missed: tf.Tensor | None, dtype: tf.DType) -> tf.Tensor:
    """Computes base^count, the decay after ``count`` collections; [N] if N tensors ``missed`` some of them."""
    decay = tf.constant(base, dtype)
    whole = tf.pow(decay, tf.cast(count, dtype))
    if missed is None:
        return whole
    # Vectorized powers may differ in their last bit from scalar ones.
    return tf.where(tf.equal(missed, 0), whole, tf.pow(decay, tf.cast(count - missed, dtype)))


def all_finite(gradients: Sequence[Gradient]) -> tf.Tensor:
    """Returns whether all gradients are finite, bool scalar.

    Checks the sum of squares, in one pass: it must not overflow either, or accumulators would become infinite and the
    weight would never change again.
    """
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients if g is not None]
    # In float16 squares would overflow at 256.
    values = [tf.cast(value, tf.float32) if value.dtype.size < 4 else value for value in values]
    return tf.reduce_all(tf.stack([tf.math.is_finite(tf.nn.l2_loss(value)) for value in values] or [True]))


def split_gradients(
    gradients: Sequence[Gradient], weights: Sequence[tf.Variable], tables: Collection[int], dtype: tf.DType
) -> tuple[dict[int, tf.Tensor], dict[int, tf.IndexedSlices]]:
    """Returns the gradients of dense weights, and of tables' distinct rows [U, C], by index, in ``dtype``; omits None.

    Raises:
        ValueError: a gradient and its weight differ in shape.
    """
    dense: dict[int, tf.Tensor] = {}
    rows: dict[int, tf.IndexedSlices] = {}
    for index, gradient in enumerate(gradients):
        if gradient is None:
            continue
        shape = weights[index].shape
        if isinstance(gradient, tf.IndexedSlices):
            # Before rows that occur several times are added up.
            values = tf.cast(gradient.values, dtype)
            converted = tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        else:
            converted = tf.cast(gradient, dtype)
        if index not in tables:
            dense[index] = tf.convert_to_tensor(converted)
            actual = dense[index].shape
            if not actual.is_compatible_with(shape):
                raise ValueError(
                    f"gradient {index} is of shape {actual}; allowed: that of its weight, {shape}"
                )
        elif isinstance(converted, tf.IndexedSlices):
            rows[index] = sum_duplicates(converted)
        else:
            rows[index] = tf.IndexedSlices(converted, tf.range(shape[0]))
    return dense, rows


def in_xla() -> bool:
    """Returns whether the graph that is being traced will be compiled by XLA (``jit_compile=True``)."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def sum_duplicates(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """Sums the values [U, C] of repeated rows. Under XLA, the result is padded with rows of zero gradient."""
    indices, values = gradient.indices, gradient.values
    if not in_xla():
        rows, positions = tf.unique(indices)
        summed = tf.math.unsorted_segment_sum(values, positions, tf.size(rows))
        return tf.IndexedSlices(summed, rows, gradient.dense_shape)
    # Shapes that depend on values do not compile: as many rows stay as there were.
    order = tf.argsort(indices, stable=True)
    ordered = tf.gather(indices, order)
    is_new = tf.concat([[1], tf.cast(ordered[1:] != ordered[:-1], tf.int32)], axis=0)
    positions = tf.cumsum(is_new) - 1
    size = tf.size(indices)
    summed = tf.math.unsorted_segment_sum(tf.gather(values, order), positions, size)
    rows = tf.maximum(tf.math.unsorted_segment_max(ordered, positions, size), 0)
    return tf.IndexedSlices(summed, rows, gradient.dense_shape)


class GradientSteps:
    """Base of optimizers with dense, sparse or missing gradients; ``tables`` are indices of weights trained by rows."""

    weights: list[tf.Variable]
    tables: tuple[int, ...]
    dtype: tf.DType

    def update(
        self,
        gradients: Sequence[Gradient],
        learning_rate: tf.Tensor | float,
        decayed: Sequence[bool] | None = None,
        on_device: bool = False,
    ) -> None:
        """Updates weights in place; a gradient of None leaves its weight unchanged. By default all but tables decay.

        If roots are due, the host computes them, within the step or, if XLA compiles it, when ``exchange`` is
        called after it. With ``on_device`` the device computes them within the step.

        Raises ValueError if a gradient and its weight differ in shape, or the device cannot compute the roots.
        """
        split = split_gradients(gradients, self.weights, self.tables, self.dtype)
        self._update(*split, self._rate(learning_rate), decayed, on_device)

    def update_if_finite(
        self,
        gradients: Sequence[Gradient],
        learning_rate: tf.Tensor | float,
        decayed: Sequence[bool] | None = None,
        on_device: bool = False,
    ) -> tf.Tensor:
        """Updates if all gradients are finite, else only counts the step; returns whether they are, bool scalar."""
        dense, rows = split_gradients(gradients, self.weights, self.tables, self.dtype)
        applied = all_finite([*dense.values(), *rows.values()])

        def update() -> tf.Tensor:
            self._update(dense, rows, self._rate(learning_rate), decayed, on_device)
            return tf.constant(True)

        def count() -> tf.Tensor:
            self._count_nonfinite()
            return tf.constant(False)

        return tf.cond(applied, update, count)

    def _update(
        self,
        dense: dict[int, tf.Tensor],
        rows: dict[int, tf.IndexedSlices],
        rate: tf.Tensor,
        decayed: Sequence[bool] | None,
        on_device: bool,
    ) -> None:
        raise NotImplementedError

    def _count_nonfinite(self) -> None:
        raise NotImplementedError

    def _rate(self, learning_rate: tf.Tensor | float) -> tf.Tensor:
        # A number would otherwise be rounded to float32 on its way to float64.
        if isinstance(learning_rate, int | float):
            return tf.constant(learning_rate, self.dtype)
        return tf.cast(learning_rate, self.dtype)

    def _names(self) -> list[str]:
        return [weight.name.partition(":")[0] for weight in self.weights]
