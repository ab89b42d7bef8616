"""Steps at which statistics are collected and exchanged for roots: ever less often, finally every tau2 and tau1 steps.

Young statistics change fast, and the first steps are the largest. While ``early_growth`` times the steps so far is less
than tau1, exchanges are that far apart; until then statistics are collected at every step, each collection weighing
1 / tau2 of a later one, which stands for tau2 steps.
"""

import functools
import math
from collections.abc import Callable

import tensorflow as tf

from ctr.optim.shampoo.options import ShampooOptions


def when(condition: tf.Tensor | bool, action: Callable[[], None]) -> None:
    """Runs an action for its effects if a condition holds, in a graph or outside."""
    if condition is True:
        action()
    elif condition is not False:

        def act() -> tf.Tensor:
            action()
            return tf.constant(True)

        tf.cond(condition, act, lambda: tf.constant(False))


def steps_to_next_exchange(options: ShampooOptions, step: tf.Tensor) -> tf.Tensor:
    """Counts the steps from an exchange after ``step`` to the next one; both int64 scalars."""
    frequency = tf.constant(options.precondition_frequency, tf.int64)
    if not options.roots.early_growth:
        return frequency
    early = tf.cast(tf.floor(options.roots.early_growth * tf.cast(step, tf.float64)), tf.int64)
    return tf.clip_by_value(early, 1, frequency)


def is_early(options: ShampooOptions, step: tf.Tensor) -> tf.Tensor:
    """Returns whether exchanges after ``step`` are not yet tau1 apart, bool scalar."""
    return step < _early_steps(options.roots.early_growth, options.precondition_frequency)


@functools.cache
def _early_steps(growth: float, frequency: int) -> int:
    """Returns the first step after which exchanges are tau1 apart, computed here because a TPU has no float64."""
    if not growth or frequency == 1:
        return 0
    step = max(0, math.floor(frequency / growth) - 1)
    while math.floor(growth * step) < frequency:
        step += 1
    return step


def exchange_due(options: ShampooOptions, step: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
    """Returns whether an exchange is due at ``step``, or was since ``last`` (the last one, or -1); bool scalar."""
    first = tf.constant(options.first_exchange, tf.int64)
    if options.roots.phase is not None:
        phase, frequency = (
            tf.constant(value, tf.int64) for value in (options.roots.phase, options.precondition_frequency)
        )
        # The numbers of exchanges up to either step: the one that was due may lie between them.
        regular = (step - phase) // frequency > (last - phase) // frequency
        return (step >= first) & ((last < 0) | regular)
    return step >= tf.where(last < 0, first, last + steps_to_next_exchange(options, last))


def collection_due(options: ShampooOptions, step: tf.Tensor, last: tf.Tensor) -> tf.Tensor | bool:
    """Returns whether statistics are collected at ``step``, bool scalar; ``last`` as in ``exchange_due``."""
    if options.statistics.frequency == 1:
        return True
    # The first exchange has roots only if it has statistics.
    begins = (last < 0) & (step >= tf.constant(options.first_exchange, tf.int64))
    return tf.equal(step % options.statistics.frequency, 0) | begins | is_early(options, step)


def collection_weight(options: ShampooOptions, step: tf.Tensor, dtype: tf.DType) -> tf.Tensor | float:
    """Returns the weight of a collection at ``step`` in summed statistics, scalar; 1 when statistics are decayed."""
    if options.statistics.frequency == 1 or not options.roots.early_growth or options.beta2 < 1.0:
        return 1.0
    weight = tf.constant(1.0 / options.statistics.frequency, dtype)
    return tf.where(is_early(options, step), weight, tf.ones_like(weight))


def shampoo_share(options: ShampooOptions, step: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns 1 from ``start_preconditioning_step`` on, 0 before it or if it is None, scalar."""
    if options.start_preconditioning_step is None:
        return tf.zeros([], dtype)
    return tf.cast(step >= options.start_preconditioning_step, dtype)
