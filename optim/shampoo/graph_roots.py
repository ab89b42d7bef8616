"""Inverse p-th roots inside the graph, where no host thread can compute them: PSO App. E's cold iteration.

Without eigendecompositions (XLA:CPU's take 30 times LAPACK's time), so that it compiles under XLA. Unlike in
`ctr.optim.shampoo.roots`, lambda_max is a power iteration's, and there is no shift for negative eigenvalues: one that
damping does not lift above 0 makes the iteration diverge, and the residual say so.
"""

import tensorflow as tf

# Squarings of the matrix for lambda_max: a power iteration of 2^12 steps in 12 products. It errs from below: by
# about log(n) / 2^13 at worst, where eigenvalues crowd that near to the largest; mostly by rounding.
_SQUARINGS = 12
_QUADRATIC = 0.1
_DONE = 1e-15


def inverse_roots(
    matrices: tf.Tensor, p: int, epsilon: float, max_iterations: int = 100, absolute: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes ``(A + epsilon * lambda_max(A) * I)^(-1/p)`` of float64 [N, n, n], and the true residuals [N].

    A cold start cannot go wrong silently (see `coupled`); 100 iterations reach a condition of 1e12 and far
    beyond. With ``absolute``, epsilon itself is added. Residuals are those of `roots.root_residual`: inf,
    and the root all zero, where the damped matrix is zero or not finite, or the iteration diverged. The caller must
    check that a residual is small.
    """
    size = matrices.shape[-1]
    identity = tf.eye(size, dtype=tf.float64)
    largest = tf.reduce_max(tf.abs(matrices), axis=[1, 2], keepdims=True)
    # An absolute damping alone has a root. A comparison, unlike arithmetic, keeps NaN out; infinity is no number that
    # the matrix may have, either.
    floor = epsilon if absolute else 0.0
    usable = (largest + floor > 0) & tf.reduce_all(tf.math.is_finite(matrices), axis=[1, 2], keepdims=True)
    scale = tf.where(
        usable & (largest > 0), largest, tf.fill(tf.shape(largest), tf.constant(floor or 1.0, tf.float64))
    )
    scaled = tf.where(usable, matrices / scale, identity)
    scaled = (scaled + tf.linalg.matrix_transpose(scaled)) / 2
    damping = epsilon / scale if absolute else epsilon * _largest_eigenvalue(scaled)
    damped = scaled + damping * identity

    roots = _iterate(damped, p, max_iterations)
    residual = _residual(roots, damped, p)
    roots = roots * tf.pow(scale, tf.constant(-1 / p, tf.float64))
    usable = usable[:, 0, 0] & tf.math.is_finite(residual)
    usable &= tf.reduce_all(tf.math.is_finite(roots), axis=[1, 2])
    roots = tf.where(usable[:, tf.newaxis, tf.newaxis], roots, tf.zeros_like(roots))
    return roots, tf.where(
        usable, residual, tf.fill(tf.shape(residual), tf.constant(float("inf"), tf.float64))
    )


def _largest_eigenvalue(matrices: tf.Tensor) -> tf.Tensor:
    """Rayleigh quotients [N, 1, 1] of the vectors that many steps of power iteration lead to."""
    size = matrices.shape[-1]
    power = matrices
    for _ in range(_SQUARINGS):
        power /= tf.reduce_max(tf.abs(power), axis=[1, 2], keepdims=True)
        power = tf.matmul(power, power)
    # The start of `ctr.optim.shampoo.coupled.start_vector`.
    start = tf.cos(tf.range(1, size + 1, dtype=tf.float64) ** 2)
    vectors = tf.linalg.matvec(power, start)[:, :, tf.newaxis]
    images = tf.matmul(matrices, vectors)
    lengths = tf.reduce_sum(vectors**2, axis=1, keepdims=True)
    return tf.math.divide_no_nan(tf.reduce_sum(vectors * images, axis=1, keepdims=True), lengths)


def _iterate(matrices: tf.Tensor, p: int, max_iterations: int) -> tf.Tensor:
    identity = tf.eye(matrices.shape[-1], dtype=tf.float64)
    z = (1 + p) / (2 * tf.norm(matrices, axis=[1, 2], keepdims=True))
    products = z * matrices
    roots = tf.pow(z, tf.constant(1 / p, tf.float64)) * identity
    errors = _norm(products - identity)

    def proceed(step: tf.Tensor, active: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
        return (step < max_iterations) & tf.reduce_any(active)

    def advance(
        step: tf.Tensor, active: tf.Tensor, roots: tf.Tensor, products: tf.Tensor, errors: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        factors = ((p + 1) * identity - products) / p
        new_products = tf.matmul(_power(factors, p), products)
        new_errors = _norm(new_products - identity)
        # Before convergence is quadratic the error may grow, harmlessly; after that only by rounding.
        quadratic = errors < _QUADRATIC
        better = active & tf.math.is_finite(new_errors) & (~quadratic | (new_errors < errors))
        keep = better[:, tf.newaxis, tf.newaxis]
        roots = tf.where(keep, tf.matmul(roots, factors), roots)
        products = tf.where(keep, new_products, products)
        active = better & (new_errors > _DONE) & (~quadratic | (new_errors < errors / 2))
        return step + 1, active, roots, products, tf.where(better, new_errors, errors)

    start = (tf.constant(0), errors > _DONE, roots, products, errors)
    roots = tf.while_loop(proceed, advance, start)[2]
    return (roots + tf.linalg.matrix_transpose(roots)) / 2


def _residual(roots: tf.Tensor, matrices: tf.Tensor, p: int) -> tf.Tensor:
    if p == 1:
        products = tf.matmul(matrices, roots)
    else:
        half = _power(roots, p // 2)
        products = tf.matmul(half, tf.matmul(matrices, half))
        if p % 2:
            products = tf.matmul(products, roots)
    return _norm(products - tf.eye(matrices.shape[-1], dtype=tf.float64))


def _power(matrices: tf.Tensor, p: int) -> tf.Tensor:
    result = None
    while True:
        if p % 2:
            result = matrices if result is None else tf.matmul(result, matrices)
        p //= 2
        if not p:
            return result
        matrices = tf.matmul(matrices, matrices)


def _norm(matrices: tf.Tensor) -> tf.Tensor:
    return tf.norm(matrices, axis=[1, 2])
