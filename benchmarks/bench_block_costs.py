"""Measures the time of Shampoo's work on one block, by size, and fits the cost model. The limit is one core's FLOPs.

    python benchmarks/bench_block_costs.py

Measures a root as a worker thread computes it, by LAPACK's eigendecomposition with its certificate; and the product of
a block [d, d] with a root, one of many in a batched product, as in preconditioning and statistics. One thread;
the shortest times count, because others may share the machine. The fit a d^3 + b d^2 + c minimizes relative errors,
with no negative constant. The constants of ctr/optim/shampoo/placement.py come from here.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from bench_roots import EPSILON, ORDER, statistics
from runner import main, repeat
from scipy.optimize import nnls
from threadpoolctl import threadpool_limits

from ctr.optim.shampoo.roots import inverse_root

STACKED = 8
"""Number of blocks in a batched product."""


def of_size(size: int, seconds: float) -> tuple[float, float]:
    """Returns the milliseconds of a root and of a product for a block [size, size]."""
    matrix = statistics(size, 1)
    blocks = tf.random.stateless_normal((STACKED, size, size), (1, 2))
    product = tf.function(lambda: tf.matmul(blocks, blocks))
    root = repeat(lambda: inverse_root(matrix, ORDER, epsilon=EPSILON), seconds)
    return root["shortest_ms"], repeat(lambda: product().numpy(), seconds)["shortest_ms"] / STACKED


def fit(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float, float]:
    """Fits a d^3 + b d^2 + c, none negative, with the smallest sum of squared relative errors; returns (a, b, c)."""
    terms = np.array([[size**3, size**2, 1] for size in sizes], np.float64) / np.array(seconds)[:, np.newaxis]
    scale = terms.max(axis=0)
    solution, _ = nnls(terms / scale, np.ones(len(sizes)))
    a, b, c = (solution / scale).tolist()
    return a, b, c


def measure(
    sizes: tuple[int, ...] = (16, 32, 64, 96, 128, 208, 256, 384, 512), rounds: int = 12, seconds: float = 0.2
) -> dict[str, Any]:
    """Returns the measured and the fitted times by size, and the constants of the fits."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    with threadpool_limits(1):
        # In rounds, so that a slow moment of the machine does not affect all times of one size.
        times = np.array([[of_size(size, seconds) for size in sizes] for _ in range(rounds)]).min(axis=0)
    results: dict[str, Any] = {"sizes": {str(size): {} for size in sizes}, "constants": {}}
    for name, shortest in zip(("root", "product"), times.T, strict=True):
        a, b, c = fit(sizes, shortest / 1000)
        results["constants"][name] = {"a": a, "b": b, "c": c}
        for size, ms in zip(sizes, shortest.tolist(), strict=True):
            modelled = 1000 * (a * size**3 + b * size**2 + c)
            results["sizes"][str(size)] |= {f"{name}_ms": ms, f"{name}_model_ms": modelled}
    return results


if __name__ == "__main__":
    main(measure, {"sizes": (8, 16, 32), "rounds": 1, "seconds": 0.0})
