"""The coupled iteration, eager, in graphs and under XLA: known spectra, roots of NumPy, and its traps."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.optim.shampoo import coupled
from ctr.optim.shampoo.coupled import (
    correct,
    coupled_root,
    coupled_roots,
    inverse_roots,
    project,
)
from ctr.optim.shampoo.roots import inverse_root, root_residual
from shampoo_reference import matrix_of, orthogonal


def eager(function):
    return function


def xla(function):
    return tf.function(function, jit_compile=True)


# How the operations are run; both must give the same.
every_way = pytest.mark.parametrize("way", [eager, pytest.param(xla, marks=pytest.mark.slow)])


def true_root(values, basis, p):
    return (basis * values ** (-1 / p)) @ basis.T


def relative(got, expected):
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)


def one(function, matrix, *arguments, **options):
    """The results of a function of a batch, of one matrix."""
    return [part.numpy()[0] for part in function(tf.constant(matrix[np.newaxis]), *arguments, **options)]


@every_way
def test_projection_lowers_what_is_too_large_to_the_next_and_the_correction_undoes_it(way, monkeypatch):
    monkeypatch.setattr(coupled, "DESIRED_CONDITION", 50.0)
    values = np.r_[1e4, 1e3, 100.0, 2.0, 1.9, np.linspace(1.5, 1, 15)]
    matrix, basis = matrix_of(values)
    # Allowed are eigenvalues up to 50 times the smallest, which the condition says is 1; of the others in the batch
    # nothing is lowered, or all that may be.
    batch, conditions = tf.constant(np.stack([matrix] * 3)), tf.constant([1e4, np.nan, 1e9], tf.float64)
    projected = way(lambda *given: project(*given))(batch, conditions)
    lowered, found, vectors, level = (part.numpy() for part in projected)
    np.testing.assert_allclose(found[0, 0], np.r_[values[:3], np.zeros(5)], rtol=1e-12)
    np.testing.assert_allclose(vectors[0].T @ vectors[0], np.diag(found[0, 0] > 0), atol=1e-14)
    assert level[0, 0, 0] == pytest.approx(2, rel=0.02)
    expected = np.r_[np.full(3, level[0, 0, 0]), values[3:]]
    np.testing.assert_allclose(lowered[0], (basis * expected) @ basis.T, atol=1e-10)
    assert not found[1].any()
    np.testing.assert_array_equal(lowered[1], matrix)
    np.testing.assert_allclose(found[2, 0, :3], values[:3], rtol=1e-12)
    for p in (1, 2, 4):
        root = one(lambda *given: [correct(*given)], true_root(expected, basis, p), p, *projected[1:])[0]
        np.testing.assert_allclose(
            root[0] if root.ndim == 3 else root, true_root(values, basis, p), atol=1e-12
        )


def test_how_many_are_projected_follows_the_previous_condition(monkeypatch):
    matrix, _ = matrix_of(np.r_[1.0, 1e-3, 1e-4, np.geomspace(3e-6, 1e-8, 12)])
    for condition, constants, count in (
        (None, {}, 0),
        (1e8, {}, 3),
        (1e8, {"MOST_PROJECTED": 1}, 1),
        (1e8, {"DESIRED_CONDITION": 5e5}, 1),
        (100.0, {}, 0),
    ):
        with monkeypatch.context() as changed:
            for name, value in constants.items():
                changed.setattr(coupled, name, value)
            assert coupled_root(matrix, 4, previous_condition=condition).projected == count


def test_a_cluster_is_not_projected():
    matrix, _ = matrix_of(np.r_[np.linspace(1, 0.99, 8), np.full(8, 1e-8)])
    lowered, values, _, _ = one(project, matrix, tf.constant([1e8], tf.float64))
    assert not values.any()
    np.testing.assert_array_equal(lowered, matrix)


def test_too_few_iterations_and_overflow_are_no_convergence(monkeypatch):
    matrix, _ = matrix_of(np.geomspace(1, 1e-6, 10))
    assert coupled_root(matrix, 4, previous=1e100 * np.eye(10)).error == np.inf
    monkeypatch.setattr(coupled, "MAX_ITERATIONS", 5)
    assert coupled_root(matrix, 4).error == np.inf


def test_a_warm_start_in_the_same_directions_is_exact_and_short():
    values = np.geomspace(1, 1e-5, 40)
    basis = orthogonal(40)
    moved = values * np.random.default_rng(2).uniform(0.9, 1.1, 40)
    after = (basis * moved) @ basis.T
    end = coupled_root(after, 4, previous=true_root(values, basis, 4))
    assert relative(end.root, true_root(moved, basis, 4)) < 1e-10
    assert end.iterations <= 5 < coupled_root(after, 4).iterations / 3


@every_way
def test_a_batch_starts_warm_and_projects_as_its_matrices_would_alone(way):
    values = np.r_[1.0, 0.5, np.geomspace(1e-5, 1e-6, 14)]
    moved = values * np.random.default_rng(2).uniform(0.9, 1.1, 16)
    basis = orthogonal(16)
    same, previous = (basis * moved) @ basis.T, true_root(values, basis, 4)
    other = matrix_of(moved, seed=1)[0]
    matrices = np.stack([same, other, np.full_like(same, np.nan), same])
    conditions = np.array([1e6, 1e6, 1e6, np.nan])

    def roots(matrices, previous, conditions):
        return tuple(
            coupled_roots(matrices, 4, previous=previous, previous_conditions=conditions, most_skewed=1e-2)
        )

    given = [tf.constant(array) for array in (matrices, np.stack([previous] * 4), conditions)]
    root, error, _, projected = (part.numpy() for part in way(roots)(*given))
    expected = true_root(moved, basis, 4)
    assert relative(root[0], expected) < 1e-9 and relative(root[3], expected) < 1e-9
    np.testing.assert_array_equal(np.isinf(error), [False, True, True, False])
    np.testing.assert_array_equal(projected, [2, 2, 0, 0])
    alone = coupled_root(same, 4, previous=previous, previous_condition=1e6, most_skewed=1e-2)
    np.testing.assert_allclose(root[0], alone.root, atol=1e-9 * np.max(np.abs(alone.root)), rtol=0)


def of_statistics(p, epsilon, way, **rest):
    return way(lambda matrices: inverse_roots(matrices, p, epsilon, **rest))


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
@every_way
def test_roots_and_residuals_are_those_of_numpy(way, p):
    matrices = scales_and_spectra(16)
    roots, residuals = of_statistics(p, 1e-6, way)(tf.constant(matrices))
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


@every_way
def test_what_has_no_root_is_zero_with_an_infinite_residual_and_spoils_no_other(way):
    good = matrix_of(np.geomspace(1, 1e-3, 8))[0]
    spoiled, infinite = good.copy(), good.copy()
    spoiled[3, 4] = np.nan
    infinite[0, 0] = np.inf
    indefinite = matrix_of(np.r_[1.0, np.full(6, 0.5), -0.1])[0]
    slow = matrix_of(np.r_[1.0, np.full(7, 1e-9)])[0]
    matrices = np.stack([good, np.zeros((8, 8)), spoiled, infinite, indefinite, slow])
    roots, residuals = of_statistics(4, 1e-6, way)(tf.constant(matrices))
    among_equals, _ = of_statistics(4, 1e-6, way)(tf.constant(np.stack([good] * 6)))
    np.testing.assert_array_equal(roots[0], among_equals[0])
    assert residuals[0] < 1e-10 and residuals[5] < 1e-7
    assert np.isinf(residuals[1:4]).all()
    assert not residuals[4] < 1
    assert not roots.numpy()[1:4].any()
    assert np.isfinite(roots).all()


@every_way
def test_zeros_have_the_root_of_an_absolute_damping(way):
    spoiled = np.full((3, 3), np.nan)
    matrices = tf.constant(np.stack([np.zeros((3, 3)), spoiled, np.eye(3)]))
    roots, residuals = of_statistics(4, 1e-4, way, absolute=True)(matrices)
    np.testing.assert_allclose(roots[0], 10.0 * np.eye(3), rtol=1e-14)
    np.testing.assert_allclose(roots[2], (1 + 1e-4) ** -0.25 * np.eye(3), rtol=1e-14)
    assert residuals[0] < 1e-12 and residuals[2] < 1e-12
    assert np.isinf(residuals[1]) and not roots[1].numpy().any()


@every_way
def test_one_by_one(way):
    roots, residuals = of_statistics(4, 0.0, way)(tf.constant([[[16.0]]], tf.float64))
    assert float(roots[0, 0, 0]) == pytest.approx(0.5) and residuals[0] < 1e-15
    # Of a single eigenvalue nothing is projected.
    assert coupled_root(np.array([[16.0]]), 4, previous_condition=1e9).root == pytest.approx(0.5)
