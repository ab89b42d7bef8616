"""Who owns which block: every block once, and loads near the smallest possible."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.optim.shampoo import assignment
from ctr.optim.shampoo.assignment import (
    Block,
    balanced,
    blocks_of,
    loads,
    product_cost,
    root_cost,
    step_cost,
)
from ctr.optim.shampoo.layout import lay_out
from ctr.optim.shampoo.options import ShampooOptions
from shampoo_options import options as flat_options

sides = st.integers(1, 600)
block_lists = st.lists(
    st.builds(lambda tensor, m, n: Block(tensor, (m, n), (0, 1)), st.integers(0, 4), sides, sides), max_size=8
)
cases = block_lists.flatmap(
    lambda blocks: st.tuples(
        st.just(blocks),
        st.lists(
            st.integers(0, 30).map(float) | st.floats(0, 10), min_size=len(blocks), max_size=len(blocks)
        ),
        st.integers(1, 4),
    )
)


def smallest_load(amounts, workers):
    """Of all assignments."""
    return min(
        max(loads(amounts, owners, workers))
        for owners in itertools.product(range(workers), repeat=len(amounts))
    )


def squares(*sizes):
    return [Block(place, (size, size), (0, 1)) for place, size in enumerate(sizes)]


@given(case=cases)
def test_every_block_has_one_owner_and_always_the_same(case):
    blocks, costs, workers = case
    owners = balanced(blocks, costs, workers)
    assert owners == balanced(list(blocks), list(costs), workers)
    assert len(owners) == len(blocks) and set(owners) <= set(range(workers))
    if workers == 1:
        assert owners == (0,) * len(blocks)


def test_no_blocks_and_more_workers_than_blocks():
    assert balanced([], [], 3) == ()
    blocks = squares(64, 32, 128)
    # A block more for one of them would be of no use to anybody.
    assert len(set(balanced(blocks, [1.0, 2.0, 3.0], 1000))) == 3


@pytest.mark.parametrize(
    ("costs", "workers", "message"),
    [
        ([1.0], 2, "1 costs of 2 blocks; allowed: one for each"),
        ([1.0, math.nan], 2, "the cost of block 1 is nan; allowed: finite numbers from 0 up"),
        ([-1.0, 1.0], 2, "the cost of block 0 is -1.0; allowed: finite numbers from 0 up"),
        ([1.0, 1.0], 0, "0 workers; allowed: 1 or more"),
    ],
)
def test_bad_arguments(costs, workers, message):
    with pytest.raises(ValueError, match=message):
        balanced(squares(4, 4), costs, workers)


@settings(max_examples=60, deadline=None)
@given(cases)
def test_balanced_is_within_a_tenth_of_the_best(case):
    blocks, costs, workers = case
    owners = balanced(blocks, costs, workers)
    best = smallest_load(costs, workers)
    assert max(loads(costs, owners, workers)) <= 1.1 * best + 1e-6 * max(costs, default=0.0)


@pytest.mark.parametrize(
    ("costs", "workers", "best"),
    [
        # Longest processing time first alone: 7, 11 and, with swaps, 7.
        ([3, 3, 2, 2, 2], 2, 6),
        ([5, 5, 4, 4, 3, 3, 3], 3, 9),
        ([2, 3, 3, 5, 1, 2, 2, 5], 4, 6),
    ],
)
def test_balanced_finds_what_greedy_misses(costs, workers, best):
    assert max(loads(costs, balanced(squares(*[8] * len(costs)), costs, workers), workers)) == best


def test_balanced_gives_equal_costs_to_whoever_has_less_to_send():
    blocks = [
        Block(0, (8, 100), (0,)),
        Block(1, (8, 1), (0,)),
        Block(2, (8, 100), (0,)),
        Block(3, (8, 1), (0,)),
    ]
    owners = balanced(blocks, [1.0] * 4, 2)
    assert loads([block.elements for block in blocks], owners, 2) == [808, 808]


def test_many_blocks_are_balanced_fast():
    random = np.random.default_rng(0)
    blocks = squares(*random.choice([64, 128, 200, 256], 1000))
    costs = [step_cost(block, ShampooOptions()) for block in blocks]
    for workers in (7, 64, 300):
        found = loads(costs, balanced(blocks, costs, workers), workers)
        # No worker can have less than the mean, nor than the dearest block.
        assert max(found) <= 1.1 * max(sum(costs) / workers, max(costs))


# Costs and blocks.


def test_the_model_of_costs_by_hand(monkeypatch):
    monkeypatch.setattr(assignment, "ROOT", (2.0, 3.0, 5.0))
    monkeypatch.setattr(assignment, "PRODUCT", (0.5, 0.25, 7.0))
    block = Block(0, (10, 4), (0, 1))
    roots = (2 * 1000 + 3 * 100 + 5) + (2 * 64 + 3 * 16 + 5)
    products = (40 * (0.5 * 10 + 0.25) + 7) + (40 * (0.5 * 4 + 0.25) + 7)
    assert (root_cost(block), product_cost(block)) == (roots, products)
    options = flat_options(statistics_frequency=10, precondition_frequency=50)
    assert step_cost(block, options) == pytest.approx(products * 1.1 + roots / 50)
    # A side without a preconditioner has no root and no product.
    one_sided = Block(0, (10, 4), (1,))
    assert root_cost(one_sided) == 2 * 64 + 3 * 16 + 5


def test_a_block_knows_its_sizes():
    block = Block(3, (5, 4, 6), (0, 2))
    assert (block.sides, block.elements, block.triangle) == ((5, 6), 120, 15 + 21)


def test_blocks_are_those_of_the_optimizer():
    shapes = [(416, 512), (512,), (300, 64), (1000, 16)]
    options = flat_options(sparse="one_sided")
    layout = lay_out(options, shapes, tables=[3])
    blocks = blocks_of(layout)
    assert sorted(block.tensor for block in blocks) == [0, 0, 0, 0, 2, 2, 3]
    elements = {index: sum(b.elements for b in blocks if b.tensor == index) for index in (0, 2, 3)}
    assert elements == {0: 416 * 512, 2: 300 * 64, 3: 16 * 16}
    # All statistics matrices, each at exactly one block.
    assert sorted(side for block in blocks for side in block.sides) == sorted(
        factor.size for factor in layout.factors for _ in range(factor.count)
    )
    # Blocks of a stack in its order, so that a stack's owners are a slice.
    (first, *_) = layout.stacks
    assert [block.tensor for block in blocks[: first.blocks]] == list(first.owners)


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 6, 8, 10])
def test_the_reference_model_is_balanced(workers):
    """Work, roots and memory: at most a tenth above the mean."""
    shapes = [(416, 64), (64, 416)] * 3 + [(416, 1024), (1024, 512), (512, 256), (256, 1)]
    options = ShampooOptions()
    blocks = blocks_of(lay_out(options, shapes))
    owners = balanced(blocks, [step_cost(block, options) for block in blocks], workers)
    for amounts in (
        [step_cost(block, options) for block in blocks],
        [root_cost(block) for block in blocks],
        [float(block.triangle) for block in blocks],
    ):
        assert max(loads(amounts, owners, workers)) <= 1.1 * sum(amounts) / workers
