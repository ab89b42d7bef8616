"""Eigenvalue correction: second moments in Shampoo's eigenbases (PSO App. C; SOAP; EK-FAC).

Shampoo divides by L^e (x) R^e = (U (x) V) (D (x) D')^e (U (x) V)^T. The optimal diagonal in these bases is not D (x)
D' but the second moments there (PSO App. C, the last two displays)::

    V += (U^T G V)^2                     summed, beta2 = 1; else V = beta2 V + (1 - beta2) (U^T G V)^2
    P = U ((U^T G V) / V^(1/2)) V^T

which is AdaGrad or Adam in rotated coordinates. The bases are eigenvectors of the statistics L and R; they come from
the host as roots do, each with a certificate. Until then a basis is the identity, and second moments are collected in
it.

An average of gradients (beta1) is stored as U^T M V and rotated when the bases change, unless a grafted step needs M
itself (``ShampooOptions.averages_in_bases``).

**When a basis changes** from U to U', second moments are projected into it, as if their matrix were diagonal in the old
bases::

    V' = P V Q^T,    P = (U'^T U)^2, Q = (V'^T V)^2    element by element

P and Q are doubly stochastic: no second moment becomes negative, and their sum stays.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import tensorflow as tf

from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.roots import (
    TOLERANCE,
    FloatArray,
    Root,
    RootError,
    by_either_triangle,
    decompose,
    extremes,
    scale_symmetric,
)

_CERTIFIED_ABOVE = 1e-8
"""Share of the largest eigenvalue that smaller eigenvalues count as when their eigenvectors are certified."""


def decomposition_residual(matrix: FloatArray, values: FloatArray, vectors: FloatArray) -> float:
    """Computes the bound s of roots.py for X = Q diag(values^(-1/2)) Q^T as an approximate A^(-1/2).

    It certifies Q, whatever X is used for. With E = A Q - Q Lambda and D = Q^T Q - I,

        W = Lambda^(-1/2) (Q^T E + D Lambda) Lambda^(-1/2) = Lambda^(-1/2) Q^T A Q Lambda^(-1/2) - I

    compares A with Q^-T Lambda Q^-1 as S does there. Where Q is not quite orthogonal, d = |Lambda^(-1/2) D
    Lambda^(1/2)| is added, before and after the power. So s = |W| + 3 d, to first order in D; inf if not finite.
    """
    with np.errstate(all="ignore"):
        error = matrix @ vectors - vectors * values
        skew = vectors.T @ vectors - np.eye(len(values))
        scale = np.sqrt(values)
        relative = (vectors.T @ error + skew * values) / np.outer(scale, scale)
        skewed = float(np.linalg.norm(skew * scale / scale[:, np.newaxis]))
        residual = float(np.linalg.norm(relative)) + skewed * 3
    return residual if np.isfinite(residual) else np.inf


def eigenbasis(matrix: FloatArray) -> Root:
    """Computes the eigenvectors of A, float64 [n, n], in columns by ascending eigenvalue, with a certificate.

    The residual is ``decomposition_residual`` of A damped by 1e-8 of its largest eigenvalue.

    Raises:
        RootError: A is not a finite square matrix, is zero or indefinite, or LAPACK's result is not accurate enough.
    """
    scaled, doublings = scale_symmetric(matrix)

    def basis_by(triangle: Literal["L", "U"]) -> Root:
        values, vectors = decompose(scaled, triangle)
        lowest, highest = float(values[0]), float(values[-1])
        damping = _CERTIFIED_ABOVE * highest + max(-lowest, 0.0)
        damped = scaled + damping * np.eye(len(scaled))
        residual = decomposition_residual(damped, values + damping, vectors)
        if not residual <= TOLERANCE:
            raise RootError(f"residual {residual:.2g} above {TOLERANCE:.2g}")
        condition = (highest + damping) / (lowest + damping)
        return Root(vectors, residual, condition, extremes(lowest, highest, doublings))

    return by_either_triangle(basis_by, "no eigenbasis")


def changes_of_bases(old: Sequence[tf.Tensor], new: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Computes U'^T U, [N, d, d], for each axis, which rotates averages into new bases; its square projects moments."""
    return [tf.matmul(after, before, transpose_a=True) for before, after in zip(old, new, strict=True)]


def correct(
    options: ShampooOptions,
    moments: tf.Tensor,
    rotated: tf.Tensor,
    correction: tf.Tensor | float,
    weights: tf.Tensor | float,
) -> tf.Tensor:
    """Computes the direction G / (V^e + d) in the eigenbases, of blocks [N, *block].

    G is ``rotated`` (the gradient or its average) / ``weights``, V is ``moments`` / ``correction``; both divisors are
    scalars. d is epsilon, or with relative damping epsilon times the block's largest V^e.
    """
    exponent, dtype = options.correction_exponent, rotated.dtype
    correction, weights = tf.cast(correction, dtype), tf.cast(weights, dtype)
    # Both numbers in one pass over the block.
    if exponent == 0.5:
        powers = tf.sqrt(moments * (tf.square(weights) / correction))
    else:
        powers = weights * tf.pow(moments / correction, tf.constant(exponent, dtype))
    scale = weights
    if options.roots.damping == "relative":
        scale = tf.reduce_max(powers, axis=list(range(1, len(powers.shape))), keepdims=True)
    damping = options.epsilon * scale
    return tf.math.divide_no_nan(rotated, powers + damping)
