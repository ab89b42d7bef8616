"""Assignment of blocks to workers: the owner alone collects a block's statistics, computes its roots and its direction.

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
from dataclasses import dataclass

from ctr.optim.shampoo.blocks import Shape
from ctr.optim.shampoo.layout import ShampooLayout
from ctr.optim.shampoo.options import ShampooOptions

Cubic = tuple[float, float, float]  # (a, b, c) of a d^3 + b d^2 + c

ROOT: Cubic = (3.1e-10, 5.6e-8, 6.8e-5)
"""Seconds of an inverse root in float64 by LAPACK's eigendecomposition, with its certificate, on one core.

By benchmarks/bench_block_costs.py on an Intel Xeon with AMX, for sizes 16 to 512; at each of them within 20%.
"""

PRODUCT: Cubic = (1.35e-11, 4.5e-10, 1.3e-5)
"""Seconds of a float32 product of two [d, d], one of eight in a batched product, on one core; likewise, within 5%."""


@dataclass(frozen=True)
class Block:
    """A block of a tensor with all of its factors, as one worker preconditions it along ``axes``."""

    tensor: int
    shape: Shape
    axes: tuple[int, ...]

    @property
    def sides(self) -> Shape:
        """Sizes d of its statistics matrices [d, d]."""
        return tuple(self.shape[axis] for axis in self.axes)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def triangle(self) -> int:
        """Number of different elements of its statistics, or of its roots, which are symmetric."""
        return sum(side * (side + 1) // 2 for side in self.sides)


def blocks_of(layout: ShampooLayout) -> tuple[Block, ...]:
    """Lists the blocks of each stack in order, then those of tables with a factor: their right factors [d, d]."""
    blocks = [Block(tensor, stack.block, stack.axes) for stack in layout.stacks for tensor in stack.owners]
    for table, (factor, _) in layout.table_factors.items():
        size = layout.factors[factor].size
        blocks.append(Block(table, (size, size), (1,)))
    return tuple(blocks)


def root_cost(block: Block) -> float:
    """Estimates the seconds of computing a block's roots once, on one core."""
    a, b, c = ROOT
    return math.fsum(a * side**3 + b * side**2 + c for side in block.sides)


def product_cost(block: Block) -> float:
    """Estimates the seconds of a block's direction, or of its statistics, once, on one core."""
    a, b, c = PRODUCT
    return math.fsum(block.elements * (a * side + b) + c for side in block.sides)


def step_cost(block: Block, options: ShampooOptions) -> float:
    """Estimates the owner's seconds for a block a step, on one core; an upper bound, as late roots are often kept."""
    collected = 1.0 / options.statistics.frequency
    return product_cost(block) * (1.0 + collected) + root_cost(block) / options.precondition_frequency


def owners_of(blocks: Sequence[Block], options: ShampooOptions, workers: int) -> tuple[int, ...]:
    """Returns the owner of each block: balanced by cost, then by elements to send, and by memory for statistics."""
    each = [(step_cost(block, options), block.elements, float(block.triangle)) for block in blocks]
    costs, elements, memory = zip(*each, strict=True) if each else ((), (), ())
    return balanced(costs, elements, memory, workers)


# Into how many parts the largest cost is rounded; how close to its bound a load is close enough; what less memory may
# cost.
_UNITS = 1 << 30
_CLOSE = 1e-2
_DEARER = 1.05


