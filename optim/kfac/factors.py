"""K-FAC for linear products, scales and shifts, as pure functions (THESIS 3; BACKPACK eq. 28-29).

For a layer z = a W + b, with a' = (a, 1) where it has a bias and X = (W; b), the Fisher information of X is
approximated by the Kronecker product of (eq. 3.5)::

    A = E[a' a'^T],    G = E[g g^T],    g = grad_z log p(y | x)

and the step is, with vec(B X A^T) = (A (x) B) vec(X) (eq. 3.3), A^-1 grad_X L G^-1. Its damping by lambda I (eq. 3.1)
is approximated by the product of two inverses (eq. 3.2), with pi^2 the ratio of the mean eigenvalues of A and G::

    (A + pi sqrt(lambda) I)^-1 grad (G + sqrt(lambda) / pi I)^-1,    pi^2 = (tr A / dim A) / (tr G / dim G)

A convolution at T positions has A = 1/T E[sum_t a'_t a'_t^T] and G = E[sum_t g_t g_t^T] (eq. 3.6-3.7; Grosse and
Martens, 2016). A normalization has the Fisher information F_i [2, 2] of the scale and shift of each unit i (eq. 3.10),
and the step (F_i + lambda I)^-1 grad_i.
"""

from typing import NamedTuple

import tensorflow as tf


class Factors(NamedTuple):
    """A [in', in'] and G [units, units] of one product."""

    inputs: tf.Tensor
    outputs: tf.Tensor


class Units(NamedTuple):
    """F [units, k, k] for the k parameters of a normalization: scale, shift or both."""

    fisher: tf.Tensor


def factors(inputs: tf.Tensor, gradients: tf.Tensor, has_bias: bool) -> Factors:
    """Averages over rows: a' a'^T of a [B, T, in], mean over positions, and g g^T of g [B, T, units], sum over them."""
    inputs = tf.concat([inputs, tf.ones_like(inputs[..., :1])], axis=-1) if has_bias else inputs
    rows, positions = tf.shape(gradients)[0], tf.size(gradients[..., 0])
    sides = [tf.reshape(side, [-1, side.shape[-1]]) for side in (inputs, gradients)]
    return Factors(
        *(
            tf.matmul(side, side, transpose_a=True) / tf.cast(count, side.dtype)
            for side, count in zip(sides, (positions, rows), strict=True)
        )
    )


def units(inputs: tf.Tensor, gradients: tf.Tensor, has_scale: bool, has_shift: bool) -> Units:
    """Averages F over the rows of normalized inputs a [B, T, units] and gradients g [B, T, units] (eq. 3.11)."""
    parts = [tf.reduce_sum(inputs * gradients, 1)] * has_scale + [tf.reduce_sum(gradients, 1)] * has_shift
    scores = tf.stack(parts, axis=2)
    return Units(tf.einsum("bui,buj->uij", scores, scores) / tf.cast(tf.shape(scores)[0], scores.dtype))


def mean_eigenvalue(matrices: tf.Tensor) -> tf.Tensor:
    """Computes tr / dim of matrices [..., n, n], averaged over all of them, scalar."""
    return tf.reduce_mean(tf.linalg.trace(matrices) / tf.cast(tf.shape(matrices)[-1], matrices.dtype))


def damped_inverses(matrices: Factors | Units, damping: tf.Tensor) -> Factors | Units:
    """Computes (A + pi sqrt(lambda) I)^-1 and (G + sqrt(lambda) / pi I)^-1, or (F + lambda I)^-1; shapes stay."""
    if isinstance(matrices, Units):
        return Units(inverse(matrices.fisher, damping))
    inputs, outputs = mean_eigenvalue(matrices.inputs), mean_eigenvalue(matrices.outputs)
    # pi is 1 where a factor is zero.
    defined = (inputs > 0) & (outputs > 0)
    ratio = tf.where(defined, tf.sqrt(tf.math.divide_no_nan(inputs, outputs)), tf.ones_like(inputs))
    root = tf.sqrt(damping)
    return Factors(inverse(matrices.inputs, root * ratio), inverse(matrices.outputs, root / ratio))


def inverse(matrices: tf.Tensor, damping: tf.Tensor) -> tf.Tensor:
    """Computes (M + damping I)^-1 of positive semi-definite [..., n, n] by Cholesky."""
    identity = tf.eye(matrices.shape[-1], dtype=matrices.dtype)
    cholesky = tf.linalg.cholesky(matrices + damping * identity)
    return tf.linalg.cholesky_solve(cholesky, tf.broadcast_to(identity, tf.shape(matrices)))


def precondition(inverses: Factors | Units, gradient: tf.Tensor) -> tf.Tensor:
    """Computes A^-1 grad G^-1 for a gradient [in', units], or F^-1 grad for a gradient [units, k]."""
    if isinstance(inverses, Units):
        return tf.linalg.matvec(inverses.fisher, gradient)
    return tf.matmul(inverses.inputs, tf.matmul(gradient, inverses.outputs))
