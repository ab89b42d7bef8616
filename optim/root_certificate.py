"""Certificates of inverse roots: bounds on their error from true residuals.

For a positive definite X, say S = X^(p/2) A X^(p/2) - I and s = |S|_2 < 1. Then, in the order of positive
semidefinite matrices, (1 - s) X^-p <= A <= (1 + s) X^-p. Powers t^e with 0 < e <= 1 keep that order
(Löwner & Heinz), so with e = 1/p

    (1 + s)^-e X <= A^-e <= (1 - s)^-e X:

in every direction, those of the small eigenvalues included, X is right to a relative e s or so. Any matrix with the
eigenvalues of S and any norm not below the spectral one serve as an upper bound; X^p A - I has them, and the
symmetric form least rounding, the Frobenius norm.

Rounding of A already changes its small eigenvalues by u |A|_2, so no method brings s below about u * condition
(times up to n for the norm): 1e-9 at condition 1e6, 1e-3 at 1e12.
"""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def root_residual(root: FloatArray, matrix: FloatArray, p: int) -> float:
    """Computes |X^h A X^(p - h) - I|, Frobenius, h = p // 2: the bound s for X as an approximate ``matrix^(-1/p)``.

    X is float64 [n, n], symmetric and positive definite (`is_positive_definite`). The result is inf where something
    is not finite.
    """
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


def decomposition_residual(
    matrix: FloatArray, values: FloatArray, vectors: FloatArray, exponent: float
) -> float:
    """Computes the bound s for X = Q diag(values^-e) Q^T as an approximate ``matrix^-e``, 0 < e <= 1.

    For exponents e that are not 1/p, where no power of X undoes the root. (X^b A^a - I for an exponent a/b
    would, at the price of condition^a in rounding.) With E = A Q - Q Lambda and D = Q^T Q - I,

        W = Lambda^(-1/2) (Q^T E + D Lambda) Lambda^(-1/2) = Lambda^(-1/2) Q^T A Q Lambda^(-1/2) - I

    compares A with Q^-T Lambda Q^-1 as S does above. Where Q is not quite orthogonal that is not yet the
    matrix X is built from: with d = |Lambda^(-1/2) D Lambda^(1/2)| it costs d before the power, and d after
    it. So s = |W| + d (1 + 1 / e), to first order in D, which is rounding; inf where something is not finite.
    """
    with np.errstate(all="ignore"):
        error = matrix @ vectors - vectors * values
        skew = vectors.T @ vectors - np.eye(len(values))
        scale = np.sqrt(values)
        relative = (vectors.T @ error + skew * values) / np.outer(scale, scale)
        skewed = float(np.linalg.norm(skew * scale / scale[:, np.newaxis]))
        residual = float(np.linalg.norm(relative)) + skewed * (1 + 1 / exponent)
    return residual if np.isfinite(residual) else np.inf


def is_positive_definite(matrix: FloatArray) -> bool:
    """Tells whether a symmetric [n, n] is positive definite; even powers in a residual would hide that it is not."""
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return True
