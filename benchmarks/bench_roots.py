"""Certified inverse 4th roots a second, by size and solver, beside plain eigendecompositions.

The statistics are like Shampoo's: sums of outer products of gradients whose spectrum falls over seven
decades, damped to a condition of 1e6. Every solver's result carries its certificate; eigh of NumPy and SciPy
stand beside them without one, nor a root. One BLAS thread. The warm start gets a matrix that only grew, the one
drift it survives; "drift" is the chain after a hundredth of new statistics, where it must fall back.

    python benchmarks/bench_roots.py [--large] [--json]
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Literal

import numpy as np
import scipy.linalg
from threadpoolctl import threadpool_limits

from ctr.optim.shampoo.coupled import coupled_root
from ctr.optim.shampoo.options import Coupled
from ctr.optim.shampoo.roots import Root, inverse_root, root_residual

SIZES = (32, 64, 128, 256, 512, 1024)
EPSILON, EXPONENT, DEGREE = 1e-6, 1 / 4, 4
SECONDS = 0.6
COUPLED = Coupled()


def statistics(size: int, seed: int) -> np.ndarray:
    """A sum of outer products of 4 n gradients [n], float32 as an optimizer would send it."""
    shape = np.random.default_rng(0)
    mixing = np.linalg.qr(shape.standard_normal((size, size)))[0] * np.logspace(0, -3.5, size)
    gradients = mixing @ np.random.default_rng(seed).standard_normal((size, 4 * size))
    return (gradients @ gradients.T).astype(np.float32).astype(np.float64)


def seconds(call: Callable[[], object]) -> float:
    """The median time of as many calls as fit into a moment, at least 2."""
    call()
    times: list[float] = []
    while len(times) < 2 or (sum(times) < SECONDS and len(times) < 50):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


def measure(size: int) -> dict[str, object]:
    """Seconds of each solver at one size, and iterations of the coupled ones."""
    first = statistics(size, 1)
    grown, drifted = first * 1.01, 0.99 * first + 0.01 * statistics(size, 2)
    before = inverse_root(first, EXPONENT, epsilon=EPSILON, solver="eigh")
    damped = grown + EPSILON * float(np.linalg.eigvalsh(grown)[-1]) * np.eye(size)
    warm_arguments = {"previous": before.matrix, "previous_condition": before.condition}

    def root(matrix: np.ndarray, solver: Literal["eigh"] | Coupled, **start: object) -> Root:
        return inverse_root(matrix, EXPONENT, epsilon=EPSILON, solver=solver, **start)

    calls: dict[str, Callable[[], object]] = {
        "numpy": lambda: np.linalg.eigh(grown),
        "scipy": lambda: scipy.linalg.eigh(grown, check_finite=False),
        "evd": lambda: scipy.linalg.eigh(grown, driver="evd", check_finite=False),
        "evr": lambda: scipy.linalg.eigh(grown, driver="evr", check_finite=False),
        "certificate": lambda: root_residual(before.matrix, damped, DEGREE),
        "eigh": lambda: root(grown, "eigh"),
        "cold": lambda: root(grown, COUPLED),
        "projected": lambda: root(grown, COUPLED, previous_condition=before.condition),
        "warm": lambda: root(grown, COUPLED, previous=before.matrix),
        "drift": lambda: root(drifted, COUPLED, **warm_arguments),
    }
    delivered = {name: calls[name]().solver for name in ("cold", "warm", "drift")}  # type: ignore[attr-defined]
    cold = coupled_root(damped, DEGREE, COUPLED)
    projected = coupled_root(damped, DEGREE, COUPLED, previous_condition=before.condition)
    return {
        "n": size,
        "condition": before.condition,
        "seconds": {name: seconds(call) for name, call in calls.items()},
        "delivered": delivered,
        "iterations": {
            "cold": int(cold.iterations),
            "projected": int(projected.iterations),
            "projections": int(projected.projected),
            "warm": int(coupled_root(damped, DEGREE, COUPLED, previous=before.matrix).iterations),
        },
        "residual": {"eigh": root(grown, "eigh").residual, "cold": root(grown, COUPLED).residual},
    }


def show(row: dict) -> None:
    times, steps = row["seconds"], row["iterations"]
    print(f"\nn = {row['n']}, condition {row['condition']:.1e}, residuals of eigh and cold: ", end="")
    print(f"{row['residual']['eigh']:.1e}, {row['residual']['cold']:.1e}")
    notes = {
        "cold": f"{steps['cold']} iterations, delivered by {row['delivered']['cold']}",
        "projected": f"{steps['projected']} iterations, {steps['projections']} projected",
        "warm": f"{steps['warm']} iterations, delivered by {row['delivered']['warm']}",
        "drift": f"delivered by {row['delivered']['drift']}",
    }
    for name, taken in times.items():
        ratio = taken / times["numpy"]
        print(f"  {name:12} {1e3 * taken:10.2f} ms {1 / taken:10.1f} /s {ratio:7.2f} x numpy", end="")
        print(f"   {notes[name]}" if name in notes else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--large", action="store_true", help="also n = 2048")
    parser.add_argument("--json", action="store_true", help="one JSON object a size")
    arguments = parser.parse_args()
    with threadpool_limits(1):
        for size in SIZES + ((2048,) if arguments.large else ()):
            row = measure(size)
            if arguments.json:
                print(json.dumps(row), flush=True)
            else:
                show(row)


if __name__ == "__main__":
    main()
