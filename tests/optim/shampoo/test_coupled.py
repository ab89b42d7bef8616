"""The coupled iteration, eager and under XLA: known spectra, roots of NumPy, and its traps."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.optim.shampoo.coupled import inverse_roots
from ctr.optim.shampoo.roots import inverse_root, root_residual
from shampoo_reference import matrix_of


def scales_and_spectra(size):
    """Spectra that need different numbers of iterations, of different scales."""
    return np.stack(
        [
            matrix_of(np.ones(size), 0)[0],
            1e-30 * matrix_of(np.geomspace(1, 1e-3, size), 1)[0],
            1e30 * matrix_of(np.r_[1.0, np.full(size - 1, 1e-9)], 2)[0],
            matrix_of(np.r_[np.geomspace(1, 1e-2, size - size // 2), np.zeros(size // 2)], 3)[0],
            matrix_of(np.r_[1.0, 1.0, np.geomspace(1e-4, 1e-12, size - 2)], 4)[0],
        ]
    )


@pytest.mark.parametrize("p", [1, 3, 4, 8])
def test_roots_and_residuals_are_those_of_numpy(p):
    matrices = scales_and_spectra(16)
    roots, residuals = inverse_roots(tf.constant(matrices), p, 1e-6)
    assert roots.dtype == residuals.dtype == tf.float64
    for matrix, root, residual in zip(matrices, roots.numpy(), residuals.numpy(), strict=True):
        expected = inverse_root(matrix, p, epsilon=1e-6)
        scale = np.max(np.abs(expected.matrix))
        np.testing.assert_allclose(root, expected.matrix, atol=1e-8 * scale, rtol=0)
        np.testing.assert_array_equal(root, root.T)
        assert residual < 1e-7
        largest = np.linalg.eigvalsh(matrix)[-1]
        damped = matrix + 1e-6 * largest * np.eye(16)
        assert residual == pytest.approx(root_residual(root, damped, p), rel=0.5, abs=1e-8)


def test_what_has_no_root_is_zero_with_an_infinite_residual_and_spoils_no_other():
    good = matrix_of(np.geomspace(1, 1e-3, 8))[0]
    spoiled, infinite = good.copy(), good.copy()
    spoiled[3, 4] = np.nan
    infinite[0, 0] = np.inf
    indefinite = matrix_of(np.r_[1.0, np.full(6, 0.5), -0.1])[0]
    slow = matrix_of(np.r_[1.0, np.full(7, 1e-9)])[0]
    matrices = np.stack([good, np.zeros((8, 8)), spoiled, infinite, indefinite, slow])
    roots, residuals = inverse_roots(tf.constant(matrices), 4, 1e-6)
    among_equals, _ = inverse_roots(tf.constant(np.stack([good] * 6)), 4, 1e-6)
    np.testing.assert_array_equal(roots[0], among_equals[0])
    assert residuals[0] < 1e-10 and residuals[5] < 1e-7
    assert np.isinf(residuals[1:4]).all()
    assert not residuals[4] < 1
    assert not roots.numpy()[1:4].any()
    assert np.isfinite(roots).all()


def test_zeros_have_the_root_of_an_absolute_damping():
    matrices = tf.constant(np.stack([np.zeros((3, 3)), np.full((3, 3), np.nan), np.eye(3)]))
    roots, residuals = inverse_roots(matrices, 4, 1e-4, absolute=True)
    np.testing.assert_allclose(roots[0], 10.0 * np.eye(3), rtol=1e-14)
    np.testing.assert_allclose(roots[2], (1 + 1e-4) ** -0.25 * np.eye(3), rtol=1e-14)
    assert residuals[0] < 1e-12 and residuals[2] < 1e-12
    assert np.isinf(residuals[1]) and not roots[1].numpy().any()
    roots, residuals = inverse_roots(tf.constant([[[16.0]]], tf.float64), 4, 0.0)
    assert float(roots[0, 0, 0]) == pytest.approx(0.5) and residuals[0] < 1e-15


@pytest.mark.slow
def test_xla_computes_the_same():
    matrices = scales_and_spectra(16)
    matrices = tf.constant(np.concatenate([matrices, 0 * matrices[:1], np.nan * matrices[:1]]))
    compiled = tf.function(inverse_roots, jit_compile=True)
    for p, absolute in ((4, False), (3, True)):
        expected, expected_residuals = inverse_roots(matrices[1:], p, 1e-6, absolute=absolute)
        roots, residuals = compiled(matrices[1:], p, 1e-6, absolute=absolute)
        for root, other in zip(roots, expected, strict=True):
            np.testing.assert_allclose(root, other, rtol=0, atol=1e-8 * np.abs(other).max())
        np.testing.assert_allclose(residuals, expected_residuals, rtol=0, atol=1e-7)
