"""The schedule of exchanges, which compiled steps find without floating-point numbers, against its definition."""

import math

import pytest
import tensorflow as tf

import shampoo_reference as reference
from ctr.optim.shampoo.schedule import exchange_due, is_early, steps_to_next_exchange


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


@pytest.mark.parametrize("every", [1, 2, 3, 7, 25])
@pytest.mark.parametrize("phase", [0, 1, 9])
def test_an_exchange_at_a_phase_comes_however_seldom_it_is_asked_for(every, phase):
    options = reference.options(
        early_growth=0.0, precondition_frequency=10, exchange_phase=phase, start_preconditioning_step=4
    )
    last, found = -1, []
    for step in range(every, 100, every):
        if bool(exchange_due(options, tf.constant(step, tf.int64), tf.constant(last, tf.int64))):
            found.append(step)
            last = step
    asked = [step for step in range(every, 100, every) if step >= 4]
    marks = [mark for mark in range(phase, 100, 10) if mark > asked[0]]
    # The first at the start, and then as soon after each regular step as one is asked for.
    expected = [asked[0], *(next((step for step in asked if step >= mark), None) for mark in marks)]
    assert found == list(dict.fromkeys(step for step in expected if step is not None))
