"""Eigenbases: what is certified, and what is not; steps in them are in test_reference.py."""

import numpy as np
import pytest

from ctr.optim.shampoo.eigenbasis import decomposition_residual, eigenbasis
from ctr.optim.shampoo.roots import RootError
from shampoo_reference import matrix_of, relative_error


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
