"""The lowest values, of one process and of several workers, and weights that decay."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ctr.training.ids.eviction import lowest, lowest_of_all
from ctr.workers.parts import Deal
from thread_group import Threads


@given(st.lists(st.integers(0, 5), max_size=20), st.data())
def test_the_lowest_values_and_of_equal_ones_the_first(values, data):
    count = data.draw(st.integers(0, len(values)))
    expected = sorted(range(len(values)), key=lambda at: (values[at], at))[:count]
    assert lowest(np.array(values), count).tolist() == sorted(expected)


def test_the_lowest_of_all_workers_are_those_of_one_array():
    random = np.random.default_rng(3)
    drawn = [
        random.integers(-3, 3, 200),
        random.integers(-(2**62), 2**62, 200),
        np.zeros(200),
        random.integers(0, 4, 200) / 7,
        2.0 ** random.integers(-1000, 1000, 200),
        np.zeros(0),
    ]
    for size in (1, 2, 5):
        threads = Threads(size, lambda group: group)
        for values, count in itertools.product(drawn, (0, 1, 100, 199, 200, 500)):

            def found(group, values=values, count=count, size=size):
                own = Deal(group.rank, size).part(len(values)).rows
                return own[lowest_of_all(values[own], count, own, group)]

            expected = lowest(values, min(count, len(values)))
            assert np.sort(np.concatenate(threads.all(found))).tolist() == expected.tolist()
        threads.close()
