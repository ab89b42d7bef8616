import numpy as np
from scipy import stats

from ctr.eval.states import BUCKETS, query_bucket


def test_hash_is_splitmix64() -> None:
    # The published first outputs of splitmix64 seeded with 1234567; a seed's n-th output is the first output
    # of the seed advanced n-1 times.
    outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    gamma = 0x9E3779B97F4A7C15
    seeds = np.array([(1234567 + n * gamma) % 2**64 for n in range(4)], np.uint64).view(np.int64)
    np.testing.assert_array_equal(query_bucket(seeds), [output >> 56 for output in outputs])


def test_neighbouring_ids_spread_evenly() -> None:
    for ids in (np.arange(50_000), np.arange(50_000) * 2**20, -np.arange(50_000)):
        counts = np.bincount(query_bucket(ids), minlength=BUCKETS)
        assert counts.shape == (BUCKETS,)
        assert stats.chisquare(counts).pvalue > 1e-3


def test_argument_is_left_alone() -> None:
    ids = np.array([-5, 0, 7])
    query_bucket(ids)
    np.testing.assert_array_equal(ids, [-5, 0, 7])
