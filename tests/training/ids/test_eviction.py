"""The lowest values, and weights that decay."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr.training.ids.eviction import DecayClock, lowest


@given(st.lists(st.integers(0, 5), max_size=20), st.data())
def test_the_lowest_values_and_of_equal_ones_the_first(values, data):
    count = data.draw(st.integers(0, len(values)))
    expected = sorted(range(len(values)), key=lambda at: (values[at], at))[:count]
    assert lowest(np.array(values), count).tolist() == sorted(expected)


def test_the_landmark_moves_without_changing_the_order_or_the_ratios():
    clock, second = DecayClock(1.0), 10**6
    clock.move(0, np.zeros(0))
    frequencies = np.array([clock.weight(0), 3 * clock.weight(200 * second)])
    clock.move(256 * second, frequencies)
    assert clock.landmark == 0
    clock.move(257 * second + 5, frequencies)
    assert clock.landmark == 257 * second
    assert frequencies.tolist() == [2.0**-257, 3 * 2.0**-57]
    assert clock.weight(258 * second) == 2
    clock.move(10**12 * second, frequencies)
    assert frequencies.tolist() == [0, 0]
    assert clock.weight(10**12 * second) == pytest.approx(1)
