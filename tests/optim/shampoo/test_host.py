"""The pipeline of roots by itself: what is sent and kept, in which order, and every way in which a worker fails."""

import logging
import threading
import time
from unittest.mock import Mock

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from ctr.optim.shampoo.host import COUNTERS, STATUS, HostPipeline, Round
from ctr.optim.shampoo.layout import Factor
from ctr.optim.shampoo.roots import RootError, inverse_root
from shampoo_reference import options as small

SIZES = (3, 6, 4)
COUNTS = (2, 1, 2)
STATUS_ROW = {name: number for number, name in enumerate(STATUS)}


def factors():
    offsets = np.cumsum([0, *COUNTS])
    return [
        Factor(f"f{size}", size, 4, tuple(range(count)), tuple(range(count)), int(offset))
        for size, count, offset in zip(SIZES, COUNTS, offsets[:-1], strict=True)
    ]


def new_round(seed=0, divisor=1.0):
    """Random statistics, no roots yet."""
    rng = np.random.default_rng(seed)
    totals = []
    for size, count in zip(SIZES, COUNTS, strict=True):
        half = rng.normal(size=(count, size, size)) * np.geomspace(1, 1e-2, size)
        totals.append(half @ np.swapaxes(half, 1, 2))
    return Round(
        totals=totals,
        roots=[np.zeros_like(total) for total in totals],
        status=np.zeros((len(STATUS), sum(COUNTS))),
        counters=np.zeros(len(COUNTERS), np.int64),
        divisor=divisor,
        identity=np.zeros(sum(COUNTS)),
    )


def counts(of):
    return {name: int(n) for name, n in zip(COUNTERS, of.counters, strict=True) if n}


def pipeline(solve=inverse_root, workers=2, drift_bound=0.0, **rest):
    return HostPipeline(factors(), small(roots={"drift_bound": drift_bound}), workers, solve=solve, **rest)


def exchange(host, step, of):
    """Sends and waits."""
    host.send(step, of)
    host.collect(step, of)


def grown(of, by):
    """Statistics after more gradients; their drift as an exchange would write it."""
    offset = 0
    for total in of.totals:
        total += by * np.eye(total.shape[1])
        of.status[STATUS_ROW["drift"], offset : offset + len(total)] += by * np.sqrt(total.shape[1])
        offset += len(total)


class Faulty:
    """Solves, but what is done to matrices of size 4 is another's decision."""

    def __init__(self, fault):
        self.fault = fault
        self.calls = 0

    def __call__(self, matrix, *arguments, **keywords):
        self.calls += 1
        if len(matrix) == 4 and self.fault is not None:
            self.fault()
        return inverse_root(matrix, *arguments, **keywords)


def test_roots_are_those_of_the_divided_statistics_and_the_status_says_of_which_step():
    may = threading.Event()

    def solve(matrix, *arguments, **keywords):
        assert may.wait(60)
        return inverse_root(matrix, *arguments, **keywords)

    now = new_round(divisor=0.25)
    host = pipeline(solve)
    host.send(7, now)
    assert now.status[STATUS_ROW["sent"]].tolist() == [1] * 5
    assert not any(root.any() for root in now.roots) and not counts(now)
    # The caller goes on, and what it does with its arrays does not reach the workers.
    kept = [total.copy() for total in now.totals]
    for total in now.totals:
        total[:] = np.nan
    may.set()
    now.totals = kept
    now.status[STATUS_ROW["drift"]] = 3.0
    host.collect(7, now)
    for total, root in zip(now.totals, now.roots, strict=True):
        for matrix, found in zip(total, root, strict=True):
            expected = inverse_root(matrix / 0.25, 4, epsilon=1e-4)
            np.testing.assert_array_equal(found, expected.matrix)
    assert counts(now) == {"refreshed": 5}
    assert now.status[STATUS_ROW["certified"]].tolist() == [1] * 5
    assert now.status[STATUS_ROW["root_step"]].tolist() == [7] * 5
    assert not now.status[STATUS_ROW["sent"]].any() and not now.status[STATUS_ROW["drift"]].any()
    assert (now.status[STATUS_ROW["condition"]] > 10).all()


def test_neither_the_number_of_workers_nor_their_timing_changes_a_bit():
    results = []
    for workers, seed in ((1, None), (2, 0), (5, 1)):
        rng = np.random.default_rng(seed)

        def solve(matrix, *arguments, rng=rng, seed=seed, **keywords):
            if seed is not None:
                time.sleep(rng.uniform(0, 0.01))
            return inverse_root(matrix, *arguments, **keywords)

        now = new_round()
        host = pipeline(solve, workers)
        for step in range(3):
            exchange(host, step, now)
            grown(now, 0.01)
        results.append(b"".join(a.tobytes() for a in (*now.roots, now.status, now.counters)))
    assert results[0] == results[1] == results[2]


def blas_threads():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_every_root_has_one_blas_thread_whoever_set_another_number_before():
    # threadpoolctl listens only to the first thread that set a limit, be it another worker or the caller; and
    # the bits of a decomposition depend on the number.
    seen = []
    together = threading.Barrier(2, timeout=60)

    def solve(matrix, *arguments, **keywords):
        if len(matrix) == 4:  # two of them, so both workers are here
            together.wait()
        seen.append(blas_threads())
        return inverse_root(matrix, *arguments, **keywords)

    with threadpool_limits(2, user_api="blas"):
        for step in (1, 2, 3):
            of = new_round(step)
            host = pipeline(solve)
            exchange(host, step, of)
            assert blas_threads() == {2}
    assert seen == [{1}] * (3 * sum(COUNTS))


