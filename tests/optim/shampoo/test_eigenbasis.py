"""Eigenbases and the second moments in them: what they are, and what becomes of them when a basis changes."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import shampoo_reference as reference
from ctr.optim.shampoo.eigenbasis import change_bases, eigenbasis, from_bases, project, to_bases
from ctr.optim.shampoo.products import multiply
from ctr.optim.shampoo.roots import RootError


def orthogonal(rng, size):
    return np.linalg.qr(rng.normal(size=(size, size)))[0]


def bases(seed, shape, count=2):
    rng = np.random.default_rng(seed)
    return [np.stack([orthogonal(rng, size) for _ in range(count)]) for size in shape]


SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None)
@given(SHAPES, st.integers(0, 1000), st.data())
def test_one_dimension_is_multiplied_and_no_other(shape, seed, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    rng = np.random.default_rng(seed)
    blocks, matrices = rng.normal(size=(2, *shape)), rng.normal(size=(2, shape[axis], shape[axis]))
    for transposed in (False, True):
        found = multiply(tf.constant(blocks), axis, tf.constant(matrices), transposed).numpy()
        for block, matrix, one in zip(blocks, matrices, found, strict=True):
            expected = reference.multiplied(block, axis, matrix.T if transposed else matrix)
            np.testing.assert_allclose(one, expected, rtol=1e-12, atol=1e-12)


@settings(max_examples=15, deadline=None)
@given(SHAPES, st.integers(0, 1000))
def test_into_the_bases_and_back(shape, seed):
    blocks = np.random.default_rng(seed).normal(size=(2, *shape))
    axes, found = range(len(shape)), bases(seed, shape)
    there = to_bases(tf.constant(blocks), axes, found)
    assert np.linalg.norm(there) == pytest.approx(np.linalg.norm(blocks))
    np.testing.assert_allclose(from_bases(there, axes, found).numpy(), blocks, atol=1e-12)


@settings(max_examples=15, deadline=None)
@given(SHAPES, st.integers(0, 1000))
def test_moments_are_the_diagonal_of_their_matrix_in_the_new_bases(shape, seed):
    """Of the matrix of second moments that is diagonal in the old bases, by brute force over vec(G)."""
    moments = np.random.default_rng(seed).uniform(size=(1, *shape))
    axes, old, new = range(len(shape)), bases(seed, shape, 1), bases(seed + 1, shape, 1)
    found = project(tf.constant(moments), axes, old, new).numpy()
    whole_old, whole_new = np.eye(1), np.eye(1)
    for before, after in zip(old, new, strict=True):
        whole_old, whole_new = np.kron(whole_old, before[0]), np.kron(whole_new, after[0])
    matrix = whole_old @ np.diag(moments.ravel()) @ whole_old.T
    expected = np.diag(whole_new.T @ matrix @ whole_new)
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-10)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(moments.sum())


@settings(max_examples=15, deadline=None)
@given(SHAPES, st.integers(0, 1000))
def test_an_average_is_turned_into_the_new_bases(shape, seed):
    average = np.random.default_rng(seed).normal(size=(2, *shape))
    axes, old, new = range(len(shape)), bases(seed, shape), bases(seed + 1, shape)
    kept = to_bases(tf.constant(average), axes, old)
    found = from_bases(change_bases(kept, axes, old, new), axes, new)
    np.testing.assert_allclose(found.numpy(), average, atol=1e-12)


def test_eigenvectors_that_change_their_order_and_sign_take_their_moments_with_them():
    rng = np.random.default_rng(3)
    moments, old = rng.uniform(size=(1, 4, 3)), bases(0, (4, 3), 1)
    orders, signs = (rng.permutation(4), rng.permutation(3)), (rng.choice([-1, 1], 4), rng.choice([-1, 1], 3))
    new = [before[:, :, order] * sign for before, order, sign in zip(old, orders, signs, strict=True)]
    found = project(tf.constant(moments), (0, 1), old, new).numpy()
    np.testing.assert_allclose(found[0], moments[0][np.ix_(*orders)], rtol=1e-12)
    same = project(tf.fill([1, 4, 3], tf.constant(0.3, tf.float64)), (0, 1), old, bases(8, (4, 3), 1))
    np.testing.assert_allclose(same.numpy(), 0.3, rtol=1e-12)


@pytest.mark.parametrize("condition", [1.0, 1e6, 1e16])
def test_a_basis_diagonalizes_its_matrix(condition):
    rng = np.random.default_rng(0)
    vectors = orthogonal(rng, 12)
    matrix = (vectors * np.geomspace(1, 1 / condition, 12) * 1e5) @ vectors.T
    found = eigenbasis(matrix)
    assert (found.solver, found.failures) == ("eigh", ())
    assert found.residual < 1e-6
    diagonal = found.matrix.T @ matrix @ found.matrix
    np.testing.assert_allclose(diagonal, np.diag(np.diag(diagonal)), atol=1e-9)
    assert (np.diff(np.diag(diagonal)) >= -1e-9).all()


def test_a_matrix_without_a_basis_is_refused():
    for matrix, words in (
        (np.zeros((3, 3)), "all zero"),
        (np.full((2, 2), np.nan), "not finite"),
        (np.diag([1.0, -1.0]), "indefinite"),
        (np.ones((2, 3)), "not a square"),
    ):
        with pytest.raises(RootError, match=words):
            eigenbasis(matrix)


def test_a_basis_that_is_none_is_not_certified(monkeypatch):
    monkeypatch.setattr(
        np.linalg, "eigh", lambda matrix, **_: (np.linalg.eigvalsh(matrix), np.eye(len(matrix)))
    )
    with pytest.raises(RootError, match=r"eigh\(L\): residual .* above 0.02; eigh\(U\)"):
        eigenbasis(np.array([[2.0, 1.0], [1.0, 3.0]]))


def test_in_fixed_bases_it_is_adam_in_rotated_coordinates():
    """SOAP's definition: with bases that stay as they are, Adam on U^T G V, turned back."""
    rng = np.random.default_rng(1)
    left, right = orthogonal(rng, 5), orthogonal(rng, 4)
    options = reference.options(
        eigenvalue_correction=True, grafted_norm=False, grafting="adam", grafting_beta2=0.9, beta1=0.8, beta2=0.9,
        start_preconditioning_step=1, precondition_frequency=1000, asynchronous=False, block_size=8,
        damping="absolute", epsilon=1e-8,
    )  # fmt: skip
    core = reference.make_core(options, [np.zeros((5, 4))])
    history = [rng.normal(size=(5, 4)) for _ in range(20)]
    # Statistics of the first step alone decide the bases.
    history[0] = (left * [5.0, 4, 3, 2, 1])[:, :4] @ right.T
    found = reference.train(core, [[gradient] for gradient in history], 0.1)[-1][0]
    bases_found = [root.numpy()[0] for root in core.exchanged.roots]
    average = moments = expected = np.zeros((5, 4))
    for t, gradient in enumerate(history, 1):
        rotated = bases_found[0].T @ gradient @ bases_found[1]
        average = 0.8 * average + 0.2 * rotated
        moments = 0.9 * moments + 0.1 * rotated**2
        step = (average / (1 - 0.8**t)) / (np.sqrt(moments / (1 - 0.9**t)) + 1e-8)
        expected = expected - 0.1 * bases_found[0] @ step @ bases_found[1].T
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_the_device_alone_computes_no_bases():
    options = reference.options(eigenvalue_correction=True)
    core = reference.make_core(options, [np.zeros((3, 2))])
    with pytest.raises(
        ValueError, match=r"^method eigenvalue_corrected requires eigenbases.*ShampooCallback"
    ):
        core.update([tf.ones([3, 2], tf.float64)], 0.1, roots="device")
