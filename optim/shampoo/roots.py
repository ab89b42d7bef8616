"""Inverse roots A^(-1/p) of symmetric positive semidefinite matrices, each certified by its true residual.

For Shampoo's statistics (PSO 2; PT 3.2). The root is that of

    A_damped = A + (epsilon * lambda_max(A) + max(-lambda_min(A), 0)) I

The damping is relative to the largest eigenvalue, since an absolute one loses its meaning as sums grow. The second
term is PT 3.2's shift: float32 sums of G G^T have eigenvalues a little below 0. A matrix that is further
from semidefinite than rounding explains is refused. The damping is never raised to get a result.

A root leaves this module only if its residual on the matrix itself is within tolerance. All in float64, and safe in
threads.

**Certificates.** For a positive definite X, say S = X^(p/2) A X^(p/2) - I and s = |S|_2 < 1. Then, in the order of
positive semidefinite matrices, (1 - s) X^-p <= A <= (1 + s) X^-p. Powers t^e with 0 < e <= 1 keep that order (Löwner
& Heinz), so with e = 1/p

    (1 + s)^-e X <= A^-e <= (1 - s)^-e X:

in every direction X is right to a relative e s or so. Any matrix with the eigenvalues of S and any norm not below
the spectral one serve as an upper bound: X^p A - I, and the Frobenius norm. Rounding of A already changes its small
eigenvalues by u |A|_2, so no method brings s below about u * condition: 1e-9 at condition 1e6, 1e-3 at 1e12.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ctr.optim.shampoo.coupled import coupled_root

FloatArray = npt.NDArray[np.float64]

# A residual s leaves a relative error of about s / p in the root: 0.5% for p = 4. Rounding alone
# makes s 3e-9 at condition 1e6 and n = 1024, and at 1e12 at most 1.1e-2. A warm start gone wrong is usually
# above 1.
TOLERANCE = 2e-2

# Eigenvalues above -NEGATIVE * lambda_max are taken for rounding of float32 sums, which reach -1e-6.
NEGATIVE = 1e-5

# A warm start whose residual is above rounding is wrong in the way that its own error measure hides, and
# would hand that on to the next warm start. Rounding was at most 2 * n * u * condition.
_WARM_ROUNDING = 10 * float(np.finfo(np.float64).eps)


def root_residual(root: FloatArray, matrix: FloatArray, p: int) -> float:
    """Computes |X^h A X^(p - h) - I|, Frobenius, h = p // 2: s of a positive definite X; inf where not finite."""
    with np.errstate(all="ignore"):
        half = _power(root, p // 2)
        product = half @ (matrix @ half)
        if p % 2:
            product = product @ root
        product[np.diag_indices_from(product)] -= 1
        residual = float(np.linalg.norm(product))
    return residual if np.isfinite(residual) else np.inf


def _power(matrix: FloatArray, p: int) -> FloatArray:
    """matrix^p of a symmetric [n, n]. NumPy forms x @ x.T, unlike x @ x, in half the time."""
    if p < 2:
        return matrix if p else np.eye(len(matrix))
    half = _power(matrix, p // 2)
    square: FloatArray = half @ half.T
    return square @ matrix if p % 2 else square


def is_positive_definite(matrix: FloatArray) -> bool:
    """Tells whether a symmetric [n, n] is positive definite; even powers in a residual would hide that it is not."""
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return True


class RootError(ArithmeticError):
    """Error of a matrix without a certified root; the message says of what matrix, and what each solver gave."""


@dataclass(frozen=True)
class Root:
    """Inverse root, float64 [n, n], symmetric positive definite; its relative error is about ``residual`` / p.

    ``solver`` is "eigh", "coupled_warm" or "coupled_cold", ``condition`` that of A_damped, ``eigenvalues`` the smallest
    (0 where it is below by rounding) and largest of A, and ``failures`` say why attempts before were refused.
    """

    matrix: FloatArray
    residual: float
    solver: str
    condition: float
    failures: tuple[str, ...]
    eigenvalues: tuple[float, float] = (0.0, 0.0)


class _RefusedError(Exception):
    """One solver's attempt failed; another's may not."""


def inverse_root(
    matrix: FloatArray,
    p: int,
    *,
    epsilon: float,
    solver: Literal["eigh", "coupled"] = "eigh",
    previous: FloatArray | None = None,
    previous_condition: float | None = None,
    tolerance: float = TOLERANCE,
    absolute: bool = False,
) -> Root:
    """Computes a certified A_damped^(-1/p), p >= 1, of the symmetric part of A, float64 [n, n].

    ``solver`` "eigh" is LAPACK's decomposition, from one triangle and, where that fails, from the other. "coupled" is
    PSO App. E's iteration, warm from ``previous``, the root of an earlier matrix, then cold, then eigh. With
    ``previous_condition``, that root's `condition`, large eigenvalues are projected. The damping is relative to the
    largest eigenvalue unless ``absolute``.

    Raises:
        RootError: A is not a finite square matrix, is zero or indefinite, or no solver's residual is within
            tolerance.
        ValueError: another argument is not as described.
    """
    if p < 1 or not epsilon >= 0 or solver not in ("eigh", "coupled"):
        raise ValueError(f"p {p}, epsilon {epsilon}, solver {solver!r}")
    scaled, doublings = scale_symmetric(matrix)
    scaled_epsilon = float(np.ldexp(epsilon, -doublings)) if absolute else epsilon

    spectrum = (0.0, 0.0)

    def damping(lowest: float, highest: float) -> float:
        nonlocal spectrum
        check_definite(lowest, highest, scaled)
        spectrum = (float(np.ldexp(max(lowest, 0.0), doublings)), float(np.ldexp(highest, doublings)))
        return scaled_epsilon * (1.0 if absolute else highest) + max(-lowest, 0.0)

    factor = float(np.exp2(-doublings * (1.0 / p)))
    start = None if previous is None else np.asarray(previous, np.float64) / factor
    # Reducing the other triangle to tridiagonal form is other arithmetic on the same matrix: where one does not
    # converge, the other may. (PT 3.2.3 goes on to double precision, which is where this starts.)
    attempts = ["eigh(L)", "eigh(U)"]
    if solver == "coupled":
        attempts = (
            ["coupled_cold", *attempts] if start is None else ["coupled_warm", "coupled_cold", *attempts]
        )
    failures: list[str] = []
    for name in attempts:
        limit = tolerance
        try:
            if name.startswith("coupled"):
                warm = start if name == "coupled_warm" else None
                root, residual, condition = _by_coupled(
                    scaled, p, damping, warm, previous_condition, tolerance
                )
                if warm is not None:
                    limit = min(tolerance, _WARM_ROUNDING * len(scaled) * condition)
            else:
                root, residual, condition = _by_eigh(scaled, p, damping, name[-2])
            if not residual <= limit:
                raise _RefusedError(f"residual {residual:.2g} above {limit:.2g}")
            root = root * factor
            if not np.isfinite(root).all():
                raise _RefusedError("the root overflows")
        except _RefusedError as refusal:
            failures.append(f"{name}: {refusal}")
        else:
            return Root(root, residual, name.split("(")[0], condition, tuple(failures), spectrum)
    raise RootError(f"no root of order {p} of {_description(matrix)}: " + "; ".join(failures))


def _by_eigh(
    scaled: FloatArray,
    p: int,
    damp: Callable[[float, float], float],
    triangle: str,
) -> tuple[FloatArray, float, float]:
    try:
        values, vectors = np.linalg.eigh(scaled, UPLO="L" if triangle == "L" else "U")
    except np.linalg.LinAlgError as error:
        raise _RefusedError(str(error)) from error
    if not (np.isfinite(values).all() and np.isfinite(vectors).all()):
        raise _RefusedError("the decomposition is not finite")
    damping = damp(float(values[0]), float(values[-1]))
    values = values + damping
    if not values[0] > 0:
        raise _RefusedError("singular")
    damped = _plus_diagonal(scaled, damping)
    # A power 1/2 to each side makes a product that is symmetric to the last bit.
    half = vectors * values ** (-1.0 / p / 2)
    root = half @ half.T
    return root, root_residual(root, damped, p), float(values[-1] / values[0])


def _by_coupled(
    scaled: FloatArray,
    p: int,
    damp: Callable[[float, float], float],
    previous: FloatArray | None,
    previous_condition: float | None,
    tolerance: float,
) -> tuple[FloatArray, float, float]:
    if previous is not None and (previous.shape != scaled.shape or not np.isfinite(previous).all()):
        raise _RefusedError("the previous root is not finite, or of another shape")
    try:
        values = np.linalg.eigvalsh(scaled)
    except np.linalg.LinAlgError as error:
        raise _RefusedError(f"eigenvalues: {error}") from error
    damping = damp(float(values[0]), float(values[-1]))
    damped = _plus_diagonal(scaled, damping)
    end = coupled_root(
        damped,
        p,
        previous=previous,
        previous_condition=previous_condition,
        most_skewed=tolerance,
    )
    if previous is not None and end.iterations == 0 and not np.isfinite(end.error):
        raise _RefusedError("the previous root does not commute with the matrix, or overflows")
    if not np.isfinite(end.error):
        raise _RefusedError(f"no convergence in {end.iterations} iterations")
    if not is_positive_definite(end.root):
        raise _RefusedError("the result is not positive definite")
    condition = float((values[-1] + damping) / (values[0] + damping))
    return end.root, root_residual(end.root, damped, p), condition


def check_definite(lowest: float, highest: float, matrix: FloatArray) -> None:
    """Raises RootError where a matrix with these extreme eigenvalues is indefinite, beyond rounding."""
    if not highest > 0 or lowest < -NEGATIVE * highest:
        raise RootError(
            f"indefinite: eigenvalues from {lowest / abs(highest):.3g} to {highest / abs(highest):.3g} times "
            f"the largest, {_description(matrix)} (scaled)"
        )


def scale_symmetric(matrix: FloatArray) -> tuple[FloatArray, int]:
    """Returns the symmetric part of A / 2^k [n, n], with entries up to about 1, and k; exact."""
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


def _plus_diagonal(matrix: FloatArray, value: float) -> FloatArray:
    damped = matrix.copy()
    damped[np.diag_indices_from(damped)] += value
    return damped


def _description(matrix: FloatArray) -> str:
    finite = matrix[np.isfinite(matrix)]
    entries = f"entries from {finite.min():.3g} to {finite.max():.3g}" if finite.size else "no finite entry"
    broken = matrix.size - finite.size
    return f"a {list(matrix.shape)} matrix, {entries}" + (f", {broken} not finite" if broken else "")
