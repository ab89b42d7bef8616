"""Certified inverse 4th roots by size and solver, beside plain eigendecompositions. Its limit: FLOPs of one core.

    python benchmarks/bench_roots.py [--sizes 32 64 128 256 512 1024]

The statistics are like Shampoo's: sums of outer products of gradients whose spectrum falls over seven decades, damped
to a condition of 1e6. Every solver's result carries its certificate; eigh of NumPy and SciPy stand beside them without
one, nor a root. One BLAS thread. The warm start gets a matrix that only grew, the one drift it survives; "drift" is the
chain after a hundredth of new statistics, where it must fall back.
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import scipy.linalg
from runner import main, repeat
from threadpoolctl import threadpool_limits

from ctr.optim.shampoo.roots import Root, inverse_root

EPSILON, ORDER = 1e-6, 4


def statistics(size: int, seed: int) -> np.ndarray:
    """A sum of outer products of 4 n gradients [n], float32 as an optimizer would send it."""
    shape = np.random.default_rng(0)
    mixing = np.linalg.qr(shape.standard_normal((size, size)))[0] * np.logspace(0, -3.5, size)
    gradients = mixing @ np.random.default_rng(seed).standard_normal((size, 4 * size))
    return (gradients @ gradients.T).astype(np.float32).astype(np.float64)


def of_size(size: int, seconds: float) -> dict[str, Any]:
    """Each solver's time, who delivered the root, and its certificate."""
    first = statistics(size, 1)
    grown, drifted = first * 1.01, 0.99 * first + 0.01 * statistics(size, 2)
    before = inverse_root(first, ORDER, epsilon=EPSILON, solver="eigh")
    warm = {"previous": before.matrix}

    def root(matrix: np.ndarray, solver: Literal["eigh", "coupled"], **start: object) -> Root:
        return inverse_root(matrix, ORDER, epsilon=EPSILON, solver=solver, **start)

    calls: dict[str, Callable[[], Any]] = {
        "numpy": lambda: np.linalg.eigh(grown),
        "scipy": lambda: scipy.linalg.eigh(grown, check_finite=False),
        "eigh": lambda: root(grown, "eigh"),
        "cold": lambda: root(grown, "coupled"),
        "warm": lambda: root(grown, "coupled", **warm),
        "drift": lambda: root(drifted, "coupled", **warm, previous_condition=before.condition),
    }
    found: dict[str, Any] = {}
    for name, call in calls.items():
        found[name] = {"ms": repeat(call, seconds, 2)["p50_ms"]}
        found[name]["times_numpy"] = found[name]["ms"] / found["numpy"]["ms"]
    for name in ("eigh", "cold", "warm", "drift"):
        delivered = calls[name]()
        found[name] |= {"delivered_by": delivered.solver, "residual": delivered.residual}
    return found


def measure(sizes: tuple[int, ...] = (32, 64, 128, 256, 512, 1024), seconds: float = 0.6) -> dict[str, Any]:
    """By size, each solver for some seconds."""
    with threadpool_limits(1):
        return {f"n = {size}": of_size(size, seconds) for size in sizes}


if __name__ == "__main__":
    main(measure, {"sizes": (16,), "seconds": 0.0})
