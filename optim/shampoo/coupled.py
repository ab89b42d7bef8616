"""Inverse p-th roots by PSO Appendix E's coupled Newton iteration, with projection and warm start.

    M_1 = ((p + 1) I - M) / p        X <- X M_1        M <- M_1^p M

drives M = X^p G to I, and with it X to G^(-1/p). In float64 only: about log2(condition / p) bits are lost.

The iteration keeps M = X^p G only while X, M and G commute. A cold start, a multiple of I, does; the root of an
earlier matrix does not, unless the two share their eigenvectors. Then M reaches I to the last bit while X is wrong
by the drift times up to the condition, and |M - I| cannot tell. Rounding alone is drift enough: at best every second
root can be had by a warm start. Nothing here is a root until `roots.root_residual` has measured its true
residual, and a failure here is a reason to try another solver, never to change the matrix.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

# PSO App. E stops the power iteration by the change of the eigenvalue, which is the square of the error of
# the vector; the vector matters here (see `project`), so the residual of the pair decides instead.
POWER_STEPS = 100
# A vector off by x moves the projected matrix by x * lambda_max: anything above rounding is multiplied by the
# condition of what remains.
PROJECTION_TOLERANCE = 1e-13
# PSO App. E's kappa_d; the value is that of PSO Table 3.
DESIRED_CONDITION = 500.0
MOST_PROJECTED = 8
# A cold start multiplies the smallest eigenvalue of M by ((p + 1) / p)^p >= 2 in each iteration, so a
# condition of 1e12 takes at most 40 + log2(n), and quadratic convergence fewer than 10 more.
MAX_ITERATIONS = 100
# |M - I| below which convergence is quadratic, so that an iteration that gains nothing has met rounding.
_QUADRATIC = 0.1
_DONE = 1e-15


@dataclass(frozen=True)
class Eigenpair:
    """Rayleigh quotient (at most the largest eigenvalue), unit vector [n], and residual |G v - value v| / value."""

    value: float
    vector: FloatArray
    residual: float


@dataclass(frozen=True)
class Projection:
    """A matrix [n, n] whose largest eigenvalues ``values`` [k] of ``vectors`` [n, k] were lowered to ``level``."""

    matrix: FloatArray
    values: FloatArray
    vectors: FloatArray
    level: float


@dataclass(frozen=True)
class Iterate:
    """End of the iteration: a symmetric root, of use only where its true residual is small.

    ``error`` is |M - I|, Frobenius, which proves nothing after a warm start; inf where the iteration broke down.
    """

    root: FloatArray
    error: float
    iterations: int
    projected: int = 0


def start_vector(size: int) -> FloatArray:
    """Returns a unit vector [size], a chirp: it has a share in every smooth and every alternating vector."""
    vector: FloatArray = np.cos(np.arange(1.0, size + 1) ** 2)
    return vector / np.linalg.norm(vector)


def largest_eigenpair(
    matrix: FloatArray, *, steps: int = POWER_STEPS, tolerance: float = PROJECTION_TOLERANCE
) -> Eigenpair:
    """Finds the largest eigenvalue of a positive definite matrix by power iteration (PSO Alg. I, MAXSV)."""
    vector = start_vector(len(matrix))
    value, residual = 0.0, np.inf
    for _ in range(steps):
        image = matrix @ vector
        value = float(vector @ image)
        length = float(np.linalg.norm(image))
        if not value > 0:
            break
        residual = float(np.linalg.norm(image - value * vector)) / value
        if residual <= tolerance:
            break
        vector = image / length
    return Eigenpair(value, vector, residual)


def project(
    matrix: FloatArray,
    condition: float | None,
    *,
    desired_condition: float = DESIRED_CONDITION,
    at_least: int = 0,
    at_most: int = MOST_PROJECTED,
) -> Projection:
    """Lowers the largest eigenvalues to the first one that may stay (PSO Alg. I, PROJECT).

    An eigenvalue may stay once it is at most `desired_condition` (PSO's kappa_d) times the smallest, which is
    estimated as the largest divided by the previous matrix's condition; without one, only `at_least` (PSO's n_proj)
    are projected. Where the power iteration does not converge, projection ends: an inexact vector would be deflated
    from the wrong place.
    """
    values: list[float] = []
    vectors: list[FloatArray] = []
    at_most = min(at_most, len(matrix) - 1)
    allowed = np.inf if condition is None else desired_condition / condition
    if at_most < 1 or (at_least < 1 and allowed >= 1):
        return Projection(matrix, np.zeros(0), np.zeros((len(matrix), 0)), np.nan)
    remaining = matrix
    top = largest_eigenpair(remaining)
    level, largest = top.value, top.value
    while len(values) < at_most and (level > allowed * largest or len(values) < at_least):
        if not top.residual <= PROJECTION_TOLERANCE * largest / top.value:
            break
        remaining = remaining - top.value * np.outer(top.vector, top.vector)
        values.append(top.value)
        vectors.append(top.vector)
        top = largest_eigenpair(remaining)
        level = top.value
    if not vectors:
        return Projection(matrix, np.zeros(0), np.zeros((len(matrix), 0)), level)
    basis = np.linalg.qr(np.stack(vectors, axis=1))[0]
    return Projection(_lowered(matrix, basis, level), np.array(values), basis, level)


def _lowered(matrix: FloatArray, basis: FloatArray, level: float) -> FloatArray:
    """P matrix P + level * basis basis^T, P = I - basis basis^T: PSO's G - sum lambda v v^T + level v v^T.

    Subtracting lambda v v^T would leave rounding of the size u * lambda_max between v and the small eigenvectors,
    which the residual multiplies to u^2 * condition^3: 100 at 1e12. Projecting from both sides, and once more from
    what is left, makes v an eigenvector to the rounding of what is left.
    """
    for _ in range(2):
        matrix = matrix - basis @ (basis.T @ matrix)
        matrix = matrix - (matrix @ basis) @ basis.T
    lowered = matrix + level * (basis @ basis.T)
    return (lowered + lowered.T) / 2


def correct(root: FloatArray, projection: Projection, p: int) -> FloatArray:
    """Returns the root of the matrix before `project`, from the root [n, n] of the projected one (PSO App. E)."""
    if not len(projection.values):
        return root
    change = projection.values ** (-1 / p) - projection.level ** (-1 / p)
    return root + (projection.vectors * change) @ projection.vectors.T


def cold_start(matrix: FloatArray, p: int) -> tuple[FloatArray, FloatArray]:
    """Returns X and M of the start from a multiple of I: with z = (1 + p) / (2 |G|_F), X = z^(1/p) I and M = z G.

    All eigenvalues of M are then in (0, (p + 1) / 2], where the iteration converges (Guo & Higham 2006).
    """
    scale = (1 + p) / (2 * float(np.linalg.norm(matrix)))
    return scale ** (1 / p) * np.eye(len(matrix)), scale * matrix


def warm_start(matrix: FloatArray, p: int, previous: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns X and M of the start from the root of an earlier matrix: X = previous and M = X^p G."""
    return previous, np.linalg.matrix_power(previous, p) @ matrix


