"""Numeric features, which a network reads normalized by the mean and deviation of the rows learned so far.

For each number x the network gets two inputs, for a vector of d numbers d + 1: a flag for a missing value, and::

    z = clip((x - mean) / deviation, -10, 10),    0 if x is missing

where sign(x) log(1 + |x|) replaces x if the feature's scale is ``log``. Statistics are float64 [3, K] for the K numbers
of all features: count, mean, and sum of squared deviations from the mean. The statistics of a batch, or of each part of
it in turn, are merged with the earlier ones by the formula of Chan, Golub and LeVeque (1979), which avoids cancellation
for any mean. The mean is 0 before the first row, and the deviation is 1 while all values are equal. An infinite value
is clipped, and not counted in the statistics.

Rare placeholders for "no value", such as 3.4e38, -999999999 or -9999, are not counted either: values more than 1,000
deviations from the mean. The first 64 values of a number are judged together, from the eighth on: values whose
distance from their median is more than 1,000 times the third quartile of these distances are left out. If more than a
quarter of all values are left out, they are considered normal, and counted. ``apart``, float64 [3 + 64, K], has the
statistics of left-out values and the first 64 values.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from ctr.models.embeddings import LookedUp
from ctr.models.rows import CLIP, FIRST_NUMBERS, Numbers, TableLayout, all_numbers

FAR = 1000.0
"""Deviations from the mean beyond which a value is left out."""
_MOST_APART, _FEWEST = 0.25, 8.0


def next_statistics(
    layouts: Sequence[TableLayout],
    statistics: tf.Tensor,
    apart: tf.Tensor,
    values: tf.Tensor,
    learned: tf.Tensor,
    gather: Callable[[tf.Tensor], list[tf.Tensor]] | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the statistics after a batch, float64 [3, K], and ``apart``, float64 [3 + 64, K].

    Args:
        statistics: the statistics before the batch.
        apart: ``apart`` before the batch.
        values: float32 [B, K], NaN where missing.
        learned: bool [B], the rows that count.
        gather: returns the tensors of all workers, in order of rank; None: this process has the whole batch.
    """
    parts = [_scaled(numbers, vector) for numbers, vector in split_values(layouts, values).items()]
    scaled = tf.concat(parts, axis=1)
    counted = tf.math.is_finite(scaled) & learned[:, tf.newaxis]
    far, first = apart[:3], apart[3:]
    young = statistics[0] + far[0] < FIRST_NUMBERS

    def parts_of(part: tf.Tensor) -> list[tf.Tensor]:
        return [part] if gather is None else gather(part)

    def judge() -> tuple[tf.Tensor, ...]:
        return _judge_first(statistics, far, first, scaled, counted, parts_of)

    previous = (statistics, far, first, statistics[1], FAR * _deviation(statistics, math.inf))
    has_first = tf.reduce_any(young & tf.reduce_any(counted, axis=0))
    # Accelerators cannot communicate inside a branch.
    judged = tf.cond(has_first, judge, lambda: previous) if gather is None else judge()
    statistics, far, first, center, reach = (
        tf.where(young, *pair) for pair in zip(judged, previous, strict=True)
    )
    near = tf.abs(scaled - center) <= reach
    sums = tf.concat([_sums(scaled, counted & near), _sums(scaled, counted & ~near)], axis=0)
    for part in parts_of(sums):
        statistics, far = _merged(statistics, part[:3]), _merged(far, part[3:])
    many = far[0] > _MOST_APART * (statistics[0] + far[0])
    statistics = tf.where(many, _merged(statistics, far), statistics)
    return statistics, tf.concat([tf.where(many, tf.zeros_like(far), far), first], axis=0)


def _judge_first(
    statistics: tf.Tensor,
    far: tf.Tensor,
    first: tf.Tensor,
    values: tf.Tensor,
    counted: tf.Tensor,
    parts_of: Callable[[tf.Tensor], list[tf.Tensor]],
) -> tuple[tf.Tensor, ...]:
    """Adds a batch to the first values, [64, K], from which outliers of numbers with fewer values are determined.

    Returns the statistics, the statistics of outliers, the first values, their median, and the maximum distance of
    inliers from it. If the judgment of an earlier value changes, both statistics are recomputed.
    """
    index = tf.range(FIRST_NUMBERS, dtype=tf.float64)[:, tf.newaxis]
    count = statistics[0] + far[0]
    was = index < count
    numbers = tf.reduce_sum(tf.cast(counted, tf.float64), axis=0, keepdims=True)
    rows = tf.concat([numbers, _append(tf.zeros_like(first), tf.zeros_like(count), values, counted)], axis=0)
    for part in parts_of(rows):
        first = _append(first, count, part[1:], index < part[0])
        count += part[0]
    there = index < count
    size = tf.minimum(count, float(FIRST_NUMBERS))
    median = _by_rank(first, there, tf.floor((size - 1.0) / 2.0))
    quartile = _by_rank(tf.abs(first - median), there, tf.floor((3.0 * size - 1.0) / 4.0))
    reach = tf.where((size >= _FEWEST) & (quartile > 0), FAR * quartile, math.inf)
    is_far = tf.abs(first - median) > reach
    changes = tf.reduce_any(was & is_far, axis=0) | (far[0] > 0)
    statistics = tf.where(changes, _sums(first, was & ~is_far), statistics)
    return statistics, tf.where(changes, _sums(first, was & is_far), far), first, median, reach


