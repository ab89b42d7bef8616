"""Placement of blocks, with their factors and roots, on a mesh of devices (THESIS 6.5, table 6.4; PT 4.1.2).

The dimensions of a mesh, and the division of state and work along them:

    stages    pipeline parallelism: a stage has the blocks of its layers, and no other stage has
    shards    operator parallelism: a shard has the blocks of its part of each weight, and no other shard has
    data      replicas of a stage and shard, with the same weights: they divide its blocks, balanced by costs
    groups    replicas that do not divide: each group has all blocks (PT 4.1.2), and needs nothing from the others

so that a block is on one device of each group, and directions are gathered along ``data`` alone. Ranks go by group,
then stage, replica and shard, as DeepSpeed's do within a group.

``division.py`` has two of them: the members of its ``Group`` are the replicas, and each further group is a ``Group`` by
itself. A trainer of click-through rates has no third one. Its layers are a few megabytes, which every device holds, and
a step of milliseconds: devices of a pipeline would wait for each other, and shards of a product would send activations,
which are larger than its weights. What is too large for one device, the tables of embeddings, is divided by rows, and
its state is element-wise.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from ctr.optim.shampoo.assignment import balanced, block_cost
from ctr.optim.shampoo.layout import ShampooLayout
from ctr.optim.shampoo.options import ShampooOptions


class Mesh(NamedTuple):
    """The number of devices along each dimension."""

    data: int = 1
    stages: int = 1
    shards: int = 1
    groups: int = 1

    @property
    def size(self) -> int:
        return math.prod(self)

    def rank(self, group: int, stage: int, replica: int, shard: int) -> int:
        """Returns the number of a device, 0..size-1, by its coordinates."""
        return ((group * self.stages + stage) * self.data + replica) * self.shards + shard


def ranks_of(
    costs: Sequence[float], elements: Sequence[int], mesh: Mesh, cells: Sequence[tuple[int, int]]
) -> tuple[tuple[int, ...], ...]:
    """Returns the ranks of the owners of each block: one of each group, in the order of groups.

    A pure function: all devices compute the same without communication.

    Args:
        costs: cost of each block, in any unit.
        elements: number of each block's elements, which replicas exchange; it decides between equal costs.
        mesh: the devices.
        cells: the stage and the shard of each block.

    Raises:
        ValueError: the mesh does not have the stage or the shard.
    """
    blocks_of: dict[tuple[int, int], list[int]] = {}
    for block, (stage, shard) in enumerate(cells):
        if not (0 <= stage < mesh.stages and 0 <= shard < mesh.shards):
            raise ValueError(
                f"block {block} is in stage {stage} and shard {shard}; allowed: below {mesh.stages} and {mesh.shards}"
            )
        blocks_of.setdefault((stage, shard), []).append(block)
    ranks: list[tuple[int, ...]] = [()] * len(costs)
    for (stage, shard), blocks in blocks_of.items():
        replicas = balanced([costs[i] for i in blocks], [elements[i] for i in blocks], mesh.data)
        for block, replica in zip(blocks, replicas, strict=True):
            ranks[block] = tuple(mesh.rank(group, stage, replica, shard) for group in range(mesh.groups))
    return tuple(ranks)


def owners_of(layout: ShampooLayout, options: ShampooOptions, workers: int) -> tuple[int, ...]:
    """Returns the owner of each block of the stacks, in their order, among the workers of a group."""
    blocks = [stack for stack in layout.stacks for _ in range(stack.count)]
    costs = [block_cost(stack.block, stack.axes, options) for stack in blocks]
    elements = [math.prod(stack.block) for stack in blocks]
    return tuple(rank for (rank,) in ranks_of(costs, elements, Mesh(workers), [(0, 0)] * len(blocks)))