def skewness(product: FloatArray) -> float:
    """Computes |M - M^T|, Frobenius: 0 where the start commutes; the root's residual was 8 times this or more."""
    return float(np.linalg.norm(product - product.T))


def iterate(
    root: FloatArray, product: FloatArray, p: int, *, max_iterations: int = MAX_ITERATIONS
) -> Iterate:
    """Runs the coupled Newton iteration from X and M = X^p G, float64 [n, n], while it improves.

    The error stays near 1 until the smallest eigenvalue of M has arrived, and may grow in between; only where
    convergence is quadratic does a lack of improvement mean rounding, and the end.
    """
    identity = np.eye(len(root))
    with np.errstate(all="ignore"):
        best, best_error, iterations = root, _distance(product, identity), 0
        error = best_error
        while iterations < max_iterations and error > _DONE:
            step = ((p + 1) * identity - product) / p
            root = root @ step
            product = np.linalg.matrix_power(step, p) @ product
            iterations += 1
            error = _distance(product, identity)
            if not np.isfinite(error):
                break
            stalled = best_error < _QUADRATIC and error > best_error / 2
            if error < best_error:
                best, best_error = root, error
            if stalled:
                break
    # A start that never improved, or ended in overflow before it converged, is no result.
    converged = best_error < _QUADRATIC
    return Iterate((best + best.T) / 2, best_error if converged else np.inf, iterations)


def coupled_root(
    matrix: FloatArray,
    p: int,
    *,
    previous: FloatArray | None = None,
    previous_condition: float | None = None,
    max_iterations: int = MAX_ITERATIONS,
    most_skewed: float = np.inf,
) -> Iterate:
    """Computes something like ``matrix^(-1/p)`` (PSO Alg. I, COUPLEDITERATION, and the correction); not certified.

    A warm start is from the root of an earlier matrix, ``previous``, and is given up before its first iteration
    where `skewness` is above ``most_skewed``. Without ``previous_condition``, that of the earlier matrix, nothing is
    projected.
    """
    projection = project(matrix, previous_condition)
    if previous is None:
        root, product = cold_start(projection.matrix, p)
    else:
        with np.errstate(all="ignore"):
            root, product = warm_start(projection.matrix, p, previous)
            if not skewness(product) <= most_skewed:
                return Iterate(previous, np.inf, 0, len(projection.values))
    end = iterate(root, product, p, max_iterations=max_iterations)
    return Iterate(correct(end.root, projection, p), end.error, end.iterations, len(projection.values))


def _distance(product: FloatArray, identity: FloatArray) -> float:
    """|M - I|, Frobenius. The largest entry, by which PT 3.2 stops, hides an eigenvalue of 0 among many."""
    return float(np.linalg.norm(product - identity))
