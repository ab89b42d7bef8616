"""What workers exchange, against NumPy."""

import json

import numpy as np
import pytest

from exchanging_worker import drawn
from worker_group import Group


def exchanged(size, folder, is_cluster):
    """What each worker printed."""
    arguments = [str(folder / "first_leaves")]
    group = Group(size, arguments, folder, "exchanging_worker.py", is_cluster=is_cluster)
    assert group.wait() == [0] * size, group.output(0)
    assert all("WAITED" in group.output(rank) for rank in range(size))
    assert "ALONE" in group.output(0)
    return [json.loads(group.output(rank).partition("RESULT ")[2].splitlines()[0]) for rank in range(size)]


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("size", [3, 2])  # of two, any order gives the same bits
def test_every_exchange(size, tmp_path):
    results = exchanged(size, tmp_path / "here", is_cluster=False)
    # A cluster adds in the same order.
    in_cluster = exchanged(size, tmp_path / "cluster", is_cluster=True)
    assert [one["steps"] for one in in_cluster] == [one["steps"] for one in results]
    check(results, size)
    check(in_cluster, size)


def check(results, size):
    fixed = np.stack([drawn(rank, 3) for rank in range(size)])
    for step, count in enumerate((1, 300, 1)):
        rows = np.stack([drawn(rank, count * size, 2) for rank in range(size)])
        by_worker = rows.reshape(size, size, count, 2)
        for rank, result in enumerate(results):
            sums, sum_of_fixed, again, first, theirs, first_theirs, gathered, gradient = result["steps"][step]
            np.testing.assert_allclose(sums, rows.sum(0), atol=1e-5)
            np.testing.assert_allclose(sum_of_fixed, fixed.sum(0), atol=1e-6)
            np.testing.assert_allclose(again, fixed.sum(0), atol=1e-6)
            np.testing.assert_allclose(first, fixed.sum(0)[:1], atol=1e-6)
            np.testing.assert_array_equal(np.array(theirs, np.float32), by_worker[:, rank])
            np.testing.assert_array_equal(np.array(first_theirs, np.float32), by_worker[:, rank, :1])
            np.testing.assert_array_equal(np.array(gathered, np.float32), rows.reshape(-1, 2))
            expected = 4 * (fixed**2).sum(0) * fixed[rank]
            np.testing.assert_allclose(gradient, expected, rtol=1e-5)
            # Sums have the same bits everywhere.
            assert [sums, again] == [results[0]["steps"][step][0], results[0]["steps"][step][2]]
    for rank, result in enumerate(results):
        # Of 500 exchanges no thread is left.
        assert result["new_threads"] < 20
        assert result["numbers"] == [[one, 10 * one] for one in range(size)]
        sums = 2**20 * sum(range(size)) + size
        assert result["sums"] == [[sums] * count for count in (3, 0, 700, 3)]
        assert result["uneven"] == [[one - 2**62 for one in range(3 * other)] for other in range(size)]
        whole = range(500) if rank == 0 else ()
        assert result["divided"] == [list(whole), [[one, one] for one in whole]]
        assert result["texts"] == ["ä" * one for one in range(size)]
        assert result["array"] == [[[one], [one]] for one in range(size)]
        own, others = "no such log", ": no such log"
        assert [text == own for text in result["refused"][:2]] == [rank == 0, rank == size - 1]
        assert all(text.endswith(others) or text == own for text in result["refused"][:2])
        assert "another log than the first worker" in result["refused"][2]
