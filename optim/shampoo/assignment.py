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

from ctr.optim.shampoo.blocks import Shape
from ctr.optim.shampoo.options import ShampooOptions

Cubic = tuple[float, float, float]  # (a, b, c) of a d^3 + b d^2 + c

ROOT: Cubic = (3.1e-10, 5.6e-8, 6.8e-5)
"""Seconds of an inverse root in float64 by LAPACK's eigendecomposition, with its certificate, on one core.

By benchmarks/bench_block_costs.py on an Intel Xeon with AMX, for sizes 16 to 512; at each of them within 20%.
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
"""Number of units that the largest cost is rounded to."""


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
