"""Statistics: products along each dimension, decay, and sums that never stop growing."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import shampoo_reference as reference
from ctr.optim.shampoo import statistics
from ctr.optim.shampoo.triangles import pack, unpack_arrays
from shampoo_options import options as flat_options


@settings(max_examples=30)
@given(st.lists(st.integers(1, 5), min_size=3, max_size=5), st.integers(0, 2**31))
def test_gram_is_the_unfolding_times_its_transpose_symmetric_and_semidefinite(shape, seed):
    blocks = np.random.default_rng(seed).normal(size=shape)
    for axis in range(len(shape) - 1):
        products = statistics.gram(tf.constant(blocks), axis).numpy()
        assert products.shape == (shape[0], shape[axis + 1], shape[axis + 1])
        for block, product in zip(blocks, products, strict=True):
            unfolded = reference.unfolded(block, axis)
            np.testing.assert_allclose(product, unfolded @ unfolded.T, rtol=1e-12, atol=1e-12)
            # Entries near 0 are sums of large terms: what a sum of n terms may be off by is of the size of these.
            rounding = unfolded.shape[1] * np.finfo(np.float64).eps * np.abs(product).max()
            np.testing.assert_allclose(product, product.T, rtol=0, atol=rounding)
            assert np.linalg.eigvalsh(product)[0] > -1e-13 * max(np.trace(product), 1)


def test_left_and_right_of_a_matrix_by_hand():
    block = tf.constant([[[1.0, 2.0, 0.0], [0.0, -1.0, 3.0]]])
    assert statistics.gram(block, 0).numpy().tolist() == [[[5, -2], [-2, 10]]]
    assert statistics.gram(block, 1).numpy().tolist() == [[[1, 2, 0], [2, 5, -3], [0, -3, 9]]]


@pytest.mark.parametrize("beta2", [1.0, 0.75])
def test_windows_folded_now_and_then_are_one_long_sum_or_average(beta2):
    rng = np.random.default_rng(0)
    total, window = (tf.Variable(tf.zeros([2, 6], tf.float64)) for _ in range(2))
    expected, folded, inside = np.zeros((2, 3, 3)), np.zeros((2, 3, 3)), 0
    for t in range(1, 20):
        products = rng.normal(size=(2, 3, 3))
        products = products + np.swapaxes(products, 1, 2)
        statistics.collect(window, tf.constant(products), beta2)
        expected = expected + products if beta2 == 1 else beta2 * expected + (1 - beta2) * products
        inside += 1
        if t in (1, 5, 6, 19):
            change = statistics.fold(total, window, 3, tf.constant(beta2**inside, tf.float64))
            inside = 0
            np.testing.assert_allclose(unpack_arrays(total.numpy(), 3), expected, rtol=1e-12)
            np.testing.assert_allclose(change, np.linalg.norm(expected - folded, axis=(1, 2)), rtol=1e-12)
            folded = expected
            assert not window.numpy().any()


def test_bias_correction_makes_the_average_of_a_constant_that_constant():
    def divisor(beta2, n):
        return float(statistics.corrected_by(flat_options(beta2=beta2), tf.constant(n)))

    assert divisor(1.0, 3) == 1.0
    assert divisor(0.5, 3) == 0.875
    window = tf.Variable([[0.0]])
    for n in range(1, 6):
        statistics.collect(window, tf.constant([[[7.0]]]), 0.9)
        corrected = float(window[0, 0]) / divisor(0.9, n)
        assert corrected == pytest.approx(7.0, rel=1e-6)


def test_sums_still_grow_by_one_after_three_times_two_to_the_24_increments():
    many = 3 * 2**24
    assert np.float32(many) + np.float32(1) == np.float32(many)
    core = reference.make_core(
        reference.options(start_preconditioning_step=1, precondition_frequency=1),
        [np.zeros((2, 2))],
        tf.float32,
    )
    for total in core.statistics.totals:
        total.assign(pack(tf.eye(2, batch_shape=[1], dtype=tf.float64) * many))
    for n in range(1, 4):
        # Of norm 1 in each row and each column: both sides grow by I.
        core.update([tf.constant([[0.6, -0.8], [0.8, 0.6]])], 0.0)
        for total in core.statistics.totals:
            assert total.dtype == tf.float64
            whole = unpack_arrays(total.numpy(), 2)[0]
            np.testing.assert_allclose(np.diag(whole), [many + n] * 2, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_the_longest_window_again_and_again_counts_every_increment():
    # A window ends after 100,000 collections at the latest: float32 counts to 2^24.
    total, window = tf.Variable(tf.zeros([1, 1], tf.float64)), tf.Variable(tf.zeros([1, 1]))
    one = tf.ones([1, 1, 1])
    windows = -(-3 * 2**24 // 100_000)
    for _ in range(windows):
        window.assign(one[0] * 99_999)
        statistics.collect(window, one, 1.0)
        statistics.fold(total, window, 1, tf.ones([], tf.float64))
    assert float(total[0, 0]) == windows * 100_000 > 3 * 2**24
