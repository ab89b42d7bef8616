"""Blocks on a mesh of devices, beside all placements there are, and beside what members of groups hold."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.optim.shampoo import placement
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.placement import Mesh, balanced, block_cost, ranks_of


def test_the_model_of_costs_by_hand(monkeypatch):
    monkeypatch.setattr(placement, "ROOT", (2.0, 3.0, 5.0))
    monkeypatch.setattr(placement, "PRODUCT", (0.5, 0.25, 7.0))
    roots = (2 * 1000 + 3 * 100 + 5) + (2 * 64 + 3 * 16 + 5)
    products = (40 * (0.5 * 10 + 0.25) + 7) + (40 * (0.5 * 4 + 0.25) + 7)
    options = ShampooOptions(statistics={"frequency": 10}, precondition_frequency=50)
    assert block_cost((10, 4), (0, 1), options) == pytest.approx(products * 1.1 + roots / 50)
    # A side without a preconditioner has no root and no product.
    one = (40 * (0.5 * 4 + 0.25) + 7) * 1.1 + (2 * 64 + 3 * 16 + 5) / 50
    assert block_cost((10, 4), (1,), options) == pytest.approx(one)


def test_equal_costs_go_to_whoever_has_less_to_send_and_no_worker_needs_a_piece():
    # 808 elements each.
    assert balanced([1.0] * 4, [800, 8, 800, 8], 2) == (0, 0, 1, 1)
    assert balanced([], [], 3) == ()
    assert len(set(balanced([1.0, 2.0, 3.0], [64, 32, 128], 1000))) == 3


@st.composite
def meshes(draw):
    """A mesh of at most 8 devices; costs, elements and cells of a few blocks."""
    sizes = st.tuples(*[st.integers(1, 4)] * 4).filter(lambda sizes: math.prod(sizes) <= 8)
    mesh = Mesh(*draw(sizes))
    cell = st.tuples(st.integers(0, mesh.stages - 1), st.integers(0, mesh.shards - 1))
    costs = st.integers(0, 20).map(float) | st.floats(0, 10)
    blocks = draw(st.lists(st.tuples(costs, st.integers(1, 99), cell), max_size=6))
    return mesh, [list(column) for column in zip(*blocks, strict=True)] or [[], [], []]


def all_placements(mesh, cells):
    """All in which each block is on one device of the first group that has the block's stage and shard."""
    devices = list(itertools.product(*map(range, (mesh.stages, mesh.data, mesh.shards))))
    places = [(stage, shard) for stage, _, shard in devices]
    return itertools.product(*([rank for rank, own in enumerate(places) if own == cell] for cell in cells))


@settings(max_examples=60)
@given(meshes())
def test_it_is_one_of_all_placements_and_near_the_best(case):
    mesh, (costs, elements, cells) = case
    found = ranks_of(costs, elements, mesh, cells)
    assert found == ranks_of(costs, elements, mesh, cells)
    # Groups do the same: those of one say all.
    size = mesh.size // mesh.groups
    first = tuple(ranks[0] for ranks in found)
    assert all(ranks == tuple(range(ranks[0], mesh.size, size)) for ranks in found)

    def largest_load(placement):
        loads = [0.0] * size
        for cost, rank in zip(costs, placement, strict=True):
            loads[rank] += cost
        return max(loads)

    placements = list(all_placements(mesh, cells))
    assert first in placements
    bound = 4 / 3 - 1 / (3 * mesh.data)
    assert largest_load(first) <= bound * min(map(largest_load, placements)) + 1e-6


def test_ranks_by_hand():
    """2 stages, 2 replicas and 2 shards: the costly block of a cell has a replica of its own."""
    mesh = Mesh(data=2, stages=2, shards=2)
    cells = [(0, 0), (0, 0), (0, 0), (1, 1)]
    assert ranks_of([9.0, 4.0, 4.0, 1.0], [1, 1, 1, 1], mesh, cells) == ((0,), (2,), (2,), (5,))
    with pytest.raises(ValueError, match="block 0 is in stage 2 and shard 0; allowed: below 2 and 2"):
        ranks_of([1.0], [1], mesh, [(2, 0)])
