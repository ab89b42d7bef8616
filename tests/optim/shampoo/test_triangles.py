"""Symmetric matrices as triangles, in TensorFlow and in NumPy."""

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.optim.shampoo.triangles import multiplicities, pack, packed_size, unpack, unpack_arrays


@settings(max_examples=40)
@given(size=st.integers(1, 33), count=st.integers(0, 3), seed=st.integers(0, 9))
def test_what_is_packed_comes_back(size, count, seed):
    whole = np.random.default_rng(seed).normal(size=(count, size, size))
    whole += np.swapaxes(whole, 1, 2)
    if seed > 6 and count:
        # What is not finite stays where it is.
        whole[0, 0, -1] = whole[0, -1, 0] = (np.nan, np.inf, -np.inf)[seed % 3]
    packed = pack(tf.constant(whole)).numpy()
    assert packed.shape == (count, packed_size(size))
    np.testing.assert_array_equal(unpack_arrays(packed, size), whole)
    np.testing.assert_array_equal(unpack(tf.constant(packed), size).numpy(), whole)
    squares, norms = packed**2 @ multiplicities(size), np.linalg.norm(whole, axis=(1, 2)) ** 2
    np.testing.assert_allclose(squares[seed > 6 :], norms[seed > 6 :], rtol=1e-12)
