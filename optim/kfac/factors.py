"""K-FAC for linear products, as pure functions (THESIS 3; BACKPACK eq. 28-29).

For a layer z = a W + b, with a' = (a, 1) where it has a bias and X = (W; b), the Fisher information of X is taken
for the Kronecker product of (eq. 3.5)::

    A = E[a' a'^T],    G = E[g g^T],    g = grad_z log p(y | x)

and the step is, with vec(B X A^T) = (A (x) B) vec(X) (eq. 3.3), A^-1 grad_X L G^-1, damped by lambda I (eq. 3.1)
approximately, by the product of two inverses (eq. 3.2), where pi^2 is the mean eigenvalue of A over that of G::

    (A + pi sqrt(lambda) I)^-1 grad (G + sqrt(lambda) / pi I)^-1,    pi^2 = (tr A / dim A) / (tr G / dim G)
"""

from typing import NamedTuple

import tensorflow as tf

_LEAST_DAMPING = 1e-12


class Factors(NamedTuple):
    """A [in', in'] and G [units, units] of one product."""

    inputs: tf.Tensor
    outputs: tf.Tensor


def chosen_rows(rows: int | tf.Tensor, most: int) -> tf.Tensor:
    """Returns the indices of every n-th of ``rows`` rows, int32, ascending: at least ``most`` of them if there are."""
    stride = max(rows // most, 1) if isinstance(rows, int) else tf.maximum(rows // most, 1)
    return tf.range(0, rows, stride)


def factors(inputs: tf.Tensor, gradients: tf.Tensor, has_bias: bool) -> Factors:
    """Sums a' a'^T and g g^T over the rows of a [B, in] and g [B, units] (eq. 3.5, but for their number)."""
    extended = tf.concat([inputs, tf.ones_like(inputs[:, :1])], axis=1) if has_bias else inputs
    return Factors(*(tf.matmul(rows, rows, transpose_a=True) for rows in (extended, gradients)))


def mean_eigenvalue(matrix: tf.Tensor) -> tf.Tensor:
    """Computes tr / dim of [n, n], scalar."""
    return tf.linalg.trace(matrix) / tf.cast(tf.shape(matrix)[0], matrix.dtype)


def pi(found: Factors) -> tf.Tensor:
    """Computes the pi of eq. 3.2, scalar; 1 where a factor is zero."""
    inputs, outputs = mean_eigenvalue(found.inputs), mean_eigenvalue(found.outputs)
    defined = (inputs > 0) & (outputs > 0)
    return tf.where(defined, tf.sqrt(tf.math.divide_no_nan(inputs, outputs)), tf.ones_like(inputs))


def whole_damping(found: Factors, damping: float) -> tf.Tensor:
    """Computes lambda, scalar: a share of the mean eigenvalue of A (x) G."""
    scale = mean_eigenvalue(found.inputs) * mean_eigenvalue(found.outputs)
    # Below that, a decomposition in float64 could fail.
    return tf.constant(max(damping, _LEAST_DAMPING), scale.dtype) * scale


def damped_inverses(found: Factors, damping: tf.Tensor) -> Factors:
    """Computes (A + pi sqrt(lambda) I)^-1 and (G + sqrt(lambda) / pi I)^-1 by Cholesky, of their shapes (eq. 3.2)."""
    root, ratio = tf.sqrt(damping), pi(found)
    return Factors(_inverse(found.inputs, root * ratio), _inverse(found.outputs, root / ratio))


def _inverse(matrix: tf.Tensor, damping: tf.Tensor) -> tf.Tensor:
    identity = tf.eye(matrix.shape[0], dtype=matrix.dtype)
    cholesky = tf.linalg.cholesky(matrix + damping * identity)
    return tf.linalg.cholesky_solve(cholesky, identity)


def precondition(inverses: Factors, gradient: tf.Tensor) -> tf.Tensor:
    """Computes A^-1 grad G^-1 of a gradient [in', units]."""
    return tf.matmul(inverses.inputs, tf.matmul(gradient, inverses.outputs))
