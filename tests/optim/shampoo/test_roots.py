"""Certified inverse roots against 50-digit arithmetic, known spectra, plain eigh, and faults."""

import functools

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.optim.shampoo import roots
from ctr.optim.shampoo.roots import (
    NEGATIVE,
    TOLERANCE,
    RootError,
    inverse_root,
    is_positive_definite,
    root_residual,
)
from shampoo_reference import matrix_of, orthogonal

ORDERS = (2, 4, 6, 8)
ROUNDING = 1e-13
SOLVERS = ("eigh", "coupled")


def spectrum(kind, size, condition):
    """Eigenvalues, largest 1. "deficient" has zeros, which only damping lifts."""
    return {
        "even": np.geomspace(1, 1 / condition, size),
        "one huge": np.r_[1.0, np.linspace(3, 1, size - 1) / condition],
        "clustered": np.repeat([1.0, 1.0 - 1e-9, 10 / condition, 1 / condition], -(-size // 4))[:size],
        "repeated": np.repeat([1.0, 1 / condition], -(-size // 2))[:size],
        "deficient": np.r_[np.geomspace(1, 1e-3, size - size // 2), np.zeros(size // 2)],
    }[kind]


def relative_error(root, values, basis, exponent):
    """|A^(e/2) X A^(e/2) - I|, spectral: the largest relative error in any direction."""
    half = (basis * values ** (exponent / 2)) @ basis.T
    return np.linalg.norm(half @ root @ half - np.eye(len(root)), 2)


def plain_eigh(matrix, damping, exponent):
    values, basis = np.linalg.eigh(matrix)
    return (basis * (values - min(values[0], 0.0) + damping) ** -exponent) @ basis.T


@functools.cache
def exact(kind, size, condition, epsilon):
    """A float64 matrix, and the eigenvalues and vectors of its damped self to 50 digits."""
    matrix, _ = matrix_of(spectrum(kind, size, condition))
    with mpmath.workdps(50):
        values, vectors = mpmath.eigsy(mpmath.matrix(matrix.tolist()))
        values = list(values)
        damping = epsilon * max(values) - min(0, *values)
        return matrix, [value + damping for value in values], vectors, float(damping)


def exact_error(root, values, vectors, exponent):
    """`relative_error`, with A^(e/2) from 50 digits."""
    size = len(root)
    with mpmath.workdps(50):
        scale = mpmath.diag([value ** mpmath.mpf(exponent / 2) for value in values])
        half = np.array((vectors * scale * vectors.T).tolist(), float).reshape(size, size)
    return np.linalg.norm(half @ root @ half - np.eye(size), 2)


@pytest.mark.parametrize(
    ("kind", "size", "condition"),
    [
        ("even", 2, 1e7),
        ("even", 9, 1e12),
        ("one huge", 9, 1e12),
        ("clustered", 9, 1e12),
        ("repeated", 9, 1e2),
        ("deficient", 9, 1e7),
        ("deficient", 2, 1e12),
    ],
)
def test_small_roots_are_as_near_to_50_digits_as_eigh(kind, size, condition):
    epsilon = 1 / condition
    matrix, values, vectors, damping = exact(kind, size, condition, epsilon)
    for p in ORDERS:
        exponent = 1 / p
        reference = exact_error(plain_eigh(matrix, damping, exponent), values, vectors, exponent)
        # At this size eigh may be exact by luck; what the matrix's own rounding costs is no one's fault.
        allowed = max(10 * reference, ROUNDING, exponent * 1e-15 * condition)
        for solver in SOLVERS:
            root = inverse_root(matrix, p, epsilon=epsilon, solver=solver)
            assert exact_error(root.matrix, values, vectors, exponent) <= allowed
            assert root.residual <= TOLERANCE
            assert root.condition == pytest.approx(float(max(values) / min(values)), rel=0.2)
            if solver == "coupled":
                assert root.solver == "coupled_cold" and not root.failures


@pytest.mark.parametrize(
    ("size", "commuting", "drift"),
    [(24, False, 0.1), (24, False, 0.001), (24, True, 0.1), (96, True, 0.001), (96, False, 0.01)],
)
def test_a_drifting_sequence_with_warm_starts_stays_as_exact_as_eigh(size, commuting, drift):
    rng = np.random.default_rng(3)
    basis = orthogonal(size)
    values = np.geomspace(1, 1e-5, size)
    state = (basis * values) @ basis.T
    epsilon, p = 1e-6, 4
    root, solvers = None, []
    for _ in range(8):
        root = inverse_root(
            state,
            p,
            epsilon=epsilon,
            solver="coupled",
            previous=None if root is None else root.matrix,
            previous_condition=None if root is None else root.condition,
        )
        solvers.append(root.solver)
        # The truth: eigh is the yardstick as well, so its own error is that of a matrix moved by rounding.
        true_values, true_basis = np.linalg.eigh(state)
        damped = np.maximum(true_values, 0) + epsilon * true_values[-1]
        assert relative_error(root.matrix, damped, true_basis, 1 / p) <= 10 / p * 1e-15 * 1e6
        assert root.residual <= TOLERANCE
        if commuting:
            new = (basis * (values * rng.uniform(0.5, 2, size))) @ basis.T
        else:
            gradients = (basis * np.sqrt(values)) @ rng.standard_normal((size, 16))
            new = gradients @ gradients.T / 16
        state = (1 - drift) * state + drift * new
    assert solvers[0] == "coupled_cold"
    if commuting:
        # A warm start multiplies rounding by the condition: the next one may be too much, never wrong.
        assert solvers[1] == "coupled_warm" and solvers.count("coupled_warm") >= 3
    else:
        assert set(solvers) == {"coupled_cold"}


def test_a_warm_start_that_passes_the_first_look_meets_the_residual(monkeypatch):
    monkeypatch.setattr("ctr.optim.shampoo.coupled.skewness", lambda product: 0.0)
    matrix, _ = matrix_of(np.geomspace(1, 1e-4, 64))
    drifted = matrix + 1e-5 * np.diag(np.linspace(0, 1, 64))
    before = inverse_root(matrix, 4, epsilon=1e-6)
    after = inverse_root(drifted, 4, epsilon=1e-6, solver="coupled", previous=before.matrix)
    assert after.solver == "coupled_cold" and "coupled_warm: residual" in after.failures[0]


@pytest.mark.parametrize("previous", [np.full((8, 8), np.nan), np.eye(7), 1e200 * np.eye(8), -np.eye(8)])
def test_a_useless_previous_root_only_costs_its_attempt(previous):
    matrix, _ = matrix_of(np.geomspace(1, 1e-3, 8))
    root = inverse_root(matrix, 4, epsilon=1e-6, solver="coupled", previous=previous)
    assert root.solver == "coupled_cold" and len(root.failures) == 1


random_matrices = st.builds(
    lambda size, seed, decades: matrix_of(
        np.random.default_rng(seed).permutation(np.geomspace(1, 10.0**-decades, size)), seed
    )[0],
    st.integers(1, 12),
    st.integers(0, 10**6),
    st.floats(0, 6),
)
solvers = st.sampled_from(SOLVERS)


@settings(max_examples=30)
@given(random_matrices, st.sampled_from(ORDERS), st.integers(0, 10**6), solvers)
def test_roots_turn_with_their_matrix_are_symmetric_and_commute_with_it(matrix, p, seed, solver):
    root = inverse_root(matrix, p, epsilon=1e-6, solver=solver).matrix
    turn = orthogonal(len(matrix), seed)
    turned = inverse_root(turn @ matrix @ turn.T, p, epsilon=1e-6, solver=solver).matrix
    scale = np.max(np.abs(root))
    np.testing.assert_allclose(turn @ root @ turn.T, turned, atol=1e-8 * scale, rtol=0)
    np.testing.assert_array_equal(root, root.T)
    np.testing.assert_allclose(root @ matrix, matrix @ root, atol=1e-12 * scale)


@pytest.mark.parametrize("solver", SOLVERS)
def test_powers_of_two_scale_without_any_rounding_and_extremes_work(solver):
    matrix, _ = matrix_of(np.geomspace(1, 1e-4, 8))
    root = inverse_root(matrix, 4, epsilon=1e-6, solver=solver).matrix
    for doublings in (-1000, -100, 100, 1000):
        scaled = inverse_root(np.ldexp(matrix, doublings), 4, epsilon=1e-6, solver=solver).matrix
        np.testing.assert_array_equal(scaled, np.ldexp(root, -doublings // 4))


@pytest.mark.parametrize("solver", SOLVERS)
def test_damping_is_relative_to_the_largest_eigenvalue(solver):
    # Its trace, norm or entries would all give another number.
    matrix, basis = matrix_of(np.r_[8.0, np.full(15, 2.0)])
    root = inverse_root(matrix, 2, epsilon=0.125, solver=solver).matrix
    expected = (basis * np.r_[9.0, np.full(15, 3.0)] ** -0.5) @ basis.T
    np.testing.assert_allclose(root, expected, atol=1e-14)


@pytest.mark.parametrize("solver", SOLVERS)
def test_eigenvalues_below_zero_by_rounding_are_lifted_by_the_shift(solver):
    values = np.r_[1.0, 0.1, 1e-3, np.zeros(4), -9e-7]
    matrix, basis = matrix_of(values)
    root = inverse_root(matrix, 4, epsilon=1e-6, solver=solver)
    assert root.solver == ("eigh" if solver == "eigh" else "coupled_cold")
    assert relative_error(root.matrix, values + 1e-6 + 9e-7, basis, 0.25) < 1e-8


@pytest.mark.parametrize("solver", SOLVERS)
def test_an_indefinite_matrix_is_refused_however_large_the_damping(solver):
    for values in ([1.0, 0.5, -2 * NEGATIVE], [1.0, -1.0, 0.1], [-1.0, -2.0, -3.0]):
        with pytest.raises(RootError, match=r"indefinite.*\[3, 3\]"):
            inverse_root(matrix_of(np.array(values))[0], 4, epsilon=1.0, solver=solver)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.zeros((3, 3)), r"all zero: a \[3, 3\]"),
        (np.array([[1.0, np.nan], [0.0, 1.0]]), r"not finite: .* 1 not finite"),
        (np.full((2, 2), np.inf), "not finite: .*no finite entry"),
        (np.ones((2, 3)), r"not a square matrix: \[2, 3\]"),
        (np.ones(3), "not a square matrix"),
        (np.zeros((0, 0)), "not a square matrix"),
    ],
)
def test_what_has_no_root_is_diagnosed(matrix, message):
    with pytest.raises(RootError, match=message):
        inverse_root(matrix, 4, epsilon=1e-6)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_singular_matrix_without_damping_has_no_root(solver):
    with pytest.raises(RootError, match=r"entries from .*eigh\(L\): .*eigh\(U\): "):
        inverse_root(np.diag([1.0, 0.5, 0.0]), 4, epsilon=0.0, solver=solver)


@pytest.mark.parametrize(
    "arguments",
    [{"p": 0}, {"epsilon": -1.0}, {"epsilon": np.nan}, {"solver": "svd"}],
)
def test_wrong_arguments_are_named(arguments):
    with pytest.raises(ValueError, match="epsilon"):
        inverse_root(np.eye(2), **{"p": 4, "epsilon": 1e-6, **arguments})


def failing(calls, times):
    real = np.linalg.eigh

    def eigh(matrix, UPLO="L"):
        calls.append(UPLO)
        if len(calls) <= times:
            raise np.linalg.LinAlgError("Eigenvalues did not converge")
        return real(matrix, UPLO=UPLO)

    return eigh


def test_a_decomposition_that_fails_is_retried_from_the_other_triangle_and_then_diagnosed(monkeypatch):
    calls, matrix = [], matrix_of(np.geomspace(1, 1e-3, 8))[0]
    monkeypatch.setattr(np.linalg, "eigh", failing(calls, 1))
    root = inverse_root(matrix, 4, epsilon=1e-6)
    assert calls == ["L", "U"] and root.solver == "eigh"
    assert root.failures == ("eigh(L): Eigenvalues did not converge",)
    monkeypatch.setattr(np.linalg, "eigh", failing([], 9))
    with pytest.raises(RootError, match=r"\[8, 8\].*eigh\(L\): Eigenvalues did.*eigh\(U\): Eigenvalues did"):
        inverse_root(matrix, 4, epsilon=1e-6)
    assert inverse_root(matrix, 4, epsilon=1e-6, solver="coupled").solver == "coupled_cold"


def test_the_coupled_chain_ends_in_eigh(monkeypatch):
    def broken(*arguments, **options):
        end = real(*arguments, **options)
        return type(end)(1.1 * end.root, end.error, end.iterations)

    real = roots.coupled_root
    monkeypatch.setattr(roots, "coupled_root", broken)
    matrix = matrix_of(np.geomspace(1, 1e-3, 8))[0]
    previous = inverse_root(matrix, 4, epsilon=1e-6).matrix
    root = inverse_root(matrix, 4, epsilon=1e-6, solver="coupled", previous=previous)
    assert root.solver == "eigh"
    assert [failure.split(":")[0] for failure in root.failures] == ["coupled_warm", "coupled_cold"]


@pytest.mark.parametrize("fault", ["values", "vectors", "nan"])
def test_a_wrong_decomposition_is_not_returned(monkeypatch, fault):
    real = np.linalg.eigh

    def wrong(matrix, UPLO="L"):
        values, vectors = real(matrix, UPLO=UPLO)
        if fault == "values":
            # The smallest one off by a fifth moves no entry of A by more than 2e-5.
            return values * np.r_[1.2, np.ones(len(values) - 1)], vectors
        if fault == "vectors":
            return values, np.roll(vectors, 1, axis=1)
        return values, np.full_like(vectors, np.nan)

    monkeypatch.setattr(np.linalg, "eigh", wrong)
    with pytest.raises(RootError, match=r"residual|not finite"):
        inverse_root(matrix_of(np.geomspace(1, 1e-4, 16))[0], 4, epsilon=0.0)


@pytest.mark.parametrize("p", [1, 4, 5])
def test_the_residual_bounds_the_error_of_any_positive_definite_matrix(p):
    rng = np.random.default_rng(p)
    values = np.geomspace(1, 1e-5, 12)
    matrix, basis = matrix_of(values)
    true = (basis * values ** (-1 / p)) @ basis.T
    half = (basis * values ** (-0.5 / p)) @ basis.T
    for size in (1e-6, 1e-3, 1e-2):
        noise = rng.standard_normal((12, 12))
        root = true + half @ (noise + noise.T) @ half * size / 20
        residual = root_residual(root, matrix, p)
        # A^-e <= (1 - s)^-e X and >= (1 + s)^-e X, as eigenvalues of A^-e relative to X.
        inverse_half = (basis * values ** (0.5 / p)) @ basis.T
        relative = 1 / np.linalg.eigvalsh(inverse_half @ root @ inverse_half)
        if residual < 1:
            assert (1 + residual) ** (-1 / p) - 1e-9 <= relative.min()
            assert relative.max() <= (1 - residual) ** (-1 / p) + 1e-9
        assert residual > 0.01 * size


def test_a_residual_alone_would_miss_a_wrong_sign():
    wrong = np.diag([1.0, -1.0])
    assert root_residual(wrong, np.eye(2), 4) == 0
    assert not is_positive_definite(wrong)
