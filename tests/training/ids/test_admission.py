"""Draws of examples, and counts of waiting ids: exact up to a bound, and of a stated error beyond."""

import numpy as np
import pytest

from ctr.training.ids.admission import DEPTH, CountMinSketch, WaitingIds, drawn
from ctr.training.ids.config import AdmissionConfig


def test_draws_have_their_probability_and_grow_with_it():
    ids = np.arange(200_000)
    draws = {share: drawn(ids, share, "1") for share in (0.01, 0.1, 0.5, 1.0)}
    for share, found in draws.items():
        assert found.mean() == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / len(ids)))
    assert not (draws[0.01] & ~draws[0.1]).any()
    both = draws[0.1] & drawn(ids, 0.1, "2")
    assert both.mean() == pytest.approx(0.01, abs=0.001)
    np.testing.assert_array_equal(drawn(ids[::-1], 0.1, "1")[::-1], draws[0.1])


def count(waiting, values, counts=1):
    values = np.array(values, np.int64)
    return waiting.count((values % 3).astype(np.int16), values, np.broadcast_to(counts, values.shape))


@pytest.mark.parametrize("needed", [1, 2, 5])
def test_counts_are_exact_up_to_the_bound(needed):
    waiting = WaitingIds(AdmissionConfig(rule="count", count=needed, exact_ids=2000))
    random, totals = np.random.default_rng(0), np.zeros(2001, np.int64)
    for _ in range(50):
        values = random.permutation(2000)[:300] + 1
        counts = random.integers(1, 3, 300)
        totals[values] += counts
        enough = count(waiting, values, counts)
        np.testing.assert_array_equal(enough, totals[values] >= needed)
        admitted = values[enough]
        waiting.forget((admitted % 3).astype(np.int16), admitted)
        totals[admitted] = 0


def test_beyond_the_bound_few_ids_are_admitted_early_and_none_late():
    waiting = WaitingIds(AdmissionConfig(rule="count", count=2, exact_ids=1000))
    random, early = np.random.default_rng(0), 0
    values = random.permutation(10**6)[:20_000] + 1
    for begin in range(0, len(values), 500):
        # Each id comes once with 499 others, and again after a thousand others at most.
        early += count(waiting, values[begin : begin + 500]).sum()
        if begin % 1000 == 500:
            assert count(waiting, values[begin - 500 : begin + 500]).all()
    assert 0 < early < 0.0183 * len(values)


def test_memory_has_a_bound_however_many_ids_wait():
    waiting = WaitingIds(AdmissionConfig(rule="count", count=3, exact_ids=1000))
    sizes = []
    for begin in range(1, 100_001, 500):
        count(waiting, np.arange(begin, begin + 500))
        sizes.append(waiting.nbytes)
    assert max(sizes[20:]) <= max(sizes[:20]) < 150 * 1024


def test_an_estimate_is_never_too_low_and_seldom_too_high():
    ids = 5000
    # Their sum stays below the bound at which counters are halved.
    counts = np.random.default_rng(0).geometric(0.1, ids)
    sketch = CountMinSketch(ids, max_count=1000)
    hashes = np.random.default_rng(1).integers(0, 2**63, 2 * ids).astype(np.uint64)
    sketch.raise_to(hashes[:ids], counts)
    for found, true in ((sketch.estimates(hashes[:ids]), counts), (sketch.estimates(hashes[ids:]), 0)):
        assert (found >= true).all()
        epsilon = np.e / (8 * ids)
        assert (found - true > epsilon * counts.sum()).mean() < np.exp(-DEPTH)


def test_counters_are_halved_when_their_sum_is_too_large_and_stay_at_the_highest_one():
    sketch = CountMinSketch(4, max_count=200)
    hashes = np.arange(4, dtype=np.uint64)
    sketch.raise_to(hashes, np.full(4, 50))
    assert sketch.estimates(hashes).tolist() == [50] * 4
    sketch.raise_to(hashes[:1], np.array([51]))
    assert sketch.estimates(hashes).tolist() == [25] * 4
    for max_count, bytes_of_a_counter in ((255, 1), (256, 2)):
        sketch, one = CountMinSketch(1024, max_count), np.array([7], np.uint64)
        assert sketch.nbytes == 0
        sketch.raise_to(one, np.array([10**6]))
        assert sketch.estimates(one).tolist() == [max_count]
        assert sketch.nbytes == DEPTH * 8 * 1024 * bytes_of_a_counter