def balanced(
    costs: Sequence[float], elements: Sequence[int], memory: Sequence[float], workers: int
) -> tuple[int, ...]:
    """Returns the owner of each piece, 0..W-1; the largest load of a worker is small, and its memory if possible.

    A pure function: all workers compute the same without asking each other.

    Longest processing time first: by descending cost, each piece goes to the worker with the least (Graham, 1969).
    Then the most loaded worker gives pieces away or swaps them, as long as that lowers its load without raising
    another's to it. Equal costs go by elements, then by their order.

    The same is done with costs to which as much is added for the memory of a piece. If that lowers the largest memory
    of a worker, and raises its costs by at most 5%, it is the result.

    Raises:
        ValueError: costs, elements and memory are not of the same pieces, a cost is no number from 0 up, or
            ``workers`` is less than 1.
    """
    if not len(costs) == len(elements) == len(memory):
        raise ValueError(
            f"{len(costs)} costs, {len(elements)} elements, {len(memory)} memories; allowed: one for each piece"
        )
    for number, cost in enumerate(costs):
        if not (math.isfinite(cost) and cost >= 0):
            raise ValueError(f"the cost of piece {number} is {cost!r}; allowed: finite numbers from 0 up")
    if workers < 1:
        raise ValueError(f"{workers} workers; allowed: 1 or more")
    owners = _balance(costs, elements, workers)
    total, whole = math.fsum(costs), math.fsum(memory)
    if total and whole:
        both = [cost / total + share / whole for cost, share in zip(costs, memory, strict=True)]
        other = _balance(both, elements, workers)
        dearer = max(loads(costs, other, workers)) > _DEARER * max(loads(costs, owners, workers))
        if not dearer and max(loads(memory, other, workers)) < max(loads(memory, owners, workers)):
            return other
    return owners


def loads(amounts: Sequence[float], owners: Sequence[int], workers: int) -> list[float]:
    """Sums the amounts (costs, elements, bytes) of each worker's pieces."""
    sums: list[list[float]] = [[] for _ in range(workers)]
    for amount, owner in zip(amounts, owners, strict=True):
        sums[owner].append(amount)
    return [math.fsum(part) for part in sums]


def _balance(costs: Sequence[float], elements: Sequence[int], workers: int) -> tuple[int, ...]:
    largest = max(costs, default=0.0)
    # Whole numbers: their sums are exact, so that loads of equal costs are equal in whatever order they were summed.
    units = [round(cost / largest * _UNITS) if largest else 0 for cost in costs]
    return tuple(_swap(units, _largest_first(units, elements, workers), workers))


def _largest_first(units: Sequence[int], elements: Sequence[int], workers: int) -> list[int]:
    """By descending cost, each to the worker with the least; elements decide between equals, in the same way."""
    owners = [0] * len(units)
    lightest = [(0, 0, worker) for worker in range(workers)]
    for place in sorted(range(len(units)), key=lambda i: (-units[i], -elements[i], i)):
        load, second, owners[place] = lightest[0]
        heapq.heapreplace(lightest, (load + units[place], second + elements[place], owners[place]))
    return owners


def _swap(units: Sequence[int], owners: list[int], workers: int) -> list[int]:
    """Moves and swaps of the most loaded worker, the best one each time, until none lowers its load."""
    sums = loads(units, owners, workers)
    enough = _bound(units, workers) * (1 + _CLOSE)
    while max(sums, default=0) > enough:
        top = sums.index(max(sums))
        members = [[place for place, owner in enumerate(owners) if owner == w] for w in range(workers)]
        # The largest load of both after each change, and the change; of equal ones the first.
        changes = (
            (max(sums[top] - moved, sums[worker] + moved), mine, theirs, worker)
            for worker, own in enumerate(members)
            if worker != top
            for theirs in (-1, *own)
            for mine in members[top]
            for moved in (units[mine] - (0 if theirs < 0 else units[theirs]),)
        )
        lowest, mine, theirs, worker = min(changes, key=lambda one: one[0], default=(sums[top], 0, 0, 0))
        if lowest >= sums[top]:
            break
        owners[mine] = worker
        if theirs >= 0:
            owners[theirs] = top
        sums = loads(units, owners, workers)
    return owners


def _bound(units: Sequence[int], workers: int) -> int:
    """A largest load that no division goes below: the mean, and that of a worker with k + 1 of k W + 1 pieces."""
    descending = sorted(units, reverse=True)
    crowded = [
        sum(descending[k * workers - k : k * workers + 1]) for k in range((len(units) - 1) // workers + 1)
    ]
    return max(-(-sum(units) // workers), *crowded, 0)
