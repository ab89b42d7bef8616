"""Who owns which piece: every piece once, and loads near the smallest possible."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.optim.shampoo import assignment
from ctr.optim.shampoo.assignment import balanced, block_cost
from ctr.optim.shampoo.options import ShampooOptions

pieces = st.tuples(st.integers(0, 30).map(float) | st.floats(0, 10), st.integers(1, 360_000))
cases = st.tuples(st.lists(pieces, max_size=8), st.integers(1, 4))


def loads(amounts, owners, workers):
    """The sum of each worker's pieces."""
    pairs = list(zip(amounts, owners, strict=True))
    return [math.fsum(amount for amount, owner in pairs if owner == worker) for worker in range(workers)]


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
    costs, elements = [cost for cost, _ in found], [size for _, size in found]
    owners = balanced(costs, elements, workers)
    assert owners == balanced(costs, elements, workers)
    assert len(owners) == len(found) and set(owners) <= set(range(workers))
    # Graham's bound of longest processing time first.
    bound = (4 / 3 - 1 / (3 * workers)) * smallest_load(costs, workers)
    assert max(loads(costs, owners, workers)) <= bound + 1e-6 * max(costs, default=0.0)


def test_no_pieces_and_more_workers_than_pieces():
    assert balanced([], [], 3) == ()
    # A piece more for one of them would be of no use to anybody.
    assert len(set(balanced([1.0, 2.0, 3.0], [64, 32, 128], 1000))) == 3


def test_balanced_gives_equal_costs_to_whoever_has_less_to_send():
    elements = [800, 8, 800, 8]
    owners = balanced([1.0] * 4, elements, 2)
    assert loads(elements, owners, 2) == [808, 808]


def test_many_pieces_are_balanced_fast():
    sizes = np.random.default_rng(0).choice([64, 128, 200, 256], 1000)
    costs = [1e-11 * size**3 + 1e-9 * size**2 + 2e-5 for size in sizes]
    for workers in (7, 64, 300):
        owners = balanced(costs, [size**2 for size in sizes], workers)
        # No worker can have less than the mean, nor than the dearest piece.
        assert max(loads(costs, owners, workers)) <= 1.1 * max(sum(costs) / workers, max(costs))


def test_the_model_of_costs_by_hand(monkeypatch):
    monkeypatch.setattr(assignment, "ROOT", (2.0, 3.0, 5.0))
    monkeypatch.setattr(assignment, "PRODUCT", (0.5, 0.25, 7.0))
    roots = (2 * 1000 + 3 * 100 + 5) + (2 * 64 + 3 * 16 + 5)
    products = (40 * (0.5 * 10 + 0.25) + 7) + (40 * (0.5 * 4 + 0.25) + 7)
    options = ShampooOptions(statistics={"frequency": 10}, precondition_frequency=50)
    assert block_cost((10, 4), (0, 1), options) == pytest.approx(products * 1.1 + roots / 50)
    # A side without a preconditioner has no root and no product.
    one = (40 * (0.5 * 4 + 0.25) + 7) * 1.1 + (2 * 64 + 3 * 16 + 5) / 50
    assert block_cost((10, 4), (1,), options) == pytest.approx(one)