@pytest.mark.parametrize(
    ("error", "counter"), [(RootError("no root, says the solver"), "failed"), (SystemExit("killed"), "lost")]
)
def test_a_root_that_does_not_come_leaves_the_previous_one_and_is_tried_again(error, counter, caplog):
    solve = Faulty(None)
    host, now = pipeline(solve), new_round()
    exchange(host, 1, now)
    before = [root.copy() for root in now.roots]
    solve.fault = Mock(side_effect=error)
    grown(now, 1.0)
    host.send(2, now)
    with caplog.at_level(logging.WARNING):
        host.collect(2, now)
    assert counts(now) == {"refreshed": 8, counter: 2}
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2 and all("previous root is kept" in line and str(error) in line for line in lines)
    assert "f4[0]" in lines[0] and "f4[1]" in lines[1] and "step 2" in lines[0]
    np.testing.assert_array_equal(now.roots[2], before[2])
    assert not np.array_equal(now.roots[0], before[0])
    # It keeps its age, its drift and its certificate.
    assert now.status[STATUS_ROW["root_step"]].tolist() == [2, 2, 2, 1, 1]
    assert now.status[STATUS_ROW["drift"]].tolist() == [0, 0, 0, 2, 2]
    assert now.status[STATUS_ROW["certified"]].all()
    solve.fault = None
    exchange(host, 3, now)
    assert now.status[STATUS_ROW["root_step"], 3:].tolist() == [3, 3]
    assert not np.array_equal(now.roots[2], before[2])


def test_what_has_no_root_fails_and_no_statistics_are_no_fault(caplog):
    calls = Faulty(None)
    host, now = pipeline(calls), new_round()
    now.roots = [root.astype(np.float32) for root in now.roots]
    now.totals[0][0] = 0
    now.totals[0][1, 0, 0] = np.nan
    # Its root is 1e40.
    now.totals[1] *= 1e-160
    now.totals[2][0] = np.diag([1.0, 1.0, 1.0, -1.0])
    for step in (1, 2):
        exchange(host, step, now)
        assert counts(now) == {"refreshed": step, "failed": 3 * step}
        # NaN is not equal to itself, but its round is the same round: nothing is computed twice.
        assert calls.calls == 4 * step
        assert now.status[STATUS_ROW["certified"]].tolist() == [0, 0, 0, 0, 1]
        now.status[STATUS_ROW["drift"]] = 1.0
    assert not now.roots[1].any()
    for message in ("not finite", "beyond float32", "indefinite"):
        assert message in caplog.text
    for total in now.totals:
        total[:] = 0
    exchange(host, 3, now)
    assert counts(now) == {"refreshed": 2, "failed": 6}


def test_a_worker_that_never_returns_is_given_up_and_others_take_over(caplog):
    release, hanging = threading.Event(), threading.Barrier(3, timeout=60)

    def hang():
        hanging.wait()
        release.wait(60)

    solve = Faulty(hang)
    host, now = pipeline(solve, workers=2, patience=0.1), new_round()
    try:
        host.send(1, now)
        # The root of size 6 is done, both workers hang in size 4, size 3 never begins.
        hanging.wait()
        host.collect(1, now)
        assert counts(now) == {"refreshed": 1, "lost": 4}
        assert "no worker delivered it" in caplog.text
        solve.fault, host.patience = None, 60.0
        grown(now, 1.0)
        exchange(host, 2, now)
        assert counts(now) == {"refreshed": 6, "lost": 4}
    finally:
        release.set()


@pytest.mark.parametrize("at", ["before it is sent to", "with a round in it"])
def test_a_pool_that_is_gone_loses_at_most_its_round(at):
    host, now = pipeline(patience=60.0), new_round()
    exchange(host, 1, now)
    grown(now, 1.0)
    if at == "with a round in it":
        host.send(2, now)
    host._pool.shutdown(wait=True, cancel_futures=True)
    host.patience = 0.1
    if at == "before it is sent to":
        host.send(2, now)
    host.collect(2, now)
    found = counts(now)
    host.patience = 60.0
    grown(now, 1.0)
    assert found["refreshed"] + found.get("lost", 0) == 10
    exchange(host, 3, now)
    assert counts(now)["refreshed"] == found["refreshed"] + 5
    assert now.status[STATUS_ROW["root_step"]].tolist() == [3] * 5


def test_small_drift_keeps_a_root_until_it_has_added_up():
    host, now = pipeline(drift_bound=0.25), new_round()
    exchange(host, 1, now)
    norms = np.array([np.linalg.norm(matrix) for total in now.totals for matrix in total])
    # A tenth at a time; the norms are left as they are. The third time 0.3 is too much.
    for step, sent in ((2, 0), (3, 0), (4, 5), (5, 0)):
        now.status[STATUS_ROW["drift"]] += 0.1 * norms
        host.send(step, now)
        assert now.status[STATUS_ROW["sent"]].sum() == sent
        host.collect(step, now)
    assert counts(now) == {"refreshed": 10, "skipped": 15}
    assert now.status[STATUS_ROW["root_step"]].tolist() == [4] * 5
    # Each by its own drift, and exactly at the bound it is kept.
    now.status[STATUS_ROW["drift"]] = 0.25 * norms * [1, 1, 1.001, 1, 1.001]
    host.send(6, now)
    assert now.status[STATUS_ROW["sent"]].tolist() == [0, 0, 1, 0, 1]


def test_a_round_of_other_statistics_is_not_taken_for_this_one():
    host, now, other = pipeline(), new_round(0), new_round(1)
    host.send(4, other)
    now.status[STATUS_ROW["sent"]] = 1
    host.collect(4, now)
    alone = new_round(0)
    exchange(pipeline(), 4, alone)
    for root, expected in zip(now.roots, alone.roots, strict=True):
        np.testing.assert_array_equal(root, expected)
