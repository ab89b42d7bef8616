"""Placement of blocks, with their factors and roots, on a mesh of devices (THESIS 6.5, table 6.4; PT 4.1.2).

A block's owner alone collects its statistics, computes its roots and its direction.

The dimensions of a mesh, and the division of state and work along them:

    stages    pipeline parallelism: a stage has the blocks of its layers, and no other stage has
    shards    operator parallelism: a shard has the blocks of its part of each weight, and no other shard has
    data      replicas of a stage and shard, with the same weights: they divide its blocks, balanced by costs
    groups    replicas that do not divide: each group has all blocks (PT 4.1.2), and needs nothing from the others

so that a block is on one device of each group, and directions are gathered along ``data`` alone. Ranks go by group,
then stage, replica and shard, as DeepSpeed's do within a group.

``division.py`` has two of them: the members of its ``Group`` are the replicas, and each further group is a ``Group`` by
itself. A trainer of click-through rates needs no others: its layers are a few megabytes, which every device holds, and
a step takes milliseconds. Devices of a pipeline would wait for each other, and shards of a product would send
activations, which are larger than its weights. Embedding tables, too large for one device, are divided by rows, and
their state is element-wise.

Blocks are divided so that the seconds of the cost model below are balanced (``balanced``); PT (4.1.1) balances
the elements that workers send, THESIS (5.1) estimated costs of whole layers.

The costs of a block of D elements with sides d_1, ..., d_k, in seconds of one core and step:

    directions   sum over sides of r(d_i)               r: the product of a [d_i, d_i] with the block
    statistics   sum over sides of r(d_i) / tau2        once every tau2 steps
    roots        sum over sides of f(d_i) / tau1        once every tau1 steps

    f(d) = a d^3 + b d^2 + c,   r(d) = D / d^2 (a' d^3 + b' d^2) + c'
"""

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

from ctr.optim.shampoo.blocks import Shape
from ctr.optim.shampoo.layout import ShampooLayout
from ctr.optim.shampoo.options import ShampooOptions

Cubic = tuple[float, float, float]  # (a, b, c) of a d^3 + b d^2 + c

ROOT: Cubic = (3.1e-10, 5.6e-8, 6.8e-5)
"""Seconds of an inverse root in float64 by LAPACK's eigendecomposition, with its certificate, on one core.

Fitted by benchmarks/bench_block_costs.py on an Intel Xeon with AMX, for sizes 16 to 512, each within 20%.
"""

PRODUCT: Cubic = (1.35e-11, 4.5e-10, 1.3e-5)
"""Seconds of a float32 product of two [d, d], one of eight in a batched product, on one core, within 5%."""


def block_cost(shape: Shape, axes: Sequence[int], options: ShampooOptions) -> float:
    """Estimates the owner's seconds per step, on one core, for a block that is preconditioned along ``axes``.

    An upper bound, because late in training many roots are reused.
    """
    sides, elements = [shape[axis] for axis in axes], math.prod(shape)
    a, b, c = PRODUCT
    products = math.fsum(elements * (a * side + b) + c for side in sides)
    a, b, c = ROOT
    roots = math.fsum(a * side**3 + b * side**2 + c for side in sides)
    collected = 1.0 / options.statistics.frequency
    return products * (1.0 + collected) + roots / options.precondition_frequency


_UNITS = 1 << 30
"""Number of integer units that represent the largest cost."""


def balanced(costs: Sequence[float], elements: Sequence[int], workers: int) -> tuple[int, ...]:
    """Returns the owner of each piece, 0..W-1, such that the largest load of a worker is small.

    A pure function: all workers compute the same without communication. Longest processing time first (Graham,
    1969): by descending cost, each piece goes to the worker with the least load. The largest load is at most 4/3 of the
    smallest possible; for layers of 512 to 1024 cut into blocks of 256 it was 1.00 to 1.08 of the mean. Ties are broken
    by elements, then by their order.
    """
    largest = max(costs, default=0.0)
    # Whole numbers: their sums are exact, so that loads of equal costs are equal in whatever order they were summed.
    units = [round(cost / largest * _UNITS) if largest else 0 for cost in costs]
    owners = [0] * len(units)
    lightest = [(0, 0, worker) for worker in range(workers)]
    for piece in sorted(range(len(units)), key=lambda i: (-units[i], -elements[i], i)):
        load, second, owners[piece] = lightest[0]
        heapq.heapreplace(lightest, (load + units[piece], second + elements[piece], owners[piece]))
    return tuple(owners)


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
        """Returns the rank of a device, 0..size-1, from its coordinates."""
        return ((group * self.stages + stage) * self.data + replica) * self.shards + shard


def ranks_of(
    costs: Sequence[float], elements: Sequence[int], mesh: Mesh, cells: Sequence[tuple[int, int]]
) -> tuple[tuple[int, ...], ...]:
    """Returns the ranks of the owners of each block: one in each group, in the order of groups.

    A pure function: all devices compute the same without communication.

    Args:
        costs: cost of each block, in any unit.
        elements: number of each block's elements, which replicas exchange; it decides between equal costs.
        mesh: number of devices along each dimension.
        cells: the stage and the shard of each block.

    Raises:
        ValueError: a block's stage or shard is outside the mesh.
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
