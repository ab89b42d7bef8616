"""Counters of ids: exact while they fit, and how far off they are where they do not."""

import numpy as np
import pytest

from ctr.data.id_counts import BoundedCounts, DenseCounts, make_counts


def counted(ids: np.ndarray, clicked: np.ndarray) -> dict[int, tuple[int, int]]:
    found, place = np.unique(ids, return_inverse=True)
    both = np.bincount(place), np.bincount(place, clicked).astype(int)
    return dict(zip(found.tolist(), zip(*(counts.tolist() for counts in both), strict=True), strict=True))


@pytest.mark.parametrize("make", [DenseCounts, BoundedCounts])
def test_counts_in_batches_are_exact(make):
    rng = np.random.default_rng(0)
    ids, clicked = rng.integers(3, 40, 1000).astype(np.int32), rng.random(1000) < 0.3
    counts = make(50)
    for begin in range(0, 1000, 90):
        counts.add(ids[begin : begin + 90], clicked[begin : begin + 90])
    expected = counted(ids, clicked)
    assert counts.exact and counts.shortfall == 0 and counts.distinct() == len(expected)
    # Ties go to the smaller id.
    top = sorted(expected.items(), key=lambda one: (-one[1][0], one[0]))[:5]
    assert counts.top(5) == [(number, *both) for number, both in top]


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


@pytest.mark.parametrize("kept", [50, 500, 20_000])
def test_counts_that_do_not_fit_say_how_far_off_they_are_also_merged(kept, monkeypatch):
    monkeypatch.setattr("ctr.data.id_counts._PENDING", 500)
    rng = np.random.default_rng(3)
    ids = np.minimum(rng.zipf(1.3, 20_000), 10**9)
    clicked = rng.random(len(ids)) < 0.2
    whole, merged = BoundedCounts(kept), BoundedCounts(kept)
    for places in np.array_split(np.arange(len(ids)), 7):
        part = BoundedCounts(kept)
        for counts in (part, whole):
            for some in np.array_split(places, 5):
                counts.add(ids[some], clicked[some])
        merged.merge(part)
    exact = counted(ids, clicked)
    for counts in (whole, merged):
        assert counts.distinct() == pytest.approx(len(exact), rel=0.04 if kept < 20_000 else 0)
        assert counts.exact == (kept == 20_000) == (not counts.shortfall)
        for one, occurrences, clicks in counts.top(10):
            assert 0 <= exact[one][0] - occurrences <= counts.shortfall
            assert clicks == exact[one][1] or not counts.exact
        # The most frequent one was never dropped.
        assert counts.top(1) == [(1, *exact[1])]


def test_what_an_id_lost_each_time_adds_up():
    counts = BoundedCounts(2)
    for times in (1, 2):
        ids = np.repeat([1, 2, 3], [3, 3, 2])
        counts.add(ids, ids < 0)
        # The two of the rarest id are dropped each time.
        assert (counts.shortfall, counts.top(3)) == (2 * times, [(1, 3 * times, 0), (2, 3 * times, 0)])


def test_few_ids_get_a_counter_each_while_there_is_room():
    for buckets, expected in (([100, 5, 30, 1000], "BDDB"), ([None, 5, None, 30], "BDBD")):
        kinds = [type(counts).__name__[0] for counts in make_counts(buckets, dense_ids=40)]
        assert "".join(kinds) == expected
