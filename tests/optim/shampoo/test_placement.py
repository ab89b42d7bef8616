"""Blocks on a mesh of devices, beside all placements there are, and beside what members of groups hold."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shampoo_reference as reference
from ctr.optim.shampoo.assignment import block_cost
from ctr.optim.shampoo.division import divide
from ctr.optim.shampoo.layout import lay_out
from ctr.optim.shampoo.placement import Mesh, ranks_of
from thread_group import together


@st.composite
def meshes(draw):
    """A mesh of at most 8 devices; costs, elements and cells of a few blocks."""
    sizes = st.tuples(*[st.integers(1, 4)] * 4).filter(lambda sizes: math.prod(sizes) <= 8)
    mesh = Mesh(*draw(sizes))
    cell = st.tuples(st.integers(0, mesh.stages - 1), st.integers(0, mesh.shards - 1))
    costs = st.integers(0, 20).map(float) | st.floats(0, 10)
    blocks = draw(st.lists(st.tuples(costs, st.integers(1, 99), cell), max_size=6))
    return mesh, [list(column) for column in zip(*blocks, strict=True)] or [[], [], []]


def devices(mesh):
    """The coordinates of each rank, by counting through the dimensions."""
    ranges = map(range, (mesh.groups, mesh.stages, mesh.data, mesh.shards))
    return list(itertools.product(*ranges))


def load(costs, placement, rank):
    return sum(cost for cost, ranks in zip(costs, placement, strict=True) if rank in ranks)


def all_placements(mesh, cells):
    """All in which each block is on one device of each group, and the device has the block's stage and shard."""
    choices = []
    for cell in cells:
        of_groups = [
            [
                r
                for r, (g, stage, _, shard) in enumerate(devices(mesh))
                if g == group and (stage, shard) == cell
            ]
            for group in range(mesh.groups)
        ]
        choices.append(list(itertools.product(*of_groups)))
    return itertools.product(*choices)


@settings(max_examples=60, deadline=None)
@given(meshes())
def test_it_is_one_of_all_placements_and_near_the_best(case):
    mesh, (costs, elements, cells) = case
    found = ranks_of(costs, elements, mesh, cells)
    assert found == ranks_of(costs, elements, mesh, cells)
    assert mesh.size == len(devices(mesh))
    # Groups do the same: those of one say all.
    alone = mesh._replace(groups=1)
    placements = list(all_placements(alone, cells))
    of_first = tuple(ranks[:1] for ranks in found)
    assert of_first in placements
    assert all(
        ranks == tuple(ranks[0] + group * alone.size for group in range(mesh.groups)) for ranks in found
    )
    largest = min(
        max((load(costs, placement, rank) for rank in range(alone.size)), default=0)
        for placement in placements
    )
    bound = 4 / 3 - 1 / (3 * mesh.data)
    assert max(load(costs, of_first, rank) for rank in range(alone.size)) <= bound * largest + 1e-6


def test_ranks_by_hand():
    """2 stages, 2 replicas and 2 shards: the costly block of a cell has a replica of its own."""
    mesh = Mesh(data=2, stages=2, shards=2)
    cells = [(0, 0), (0, 0), (0, 0), (1, 1)]
    assert ranks_of([9.0, 4.0, 4.0, 1.0], [1, 1, 1, 1], mesh, cells) == ((0,), (2,), (2,), (5,))
    with pytest.raises(ValueError, match="block 0 is in stage 2 and shard 0; allowed: below 2 and 2"):
        ranks_of([1.0], [1], mesh, [(2, 0)])


def test_members_of_groups_hold_the_blocks_of_the_mesh():
    options = reference.options(block_size=4)
    layout = lay_out(options, [(13, 10), (7,), (5, 9)])
    blocks = [stack for stack in layout.stacks for _ in range(stack.count)]
    costs = [block_cost(stack.block, stack.axes, options) for stack in blocks]
    elements = [math.prod(stack.block) for stack in blocks]
    mesh = Mesh(data=3, groups=2)
    ranks = ranks_of(costs, elements, mesh, [(0, 0)] * len(blocks))
    for group in range(2):
        for replica, division in enumerate(together(3, lambda workers: divide(options, layout, workers))):
            rank = mesh.rank(group, 0, replica, 0)
            held = [
                begin + place
                for number, begin in enumerate(np.cumsum([0, *(stack.count for stack in layout.stacks[:-1])]))
                for place in division.part(f"stack{number}/axis0/root").rows
            ]
            assert held == [block for block, of_block in enumerate(ranks) if rank in of_block]
