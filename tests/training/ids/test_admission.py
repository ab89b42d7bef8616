"""Draws of examples, and counts of more waiting ids than are counted exactly: of a stated error and memory."""

import numpy as np
import pytest

from ctr.training.ids.admission import WaitingIds, drawn
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
