"""Eigenbases and the second moments in them: what they are, and what becomes of them when a basis changes."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.optim.shampoo.blocks import multiply_axes
from ctr.optim.shampoo.eigenbasis import changes_of_bases, decomposition_residual, eigenbasis
from ctr.optim.shampoo.roots import RootError
from shampoo_reference import matrix_of, orthogonal, relative_error


def bases(seed, shape):
    return [orthogonal(size, [seed, axis])[np.newaxis] for axis, size in enumerate(shape)]


@settings(max_examples=25)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 1000))
def test_averages_and_moments_follow_a_change_of_bases(shape, seed):
    """Moments by brute force: of the matrix over vec(G) that is diagonal in the old bases."""
    rng, axes = np.random.default_rng(seed), range(len(shape))
    old, new = bases(seed, shape), bases(seed + 1, shape)
    average, moments = rng.normal(size=(1, *shape)), rng.uniform(size=(1, *shape))
    kept = multiply_axes(tf.constant(average), axes, old, transposed=True)
    assert np.linalg.norm(kept) == pytest.approx(np.linalg.norm(average))
    np.testing.assert_allclose(multiply_axes(kept, axes, old), average, atol=1e-12)
    changes = changes_of_bases(old, new)
    turned, expected = multiply_axes(kept, axes, changes), multiply_axes(average, axes, new, transposed=True)
    np.testing.assert_allclose(turned, expected, atol=1e-12)
    whole_old, whole_new = np.eye(1), np.eye(1)
    for before, after in zip(old, new, strict=True):
        whole_old, whole_new = np.kron(whole_old, before[0]), np.kron(whole_new, after[0])
    np.testing.assert_allclose(np.ravel(kept), whole_old.T @ average.ravel(), atol=1e-12)
    matrix = whole_old @ np.diag(moments.ravel()) @ whole_old.T
    found = multiply_axes(moments, axes, [tf.square(change) for change in changes]).numpy()
    np.testing.assert_allclose(found.ravel(), np.diag(whole_new.T @ matrix @ whole_new), rtol=1e-10)
    assert found.min() >= 0 and found.sum() == pytest.approx(moments.sum())


@pytest.mark.parametrize("condition", [1.0, 1e6, 1e16])
def test_a_basis_diagonalizes_its_matrix(condition):
    matrix, _ = matrix_of(1e5 * np.geomspace(1, 1 / condition, 12))
    found = eigenbasis(matrix)
    assert found.residual < 1e-6
    diagonal = found.matrix.T @ matrix @ found.matrix
    np.testing.assert_allclose(diagonal, np.diag(np.diag(diagonal)), atol=1e-9)
    assert (np.diff(np.diag(diagonal)) >= -1e-9).all()


def test_a_basis_that_is_none_is_not_certified(monkeypatch):
    monkeypatch.setattr(
        np.linalg, "eigh", lambda matrix, **_: (np.linalg.eigvalsh(matrix), np.eye(len(matrix)))
    )
    with pytest.raises(RootError, match=r"eigh\(L\): residual .* above 0.02; eigh\(U\)"):
        eigenbasis(np.array([[2.0, 1.0], [1.0, 3.0]]))


def test_the_residual_of_a_decomposition_bounds_its_error():
    rng = np.random.default_rng(0)
    values = np.geomspace(1, 1e-4, 12)
    matrix, basis = matrix_of(values)
    for size in (1e-8, 1e-5, 1e-4):
        # Neither the vectors nor their orthogonality are right.
        vectors = basis + size * 1e-3 * rng.standard_normal((12, 12))
        moved = values * (1 + size * rng.standard_normal(12))
        residual = decomposition_residual(matrix, moved, vectors)
        root = (vectors * moved**-0.5) @ vectors.T
        assert relative_error(root, values, basis, 0.5) <= 1.05 * 0.5 * residual + 1e-11
        assert residual < 1000 * size + 1e-10
    assert decomposition_residual(matrix, np.full(12, np.nan), basis) == np.inf


def test_stretched_eigenvectors_show_although_they_diagonalise_the_matrix():
    values = np.geomspace(1, 1e-4, 12)
    matrix, basis = matrix_of(values)
    stretched, moved = 1.01 * basis, 1.01**2 * values
    error = relative_error((stretched * moved**-0.5) @ stretched.T, values, basis, 0.5)
    assert 0.005 < error <= 0.5 * decomposition_residual(matrix, moved, stretched)
