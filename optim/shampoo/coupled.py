"""Inverse p-th roots by PSO Appendix E's coupled Newton iteration, batched, with projection and warm start.

    M_1 = ((p + 1) I - M) / p        X <- X M_1        M <- M_1^p M

drives M = X^p G to I, and with it X to G^(-1/p). In float64 only: about log2(condition / p) bits are lost. Host threads
call it eagerly, and it compiles under XLA. Whatever becomes of one matrix of a batch, the others keep their roots.

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

FloatArray = npt.NDArray[np.float64]

# After so many iterations, another solver is tried.
MAX_ITERATIONS = 100
# Larger eigenvalues are projected until the condition is about this: kappa_d, with the value of PSO App. G's tables.
DESIRED_CONDITION = 500.0
# At most so many eigenvalues are projected, each found by so many steps of the power iteration (n_step).
MOST_PROJECTED = 8
POWER_STEPS = 100
# PSO App. E stops the power iteration by the change of the eigenvalue; the residual is that of the vector, of which
# an error x moves the projected matrix by x * lambda_max.
POWER_TOLERANCE = 1e-13
# Steps to the lambda_max of a damping: it is too small by log(n) / 8000 at worst, where eigenvalues crowd that near.
_MANY_STEPS = 4000
_PRODUCTS = 8
# |M - I| below which convergence is quadratic, so that an iteration that gains nothing has met rounding.
_QUADRATIC = 0.1


class Iterate(NamedTuple):
    """End of the iteration: symmetric roots [N, n, n], of use only where their true residual is small.

    ``error`` [N] is |M - I|, Frobenius, which proves nothing after a warm start; inf where the iteration broke down.
    ``iterations`` [N] are those of the slowest matrix, ``projected`` [N] counts the eigenvalues that were lowered.
    """

    root: Any
    error: Any
    iterations: Any
    projected: Any = 0


def start_vector(size: int) -> tf.Tensor:
    """Returns a unit vector [size, 1], a chirp: it has a share in every smooth and every alternating vector."""
    vector = tf.cos(tf.range(1, size + 1, dtype=tf.float64)[:, tf.newaxis] ** 2)
    return vector / tf.norm(vector)


def largest_eigenpair(matrices: tf.Tensor, steps: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Finds the largest eigenvalues of positive definite [N, n, n] by power iteration (PSO Alg. I, MAXSV).

    Returns Rayleigh quotients [N, 1, 1] (at most lambda_max), unit vectors [N, n, 1], and |G v - value v| / value. Ends
    where all of these are at most `POWER_TOLERANCE`, or after ``steps``; each round, with squared matrices, is of twice
    as many as the one before.
    """

    def advance(taken: tf.Tensor, power: tf.Tensor, *pair: tf.Tensor) -> tuple[tf.Tensor, ...]:
        _, before, residual = pair
        power = tf.math.divide_no_nan(power, tf.reduce_max(tf.abs(power), axis=[1, 2], keepdims=True))
        power = tf.matmul(power, power)
        vector = before
        for _ in range(_PRODUCTS):
            vector = tf.matmul(power, vector)
        vector = tf.where(residual <= POWER_TOLERANCE, before, tf.math.divide_no_nan(vector, _norm(vector)))
        image = tf.matmul(matrices, vector)
        value = tf.matmul(vector, image, transpose_a=True)
        residual = tf.where(value > 0, _norm(image - value * vector) / value, math.inf)
        return 2 * (taken + _PRODUCTS), power, value, vector, residual

    def proceed(taken: tf.Tensor, *state: tf.Tensor) -> tf.Tensor:
        return (taken < steps) & (tf.reduce_max(state[-1]) > POWER_TOLERANCE)

    zero = tf.zeros_like(matrices[:, :, :1])
    first = (zero[:, :1], zero + start_vector(matrices.shape[-1]), zero[:, :1] + math.inf)
    _, _, *pair = tf.while_loop(proceed, advance, (tf.constant(0), matrices, *first))
    return tuple(pair)


