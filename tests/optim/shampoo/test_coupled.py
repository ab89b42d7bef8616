"""The parts of the coupled iteration, each against a known spectrum, and the traps they are built around."""

import numpy as np
import pytest

from ctr.optim.shampoo import coupled
from ctr.optim.shampoo.coupled import (
    cold_start,
    correct,
    coupled_root,
    largest_eigenpair,
    project,
    skewness,
    start_vector,
    warm_start,
)
from ctr.optim.shampoo.roots import root_residual


def orthogonal(size, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))[0]


def matrix_of(values, seed=0):
    basis = orthogonal(len(values), seed)
    matrix = (basis * values) @ basis.T
    return (matrix + matrix.T) / 2, basis


def true_root(values, basis, p):
    return (basis * values ** (-1 / p)) @ basis.T


def drifted(size=64, condition=1e4, share=1e-3):
    """A matrix, its inverse 4th root, and the matrix with a share of new gradients, and its root."""
    values = np.geomspace(1, 1 / condition, size)
    before, basis = matrix_of(values)
    gradients = (basis * np.sqrt(values)) @ np.random.default_rng(1).standard_normal((size, 32))
    after = (1 - share) * before + share * gradients @ gradients.T / 32
    after_values, after_basis = np.linalg.eigh(after)
    return true_root(values, basis, 4), after, true_root(after_values, after_basis, 4)


def relative(got, expected):
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("size", [1, 2, 3, 16, 100])
def test_the_start_vector_sees_every_likely_direction(size):
    start = start_vector(size)
    assert np.linalg.norm(start) == pytest.approx(1)
    directions = [np.ones(size), (-1.0) ** np.arange(size), np.arange(size) + 1.0, *np.eye(size)[:5]]
    for direction in directions:
        assert abs(start @ direction) > 0.003 * np.linalg.norm(direction)


def test_power_iteration_finds_the_largest_pair_and_knows_when_it_has_not():
    matrix, basis = matrix_of(np.r_[5.0, np.linspace(2, 1, 19)])
    pair = largest_eigenpair(matrix)
    assert pair.value == pytest.approx(5, rel=1e-14)
    assert abs(pair.vector @ basis[:, 0]) == pytest.approx(1, abs=1e-14)
    assert pair.residual <= coupled.PROJECTION_TOLERANCE
    close, _ = matrix_of(np.r_[5.0, 4.999, np.linspace(2, 1, 18)])
    assert largest_eigenpair(close).residual > 1e-6
    assert largest_eigenpair(close).value <= 5
    assert largest_eigenpair(np.zeros((3, 3))).residual == np.inf


def test_projection_lowers_what_is_too_large_to_the_next_and_the_correction_undoes_it():
    values = np.r_[1e4, 1e3, 100.0, 2.0, 1.9, np.linspace(1.5, 1, 15)]
    matrix, basis = matrix_of(values)
    # Allowed are eigenvalues up to 50 times the smallest, which the condition says is 1.
    projection = project(matrix, 1e4, desired_condition=50)
    np.testing.assert_allclose(projection.values, values[:3], rtol=1e-12)
    assert projection.level == pytest.approx(2, rel=0.02)
    lowered = np.r_[np.full(3, projection.level), values[3:]]
    np.testing.assert_allclose(projection.matrix, (basis * lowered) @ basis.T, atol=1e-10)
    for p in (1, 2, 4):
        root = correct(true_root(lowered, basis, p), projection, p)
        np.testing.assert_allclose(root, true_root(values, basis, p), atol=1e-12)


@pytest.mark.parametrize(
    ("condition", "options", "count"),
    [
        (None, {}, 0),
        (None, {"at_least": 2}, 2),
        (1e8, {}, 3),
        (1e8, {"at_most": 1}, 1),
        (1e8, {"desired_condition": 5e5}, 1),
        (100.0, {}, 0),
    ],
)
def test_how_many_are_projected_follows_the_previous_condition(condition, options, count):
    matrix, _ = matrix_of(np.r_[1.0, 1e-3, 1e-4, np.geomspace(3e-6, 1e-8, 12)])
    assert len(project(matrix, condition, **options).values) == count


def test_a_cluster_is_not_projected():
    matrix, _ = matrix_of(np.r_[np.linspace(1, 0.99, 8), np.full(8, 1e-8)])
    projection = project(matrix, 1e8)
    assert len(projection.values) == 0
    np.testing.assert_array_equal(projection.matrix, matrix)


