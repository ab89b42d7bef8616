"""What W workers that divide Shampoo's blocks have each, on the reference model: computed, not timed.

    python benchmarks/bench_workers_shampoo.py [--block-size 256] [--workers 1 2 4 8]

state_mib        of the worker with the most; state_share: that over the bytes of one process
roots_over_mean  multiplications of all roots (d^3) of the busiest worker over the mean
load_over_mean   all that owners compute a step, by the costs of ctr/optim/shampoo/assignment.py, likewise
gathered_mib     what each worker receives a step: directions, padded to the largest part, and norms
"""

import math
from typing import Any

from reference import dense_shapes
from runner import main

from ctr.optim.balance import loads
from ctr.optim.first_order.directions import has_accumulator
from ctr.optim.shampoo.assignment import blocks_of, step_cost
from ctr.optim.shampoo.division import assign, divide
from ctr.optim.shampoo.layout import Blocks, ShampooLayout, lay_out
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.triangles import packed_size
from ctr.workers.cluster import Cluster
from ctr.workers.collectives import Workers

WINDOW, TOTAL, ROOT, ELEMENT = 4, 8, 4, 4
"""Bytes of an element of the state, in float32 but for the totals."""
STATUS = 48
"""Bytes of the status of a matrix, which all workers have."""


def state_bytes(options: ShampooOptions, division: Blocks) -> int:
    """Bytes of all state of one worker."""
    roots = sum(factor.count * factor.size**2 for factor in division.own.factors)
    statistics = sum(factor.count * packed_size(factor.size) for factor in division.own.factors)
    kinds = has_accumulator(options.grafting) + (options.beta1 > 0) + (options.momentum > 0)
    elements = sum(math.prod(division.shape(index)) for index in range(len(division.whole.tensors)))
    held = statistics * (WINDOW + TOTAL) + roots * ROOT
    return held + elements * kinds * ELEMENT + division.whole.matrices * STATUS


def of_size(options: ShampooOptions, layout: ShampooLayout, size: int) -> dict[str, Any]:
    """The numbers of one W."""
    clusters = [Cluster(rank, tuple(f"worker:{i}" for i in range(size))) for rank in range(size)]
    divisions = [divide(options, Workers(cluster))(layout) for cluster in clusters]
    held = [state_bytes(options, division) for division in divisions]
    roots = [sum(factor.count * factor.size**3 for factor in division.own.factors) for division in divisions]
    blocks = blocks_of(layout)
    load = loads([step_cost(block, options) for block in blocks], assign(options, layout, size), size)
    preconditioned = [index for index, tensor in enumerate(layout.tensors) if tensor.axes]
    sent = max(
        sum(math.prod(division.shape(index)) for index in preconditioned) + 2 * len(preconditioned)
        for division in divisions
    )
    return {
        "blocks": len(blocks),
        "state_mib": max(held) / 2**20,
        "state_share": max(held) / state_bytes(options, Blocks(layout)),
        "roots_over_mean": max(roots) * size / sum(roots),
        "load_over_mean": max(load) * size / math.fsum(load),
        "gathered_mib": size * sent * ELEMENT / 2**20 if size > 1 else 0.0,
    }


def measure(block_size: int = 256, workers: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)) -> dict[str, Any]:
    """By the number of workers."""
    options = ShampooOptions(block_size=block_size, momentum=0.9, nesterov=True)
    layout = lay_out(options, dense_shapes())
    return {"workers": {str(size): of_size(options, layout, size) for size in workers}}


if __name__ == "__main__":
    main(measure, {"workers": (1, 2)})
