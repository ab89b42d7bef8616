"""Systematic sampling within strata: against whole numbers of Python, and by what it promises of counts and means."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.data.sampling import Strata
from ctr.io.hashing import uniform_hash


def plain_keep(salt: str, stratum: list[int], rate: list[float]) -> list[bool]:
    """The same, row by row, in whole numbers of Python."""
    places: dict[int, int] = {}
    kept = []
    for one, share in zip(stratum, rate, strict=True):
        if one not in places:
            drawn = float(uniform_hash(np.array([one]), f"{salt} strata")[0])
            places[one] = int(drawn * 2**32)
        before = places[one]
        places[one] = before + round(share * 2**32)
        kept.append(places[one] // 2**32 > before // 2**32)
    return kept


rows = st.lists(
    st.tuples(st.sampled_from([0, 1, -5, 2**62]), st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0])),
    max_size=60,
)


@settings(deadline=None)
@given(rows, st.lists(st.integers(0, 60), max_size=4), st.sampled_from(["1", "a"]))
def test_it_is_that_of_whole_numbers_however_rows_are_divided_into_calls(given_rows, cuts, salt):
    stratum = np.array([one for one, _ in given_rows], np.int64)
    rate = np.array([share for _, share in given_rows])
    strata = Strata(salt)
    edges = [0, *sorted(min(cut, len(rate)) for cut in cuts), len(rate)]
    found = [strata.keep(stratum[begin:end], rate[begin:end]) for begin, end in pairwise(edges)]
    assert np.concatenate(found).tolist() == plain_keep(salt, stratum.tolist(), rate.tolist())


@settings(deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 5))
def test_of_any_run_of_a_stratum_as_many_are_kept_as_rates_add_up_to(seed, count):
    rng = np.random.default_rng(seed)
    stratum, rate = rng.integers(0, count, 300), rng.choice([0.01, 0.3, 0.5, 1.0], 300)
    kept = Strata(str(seed)).keep(stratum, rate)
    for one in range(count):
        begin, end = np.sort(rng.integers(0, 300, 2))
        within = np.flatnonzero(stratum == one)
        within = within[(within >= begin) & (within < end)]
        assert abs(kept[within].sum() - rate[within].sum()) < 1 + 1e-6
    assert kept[rate == 1.0].all()


def test_each_row_is_kept_with_the_probability_of_its_rate():
    rng = np.random.default_rng(3)
    stratum, rate = rng.integers(0, 4, 40), rng.uniform(0.05, 1, 40)
    draws = 4000
    counts = sum(Strata(str(salt)).keep(stratum, rate).astype(int) for salt in range(draws))
    deviation = np.sqrt(rate * (1 - rate) / draws)
    assert (np.abs(counts / draws - rate) < 5 * deviation + 1e-9).all()


def test_salts_are_drawn_by_themselves():
    stratum, rate = np.arange(2000), np.full(2000, 0.5)
    first, other = (Strata(salt).keep(stratum, rate) for salt in ("1", "2"))
    # Binomial with a standard deviation of 22.
    assert abs((first == other).sum() - 1000) < 112
    assert np.array_equal(first, Strata("1").keep(stratum, rate))


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_certain_rates(rate):
    kept = Strata("1").keep(np.zeros(50, np.int64), np.full(50, rate))
    assert kept.all() == (rate == 1) and kept.any() == (rate == 1)


def test_no_rows():
    assert Strata("1").keep(np.zeros(0, np.int64), np.zeros(0)).shape == (0,)
