"""Measures certified inverse 4th roots by size and solver, beside plain eigh. The limit is the FLOPs of one core.

    python benchmarks/bench_roots.py [--sizes 32 64 128 256 512 1024]

The statistics are like Shampoo's: sums of outer products of gradients whose spectrum falls over seven decades, damped
to a condition of 1e6. Two solvers certify their results: the host's root by eigh, and the coupled iteration of steps
compiled by XLA, here not compiled. NumPy's and SciPy's eigh are measured for comparison, without root and certificate.
One BLAS thread.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg
import tensorflow as tf
from runner import main, repeat
from threadpoolctl import threadpool_limits

from ctr.optim.shampoo.coupled import inverse_roots
from ctr.optim.shampoo.roots import inverse_root

EPSILON, ORDER = 1e-6, 4


def statistics(size: int, seed: int) -> np.ndarray:
    """Returns a sum of outer products of 4 n gradients [n], rounded to float32 as an optimizer would send it."""
    shape = np.random.default_rng(0)
    mixing = np.linalg.qr(shape.standard_normal((size, size)))[0] * np.logspace(0, -3.5, size)
    gradients = mixing @ np.random.default_rng(seed).standard_normal((size, 4 * size))
    return (gradients @ gradients.T).astype(np.float32).astype(np.float64)


def of_size(size: int, seconds: float) -> dict[str, Any]:
    """Returns each solver's time, and the residual of certified roots."""
    matrix = statistics(size, 1)
    batch = tf.constant(matrix[np.newaxis])
    calls: dict[str, Callable[[], Any]] = {
        "numpy": lambda: np.linalg.eigh(matrix),
        "scipy": lambda: scipy.linalg.eigh(matrix, check_finite=False),
        "eigh": lambda: inverse_root(matrix, ORDER, epsilon=EPSILON).residual,
        "coupled": lambda: float(inverse_roots(batch, ORDER, EPSILON)[1][0]),
    }
    results: dict[str, Any] = {}
    for name, call in calls.items():
        results[name] = {"ms": repeat(call, seconds, 2)["p50_ms"]}
        results[name]["times_numpy"] = results[name]["ms"] / results["numpy"]["ms"]
    for name in ("eigh", "coupled"):
        results[name]["residual"] = calls[name]()
    return results


def measure(sizes: tuple[int, ...] = (32, 64, 128, 256, 512, 1024), seconds: float = 0.6) -> dict[str, Any]:
    """Measures each solver by size, for about ``seconds`` each."""
    with threadpool_limits(1):
        return {f"n = {size}": of_size(size, seconds) for size in sizes}


if __name__ == "__main__":
    main(measure, {"sizes": (16,), "seconds": 0.0})
