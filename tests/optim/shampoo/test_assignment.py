"""Who owns which piece, of many and of few; that loads are near the smallest is shown by test_placement.py."""

import math

import numpy as np
import pytest

from ctr.optim.shampoo import assignment
from ctr.optim.shampoo.assignment import balanced, block_cost
from ctr.optim.shampoo.options import ShampooOptions


def loads(amounts, owners, workers):
    """The sum of each worker's pieces."""
    pairs = list(zip(amounts, owners, strict=True))
    return [math.fsum(amount for amount, owner in pairs if owner == worker) for worker in range(workers)]


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
