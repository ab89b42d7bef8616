"""Certified inverse roots against 50-digit arithmetic, known spectra, plain eigh, and faults."""

import functools

import mpmath
import numpy as np
import pytest

from ctr.optim.shampoo.eigenbasis import eigenbasis
from ctr.optim.shampoo.roots import NEGATIVE, TOLERANCE, RootError, inverse_root, root_residual
from shampoo_reference import matrix_of, relative_error

ORDERS = (2, 4, 6, 8)
ROUNDING = 1e-13


def spectrum(kind, size, condition):
    """Eigenvalues, largest 1. "deficient" has zeros, which only damping lifts."""
    return {
        "even": np.geomspace(1, 1 / condition, size),
        "one huge": np.r_[1.0, np.linspace(3, 1, size - 1) / condition],
        "clustered": np.repeat([1.0, 1.0 - 1e-9, 10 / condition, 1 / condition], -(-size // 4))[:size],
        "repeated": np.repeat([1.0, 1 / condition], -(-size // 2))[:size],
        "deficient": np.r_[np.geomspace(1, 1e-3, size - size // 2), np.zeros(size // 2)],
    }[kind]


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
        root = inverse_root(matrix, p, epsilon=epsilon)
        assert exact_error(root.matrix, values, vectors, exponent) <= allowed
        assert root.residual <= TOLERANCE
        assert root.condition == pytest.approx(float(max(values) / min(values)), rel=0.2)


def test_powers_of_two_scale_without_any_rounding_and_extremes_work():
    matrix, _ = matrix_of(np.geomspace(1, 1e-4, 8))
    root = inverse_root(matrix, 4, epsilon=1e-6).matrix
    for doublings in (-1000, -100, 100, 1000):
        scaled = inverse_root(np.ldexp(matrix, doublings), 4, epsilon=1e-6).matrix
        np.testing.assert_array_equal(scaled, np.ldexp(root, -doublings // 4))


def test_damping_is_relative_to_the_largest_eigenvalue():
    # Its trace, norm or entries would all give another number.
    matrix, basis = matrix_of(np.r_[8.0, np.full(15, 2.0)])
    root = inverse_root(matrix, 2, epsilon=0.125).matrix
    expected = (basis * np.r_[9.0, np.full(15, 3.0)] ** -0.5) @ basis.T
    np.testing.assert_allclose(root, expected, atol=1e-14)


def test_eigenvalues_below_zero_by_rounding_are_lifted_by_the_shift():
    values = np.r_[1.0, 0.1, 1e-3, np.zeros(4), -9e-7]
    matrix, basis = matrix_of(values)
    root = inverse_root(matrix, 4, epsilon=1e-6)
    assert relative_error(root.matrix, values + 1e-6 + 9e-7, basis, 0.25) < 1e-8


def test_an_indefinite_matrix_is_refused_however_large_the_damping():
    for values in ([1.0, 0.5, -2 * NEGATIVE], [1.0, -1.0, 0.1], [-1.0, -2.0, -3.0]):
        with pytest.raises(RootError, match=r"indefinite.*\[3, 3\]"):
            inverse_root(matrix_of(np.array(values))[0], 4, epsilon=1.0)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.zeros((3, 3)), r"all zero: a \[3, 3\]"),
        (np.array([[1.0, np.nan], [0.0, 1.0]]), r"not finite: .* 1 not finite"),
        (np.full((2, 2), np.inf), "not finite: .*no finite entry"),
        (np.ones((2, 3)), r"not a square matrix: \[2, 3\]"),
        (np.ones(3), "not a square matrix"),
        (np.zeros((0, 0)), "not a square matrix"),
        (np.diag([1.0, -1.0]), "indefinite"),
    ],
)
@pytest.mark.parametrize("solve", [functools.partial(inverse_root, p=4, epsilon=1e-6), eigenbasis])
def test_what_has_no_root_or_basis_is_diagnosed(matrix, message, solve):
    with pytest.raises(RootError, match=message):
        solve(matrix)


def test_a_singular_matrix_without_damping_has_no_root():
    with pytest.raises(RootError, match=r"entries from .*eigh\(L\): .*eigh\(U\): "):
        inverse_root(np.diag([1.0, 0.5, 0.0]), 4, epsilon=0.0)


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
    assert inverse_root(matrix, 4, epsilon=1e-6).residual <= TOLERANCE and calls == ["L", "U"]
    monkeypatch.setattr(np.linalg, "eigh", failing([], 9))
    with pytest.raises(RootError, match=r"\[8, 8\].*eigh\(L\): Eigenvalues did.*eigh\(U\): Eigenvalues did"):
        inverse_root(matrix, 4, epsilon=1e-6)


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
