"""Assignment of blocks to workers: the owner alone collects a block's statistics, computes its roots and its direction.

Blocks are divided so that the seconds of the cost model below are balanced; PT (4.1.1) balances the elements that
workers send, THESIS (5.1) estimated costs of whole layers. Owners are a pure function of (blocks, costs, workers),
so that all workers compute the same without asking each other.

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

By benchmarks/bench_block_costs.py on an Intel Xeon with AMX that had other work too, the shortest times of three runs,
for sizes 16 to 512; at each of them within 20%.
"""

PRODUCT: Cubic = (1.35e-11, 4.5e-10, 1.3e-5)
"""Seconds of a float32 product of two [d, d], one of eight in a batched product, on one core; likewise, within 5%."""

# Of ``balanced``: into how many parts the largest cost is rounded; how close to its bound a load is close enough; what
# less memory may cost; and of how many blocks it searches the best assignment for how many steps.
_UNITS = 1 << 30
_CLOSE = 1e-2
_DEARER = 1.05
_FEW_BLOCKS, _SEARCH_STEPS = 24, 20_000


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


def balanced(blocks: Sequence[Block], costs: Sequence[float], workers: int) -> tuple[int, ...]:
    """Returns the owner of each block, 0..W-1; the largest load of a worker is small, and its memory if possible.

    Longest processing time first: by descending cost, each block goes to the worker with the least (Graham, 1969).
    Then the most loaded worker gives blocks away or swaps them, as long as that lowers its load without raising
    another's to it. Where blocks are few, a search over all assignments follows (Korf's complete greedy algorithm,
    1998): up to about ten blocks it ends with the smallest possible load. Equal costs go by elements, then by their
    order.

    The same is done with costs to which as much is added for the matrices of a block. If that lowers the largest sum
    of a worker's matrices, and raises its costs by at most 5%, it is the result.

    Raises:
        ValueError: ``costs`` are not one number from 0 up for each block, or ``workers`` is less than 1.
    """
    _check(blocks, costs, workers)
    elements, memory = [block.elements for block in blocks], [float(block.triangle) for block in blocks]
    owners = _balance(costs, elements, workers)
    total, matrices = math.fsum(costs), math.fsum(memory)
    if total and matrices:
        both = [cost / total + share / matrices for cost, share in zip(costs, memory, strict=True)]
        other = _balance(both, elements, workers)
        dearer = max(loads(costs, other, workers)) > _DEARER * max(loads(costs, owners, workers))
        if not dearer and max(loads(memory, other, workers)) < max(loads(memory, owners, workers)):
            return other
    return owners


def loads(amounts: Sequence[float], owners: Sequence[int], workers: int) -> list[float]:
    """Sums the amounts (costs, elements, bytes) of each worker's blocks."""
    sums: list[list[float]] = [[] for _ in range(workers)]
    for amount, owner in zip(amounts, owners, strict=True):
        sums[owner].append(amount)
    return [math.fsum(part) for part in sums]


def _check(blocks: Sequence[Block], costs: Sequence[float], workers: int) -> None:
    if len(costs) != len(blocks):
        raise ValueError(f"{len(costs)} costs of {len(blocks)} blocks; allowed: one for each")
    for number, cost in enumerate(costs):
        if not (math.isfinite(cost) and cost >= 0):
            raise ValueError(f"the cost of block {number} is {cost!r}; allowed: finite numbers from 0 up")
    if workers < 1:
        raise ValueError(f"{workers} workers; allowed: 1 or more")


def _largest_first(amounts: Sequence[float], seconds: Sequence[float], workers: int) -> tuple[int, ...]:
    """By descending amount, each to the worker with the least; ``seconds`` decide between equals, in the same way."""
    owners = [0] * len(amounts)
    lightest = [(0.0, 0.0, worker) for worker in range(workers)]
    for place in sorted(range(len(amounts)), key=lambda i: (-amounts[i], -seconds[i], i)):
        amount, second, worker = heapq.heappop(lightest)
        owners[place] = worker
        heapq.heappush(lightest, (amount + amounts[place], second + seconds[place], worker))
    return tuple(owners)


def _balance(costs: Sequence[float], elements: Sequence[int], workers: int) -> tuple[int, ...]:
    largest = max(costs, default=0.0)
    # Whole numbers: their sums are exact, so that loads of equal costs are equal in whatever order they were summed.
    units = [round(cost / largest * _UNITS) if largest else 0 for cost in costs]
    owners = _swap(units, _largest_first(units, elements, workers), workers)
    return _search(units, owners, workers) if len(units) <= _FEW_BLOCKS else owners


def _swap(units: Sequence[int], owners: Sequence[int], workers: int) -> tuple[int, ...]:
    """Moves and swaps of the most loaded worker, the best one each time, until none lowers its load."""
    owned = list(owners)
    sums = loads(units, owned, workers)
    enough = _bound(units, workers) * (1 + _CLOSE)
    while max(sums, default=0) > enough:
        top = sums.index(max(sums))
        best: tuple[int, int, int] | None = None
        lowest = sums[top]
        members = _members(owned, workers)
        for worker, own in enumerate(members):
            if worker == top:
                continue
            for theirs in (-1, *own):
                back = 0 if theirs < 0 else units[theirs]
                for mine in members[top]:
                    moved = units[mine] - back
                    largest = max(sums[top] - moved, sums[worker] + moved)
                    if largest < lowest:
                        lowest, best = largest, (mine, theirs, worker)
        if best is None:
            break
        mine, theirs, worker = best
        owned[mine] = worker
        if theirs >= 0:
            owned[theirs] = top
        sums = loads(units, owned, workers)
    return tuple(owned)


def _search(units: Sequence[int], owners: Sequence[int], workers: int) -> tuple[int, ...]:
    """Depth-first search, at least as good as ``owners``: large blocks first, each to the least loaded worker first."""
    order = sorted(range(len(units)), key=lambda i: (-units[i], i))
    enough = _bound(units, workers)
    best, found = max(loads(units, owners, workers), default=0), tuple(owners)
    current, sums, steps = list(owners), [0] * workers, 0

    def visit(depth: int) -> None:
        nonlocal best, found, steps
        steps += 1
        if depth == len(order):
            best, found = max(sums), tuple(current)
            return
        place = order[depth]
        tried = set()
        for worker in sorted(range(workers), key=lambda w: (sums[w], w)):
            load = sums[worker]
            # All assignments below this one are at least as bad as the best.
            if load + units[place] >= best or best <= enough or steps >= _SEARCH_STEPS:
                return
            if load not in tried:
                tried.add(load)
                sums[worker], current[place] = load + units[place], worker
                visit(depth + 1)
                sums[worker] = load

    visit(0)
    return found


def _bound(units: Sequence[int], workers: int) -> int:
    """A largest load that no assignment goes below: the mean, and that of a worker with k + 1 of k W + 1 blocks."""
    descending = sorted(units, reverse=True)
    crowded = [
        sum(descending[k * workers - k : k * workers + 1]) for k in range((len(units) - 1) // workers + 1)
    ]
    return max(-(-sum(units) // workers), *crowded, 0)


def _members(owners: Sequence[int], workers: int) -> list[list[int]]:
    return [[block for block, owner in enumerate(owners) if owner == worker] for worker in range(workers)]