def project(matrices: tf.Tensor, conditions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Lowers the largest eigenvalues to the first one that may stay (PSO Alg. I, PROJECT).

    An eigenvalue may stay once it is at most `DESIRED_CONDITION` times the smallest, which is estimated as the largest
    divided by the previous matrix's condition, [N]; where that is NaN, all stay. Where the power iteration does not
    converge, projection ends: an inexact vector would be deflated from the wrong place.

    Returns the matrices, the eigenvalues [N, 1, k] and vectors [N, n, k] that were lowered, 0 where fewer than k were,
    and the level [N, 1, 1] to which they were.
    """
    most = min(MOST_PROJECTED, matrices.shape[-1] - 1)
    allowed = DESIRED_CONDITION / conditions[:, tf.newaxis, tf.newaxis]

    def advance(count: tf.Tensor, *state: tf.Tensor) -> tuple[Any, ...]:
        active, remaining, values, basis, level = state
        value, vector, residual = largest_eigenpair(remaining, POWER_STEPS)
        level = tf.where(active, value, level)
        largest = tf.maximum(level, values[:, :, :1])
        active &= (count < most) & (value > allowed * largest)
        active &= residual * value <= POWER_TOLERANCE * largest
        value = tf.where(active, value, 0.0)
        remaining -= value * tf.matmul(vector, vector, transpose_b=True)
        vector -= tf.matmul(basis, tf.matmul(basis, vector, transpose_a=True))
        vector = tf.where(active, vector / _norm(vector), 0.0)
        column = tf.one_hot(count, most, dtype=tf.float64)
        return count + 1, active, remaining, values + value * column, basis + vector * column, level

    zero = tf.zeros_like(matrices[:, :, :most])
    start = (tf.constant(0), tf.equal(zero[:, :1, :1], 0), matrices, zero[:, :1], zero, zero[:, :1, :1])
    *_, values, basis, level = tf.while_loop(lambda _, active, *__: tf.reduce_any(active), advance, start)
    # G - sum lambda v v^T would leave rounding of the size u * lambda_max between v and the small eigenvectors, which
    # the residual multiplies to u^2 * condition^3: 100 at 1e12. Projecting from both sides, and once more from what is
    # left, makes v an eigenvector to the rounding of what is left.
    for _ in range(2):
        matrices -= tf.matmul(basis, tf.matmul(basis, matrices, transpose_a=True))
        matrices -= tf.matmul(tf.matmul(matrices, basis), basis, transpose_b=True)
    matrices = _symmetric(matrices + level * tf.matmul(basis, basis, transpose_b=True))
    return matrices, values, basis, level


def correct(roots: tf.Tensor, p: int, values: tf.Tensor, vectors: tf.Tensor, level: tf.Tensor) -> tf.Tensor:
    """Returns the roots of the matrices before `project` from the roots [N, n, n] of the lowered ones (PSO App. E)."""
    change = tf.where(values > 0, _to_the(values, -1 / p) - _to_the(level, -1 / p), 0.0)
    return roots + tf.matmul(vectors * change, vectors, transpose_b=True)


def cold_start(matrices: tf.Tensor, p: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns X and M of the start from a multiple of I: with z = (1 + p) / (2 |G|_F), X = z^(1/p) I and M = z G.

    All eigenvalues of M are then in (0, (p + 1) / 2], where the iteration converges (Guo & Higham 2006). Each iteration
    multiplies the smallest by ((p + 1) / p)^p >= 2: 40 + log2(n), and fewer than 10 more, do for a condition of 1e12.
    """
    scale = (1 + p) / (2 * _norm(matrices))
    return _to_the(scale, 1 / p) * tf.eye(matrices.shape[-1], dtype=tf.float64), scale * matrices


def skewness(products: tf.Tensor) -> tf.Tensor:
    """Computes |M - M^T|, Frobenius [N, 1, 1]: 0 where the start commutes; a root's residual was 8 times it or more."""
    return _norm(products - tf.linalg.matrix_transpose(products))


def coupled_roots(
    matrices: tf.Tensor,
    p: int,
    *,
    previous: tf.Tensor | None = None,
    previous_conditions: tf.Tensor | None = None,
    most_skewed: float = math.inf,
) -> Iterate:
    """Computes something like ``matrices^(-1/p)``, float64 [N, n, n] (PSO Alg. I, COUPLEDITERATION); not certified.

    A warm start is from the roots of earlier matrices, ``previous``, and is given up before its first iteration where
    `skewness` is above ``most_skewed``. Without ``previous_conditions`` [N], those of the earlier matrices, no
    eigenvalue is lowered.
    """
    projected = None
    if previous_conditions is not None and matrices.shape[-1] > 1:
        matrices, *projected = project(matrices, previous_conditions)
    if previous is None:
        roots, products = cold_start(matrices, p)
    else:
        roots, products = previous, tf.matmul(_power(previous, p), matrices)
        products = tf.where(skewness(products) <= most_skewed, products, math.nan)
    roots, error, iterations = _iterate(roots, products, p)
    if projected is None:
        return Iterate(roots, error, iterations, tf.zeros_like(iterations))
    count = tf.math.count_nonzero(projected[0], axis=[1, 2], dtype=tf.int32)
    return Iterate(correct(roots, p, *projected), error, iterations, count)


def _iterate(roots: tf.Tensor, products: tf.Tensor, p: int) -> tuple[tf.Tensor, ...]:
    """Returns the first three parts of an `Iterate` from X and M = X^p G, once no matrix of the batch improves.

    The error stays near 1 until the smallest eigenvalue of M has arrived, and may grow in between; only where
    convergence is quadratic does a lack of improvement mean rounding, and the end. The largest entry of M - I, by
    which PT 3.2 stops, hides an eigenvalue of 0 among many.
    """
    identity = tf.eye(products.shape[-1], dtype=tf.float64)
    first, order = (p + 1) * identity, tf.constant(p, tf.float64)
    zero, half, quadratic, infinity = (tf.constant(x, tf.float64) for x in (0.0, 0.5, _QUADRATIC, math.inf))

    def limits_of(errors: tf.Tensor, limits: tf.Tensor) -> tf.Tensor:
        # What the next errors must be below; 0 where the iteration has ended. NaN is below nothing.
        return tf.where(errors < half * limits, tf.where(errors < quadratic, errors, infinity), zero)

    def advance(step: tf.Tensor, limits: tf.Tensor, roots: tf.Tensor, products: tf.Tensor) -> tuple[Any, ...]:
        factors = (first - products) / order
        new_products = tf.matmul(_power(factors, p), products)
        errors = _norm(new_products - identity)
        better = errors < limits
        roots = tf.where(better, tf.matmul(roots, factors), roots)
        products = tf.where(better, new_products, products)
        return step + 1, limits_of(errors, limits), roots, products

    start = (tf.constant(0), limits_of(_norm(products - identity), infinity), roots, products)
    step, _, roots, products = tf.while_loop(
        lambda step, limits, *_: (step < MAX_ITERATIONS) & (tf.reduce_max(limits) > zero), advance, start
    )
    errors = _norm(products - identity)[:, 0, 0]
    # A start that never improved, or ended in overflow before it converged, is no result.
    return _symmetric(roots), tf.where(errors < quadratic, errors, infinity), tf.fill(tf.shape(errors), step)


def coupled_root(
    matrix: FloatArray,
    p: int,
    *,
    previous: FloatArray | None = None,
    previous_condition: float | None = None,
    most_skewed: float = math.inf,
) -> Iterate:
    """Computes `coupled_roots` of one NumPy matrix [n, n], eagerly on the CPU; safe in threads."""
    with tf.device("CPU:0"):
        one, roots, conditions = (
            None if array is None else tf.constant(np.asarray(array)[np.newaxis], tf.float64)
            for array in (matrix, previous, previous_condition)
        )
        end = coupled_roots(one, p, previous=roots, previous_conditions=conditions, most_skewed=most_skewed)
    return Iterate(*(part.numpy()[0] for part in end))


def inverse_roots(
    matrices: tf.Tensor, p: int, epsilon: float, *, absolute: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes ``(A + epsilon * lambda_max(A) * I)^(-1/p)`` of float64 [N, n, n], and the true residuals [N].

    With ``absolute``, epsilon itself is added. From a cold start, which cannot go wrong silently, and without a shift
    for negative eigenvalues, by which the iteration diverges. The caller must check that residuals, those of
    `roots.root_residual`, are small: they are inf, and the root all zero, where the damped matrix is zero or not
    finite, or the iteration diverged.
    """
    identity = tf.eye(matrices.shape[-1], dtype=tf.float64)
    largest = tf.reduce_max(tf.abs(matrices), axis=[1, 2], keepdims=True)
    # An absolute damping alone has a root. A comparison, unlike arithmetic, keeps NaN out.
    floor = epsilon if absolute else 0.0
    usable = (largest + floor > 0) & tf.reduce_all(tf.math.is_finite(matrices), axis=[1, 2], keepdims=True)
    scale = tf.where(usable & (largest > 0), largest, floor or 1.0)
    scaled = _symmetric(tf.where(usable, matrices / scale, identity))
    damping = epsilon / scale if absolute else epsilon * largest_eigenpair(scaled, _MANY_STEPS)[0]
    damped = scaled + damping * identity

    roots = coupled_roots(damped, p).root
    products = tf.matmul(damped, roots)
    if p > 1:
        half = _power(roots, p // 2)
        products = tf.matmul(half, tf.matmul(damped, half))
        products = tf.matmul(products, roots) if p % 2 else products
    residual = _norm(products - identity)
    roots *= _to_the(scale, -1 / p)
    usable &= tf.math.is_finite(residual)
    usable &= tf.reduce_all(tf.math.is_finite(roots), axis=[1, 2], keepdims=True)
    return tf.where(usable, roots, 0.0), tf.where(usable, residual, math.inf)[:, 0, 0]


def _power(matrices: tf.Tensor, p: int) -> tf.Tensor:
    if p == 1:
        return matrices
    half = _power(matrices, p // 2)
    square = tf.matmul(half, half)
    return tf.matmul(square, matrices) if p % 2 else square


def _norm(matrices: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(tf.reduce_sum(tf.square(matrices), axis=[1, 2], keepdims=True))


def _symmetric(matrices: tf.Tensor) -> tf.Tensor:
    return (matrices + tf.linalg.matrix_transpose(matrices)) / 2


def _to_the(values: tf.Tensor, exponent: float) -> tf.Tensor:
    return tf.pow(values, tf.constant(exponent, tf.float64))
