"""Who owns which block: every block once, loads near the smallest possible, and the papers' own examples."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.optim import assignment
from ctr.optim.assignment import (
    ASSIGNMENTS,
    Block,
    balanced,
    blocks_of,
    by_layers,
    by_variables,
    gather_elements,
    loads,
    product_cost,
    root_cost,
    split_layers,
    step_cost,
    thesis_cost,
)
from ctr.optim.options import ShampooOptions
from ctr.optim.state import lay_out

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


@pytest.mark.parametrize("assign", ASSIGNMENTS.values(), ids=ASSIGNMENTS)
@given(case=cases)
def test_every_block_has_one_owner_and_always_the_same(assign, case):
    blocks, costs, workers = case
    owners = assign(blocks, costs, workers)
    assert owners == assign(list(blocks), list(costs), workers)
    assert len(owners) == len(blocks) and set(owners) <= set(range(workers))
    if workers == 1:
        assert owners == (0,) * len(blocks)


@pytest.mark.parametrize("assign", ASSIGNMENTS.values(), ids=ASSIGNMENTS)
def test_no_blocks_and_more_workers_than_blocks(assign):
    assert assign([], [], 3) == ()
    blocks = squares(64, 32, 128)
    # A block more for one of them would be of no use to anybody.
    assert len(set(assign(blocks, [1.0, 2.0, 3.0], 1000))) == 3


@pytest.mark.parametrize("assign", ASSIGNMENTS.values(), ids=ASSIGNMENTS)
@pytest.mark.parametrize(
    ("costs", "workers", "message"),
    [
        ([1.0], 2, "1 costs of 2 blocks; allowed: one for each"),
        ([1.0, math.nan], 2, "the cost of block 1 is nan; allowed: finite numbers from 0 up"),
        ([-1.0, 1.0], 2, "the cost of block 0 is -1.0; allowed: finite numbers from 0 up"),
        ([1.0, 1.0], 0, "0 workers; allowed: 1 or more"),
    ],
)
def test_bad_arguments(assign, costs, workers, message):
    with pytest.raises(ValueError, match=message):
        assign(squares(4, 4), costs, workers)


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


@settings(max_examples=60, deadline=None)
@given(cases)
def test_the_buffer_of_the_greedy_is_within_its_bounds(case):
    blocks, costs, workers = case
    elements = [block.elements for block in blocks]
    longest = gather_elements(blocks, by_variables(blocks, costs, workers), workers) / workers
    assert longest <= sum(elements) / workers + (1 - 1 / workers) * max(elements, default=0)
    assert longest <= (4 / 3 - 1 / (3 * workers)) * smallest_load(elements, workers)


def test_the_greedy_by_hand():
    """PT algorithm 3: 900 to 0, 500 to 1, 400 to 1 (500 < 900), 300 to 0 (900 = 900), 100 to 1."""
    blocks = [Block(place, (size, 100), (0, 1)) for place, size in enumerate([5, 9, 1, 4, 3])]
    assert by_variables(blocks, [0.0] * 5, 2) == (1, 0, 1, 1, 0)
    assert gather_elements(blocks, (1, 0, 1, 1, 0), 2) == 2 * 1200


# The thesis' assignment.


def listing(costs, world_size):
    """THESIS listing A.1, as it stands, from costs of layers."""

    def next_split(subset):
        x = np.array(subset)
        return len(x[np.cumsum(x) < np.sum(subset) / 2]) + 1

    number, partitions = len(costs), [0] * len(costs)
    if world_size == 1:
        return partitions
    if number <= world_size:
        return list(range(number))
    splits = np.array([0])
    for rank in range(world_size - 1):
        if rank == 0:
            splits = np.append(splits, next_split(costs))
            continue
        sums = []
        for i in range(1, len(splits)):
            sums.append(np.sum(costs[splits[i - 1] : splits[i]]))
            if i == len(splits) - 1:
                sums.append(np.sum(costs[splits[i] :]))
        while True:
            i = np.argmax(sums)
            part = costs[splits[i] :] if i == len(sums) - 1 else costs[splits[i] : splits[i + 1]]
            if len(part) > 1:
                break
            sums[i] = -1
        splits = np.sort(np.append(splits, next_split(part) + splits[i]))
    following, rank = splits[1], 0
    for i in range(number):
        if i == following:
            rank += 1
            if rank != world_size - 1:
                following = splits[rank + 1]
        partitions[i] = rank
    return partitions


@settings(max_examples=200)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 6))
def test_layers_are_split_as_by_the_listing_where_that_leaves_nobody_idle(costs, workers):
    owners = split_layers(costs, workers)
    theirs = listing(costs, workers)
    assert list(owners) == sorted(owners)
    assert set(owners) == set(range(min(workers, len(costs))))
    if set(theirs) == set(owners):
        assert list(owners) == theirs


def test_a_last_layer_that_is_more_than_all_others_is_split_off():
    assert set(listing([1, 1, 10], 2)) == {0}
    assert split_layers([1, 1, 10], 2) == (0, 0, 1)


def resnet18():
    """Its 21 matrices and tensors of order 4, without blocks (He et al., 2015)."""
    shapes, before = [(64, 3, 7, 7), *[(64, 64, 3, 3)] * 4], 64
    for width in (128, 256, 512):
        shapes += [
            (width, before, 3, 3),
            (width, width, 3, 3),
            (width, before, 1, 1),
            *[(width, width, 3, 3)] * 2,
        ]
        before = width
    shapes.append((1000, 512))
    return [Block(place, shape, tuple(range(len(shape)))) for place, shape in enumerate(shapes)]


def test_examples_of_the_thesis():
    """Listing A.1's docstring and figure 5.4. Its lists for 3 and 8 workers are of costs that are not stated."""
    layers = resnet18()
    ignored = [0.0] * len(layers)
    assert by_layers(layers, ignored, 1) == (0,) * 21
    assert by_layers(layers, ignored, 21) == tuple(range(21)) == by_layers(layers, ignored, 64)
    first_is_bigger = [Block(0, (4000, 4000), (0, 1)), Block(1, (40, 40), (0, 1)), Block(2, (40, 40), (0, 1))]
    assert by_layers(first_is_bigger, [0.0] * 3, 2) == (0, 1, 1)
    # Figure 5.4: four workers and three layers of 4 x 4; the last worker is idle.
    assert by_layers(squares(4, 4, 4), [0.0] * 3, 4) == (0, 1, 2)


