"""What W workers that divide Shampoo's blocks have each, on the reference model: computed, not timed.

state        bytes of the worker with the most, and that over the bytes of one process
roots        multiplications of all roots (d^3) of the busiest worker over the mean
load         all that owners compute a step, by the costs of ctr/optim/shampoo/assignment.py: the busiest over the mean
gathered     bytes that each worker receives a step: directions, padded to the largest part, and norms

python benchmarks/bench_workers_shampoo.py [--block-size 256] [--workers 1,2,4,8] [--json]
"""

import argparse
import json
import math
from typing import Any

from bench_shampoo import reference_shapes
from reference import table

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
    kinds = has_accumulator(options.grafting) + (options.gradient.beta1 > 0) + (options.momentum > 0)
    elements = sum(math.prod(division.shape(index)) for index in range(len(division.whole.tensors)))
    held = statistics * (WINDOW + TOTAL) + roots * ROOT
    return held + elements * kinds * ELEMENT + division.whole.matrices * STATUS


def divided(options: ShampooOptions, layout: ShampooLayout, size: int) -> list[Blocks]:
    """What each of W workers has."""
    clusters = [Cluster(rank, tuple(f"worker:{i}" for i in range(size))) for rank in range(size)]
    return [divide(options, Workers(cluster))(layout) for cluster in clusters]


def measure(options: ShampooOptions, size: int) -> dict[str, Any]:
    """The numbers of one W."""
    layout = lay_out(options, reference_shapes())
    divisions = divided(options, layout, size)
    held = [state_bytes(options, division) for division in divisions]
    alone = state_bytes(options, Blocks(layout))
    roots = [sum(factor.count * factor.size**3 for factor in division.own.factors) for division in divisions]
    blocks = blocks_of(layout)
    costs = [step_cost(block, options) for block in blocks]
    load = loads(costs, assign(options, layout, size), size)
    preconditioned = [index for index, tensor in enumerate(layout.tensors) if tensor.axes]
    sent = max(
        sum(math.prod(division.shape(index)) for index in preconditioned) + 2 * len(preconditioned)
        for division in divisions
    )
    return {
        "workers": size,
        "blocks": len(blocks),
        "state_bytes": max(held),
        "state_share": max(held) / alone,
        "roots_over_mean": max(roots) * size / sum(roots),
        "load_over_mean": max(load) * size / math.fsum(load),
        "gathered_bytes": size * sent * ELEMENT if size > 1 else 0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--block-size", type=int, default=256)
    parser.add_argument("--workers", default="1,2,3,4,5,6,7,8")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    options = ShampooOptions(block_size=arguments.block_size, momentum=0.9, nesterov=True)
    rows = [measure(options, int(size)) for size in arguments.workers.split(",")]
    if arguments.json:
        print(json.dumps({"block_size": arguments.block_size, "rows": rows}, indent=1))
        return
    print(f"{rows[0]['blocks']} blocks of at most {arguments.block_size}")
    lines = [
        [
            str(row["workers"]),
            f"{row['state_bytes'] / 2**20:.1f}",
            f"{row['state_share']:.3f}",
            f"{row['roots_over_mean']:.3f}",
            f"{row['load_over_mean']:.3f}",
            f"{row['gathered_bytes'] / 2**20:.2f}",
        ]
        for row in rows
    ]
    titles = ["workers", "state MiB", "share", "roots/mean", "load/mean", "gathered MiB"]
    print(table(titles, lines))


if __name__ == "__main__":
    main()
