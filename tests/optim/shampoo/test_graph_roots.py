"""Roots inside the graph against those of NumPy, with and without XLA."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.optim.shampoo.graph_roots import inverse_roots
from ctr.optim.shampoo.roots import inverse_root, root_residual


def matrix_of(values, seed=0):
    basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values), len(values))))[0]
    matrix = (basis * values) @ basis.T
    return (matrix + matrix.T) / 2


def compiled(p, epsilon, jit, **options):
    return tf.function(lambda matrices: inverse_roots(matrices, p, epsilon, **options), jit_compile=jit)


def batch(size):
    """Spectra that need different numbers of iterations, of different scales."""
    return np.stack(
        [
            matrix_of(np.ones(size), 0),
            1e-30 * matrix_of(np.geomspace(1, 1e-3, size), 1),
            1e30 * matrix_of(np.r_[1.0, np.full(size - 1, 1e-9)], 2),
            matrix_of(np.r_[np.geomspace(1, 1e-2, size - size // 2), np.zeros(size // 2)], 3),
            matrix_of(np.r_[1.0, 1.0, np.geomspace(1e-4, 1e-12, size - 2)], 4),
        ]
    )


@pytest.mark.slow(first=4)
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 6, 8])
def test_roots_and_residuals_are_those_of_numpy(p, jit):
    matrices = batch(16)
    roots, residuals = compiled(p, 1e-6, jit)(tf.constant(matrices))
    assert roots.dtype == residuals.dtype == tf.float64
    for matrix, root, residual in zip(matrices, roots.numpy(), residuals.numpy(), strict=True):
        expected = inverse_root(matrix, 1 / p, epsilon=1e-6)
        scale = np.max(np.abs(expected.matrix))
        np.testing.assert_allclose(root, expected.matrix, atol=1e-8 * scale, rtol=0)
        np.testing.assert_array_equal(root, root.T)
        assert residual < 1e-7
        largest = np.linalg.eigvalsh(matrix)[-1]
        damped = matrix + 1e-6 * largest * np.eye(16)
        assert residual == pytest.approx(root_residual(root, damped, p), rel=0.5, abs=1e-8)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("condition", [1e6, 1e12])
def test_large_ill_conditioned_roots(condition, jit):
    matrix = matrix_of(np.geomspace(1, 1 / condition, 128))
    roots, residuals = compiled(4, 0.0, jit)(tf.constant(matrix[np.newaxis]))
    expected = inverse_root(matrix, 0.25, epsilon=0.0)
    assert residuals[0] < 4 * expected.residual
    scale = np.max(np.abs(expected.matrix))
    np.testing.assert_allclose(roots[0], expected.matrix, atol=condition * 1e-15 * scale, rtol=0)


@pytest.mark.parametrize("jit", [False, True])
def test_what_has_no_root_is_zero_with_an_infinite_residual_and_spoils_no_other(jit):
    good = matrix_of(np.geomspace(1, 1e-3, 8))
    spoiled = good.copy()
    spoiled[3, 4] = np.nan
    infinite = good.copy()
    infinite[0, 0] = np.inf
    indefinite = matrix_of(np.r_[1.0, np.full(6, 0.5), -0.1])
    matrices = np.stack([good, np.zeros((8, 8)), spoiled, infinite, indefinite])
    roots, residuals = compiled(4, 1e-6, jit)(tf.constant(matrices))
    alone, alone_residual = compiled(4, 1e-6, jit)(tf.constant(good[np.newaxis]))
    np.testing.assert_allclose(roots[0], alone[0], rtol=1e-12)
    assert residuals[0] < 1e-10 and alone_residual[0] < 1e-10
    assert np.isinf(residuals[1:4]).all()
    assert not residuals[4] < 1
    assert not roots.numpy()[1:4].any()
    assert np.isfinite(roots).all()


@pytest.mark.parametrize("jit", [False, True])
def test_zeros_have_the_root_of_an_absolute_damping(jit):
    root = tf.function(lambda a: inverse_roots(a, 4, 1e-4, absolute=True), jit_compile=jit)
    spoiled = np.full((3, 3), np.nan)
    roots, residuals = root(tf.constant(np.stack([np.zeros((3, 3)), spoiled, np.eye(3)])))
    np.testing.assert_allclose(roots[0], 10.0 * np.eye(3), rtol=1e-14)
    np.testing.assert_allclose(roots[2], (1 + 1e-4) ** -0.25 * np.eye(3), rtol=1e-14)
    assert residuals[0] < 1e-12 and residuals[2] < 1e-12
    assert np.isinf(residuals[1]) and not roots[1].numpy().any()


def test_too_few_iterations_show_in_the_residual():
    matrix = matrix_of(np.geomspace(1, 1e-6, 8))
    for iterations, enough in ((5, False), (40, True)):
        residual = compiled(4, 0.0, False, max_iterations=iterations)(tf.constant(matrix[np.newaxis]))[1]
        assert (residual[0] < 1e-8) == enough


@pytest.mark.parametrize("jit", [False, True])
def test_damping_is_relative_to_the_largest_eigenvalue(jit):
    matrices = np.stack([matrix_of(np.r_[8.0, np.full(15, 2.0)]), 3 * np.eye(16)])
    roots = compiled(2, 0.125, jit)(tf.constant(matrices))[0]
    np.testing.assert_allclose(roots[0], matrix_of(np.r_[9.0, np.full(15, 3.0)] ** -0.5), atol=1e-13)
    np.testing.assert_allclose(roots[1], np.eye(16) / np.sqrt(3.375), atol=1e-13)


def test_one_by_one_and_an_empty_batch():
    roots, residuals = compiled(4, 0.0, True)(tf.constant([[[16.0]]], tf.float64))
    assert float(roots[0, 0, 0]) == pytest.approx(0.5) and residuals[0] < 1e-15
    assert compiled(4, 0.0, False)(tf.zeros([0, 4, 4], tf.float64))[0].shape == (0, 4, 4)
