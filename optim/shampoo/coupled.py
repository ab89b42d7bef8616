"""Inverse p-th roots by PSO Appendix E's coupled Newton iteration, batched, for steps that XLA compiles.

    M_1 = ((p + 1) I - M) / p        X <- X M_1        M <- M_1^p M

drives M = X^p G to I, and with it X to G^(-1/p). In float64 only: about log2(condition / p) bits are lost. A failure
of one matrix of a batch does not affect the others.

The iteration keeps M = X^p G only while X, M and G commute. It begins at a multiple of I, which does. The root of an
earlier matrix does not: M then reaches I to the last bit while the error of X is up to drift times condition, and
|M - I| cannot tell. So there is no warm start here, and nothing is a root until its true residual has been measured.
"""

import math
from typing import Any

import tensorflow as tf

# More iterations than this count as divergence.
MAX_ITERATIONS = 100
# PSO App. E stops the power iteration by the change of the eigenvalue; the residual is the vector's.
POWER_TOLERANCE = 1e-13
# Limit on power iterations to the lambda_max of a damping, which is then too small by log(n) / 8000 at worst.
MOST_STEPS = 4000
_PRODUCTS = 8
# |M - I| below which convergence is quadratic, so that an iteration that gains nothing has met rounding.
_QUADRATIC = 0.1


def largest_eigenvalues(matrices: tf.Tensor) -> tf.Tensor:
    """Computes Rayleigh quotients [N, 1, 1], at most lambda_max, of positive definite float64 [N, n, n].

    The power iteration (PSO Alg. I, MAXSV) stops when |G v - value v| / value is at most `POWER_TOLERANCE` in the
    whole batch, or after `MOST_STEPS`; each round, with squared matrices, has twice as many steps as the one before.
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
        return (taken < MOST_STEPS) & (tf.reduce_max(state[-1]) > POWER_TOLERANCE)

    zero = tf.zeros_like(matrices[:, :, :1])
    # A chirp has a share in every smooth and every alternating vector.
    chirp = tf.cos(tf.range(1, matrices.shape[-1] + 1, dtype=tf.float64)[:, tf.newaxis] ** 2)
    first = (zero[:, :1], zero + chirp / tf.norm(chirp), zero[:, :1] + math.inf)
    _, _, value, _, _ = tf.while_loop(proceed, advance, (tf.constant(0), matrices, *first))
    return value


def coupled_roots(matrices: tf.Tensor, p: int) -> tf.Tensor:
    """Computes an approximation of ``matrices^(-1/p)``, float64 [N, n, n], symmetric (PSO Alg. I, COUPLEDITERATION).

    The result is not certified: only its true residual shows divergence. With z = (1 + p) / (2 |G|_F) it begins
    at X = z^(1/p) I and M = z G: all eigenvalues of M are in (0, (p + 1) / 2], where the iteration converges (Guo &
    Higham 2006). Each iteration multiplies the smallest by ((p + 1) / p)^p >= 2: 40 + log2(n), and fewer than 10 more,
    suffice for a condition of 1e12. It stops once no matrix of the batch improves.

    The error stays near 1 until the smallest eigenvalue of M converges, and may grow in between; only where
    convergence is quadratic does a lack of improvement mean that rounding is reached. The largest entry of M - I, by
    which PT 3.2 stops, hides an eigenvalue of 0 among many.
    """
    identity = tf.eye(matrices.shape[-1], dtype=tf.float64)
    scale = (1 + p) / (2 * _norm(matrices))
    roots, products = _to_the(scale, 1 / p) * identity, scale * matrices
    first, order = (p + 1) * identity, tf.constant(p, tf.float64)
    zero, half, quadratic, infinity = (tf.constant(x, tf.float64) for x in (0.0, 0.5, _QUADRATIC, math.inf))

    def limits_of(errors: tf.Tensor, limits: tf.Tensor) -> tf.Tensor:
        # Bound on the next errors; 0 where the iteration has ended. NaN is below nothing.
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
    _, _, roots, _ = tf.while_loop(
        lambda step, limits, *_: (step < MAX_ITERATIONS) & (tf.reduce_max(limits) > zero), advance, start
    )
    return _symmetric(roots)


def inverse_roots(
    matrices: tf.Tensor, p: int, epsilon: float, *, absolute: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes ``(A + epsilon * lambda_max(A) * I)^(-1/p)`` of float64 [N, n, n], and the true residuals [N].

    With ``absolute``, epsilon itself is added. There is no shift for negative eigenvalues, for which the iteration
    diverges. The caller must check that residuals (see `roots.root_residual`) are small: they are inf, and the root
    all zero, where the damped matrix is zero or not finite, or the iteration diverged.
    """
    identity = tf.eye(matrices.shape[-1], dtype=tf.float64)
    largest = tf.reduce_max(tf.abs(matrices), axis=[1, 2], keepdims=True)
    # An absolute damping alone has a root. A comparison, unlike arithmetic, keeps NaN out.
    floor = epsilon if absolute else 0.0
    usable = (largest + floor > 0) & tf.reduce_all(tf.math.is_finite(matrices), axis=[1, 2], keepdims=True)
    scale = tf.where(usable & (largest > 0), largest, floor or 1.0)
    scaled = _symmetric(tf.where(usable, matrices / scale, identity))
    damping = epsilon / scale if absolute else epsilon * largest_eigenvalues(scaled)
    damped = scaled + damping * identity

    roots = coupled_roots(damped, p)
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
