"""Inverse p-th roots by PSO Appendix E's coupled Newton iteration, batched, with projection and warm start.

    M_1 = ((p + 1) I - M) / p        X <- X M_1        M <- M_1^p M

drives M = X^p G to I, and with it X to G^(-1/p). In float64 only: about log2(condition / p) bits are lost. One
implementation for host threads, which call it eagerly, and for graphs: without eigendecompositions (XLA:CPU's take 30
times LAPACK's time) and calls to the host, it compiles under XLA. What ends one matrix of a batch changes no other.

The iteration keeps M = X^p G only while X, M and G commute. A cold start, a multiple of I, does; the root of an
earlier matrix does not, unless the two share their eigenvectors. Then M reaches I to the last bit while X is wrong
by the drift times up to the condition, and |M - I| cannot tell. Rounding alone is drift enough: at best every second
root can be had by a warm start. Nothing here is a root until its true residual has been measured (`inverse_roots`,
`roots.root_residual`), and a failure here is a reason to try another solver, never to change the matrix.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from ctr.optim.shampoo.options import Coupled

FloatArray = npt.NDArray[np.float64]

# PSO App. E stops the power iteration by the change of the eigenvalue, which is the square of the error of the
# vector; the vector matters here, so the residual of the pair decides instead. A vector off by x moves the projected
# matrix by x * lambda_max: anything above rounding is multiplied by the condition of what remains.
PROJECTION_TOLERANCE = 1e-13
# lambda_max whose residual is at most this needs no more steps.
POWER_TOLERANCE = 1e-12
# Without a decomposition to fall back on, lambda_max errs by log(n) / 8000 at worst: from below, where eigenvalues
# crowd that near to the largest.
_MANY_STEPS = 4000
# Products with a vector for each squaring of the matrix.
_PRODUCTS = 8
# |M - I| below which convergence is quadratic, so that an iteration that gains nothing has met rounding.
_QUADRATIC = 0.1


class Eigenpair(NamedTuple):
    """Rayleigh quotients [N, 1, 1] (at most lambda_max), unit vectors [N, n, 1], and |G v - value v| / value."""

    value: tf.Tensor
    vector: tf.Tensor
    residual: tf.Tensor


class Projection(NamedTuple):
    """Matrices [N, n, n] whose eigenvalues ``values`` [N, 1, k] of ``vectors`` [N, n, k] were lowered to ``level``.

    ``level`` is [N, 1, 1]. Where fewer than k were lowered, the other values and vectors are 0.
    """

    matrices: tf.Tensor
    values: tf.Tensor
    vectors: tf.Tensor
    level: tf.Tensor


class Iterate(NamedTuple):
    """End of the iteration: symmetric roots [N, n, n], of use only where their true residual is small.

    ``error`` [N] is |M - I|, Frobenius, which proves nothing after a warm start; inf where the iteration broke down.
    ``iterations`` is the number of the slowest matrix, ``projected`` [N] how many eigenvalues were lowered.
    `coupled_root` returns the same of one matrix.
    """

    root: Any
    error: Any
    iterations: Any
    projected: Any = 0


def start_vector(size: int) -> tf.Tensor:
    """Returns a unit vector [size, 1], a chirp: it has a share in every smooth and every alternating vector."""
    vector = tf.cos(tf.range(1, size + 1, dtype=tf.float64)[:, tf.newaxis] ** 2)
    return vector / tf.norm(vector)


def largest_eigenpair(matrices: tf.Tensor, *, steps: int, tolerance: float = POWER_TOLERANCE) -> Eigenpair:
    """Finds the largest eigenvalues of positive definite [N, n, n] by power iteration (PSO Alg. I, MAXSV).

    Each round squares the matrices, and so takes twice the steps of the one before. Pairs whose residual is at most
    ``tolerance`` stay; the others end after ``steps`` or a few more.
    """

    def proceed(taken: tf.Tensor, power: tf.Tensor, pair: Eigenpair) -> tf.Tensor:
        return (taken < steps) & (tf.reduce_max(pair.residual) > tolerance)

    def advance(
        taken: tf.Tensor, power: tf.Tensor, pair: Eigenpair
    ) -> tuple[tf.Tensor, tf.Tensor, Eigenpair]:
        power = tf.math.divide_no_nan(power, tf.reduce_max(tf.abs(power), axis=[1, 2], keepdims=True))
        power = tf.matmul(power, power)
        vector = pair.vector
        for _ in range(_PRODUCTS):
            vector = tf.matmul(power, vector)
        vector = tf.where(
            pair.residual <= tolerance, pair.vector, tf.math.divide_no_nan(vector, _norm(vector))
        )
        image = tf.matmul(matrices, vector)
        value = tf.matmul(vector, image, transpose_a=True)
        residual = tf.where(value > 0, _norm(image - value * vector) / value, math.inf)
        return 2 * (taken + _PRODUCTS), power, Eigenpair(value, vector, residual)

    none = tf.zeros_like(matrices[:, :1, :1])
    first = Eigenpair(
        none, tf.zeros_like(matrices[:, :, :1]) + start_vector(matrices.shape[-1]), none + math.inf
    )
    return tf.while_loop(proceed, advance, (tf.constant(0), matrices, first))[2]


def project(matrices: tf.Tensor, conditions: tf.Tensor | None, options: Coupled) -> Projection:
    """Lowers the largest eigenvalues to the first one that may stay (PSO Alg. I, PROJECT).

    An eigenvalue may stay once it is at most `desired_condition` (PSO's kappa_d) times the smallest, which is
    estimated as the largest divided by the previous matrix's condition, float64 [N]; without one, None or NaN, only
    `projected` (PSO's n_proj) are lowered. Where the power iteration does not converge, projection ends: an inexact
    vector would be deflated from the wrong place.
    """
    size = matrices.shape[-1]
    most = min(options.most_projected, size - 1)

    def top_of(remaining: tf.Tensor) -> Eigenpair:
        return largest_eigenpair(remaining, steps=options.power_iterations, tolerance=PROJECTION_TOLERANCE)

    top = top_of(matrices)
    largest = top.value
    allowed = tf.fill(tf.shape(largest), tf.constant(math.inf, tf.float64))
    if conditions is not None:
        allowed = options.desired_condition / tf.reshape(conditions, [-1, 1, 1]) * largest

    def is_lowered(count: tf.Tensor, pair: Eigenpair) -> tf.Tensor:
        exact = pair.residual * pair.value <= PROJECTION_TOLERANCE * largest
        return exact & (count < most) & ((pair.value > allowed) | (count < options.projected))

    def proceed(count: tf.Tensor, active: tf.Tensor, *_: Any) -> tf.Tensor:
        return tf.reduce_any(active)

    def advance(
        count: tf.Tensor,
        active: tf.Tensor,
        remaining: tf.Tensor,
        pair: Eigenpair,
        values: tf.Tensor,
        basis: tf.Tensor,
    ) -> tuple[Any, ...]:
        column = tf.one_hot(count, most, dtype=tf.float64)
        vector = pair.vector - tf.matmul(basis, tf.matmul(basis, pair.vector, transpose_a=True))
        vector = tf.where(active, vector / _norm(vector), 0.0)
        outer = tf.matmul(pair.vector, pair.vector, transpose_b=True)
        remaining = tf.where(active, remaining - pair.value * outer, remaining)
        values += tf.where(active, pair.value, 0.0) * column
        new = top_of(remaining)
        pair = Eigenpair(*(tf.where(active, *both) for both in zip(new, pair, strict=True)))
        return (
            count + 1,
            active & is_lowered(count + 1, pair),
            remaining,
            pair,
            values,
            basis + vector * column,
        )

    none = tf.zeros_like(matrices[:, :, :most])
    start = (tf.constant(0), is_lowered(tf.constant(0), top), matrices, top, none[:, :1], none)
    *_, top, values, basis = tf.while_loop(proceed, advance, start)
    return Projection(_lowered(matrices, basis, top.value), values, basis, top.value)


def _lowered(matrices: tf.Tensor, basis: tf.Tensor, level: tf.Tensor) -> tf.Tensor:
    """P G P + level * basis basis^T, P = I - basis basis^T: PSO's G - sum lambda v v^T + level v v^T.

    Subtracting lambda v v^T would leave rounding of the size u * lambda_max between v and the small eigenvectors,
    which the residual multiplies to u^2 * condition^3: 100 at 1e12. Projecting from both sides, and once more from
    what is left, makes v an eigenvector to the rounding of what is left.
    """
    for _ in range(2):
        matrices -= tf.matmul(basis, tf.matmul(basis, matrices, transpose_a=True))
        matrices -= tf.matmul(tf.matmul(matrices, basis), basis, transpose_b=True)
    return _symmetric(matrices + level * tf.matmul(basis, basis, transpose_b=True))


def correct(roots: tf.Tensor, projection: Projection, p: int) -> tf.Tensor:
    """Returns the roots of the matrices before `project`, from the roots [N, n, n] of the lowered ones (PSO App. E)."""
    change = _to_the(projection.values, -1 / p) - _to_the(projection.level, -1 / p)
    change = tf.where(projection.values > 0, change, 0.0)
    return roots + tf.matmul(projection.vectors * change, projection.vectors, transpose_b=True)


def cold_start(matrices: tf.Tensor, p: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns X and M of the start from a multiple of I: with z = (1 + p) / (2 |G|_F), X = z^(1/p) I and M = z G.

    All eigenvalues of M are then in (0, (p + 1) / 2], where the iteration converges (Guo & Higham 2006). Each
    iteration multiplies the smallest by ((p + 1) / p)^p >= 2, so a condition of 1e12 takes at most 40 + log2(n), and
    quadratic convergence fewer than 10 more.
    """
    scale = (1 + p) / (2 * _norm(matrices))
    return _to_the(scale, 1 / p) * tf.eye(matrices.shape[-1], dtype=tf.float64), scale * matrices


def skewness(products: tf.Tensor) -> tf.Tensor:
    """Computes |M - M^T|, Frobenius, [N, 1, 1]: 0 where the start commutes; the root's residual is 8 times it or more."""
    return _norm(products - tf.linalg.matrix_transpose(products))


def coupled_roots(
    matrices: tf.Tensor,
    p: int,
    options: Coupled,
    *,
    previous: tf.Tensor | None = None,
    previous_conditions: tf.Tensor | None = None,
    most_skewed: float = math.inf,
) -> Iterate:
    """Computes something like ``matrices^(-1/p)``, float64 [N, n, n] (PSO Alg. I, COUPLEDITERATION); not certified.

    A warm start is from the roots of earlier matrices, ``previous``, and is given up before its first iteration
    where `skewness` is above ``most_skewed``. Without ``previous_conditions`` [N], those of the earlier matrices, only
    `options.projected` eigenvalues are lowered.
    """
    original, projection = matrices, None
    if (options.projected or previous_conditions is not None) and min(
        options.most_projected, matrices.shape[-1] - 1
    ):
        projection = project(matrices, previous_conditions, options)
        matrices = projection.matrices
    if previous is None:
        roots, products = cold_start(matrices, p)
    else:
        roots, products = previous, tf.matmul(_power(previous, p), matrices)
        products = tf.where(skewness(products) <= most_skewed, products, math.nan)
    roots, products, iterations = _iterate(roots, products, p, options.max_iterations)
    error = _norm(products - tf.eye(matrices.shape[-1], dtype=tf.float64))
    projected = tf.zeros_like(original[:, 0, 0], tf.int64)
    if projection is not None:
        roots = correct(roots, projection, p)
        projected = tf.math.count_nonzero(projection.values, axis=[1, 2])
    # A start that never improved, or ended in overflow before it converged, is no result.
    return Iterate(roots, tf.where(error < _QUADRATIC, error, math.inf)[:, 0, 0], iterations, projected)


def coupled_root(
    matrix: FloatArray,
    p: int,
    options: Coupled,
    *,
    previous: FloatArray | None = None,
    previous_condition: float | None = None,
    most_skewed: float = math.inf,
) -> Iterate:
    """Computes `coupled_roots` of one NumPy matrix [n, n], eagerly on the CPU; safe in threads."""
    if previous_condition is not None and previous_condition <= options.desired_condition:
        previous_condition = None
    with tf.device("CPU:0"):
        end = coupled_roots(
            tf.constant(matrix[np.newaxis], tf.float64),
            p,
            options,
            previous=None if previous is None else tf.constant(previous[np.newaxis], tf.float64),
            previous_conditions=None
            if previous_condition is None
            else tf.constant([previous_condition], tf.float64),
            most_skewed=most_skewed,
        )
    return Iterate(end.root.numpy()[0], float(end.error[0]), int(end.iterations), int(end.projected[0]))


def largest_eigenvalue(matrix: FloatArray, *, steps: int, tolerance: float) -> tuple[float, float]:
    """Computes value and residual of `largest_eigenpair` of one NumPy matrix [n, n], eagerly on the CPU."""
    with tf.device("CPU:0"):
        pair = largest_eigenpair(
            tf.constant(matrix[np.newaxis], tf.float64), steps=steps, tolerance=tolerance
        )
    return pair.value.numpy().item(), pair.residual.numpy().item()


def inverse_roots(
    matrices: tf.Tensor, p: int, epsilon: float, options: Coupled, *, absolute: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes ``(A + epsilon * lambda_max(A) * I)^(-1/p)`` of float64 [N, n, n], and the true residuals [N].

    With ``absolute``, epsilon itself is added. From a cold start, which cannot go wrong silently. Unlike
    `roots.inverse_root`, it adds no shift for negative eigenvalues: one that damping does not lift above 0 makes the
    iteration diverge, and the residual say so. Residuals are those of `roots.root_residual`: inf, and the root all
    zero, where the damped matrix is zero or not finite, or the iteration diverged. The caller must check that a
    residual is small.
    """
    identity = tf.eye(matrices.shape[-1], dtype=tf.float64)
    largest = tf.reduce_max(tf.abs(matrices), axis=[1, 2], keepdims=True)
    # An absolute damping alone has a root. A comparison, unlike arithmetic, keeps NaN out; infinity is no number that
    # the matrix may have, either.
    floor = epsilon if absolute else 0.0
    usable = (largest + floor > 0) & tf.reduce_all(tf.math.is_finite(matrices), axis=[1, 2], keepdims=True)
    scale = tf.where(usable & (largest > 0), largest, floor or 1.0)
    scaled = _symmetric(tf.where(usable, matrices / scale, identity))
    damping = epsilon / scale if absolute else epsilon * largest_eigenpair(scaled, steps=_MANY_STEPS).value
    damped = scaled + damping * identity

    roots = coupled_roots(damped, p, options).root
    half = _power(roots, p // 2) if p > 1 else identity
    products = tf.matmul(half, tf.matmul(damped, half)) if p > 1 else damped
    residual = _norm((tf.matmul(products, roots) if p % 2 else products) - identity)
    roots *= _to_the(scale, -1 / p)
    usable &= tf.math.is_finite(residual) & tf.reduce_all(
        tf.math.is_finite(roots), axis=[1, 2], keepdims=True
    )
    return tf.where(usable, roots, 0.0), tf.where(usable, residual, math.inf)[:, 0, 0]


def _iterate(
    roots: tf.Tensor, products: tf.Tensor, p: int, max_iterations: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns X, symmetric, M = X^p G, and the number of iterations, once no matrix of the batch improves.

    The error stays near 1 until the smallest eigenvalue of M has arrived, and may grow in between; only where
    convergence is quadratic does a lack of improvement mean rounding, and the end. The largest entry of M - I, by
    which PT 3.2 stops, hides an eigenvalue of 0 among many.
    """
    identity = tf.eye(products.shape[-1], dtype=tf.float64)
    first = (p + 1) * identity

    def limits_of(errors: tf.Tensor, limits: tf.Tensor | float) -> tf.Tensor:
        """What the next errors must be below; 0 where the iteration has ended. NaN is below nothing."""
        return tf.where(errors < limits / 2, tf.where(errors < _QUADRATIC, errors, math.inf), 0.0)

    def proceed(step: tf.Tensor, limits: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
        return (step < max_iterations) & (tf.reduce_max(limits) > 0)

    def advance(
        step: tf.Tensor, limits: tf.Tensor, roots: tf.Tensor, products: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        factors = (first - products) / p
        new_products = tf.matmul(_power(factors, p), products)
        errors = _norm(new_products - identity)
        better = errors < limits
        roots = tf.where(better, tf.matmul(roots, factors), roots)
        products = tf.where(better, new_products, products)
        return step + 1, limits_of(errors, limits), roots, products

    start = (tf.constant(0), limits_of(_norm(products - identity), math.inf), roots, products)
    step, _, roots, products = tf.while_loop(proceed, advance, start)
    return _symmetric(roots), products, step


def _power(matrices: tf.Tensor, p: int) -> tf.Tensor:
    if p == 1:
        return matrices
    half = _power(matrices, p // 2)
    square = tf.matmul(half, half)
    return tf.matmul(square, matrices) if p % 2 else square


def _norm(matrices: tf.Tensor) -> tf.Tensor:
    return tf.math.reduce_euclidean_norm(matrices, axis=[1, 2], keepdims=True)


def _symmetric(matrices: tf.Tensor) -> tf.Tensor:
    return (matrices + tf.linalg.matrix_transpose(matrices)) / 2


def _to_the(values: tf.Tensor, exponent: float) -> tf.Tensor:
    return tf.pow(values, tf.constant(exponent, tf.float64))
