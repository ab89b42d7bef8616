"""Statistics: products along each dimension, decay, and sums that never stop growing."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import shampoo_reference as reference
from ctr.optim.shampoo.layout import lay_out
from ctr.optim.shampoo.products import gram
from ctr.optim.shampoo.statistics import Statistics
from ctr.optim.shampoo.triangles import pack, unpack_arrays
from ctr.optim.variables import Variables, create_variable
from shampoo_options import options as flat_options


@settings(max_examples=30)
@given(st.lists(st.integers(1, 5), min_size=3, max_size=5), st.integers(0, 2**31))
def test_gram_is_the_unfolding_times_its_transpose_symmetric_and_semidefinite(shape, seed):
    blocks = np.random.default_rng(seed).normal(size=shape)
    for axis in range(len(shape) - 1):
        products = gram(tf.constant(blocks), axis).numpy()
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
    assert gram(block, 0).numpy().tolist() == [[[5, -2], [-2, 10]]]
    assert gram(block, 1).numpy().tolist() == [[[1, 2, 0], [2, 5, -3], [0, -3, 9]]]


def collector(beta2=1.0, shape=(3, 3), dtype=tf.float64, **changed):
    """The statistics of one block of a matrix."""
    options = flat_options(block_size=8, beta2=beta2, **changed)
    return Statistics(options, lay_out(options, [shape]), Variables(create_variable, dtype))


@pytest.mark.parametrize("beta2", [1.0, 0.75])
def test_windows_folded_now_and_then_are_one_long_sum_or_average(beta2):
    rng = np.random.default_rng(0)
    found = collector(beta2)
    expected, folded = np.zeros((2, 3, 3)), np.zeros((2, 3, 3))
    for t in range(1, 20):
        products = rng.normal(size=(2, 3, 3))
        products = products + np.swapaxes(products, 1, 2)
        found.add(dict(enumerate(tf.constant(products)[:, tf.newaxis])), 1.0)
        expected = expected + products if beta2 == 1 else beta2 * expected + (1 - beta2) * products
        if t in (1, 5, 6, 19):
            change = found.fold()
            totals = [unpack_arrays(total.numpy(), 3)[0] for total in found.totals]
            np.testing.assert_allclose(totals, expected, rtol=1e-12)
            np.testing.assert_allclose(change, np.linalg.norm(expected - folded, axis=(1, 2)), rtol=1e-12)
            folded = expected
            assert not any(window.numpy().any() for window in found.windows)
            assert (int(found.collections), int(found.window_collections)) == (t, 0)


def test_bias_correction_makes_the_average_of_a_constant_that_constant():
    def divisor(beta2, n, **changed):
        return float(collector(beta2, **changed).divisor(tf.constant(n, tf.int64)))

    assert divisor(1.0, 3) == 1.0
    assert divisor(0.5, 3) == 0.875
    assert divisor(0.5, 3, bias_correction=False) == 1.0
    found = collector(0.9, shape=(2, 2), dtype=tf.float32)
    for n in range(1, 6):
        found.add({0: tf.constant([[[7.0, 0.0], [0.0, 7.0]]])}, 1.0)
        corrected = unpack_arrays(found.windows[0].numpy(), 2)[0] / divisor(0.9, n)
        np.testing.assert_allclose(corrected, 7.0 * np.eye(2), rtol=1e-6)


def test_what_is_left_of_the_initial_identity_decays_with_each_collection_that_a_tensor_took_part_in():
    found = collector(0.5, initial_statistics=3.0)
    collections = tf.constant(3, tf.int64)
    assert found.identity_of_matrices(collections, None).numpy() == 3 / 8
    assert found.identity_of_matrices(collections, tf.constant([1], tf.int64)).numpy().tolist() == [3 / 4] * 2
    assert collector(1.0, initial_statistics=3.0).identity_of_matrices(collections, None).numpy() == 3.0


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
    found = collector(shape=(2, 2), dtype=tf.float32)
    one = {0: tf.eye(2, batch_shape=[1])}
    windows = -(-3 * 2**24 // 100_000)
    for _ in range(windows):
        found.windows[0].assign(pack(one[0] * 99_999))
        found.add(one, 1.0)
        found.fold()
    total = unpack_arrays(found.totals[0].numpy(), 2)[0]
    assert total[0, 0] == total[1, 1] == windows * 100_000 > 3 * 2**24