def test_the_costs_of_the_thesis():
    """Eq. 5.2 by hand: 32^0.4 = 4, 243^0.4 = 9, 1024^0.4 = 16."""
    assert thesis_cost(Block(0, (32, 243), (0, 1))) == 13e6
    assert thesis_cost(Block(0, (32, 9, 1024), (0, 2))) == 20e6


def test_blocks_of_one_layer_stay_together():
    blocks = [Block(tensor, (8, 8), (0, 1)) for tensor in (7, 2, 7, 4, 2, 7)]
    owners = by_layers(blocks, [0.0] * 6, 2)
    assert owners == (1, 0, 1, 0, 0, 1)


# Costs and blocks.


def test_the_model_of_costs_by_hand(monkeypatch):
    monkeypatch.setattr(assignment, "ROOT", (2.0, 3.0, 5.0))
    monkeypatch.setattr(assignment, "PRODUCT", (0.5, 0.25, 7.0))
    block = Block(0, (10, 4), (0, 1))
    roots = (2 * 1000 + 3 * 100 + 5) + (2 * 64 + 3 * 16 + 5)
    products = (40 * (0.5 * 10 + 0.25) + 7) + (40 * (0.5 * 4 + 0.25) + 7)
    assert (root_cost(block), product_cost(block)) == (roots, products)
    options = ShampooOptions(statistics_frequency=10, precondition_frequency=50)
    assert step_cost(block, options) == pytest.approx(products * 1.1 + roots / 50)
    # A side without a preconditioner has no root and no product.
    one_sided = Block(0, (10, 4), (1,))
    assert root_cost(one_sided) == 2 * 64 + 3 * 16 + 5


def test_a_block_knows_its_sizes():
    block = Block(3, (5, 4, 6), (0, 2))
    assert (block.sides, block.elements, block.triangle) == ((5, 6), 120, 15 + 21)


def test_blocks_are_those_of_the_optimizer():
    shapes = [(416, 512), (512,), (300, 64), (1000, 16)]
    options = ShampooOptions(sparse="one_sided")
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
