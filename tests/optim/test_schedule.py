"""The schedule of exchanges, which compiled steps find without floating-point numbers, against its definition."""

import math

import pytest
import tensorflow as tf

import shampoo_reference as reference
from ctr.optim.schedule import is_early, steps_to_next_exchange


@pytest.mark.parametrize("growth", [0.0, 0.01, 0.1, 0.25, 0.3, 1 / 3, 0.7, 1.0])
@pytest.mark.parametrize("frequency", [1, 2, 3, 7, 50])
def test_early_is_before_exchanges_are_as_far_apart_as_they_will_be(growth, frequency):
    options = reference.options(early_growth=growth, precondition_frequency=frequency)
    last = math.ceil(frequency / growth) + 3 if growth else 3
    # All small steps, and those around the change.
    for step in {*range(12), *range(max(last - 8, 0), last + 1)}:
        number = tf.constant(step, tf.int64)
        gap = min(max(math.floor(growth * step), 1), frequency) if growth else frequency
        assert int(steps_to_next_exchange(options, number)) == gap
        assert bool(is_early(options, number)) == (gap < frequency)
