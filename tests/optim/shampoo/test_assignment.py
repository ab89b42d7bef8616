"""Who owns which piece: every piece once, and loads near the smallest possible."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.optim.shampoo.assignment import balanced, loads

sides = st.integers(1, 600)
pieces = st.tuples(st.integers(0, 30).map(float) | st.floats(0, 10), sides, sides)
cases = st.tuples(st.lists(pieces, max_size=8), st.integers(1, 4))


def divided(found, workers):
    """Pieces of a cost, and as large as a matrix with the statistics of both sides."""
    costs = [cost for cost, _, _ in found]
    memory = [float(sum(side * (side + 1) // 2 for side in one)) for _, *one in found]
    return balanced(costs, [math.prod(one) for _, *one in found], memory, workers)


def alike(costs, workers):
    return divided([(cost, 8, 8) for cost in costs], workers)


def smallest_load(amounts, workers):
    """Of all assignments."""
    return min(
        max(loads(amounts, owners, workers))
        for owners in itertools.product(range(workers), repeat=len(amounts))
    )


@settings(max_examples=60, deadline=None)
@given(cases)
def test_every_piece_has_one_owner_and_loads_are_near_the_best(case):
    found, workers = case
    owners = divided(found, workers)
    assert owners == divided(list(found), workers)
    assert len(owners) == len(found) and set(owners) <= set(range(workers))
    costs = [cost for cost, _, _ in found]
    # Graham's bound of longest processing time first, and what less memory may cost.
    bound = 1.05 * (4 / 3 - 1 / (3 * workers)) * smallest_load(costs, workers)
    assert max(loads(costs, owners, workers)) <= bound + 1e-6 * max(costs, default=0.0)


def test_no_pieces_and_more_workers_than_pieces():
    assert balanced([], [], [], 3) == ()
    # A piece more for one of them would be of no use to anybody.
    assert len(set(divided([(1.0, 64, 64), (2.0, 32, 32), (3.0, 128, 128)], 1000))) == 3


def test_bad_arguments():
    for costs, workers, message in (
        ([1.0], 2, "1 costs, 2 elements, 2 memories; allowed: one for each"),
        ([1.0, math.nan], 2, "the cost of piece 1 is nan; allowed: finite numbers from 0 up"),
        ([1.0, 1.0], 0, "0 workers; allowed: 1 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            balanced(costs, [16, 16], [10.0, 10.0], workers)


@pytest.mark.parametrize(
    ("costs", "workers", "best"),
    # Longest processing time first alone: 7 and 11.
    [([3, 3, 2, 2, 2], 2, 6), ([5, 5, 4, 4, 3, 3, 3], 3, 9)],
)
def test_balanced_finds_what_greedy_misses(costs, workers, best):
    assert max(loads(costs, alike(costs, workers), workers)) == best


def test_balanced_gives_equal_costs_to_whoever_has_less_to_send():
    elements = [800, 8, 800, 8]
    owners = balanced([1.0] * 4, elements, [36.0] * 4, 2)
    assert loads(elements, owners, 2) == [808, 808]


def test_many_pieces_are_balanced_fast():
    sizes = np.random.default_rng(0).choice([64, 128, 200, 256], 1000)
    costs = [1e-11 * size**3 + 1e-9 * size**2 + 2e-5 for size in sizes]
    for workers in (7, 64, 300):
        owners = divided([(cost, size, size) for cost, size in zip(costs, sizes, strict=True)], workers)
        # No worker can have less than the mean, nor than the dearest piece.
        assert max(loads(costs, owners, workers)) <= 1.1 * max(sum(costs) / workers, max(costs))
