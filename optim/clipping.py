"""Update clipping: no direction with a root mean square above a threshold (ADAFACTOR 6).

    U <- U / max(1, RMS(U) / d),    RMS(U) = |U| / sqrt(number of elements)

Of an optimizer that divides gradients by their root mean squares, RMS(U) is about 1 as long as these fit; where they
are out of date, it is larger. Clipping gradients does not limit the step, as the division takes their scale away.
"""

import math
from collections.abc import Sequence

import tensorflow as tf


def clip_update(update: tf.Tensor, norm: tf.Tensor, shape: Sequence[int], threshold: float) -> tf.Tensor:
    """Scales an update, or a part of it, down where the root mean square of the whole one is above the threshold.

    The whole update has this Frobenius norm, scalar, and this shape.
    """
    rms = norm / math.sqrt(max(1, math.prod(shape)))
    return update / tf.maximum(tf.ones_like(rms), rms / threshold)
