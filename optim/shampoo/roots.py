"""Inverse roots A^(-1/p) of symmetric positive semidefinite matrices, each certified by its true residual.

For Shampoo's statistics (PSO 2; PT 3.2). The root is taken of

    A_damped = A + (epsilon * lambda_max(A) + max(-lambda_min(A), 0)) I

The damping is relative to the largest eigenvalue, since an absolute one loses its meaning as sums grow. The second
term is PT 3.2's shift: float32 sums of G G^T have eigenvalues a little below 0. A matrix that is further
from semidefinite than rounding explains is refused. The damping is never increased to force a result.

A root leaves this module only if its residual on the matrix itself is within tolerance. All is float64 and
thread-safe.

**Certificates.** For a positive definite X, let S = X^(p/2) A X^(p/2) - I and s = |S|_2 < 1. Then, in the order of
positive semidefinite matrices, (1 - s) X^-p <= A <= (1 + s) X^-p. Powers t^e with 0 < e <= 1 keep that order (Löwner
& Heinz), so with e = 1/p

    (1 + s)^-e X <= A^-e <= (1 - s)^-e X:

in every direction the relative error of X is about e s. Any matrix with the eigenvalues of S and any norm not below
the spectral one serve as an upper bound: X^p A - I, and the Frobenius norm. Rounding of A already changes its small
eigenvalues by u |A|_2, so no method reduces s below about u * condition: 1e-9 at condition 1e6, 1e-3 at 1e12.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

# A residual s leaves a relative error of about s / p in the root: 0.5% for p = 4. Rounding alone
# makes s 3e-9 at condition 1e6 and n = 1024, and at 1e12 at most 1.1e-2.
TOLERANCE = 2e-2

# Eigenvalues above -NEGATIVE * lambda_max are taken for rounding of float32 sums, which reach -1e-6.
NEGATIVE = 1e-5


def root_residual(root: FloatArray, matrix: FloatArray, p: int) -> float:
    """Computes the Frobenius norm of X^h A X^(p - h) - I, h = p // 2, which bounds s above; inf if not finite."""
    with np.errstate(all="ignore"):
        half = _power(root, p // 2)
        product = half @ (matrix @ half)
        if p % 2:
            product = product @ root
        product[np.diag_indices_from(product)] -= 1
        residual = float(np.linalg.norm(product))
    return residual if np.isfinite(residual) else np.inf


def _power(matrix: FloatArray, p: int) -> FloatArray:
    """Computes matrix^p of a symmetric [n, n]. NumPy forms x @ x.T, unlike x @ x, in half the time."""
    if p < 2:
        return matrix if p else np.eye(len(matrix))
    half = _power(matrix, p // 2)
    square: FloatArray = half @ half.T
    return square @ matrix if p % 2 else square


class RootError(ArithmeticError):
    """Raised for a matrix without a certified root; the message names the matrix and the result of each attempt."""


@dataclass(frozen=True)
class Root:
    """Inverse root, float64 [n, n], symmetric positive definite; its relative error is about ``residual`` / p.

    ``condition`` is the condition number of A_damped; ``eigenvalues`` are the smallest (0 if rounded below 0) and the
    largest of A. ``eigenbasis`` returns the eigenvectors of A as ``matrix`` instead.
    """

    matrix: FloatArray
    residual: float
    condition: float
    eigenvalues: tuple[float, float] = (0.0, 0.0)


def inverse_root(matrix: FloatArray, p: int, *, epsilon: float, absolute: bool = False) -> Root:
    """Computes a certified A_damped^(-1/p), p >= 1 and epsilon >= 0, of the symmetric part of A, float64 [n, n].

    Uses LAPACK's eigendecomposition of one triangle and, if that fails, of the other. The damping is relative
    to the largest eigenvalue unless ``absolute``.

    Raises:
        RootError: A is not a finite square matrix, is zero or indefinite, or no residual is within `TOLERANCE`.
    """
    scaled, doublings = scale_symmetric(matrix)
    scaled_epsilon = float(np.ldexp(epsilon, -doublings)) if absolute else epsilon

    def root_by(triangle: Literal["L", "U"]) -> Root:
        values, vectors = decompose(scaled, triangle)
        lowest, highest = float(values[0]), float(values[-1])
        damping = scaled_epsilon * (1.0 if absolute else highest) + max(-lowest, 0.0)
        values = values + damping
        if not values[0] > 0:
            raise RootError("singular")
        damped = scaled.copy()
        damped[np.diag_indices_from(damped)] += damping
        # A power 1/2 to each side makes a product that is symmetric to the last bit.
        half = vectors * values ** (-1.0 / p / 2)
        root = half @ half.T
        residual = root_residual(root, damped, p)
        if not residual <= TOLERANCE:
            raise RootError(f"residual {residual:.2g} above {TOLERANCE:.2g}")
        root = root * float(np.exp2(-doublings * (1.0 / p)))
        if not np.isfinite(root).all():
            raise RootError("the root overflows")
        return Root(root, residual, float(values[-1] / values[0]), extremes(lowest, highest, doublings))

    return by_either_triangle(root_by, f"no root of order {p} of {_description(matrix)}")


def by_either_triangle(attempt: Callable[[Literal["L", "U"]], Root], problem: str) -> Root:
    """Tries an eigendecomposition from one triangle of a matrix, then from the other. Raises RootError if both fail.

    Reducing the other triangle to tridiagonal form is other arithmetic on the same matrix: where one does not converge,
    the other may. (PT 3.2.3 retries in double precision, which is used here from the start.)
    """
    failures = []
    triangles: tuple[Literal["L", "U"], ...] = ("L", "U")
    for triangle in triangles:
        try:
            return attempt(triangle)
        except (RootError, np.linalg.LinAlgError) as error:
            failures.append(f"eigh({triangle}): {error}")
    raise RootError(f"{problem}: " + "; ".join(failures))


def decompose(scaled: FloatArray, triangle: Literal["L", "U"]) -> tuple[FloatArray, FloatArray]:
    """Computes eigenvalues [n], ascending, and eigenvectors [n, n] by columns. Raises RootError for an indefinite A."""
    values, vectors = np.linalg.eigh(scaled, UPLO=triangle)
    if not (np.isfinite(values).all() and np.isfinite(vectors).all()):
        raise RootError("the decomposition is not finite")
    lowest, highest = values[0], values[-1]
    if not highest > 0 or lowest < -NEGATIVE * highest:
        raise RootError(
            f"indefinite: eigenvalues from {lowest / abs(highest):.3g} to {highest / abs(highest):.3g} times "
            f"the largest, {_description(scaled)} (scaled)"
        )
    return values, vectors


def extremes(lowest: float, highest: float, doublings: int) -> tuple[float, float]:
    """Returns the smallest (0 if below 0 by rounding) and the largest eigenvalue of A from those of A / 2^k."""
    return float(np.ldexp(max(lowest, 0.0), doublings)), float(np.ldexp(highest, doublings))


def scale_symmetric(matrix: FloatArray) -> tuple[FloatArray, int]:
    """Returns A / 2^k, symmetrized, entries up to 1, and k. Raises RootError unless A is square, finite and not 0."""
    matrix = np.asarray(matrix, np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise RootError(f"not a square matrix: {list(matrix.shape)}")
    if not np.isfinite(matrix).all():
        raise RootError(f"not finite: {_description(matrix)}")
    largest = float(np.max(np.abs(matrix)))
    if largest == 0:
        raise RootError(f"all zero: {_description(matrix)}")
    doublings = int(np.frexp(largest)[1])
    scaled = np.ldexp(matrix, -doublings)
    return (scaled + scaled.T) / 2, doublings


def _description(matrix: FloatArray) -> str:
    finite = matrix[np.isfinite(matrix)]
    entries = f"entries from {finite.min():.3g} to {finite.max():.3g}" if finite.size else "no finite entry"
    broken = matrix.size - finite.size
    return f"a {list(matrix.shape)} matrix, {entries}" + (f", {broken} not finite" if broken else "")
