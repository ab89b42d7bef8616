"""Update clipping: no direction with a root mean square above a threshold (ADAFACTOR 6).

    U <- U / max(1, RMS(U) / d),    RMS(U) = |U| / sqrt(number of elements)

Of an optimizer that divides gradients by their root mean squares, RMS(U) is about 1 as long as these fit; where they
are out of date, it is larger. It is the size of the step that is limited: clipping gradients does not do that, as the
division takes their scale away.
"""

import math
from collections.abc import Sequence

import tensorflow as tf


def clip_update(update: tf.Tensor, norm: tf.Tensor, shape: Sequence[int], threshold: float) -> tf.Tensor:
    """The update, scaled down where its root mean square is above the threshold.

    Args:
        update: U, or a part of it.
        norm: the Frobenius norm of the whole update, scalar.
        shape: of the whole update.
        threshold: d, above 0.
    """
    rms = norm / math.sqrt(max(1, math.prod(shape)))
    return update / tf.maximum(tf.ones_like(rms), rms / threshold)
