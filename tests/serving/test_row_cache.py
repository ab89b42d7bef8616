"""The cache of rows against a dictionary that never forgets."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr.serving.scorer import RowCache


def make(keys):
    """A compute function whose row for key k is [k, -k]; notes what it was asked for."""
    asked = []

    def compute(places):
        asked.extend(keys[place] for place in places)
        return np.array([[keys[place], -keys[place]] for place in places], np.float32)

    return compute, asked


@given(
    st.integers(1, 5),
    st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=12),
)
def test_it_gives_what_was_computed_and_forgets_the_oldest(capacity, calls):
    cache = RowCache(capacity, [2])
    expected: OrderedDict[int, None] = OrderedDict()
    for keys in calls:
        compute, asked = make(keys)
        rows = cache.get(keys, compute)
        assert rows.shape == (len(keys), 2)
        np.testing.assert_array_equal(rows, np.array([[k, -k] for k in keys], np.float32).reshape(-1, 2))
        missing = list(dict.fromkeys(key for key in keys if key not in expected))
        assert asked == missing
        for key in keys:
            if key in expected:
                expected.move_to_end(key)
        for key in missing[-capacity:]:
            expected[key] = None
        # Rows that one call asked for are equally new: which of them goes first is open.
        assert len(cache) == min(len(expected), capacity)
        if len(expected) > capacity:
            kept = list(cache._places)
            assert set(kept) <= set(expected)
            expected = OrderedDict((key, None) for key in expected if key in kept)


def test_the_longest_unused_goes():
    cache = RowCache(2, [2])
    for key in (1, 2):
        cache.get([key], make([key])[0])
    cache.get([1], make([1])[0])
    cache.get([3], make([3])[0])
    compute, asked = make([1, 3])
    cache.get([1, 3], compute)
    assert asked == []
    compute, asked = make([2])
    cache.get([2], compute)
    assert asked == [2]


def test_a_failing_computation_leaves_it_as_it_was():
    cache = RowCache(2, [2])
    cache.get([1], make([1])[0])

    def fail(places):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        cache.get([1, 2], fail)
    assert len(cache) == 1
    np.testing.assert_array_equal(cache.get([1], fail), [[1, -1]])


def test_what_it_gives_is_not_its_own_memory():
    cache = RowCache(2, [2])
    cache.get([1], make([1])[0])[:] = 9
    rows = cache.get([1], make([1])[0])
    rows[:] = 9
    np.testing.assert_array_equal(cache.get([1], make([1])[0]), [[1, -1]])


def test_no_cache_of_no_rows():
    with pytest.raises(ValueError, match="capacity: 0 is not allowed"):
        RowCache(0, [2])
