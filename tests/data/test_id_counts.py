"""Counters of ids: exact while they fit, and how far off they are where they do not."""

import numpy as np
import pytest

from ctr.data.id_counts import BoundedCounts, DenseCounts, make_counts


def counted(ids: np.ndarray, clicked: np.ndarray) -> dict[int, tuple[int, int]]:
    return {
        int(number): (int(np.count_nonzero(ids == number)), int(np.count_nonzero(ids[clicked] == number)))
        for number in np.unique(ids)
    }


@pytest.mark.parametrize("make", [lambda: DenseCounts(50), lambda: BoundedCounts(50)])
def test_counts_in_batches_are_exact(make):
    rng = np.random.default_rng(0)
    ids, clicked = rng.integers(3, 40, 1000).astype(np.int32), rng.random(1000) < 0.3
    counts = make()
    for begin in range(0, 1000, 90):
        counts.add(ids[begin : begin + 90], clicked[begin : begin + 90])
    expected = counted(ids, clicked)
    assert counts.exact and counts.shortfall == 0
    assert counts.distinct() == len(expected)
    top = sorted(((*n, -number) for number, n in expected.items()), key=lambda n: (-n[0], -n[2]))[:5]
    assert counts.top(5) == [(-number, occurrences, clicks) for occurrences, clicks, number in top]


def test_any_64_bits_can_be_counted():
    ids = np.array([-(2**63), 2**63 - 1, -1, 1, -(2**63), -1, -1])
    counts = BoundedCounts(50)
    counts.add(ids, ids < 0)
    assert (counts.exact, counts.distinct()) == (True, 4)
    assert counts.top(3) == [(-1, 3, 3), (-(2**63), 2, 2), (1, 1, 0)]
    many = np.random.default_rng(2).integers(-(2**63), 2**63 - 1, 100_000)
    counts = BoundedCounts(500)
    counts.add(many, many < 0)
    assert counts.distinct() == pytest.approx(len(np.unique(many)), rel=0.04)


@pytest.mark.parametrize("kept", [50, 20_000])
def test_counts_that_are_merged_are_those_of_all(kept):
    rng = np.random.default_rng(3)
    ids = np.minimum(rng.zipf(1.3, 20_000), 10**9)
    clicked = rng.random(len(ids)) < 0.2
    whole, merged = BoundedCounts(10**6), BoundedCounts(kept)
    whole.add(ids, clicked)
    for places in np.array_split(np.arange(len(ids)), 7):
        part = BoundedCounts(kept)
        part.add(ids[places], clicked[places])
        merged.merge(part)
    assert merged.distinct() == whole.distinct()
    exact = dict((one, counts) for one, *counts in whole.top(whole.distinct()))
    assert merged.exact == (kept == 20_000) == (not merged.shortfall)
    for one, occurrences, clicks in merged.top(10):
        assert 0 <= exact[one][0] - occurrences <= merged.shortfall
        assert (clicks == exact[one][1]) or not merged.exact


def test_counts_that_do_not_fit_are_close_and_say_how_close(monkeypatch):
    monkeypatch.setattr("ctr.data.id_counts._PENDING", 1000)
    rng = np.random.default_rng(1)
    ids = np.minimum(rng.zipf(1.3, 200_000), 10**9).astype(np.int32)
    clicked = rng.random(len(ids)) < 0.2
    counts = BoundedCounts(500)
    for part, clicks in zip(np.split(ids, 40), np.split(clicked, 40), strict=True):
        counts.add(part, clicks)
    assert not counts.exact
    expected = counted(ids[np.isin(ids, range(1, 21))], clicked[np.isin(ids, range(1, 21))])
    for number, occurrences, _ in counts.top(20):
        assert number <= 20
        assert 0 <= expected[number][0] - occurrences <= counts.shortfall
    # The most frequent ones were never dropped.
    assert counts.top(1) == [(1, *expected[1])]
    distinct = len(np.unique(ids))
    assert counts.distinct() == pytest.approx(distinct, rel=0.04)


def test_few_ids_get_a_counter_each_while_there_is_room():
    kinds = [type(counts) for counts in make_counts([100, 5, 30, 1000], dense_ids=40)]
    assert kinds == [BoundedCounts, DenseCounts, DenseCounts, BoundedCounts]


def test_ids_that_grow_are_counted_up_to_a_bound():
    kinds = [type(counts) for counts in make_counts([None, 5, None, 30], dense_ids=40)]
    assert kinds == [BoundedCounts, DenseCounts, BoundedCounts, DenseCounts]