@pytest.mark.parametrize("condition", [1e6, 1e12])
def test_projecting_one_huge_eigenvalue_costs_no_accuracy_and_saves_iterations(condition):
    values = np.r_[1.0, np.linspace(3, 1, 31) / condition]
    matrix, _ = matrix_of(values)
    plain, projected = coupled_root(matrix, 4), coupled_root(matrix, 4, previous_condition=condition)
    assert projected.projected == 1
    assert projected.iterations < plain.iterations / 2
    assert root_residual(projected.root, matrix, 4) < 2 * root_residual(plain.root, matrix, 4)


def test_a_cold_start_is_where_the_iteration_converges():
    for values in (np.ones(5), np.geomspace(1, 1e-9, 30), np.r_[1e9, np.ones(40)]):
        matrix, _ = matrix_of(values)
        for p in (1, 2, 4, 8):
            root, product = cold_start(matrix, p)
            np.testing.assert_allclose(np.linalg.matrix_power(root, p) @ matrix, product, rtol=1e-12)
            assert np.linalg.eigvalsh(product)[-1] <= (p + 1) / 2 + 1e-12


@pytest.mark.parametrize("p", [1, 2, 3, 4, 6, 8])
def test_roots_from_a_cold_start_are_those_of_the_eigenvalues(p):
    values = np.geomspace(1, 1e-3, 20)
    matrix, basis = matrix_of(values)
    end = coupled_root(matrix, p)
    np.testing.assert_allclose(
        end.root, true_root(values, basis, p), rtol=0, atol=1e-11 * values[-1] ** (-1 / p)
    )
    assert end.error < 1e-13 and end.iterations < 20


def test_small_entries_do_not_hide_a_direction_that_has_not_arrived():
    # With the largest entry of M - I for a measure, these stopped at a true residual above 1.
    for condition in (1e9, 1e12):
        matrix, _ = matrix_of(np.geomspace(1, 1 / condition, 256))
        assert root_residual(coupled_root(matrix, 4).root, matrix, 4) < 1e-15 * 256 * condition


def test_small_harmless_matrices_all_converge():
    # "The error grew by 1.2, stop" ends on rounding in such matrices, and more damping is then no remedy.
    for seed in range(100):
        matrix, basis = matrix_of(np.r_[1.0, np.random.default_rng(seed).uniform(1, 110, 3) / 110], seed)
        values = np.diag(basis.T @ matrix @ basis)
        end = coupled_root(matrix, 4)
        assert end.error < 1e-14
        np.testing.assert_allclose(end.root, true_root(values, basis, 4), rtol=0, atol=1e-12)


def test_too_few_iterations_and_overflow_are_no_convergence():
    matrix, _ = matrix_of(np.geomspace(1, 1e-6, 10))
    assert coupled_root(matrix, 4, max_iterations=5).error == np.inf
    assert coupled_root(matrix, 4, previous=1e100 * np.eye(10)).error == np.inf


def test_a_warm_start_in_the_same_directions_is_exact_and_short():
    values = np.geomspace(1, 1e-5, 40)
    basis = orthogonal(40)
    moved = values * np.random.default_rng(2).uniform(0.9, 1.1, 40)
    after = (basis * moved) @ basis.T
    end = coupled_root(after, 4, previous=true_root(values, basis, 4))
    assert relative(end.root, true_root(moved, basis, 4)) < 1e-10
    assert end.iterations <= 5 < coupled_root(after, 4).iterations / 3
    assert skewness(warm_start(after, 4, true_root(values, basis, 4))[1]) < 1e-9


@pytest.mark.parametrize(("condition", "share"), [(1e4, 1e-2), (1e4, 1e-1), (1e6, 1e-3), (1e6, 1e-2)])
def test_a_warm_start_in_other_directions_looks_converged_and_is_wrong(condition, share):
    previous, after, expected = drifted(condition=condition, share=share)
    end = coupled_root(after, 4, previous=previous)
    assert end.error < 1e-12
    assert relative(end.root, expected) > 1e-2
    assert root_residual(end.root, after, 4) > 1
    # The sign is there before the first iteration.
    assert skewness(warm_start(after, 4, previous)[1]) > 0.1
    given_up = coupled_root(after, 4, previous=previous, most_skewed=0.1)
    assert given_up.iterations == 0 and given_up.error == np.inf
    cold = coupled_root(after, 4)
    assert relative(cold.root, expected) < 1e-9
    assert root_residual(cold.root, after, 4) < 1e-8
