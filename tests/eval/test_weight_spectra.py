"""Ranks and shares of spectra, beside sums by hand."""

import math

import numpy as np
import pytest

from ctr.eval.weight_spectra import cumulative_shares, rank_keeping, top_half_share


def plain_rank(values, order, share) -> int:
    """The smallest k, counted up."""
    norm = sum(value**order for value in values) ** (1 / order)
    k = 0
    while sum(value**order for value in values[:k]) ** (1 / order) < share * norm:
        k += 1
    return k


def test_the_rank_is_the_smallest_that_keeps_the_share():
    rng = np.random.default_rng(0)
    for order in (1, 2) * 5:
        values = np.sort(rng.exponential(size=rng.integers(1, 40)))[::-1]
        for share in (0.01, 0.5, 0.9, 0.999):
            assert rank_keeping(values, order, share) == plain_rank(values.tolist(), order, share)


def test_a_spectrum_by_hand():
    values = np.array([3.0, 2.0, 2.0, 1.0, 1.0])
    # Squares 9, 4, 4, 1, 1 of 19: 17/19 = 0.946^2; sums 3, 5, 7, 8, 9.
    assert (rank_keeping(values, 2), rank_keeping(values, 1)) == (3, 5)
    assert top_half_share(values, 2) == pytest.approx(math.sqrt(17 / 19))
    assert top_half_share(values, 1) == pytest.approx(7 / 9)
    assert top_half_share(values[:2], 1) == pytest.approx(3 / 5)
    np.testing.assert_allclose(cumulative_shares(values, 1), [0, 3 / 9, 5 / 9, 7 / 9, 8 / 9, 1])
    for order in (1, 2):
        assert rank_keeping(np.zeros(4), order) == 0 and math.isnan(top_half_share(np.zeros(4), order))
        assert top_half_share(np.array([2.0]), order) == 1
        assert rank_keeping(np.array([1.0, 1e-300]), order) == 1


def test_a_share_met_exactly_is_met():
    for scale in (1.0, 0.1, 0.3333333, 1e-44, 1e-200, 1e200):
        # Nine of ten equal ones are 90% of their sum; 81 of 100 are 90% of the root of their squares.
        for values, order, rank in (
            (np.full(10, 1), 1, 9),
            (np.full(100, 1), 2, 81),
            (np.array([9, 1]), 1, 1),
        ):
            assert rank_keeping(values * scale, order) == rank
        # Just below it is not.
        for values, order, rank in ((np.array([8.9999, 1]), 1, 2), (np.full(101, 1), 2, 82)):
            assert rank_keeping(values * scale, order) == rank