def _append(first: tf.Tensor, count: tf.Tensor, values: tf.Tensor, counted: tf.Tensor) -> tf.Tensor:
    """Appends the ``counted`` values, [N, K], to the first values, [64, K], of which ``count``, [K], are set."""
    columns = first.shape[1]
    index = count + tf.cumsum(tf.cast(counted, tf.float64)) - 1.0
    index = tf.cast(tf.where(counted, tf.minimum(index, FIRST_NUMBERS), FIRST_NUMBERS), tf.int32)
    segments = tf.reshape(index * columns + tf.range(columns), [-1])
    room = (FIRST_NUMBERS + 1) * columns
    added = tf.math.unsorted_segment_sum(tf.reshape(tf.where(counted, values, 0.0), [-1]), segments, room)
    return first + tf.reshape(added, [-1, columns])[:FIRST_NUMBERS]


def _by_rank(values: tf.Tensor, there: tf.Tensor, rank: tf.Tensor) -> tf.Tensor:
    """Returns, for each column of values [N, K], the value of the given rank [K], from 0, among those ``there``."""
    index = tf.range(values.shape[0])
    is_before = values[tf.newaxis] < values[:, tf.newaxis]
    is_before |= (values[tf.newaxis] == values[:, tf.newaxis]) & (index < index[:, tf.newaxis])[
        ..., tf.newaxis
    ]
    ranks = tf.reduce_sum(tf.cast(is_before & there[tf.newaxis], tf.float64), axis=1)
    return tf.reduce_sum(tf.where(there & (ranks == rank), values, 0.0), axis=0)


def _sums(values: tf.Tensor, counted: tf.Tensor) -> tf.Tensor:
    """Computes the statistics, [3, K], of the ``counted`` values among ``values``, [N, K]."""
    count = tf.reduce_sum(tf.cast(counted, tf.float64), axis=0)
    mean = tf.reduce_sum(tf.where(counted, values, 0.0), axis=0) / tf.maximum(count, 1.0)
    squares = tf.reduce_sum(tf.where(counted, tf.square(values - mean), 0.0), axis=0)
    return tf.stack([count, mean, squares])


def _deviation(statistics: tf.Tensor, of_none: float) -> tf.Tensor:
    variance = statistics[2] / tf.maximum(statistics[0], 1.0)
    return tf.sqrt(tf.where(variance > 0, variance, of_none))


def _merged(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    (count, mean, squares), (more, other, others) = tf.unstack(left), tf.unstack(right)
    apart = other - mean
    moved = apart * (more / tf.maximum(count + more, 1.0))
    return tf.stack([count + more, mean + moved, squares + others + apart * moved * count])


def split_values(layouts: Sequence[TableLayout], values: tf.Tensor) -> dict[Numbers, tf.Tensor]:
    """Splits values, [B, K], into the columns of each numeric feature."""
    return {n: values[:, n.first : n.first + n.size] for n in all_numbers(layouts)}


def _scaled(numbers: Numbers, values: tf.Tensor) -> tf.Tensor:
    values = tf.cast(values, tf.float64)
    return tf.sign(values) * tf.math.log1p(tf.abs(values)) if numbers.log else values


def look_up_numbers(
    values: Mapping[Numbers, tf.Tensor],
    statistics: tf.Tensor,
    copies: int = 1,
    dtype: Callable[[str], str] = lambda tower: "float32",
) -> list[LookedUp]:
    """Returns the inputs of numeric features for ``ctr.models.embeddings.tower_inputs``: [B, 1, size + 1] each.

    ``values`` are float32 [B, size] for each feature, NaN where missing; a vector with a NaN is missing. ``copies`` is
    the number of embeddings in a row of the tables; ``dtype`` returns the dtype of a tower's input, by its name.
    """
    looked_up = []
    for number, raw in values.items():
        missing = tf.reduce_any(tf.math.is_nan(raw), axis=1, keepdims=True)
        inputs = raw
        if number.normalize:
            part = statistics[:, number.first : number.first + number.size]
            normal = tf.clip_by_value((_scaled(number, raw) - part[1]) / _deviation(part, 1.0), -CLIP, CLIP)
            inputs = tf.cast(normal, tf.float32)
        inputs = tf.where(missing, 0.0, inputs)
        both = tf.cast(tf.concat([inputs, tf.cast(missing, tf.float32)], axis=1), dtype(number.tower))
        nothing = tf.zeros([tf.shape(both)[0], 1, 1])
        looked_up.append(LookedUp([both[:, tf.newaxis]] * copies, [nothing] * copies))
    return looked_up
