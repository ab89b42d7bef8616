"""Variables without a gradient in a step: all that is kept of them stays as it is, to the bit.

They are known when a step is traced, so that a step in which all have a gradient has no operation for this. As in
PyTorch's Distributed Shampoo, steps and collections are counted for all variables together: averages of a variable
that missed some are corrected as those of all others.
"""

from collections.abc import Collection, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

Present: TypeAlias = "np.ndarray | None"
"""Which of some tensors, blocks or matrices have a gradient in this step, bool [N]; None: all of them."""


def present_among(given: Collection[int], count: int) -> Present:
    """Marks the tensors that are given, of so many."""
    found = np.isin(np.arange(count), list(given))
    return None if found.all() else found


def of_owners(present: Present, owners: Sequence[int] | np.ndarray) -> Present:
    """Marks the blocks, or matrices, whose owner is present."""
    if present is None:
        return None
    found = present[np.asarray(owners, np.int64)]
    return None if found.all() else found


def keep(new: tf.Tensor, old: tf.Tensor, present: Present) -> tf.Tensor:
    """Takes the new rows of [N, ...] that are present, and the old ones of the others."""
    if present is None:
        return new
    return tf.where(present.reshape([-1] + [1] * (len(new.shape) - 1)), new, old)


def powers(base: float, count: tf.Tensor, missed: tf.Tensor | None, dtype: tf.DType) -> tf.Tensor:
    """Computes base^count, the decay after so many collections; [N] with ``missed``, those that N tensors missed."""
    decay = tf.constant(base, dtype)
    whole = tf.pow(decay, tf.cast(count, dtype))
    if missed is None:
        return whole
    # Vectorized powers may differ in their last bit from that of one number.
    return tf.where(tf.equal(missed, 0), whole, tf.pow(decay, tf.cast(count - missed, dtype)))
