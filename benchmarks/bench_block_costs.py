"""Seconds of Shampoo's work on one block, by size, and the cost model that is fitted to them.

A root as a worker thread computes it, by LAPACK's eigendecomposition with its certificate; and the product of a block
[d, d] with a root, one of many in a batched product, as preconditioning and statistics consist of them. One thread;
of each the shortest time, since others may share the machine. The fit a d^3 + b d^2 + c minimizes relative errors, with
no negative constant. The constants of ctr/optim/shampoo/assignment.py come from here.

    python benchmarks/bench_block_costs.py [--json]
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from bench_roots import EPSILON, EXPONENT, statistics
from reference import table
from scipy.optimize import nnls
from threadpoolctl import threadpool_limits

from ctr.optim.shampoo.roots import inverse_root

SIZES = (16, 32, 64, 96, 128, 208, 256, 384, 512)
STACKED = 8
"""Blocks of a batched product."""
SECONDS, ROUNDS = 0.2, 12


def shortest(call: Callable[[], object]) -> float:
    """The shortest time of as many calls as fit into a moment, at least 3."""
    call()
    times: list[float] = []
    while len(times) < 3 or sum(times) < SECONDS:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def measure(size: int) -> tuple[float, float]:
    """Seconds of a root and of a product."""
    matrix = statistics(size, 1)
    blocks = tf.random.stateless_normal((STACKED, size, size), (1, 2))
    product = tf.function(lambda: tf.matmul(blocks, blocks))
    root = shortest(lambda: inverse_root(matrix, EXPONENT, epsilon=EPSILON, solver="eigh"))
    return root, shortest(lambda: product().numpy()) / STACKED


def fit(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float, float]:
    """(a, b, c) of a d^3 + b d^2 + c, none negative, with the smallest sum of squared relative errors."""
    terms = np.array([[size**3, size**2, 1] for size in sizes], np.float64) / np.array(seconds)[:, np.newaxis]
    scale = terms.max(axis=0)
    found, _ = nnls(terms / scale, np.ones(len(sizes)))
    a, b, c = (found / scale).tolist()
    return a, b, c


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    with threadpool_limits(1):
        # In rounds: a slow moment of the machine then does not take all times of one size.
        rounds = np.array([[measure(size) for size in SIZES] for _ in range(ROUNDS)])
    measured = rounds.min(axis=0).tolist()
    names = ("root", "product")
    fits = {name: fit(SIZES, [pair[i] for pair in measured]) for i, name in enumerate(names)}
    if arguments.json:
        rows = {size: dict(zip(names, pair, strict=True)) for size, pair in zip(SIZES, measured, strict=True)}
        print(json.dumps({"seconds": rows, "fits": fits}))
        return
    lines = []
    for size, pair in zip(SIZES, measured, strict=True):
        line: list[object] = [size]
        for name, seconds in zip(names, pair, strict=True):
            a, b, c = fits[name]
            modelled = a * size**3 + b * size**2 + c
            line += [f"{1e3 * seconds:.3f}", f"{1e3 * modelled:.3f}", f"{modelled / seconds:.2f}"]
        lines.append(line)
    head = ["d", *(f"{name} {part}" for name in names for part in ("ms", "model ms", "ratio"))]
    print(table(head, lines))
    for name, constants in fits.items():
        print(f"{name}: " + ", ".join(f"{constant:.3g}" for constant in constants))


if __name__ == "__main__":
    main()
