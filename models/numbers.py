"""Numbers that a network reads as they are, normalized by the mean and deviation of the rows learned so far.

Of each number x the network gets two inputs, and of a vector of d numbers d + 1: whether it is missing, and::

    z = clip((x - mean) / deviation, -10, 10),    0 where it is missing

with sign(x) log(1 + |x|) in the place of x where the feature asks for it. Statistics are float64 [3, K] for the K
numbers of all features: count, mean, and sum of squared deviations from the mean. Those of a batch are merged with
those of the rows before by the formula of Chan, Golub and LeVeque (1979), as are those of workers, in the order of
their ranks; nothing cancels, however far a mean is from 0. Before the first row the mean is 0 and the deviation 1,
which it also is where all numbers have been the same. An infinite number is clipped, and no part of the statistics.
"""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from ctr.models.embeddings import LookedUp
from ctr.models.rows import CLIP, Numbers, TableLayout, all_numbers


def next_statistics(
    layouts: Sequence[TableLayout],
    statistics: tf.Tensor,
    values: tf.Tensor,
    learned: tf.Tensor,
    workers: int = 1,
    gather: Callable[[tf.Tensor], tf.Tensor] = lambda own: own,
) -> tf.Tensor:
    """Computes the statistics after a batch, float64 [3, K].

    Args:
        statistics: those before it.
        values: float32 [B, K], NaN where missing.
        learned: bool [B], the rows that count.
        workers: W, that divide the batch.
        gather: concatenates what they have: [3, K] of each becomes [3 W, K].
    """
    parts = [_scaled(one, own) for one, own in split_values(layouts, values).items()]
    scaled = tf.concat(parts, axis=1)
    counted = tf.math.is_finite(scaled) & learned[:, tf.newaxis]
    count = tf.reduce_sum(tf.cast(counted, tf.float64), axis=0)
    mean = tf.reduce_sum(tf.where(counted, scaled, 0.0), axis=0) / tf.maximum(count, 1.0)
    squares = tf.reduce_sum(tf.where(counted, tf.square(scaled - mean), 0.0), axis=0)
    gathered = gather(tf.stack([count, mean, squares]))
    for part in tf.unstack(tf.reshape(gathered, [workers, 3, scaled.shape[1]])):
        statistics = _merged(statistics, part)
    return statistics


def _merged(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    (count, mean, squares), (more, other, others) = tf.unstack(left), tf.unstack(right)
    apart = other - mean
    moved = apart * (more / tf.maximum(count + more, 1.0))
    return tf.stack([count + more, mean + moved, squares + others + apart * moved * count])


def split_values(layouts: Sequence[TableLayout], values: tf.Tensor) -> dict[Numbers, tf.Tensor]:
    """Splits [B, K] by features."""
    return {one: values[:, one.first : one.first + one.size] for one in all_numbers(layouts)}


def _scaled(one: Numbers, values: tf.Tensor) -> tf.Tensor:
    values = tf.cast(values, tf.float64)
    return tf.sign(values) * tf.math.log1p(tf.abs(values)) if one.log else values


def look_up_numbers(
    values: Mapping[Numbers, tf.Tensor],
    statistics: tf.Tensor,
    copies: int = 1,
    dtype: Callable[[str], str] = lambda tower: "float32",
) -> list[LookedUp]:
    """Makes the inputs of features without rows, for ``ctr.models.embeddings.tower_inputs``: [B, 1, size + 1] of each.

    ``values`` are float32 [B, size] of each feature, NaN where missing; a vector with one is missing. ``copies`` is the
    number of those of the tables; ``dtype`` returns that of a tower's input.
    """
    made = []
    for one, own in values.items():
        missing = tf.reduce_any(tf.math.is_nan(own), axis=1, keepdims=True)
        inputs = own
        if one.normalize:
            count, mean, squares = tf.unstack(statistics[:, one.first : one.first + one.size])
            variance = squares / tf.maximum(count, 1.0)
            deviation = tf.sqrt(tf.where(variance > 0, variance, 1.0))
            normal = tf.clip_by_value((_scaled(one, own) - mean) / deviation, -CLIP, CLIP)
            inputs = tf.cast(normal, tf.float32)
        inputs = tf.where(missing, 0.0, inputs)
        both = tf.cast(tf.concat([inputs, tf.cast(missing, tf.float32)], axis=1), dtype(one.tower))
        nothing = tf.zeros([tf.shape(both)[0], 1, 1])
        made.append(LookedUp([both[:, tf.newaxis]] * copies, [nothing] * copies))
    return made
