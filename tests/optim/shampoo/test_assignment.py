"""Which blocks there are, what each costs, and that their owners have about as much."""

import pytest

from ctr.optim.balance import loads
from ctr.optim.shampoo import assignment
from ctr.optim.shampoo.assignment import Block, blocks_of, owners_of, product_cost, root_cost, step_cost
from ctr.optim.shampoo.layout import lay_out
from ctr.optim.shampoo.options import ShampooOptions


def test_the_model_of_costs_by_hand(monkeypatch):
    monkeypatch.setattr(assignment, "ROOT", (2.0, 3.0, 5.0))
    monkeypatch.setattr(assignment, "PRODUCT", (0.5, 0.25, 7.0))
    block = Block(0, (10, 4), (0, 1))
    roots = (2 * 1000 + 3 * 100 + 5) + (2 * 64 + 3 * 16 + 5)
    products = (40 * (0.5 * 10 + 0.25) + 7) + (40 * (0.5 * 4 + 0.25) + 7)
    assert (root_cost(block), product_cost(block)) == (roots, products)
    options = ShampooOptions(statistics={"frequency": 10}, precondition_frequency=50)
    assert step_cost(block, options) == pytest.approx(products * 1.1 + roots / 50)
    # A side without a preconditioner has no root and no product.
    one_sided = Block(0, (10, 4), (1,))
    assert root_cost(one_sided) == 2 * 64 + 3 * 16 + 5


def test_a_block_knows_its_sizes():
    block = Block(3, (5, 4, 6), (0, 2))
    assert (block.sides, block.elements, block.triangle) == ((5, 6), 120, 15 + 21)


def test_blocks_are_those_of_the_optimizer():
    shapes = [(416, 512), (512,), (300, 64), (1000, 16)]
    options = ShampooOptions(rows={"rule": "one_sided"})
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
    owners = owners_of(blocks, options, workers)
    for amounts in (
        [step_cost(block, options) for block in blocks],
        [root_cost(block) for block in blocks],
        [float(block.triangle) for block in blocks],
    ):
        assert max(loads(amounts, owners, workers)) <= 1.1 * sum(amounts) / workers
