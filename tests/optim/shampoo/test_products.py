"""Products of blocks along their dimensions, and symmetric matrices as triangles, in graphs and in NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.optim.shampoo.products import gram, multiply, precondition
from ctr.optim.shampoo.triangles import multiplicities, pack, packed_size, unpack, unpack_arrays
from shampoo_reference import multiplied, unfolded


def symmetric(rng, count, size):
    matrices = rng.normal(size=(count, size, size))
    return matrices + np.swapaxes(matrices, 1, 2)


@settings(max_examples=30)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 2**31), st.data())
def test_products_along_any_dimensions_of_any_order(shape, seed, data):
    """Beside NumPy, block by block: gram, one matrix and its transpose, and the roots of some dimensions."""
    rng = np.random.default_rng(seed)
    blocks = rng.normal(size=(2, *shape))
    for axis, size in enumerate(shape):
        products = gram(tf.constant(blocks), axis).numpy() if len(shape) > 1 else ()
        for block, product in zip(blocks if len(shape) > 1 else (), products, strict=True):
            flat = unfolded(block, axis)
            # Entries near 0 are sums of large terms: what a sum of n terms may be off by is of the size of these.
            rounding = flat.shape[1] * np.finfo(np.float64).eps * np.abs(product).max()
            np.testing.assert_allclose(product, flat @ flat.T, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(product, product.T, rtol=0, atol=rounding)
        matrices = rng.normal(size=(2, size, size))
        for transposed in (False, True):
            found = multiply(tf.constant(blocks), axis, tf.constant(matrices), transposed).numpy()
            for block, matrix, one in zip(blocks, matrices, found, strict=True):
                expected = multiplied(block, axis, matrix.T if transposed else matrix)
                np.testing.assert_allclose(one, expected, rtol=1e-12, atol=1e-12)
    axes = [axis for axis in range(len(shape)) if data.draw(st.booleans())]
    roots = [symmetric(rng, 2, shape[axis]) for axis in axes]
    found = precondition(tf.constant(blocks), axes, [tf.constant(root) for root in roots]).numpy()
    for number, block in enumerate(blocks):
        for axis, root in zip(axes, roots, strict=True):
            block = multiplied(block, axis, root[number])
        np.testing.assert_allclose(found[number], block, rtol=1e-10, atol=1e-10)


@settings(max_examples=40)
@given(size=st.integers(1, 33), count=st.integers(0, 3), seed=st.integers(0, 9))
def test_what_is_packed_comes_back(size, count, seed):
    whole = symmetric(np.random.default_rng(seed), count, size)
    if seed > 6 and count:
        # What is not finite stays where it is.
        whole[0, 0, -1] = whole[0, -1, 0] = (np.nan, np.inf, -np.inf)[seed % 3]
    packed = pack(tf.constant(whole)).numpy()
    assert packed.shape == (count, packed_size(size))
    np.testing.assert_array_equal(unpack_arrays(packed, size), whole)
    np.testing.assert_array_equal(unpack(tf.constant(packed), size).numpy(), whole)
    squares, norms = packed**2 @ multiplicities(size), np.linalg.norm(whole, axis=(1, 2)) ** 2
    np.testing.assert_allclose(squares[seed > 6 :], norms[seed > 6 :], rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_xla_packs_the_same(dtype):
    whole = tf.cast(symmetric(np.random.default_rng(3), 2, 7), dtype)
    compiled = tf.function(lambda x: unpack(pack(x), 7), jit_compile=True)
    np.testing.assert_array_equal(
        compiled(whole).numpy().astype(np.float32), whole.numpy().astype(np.float32)
    )
