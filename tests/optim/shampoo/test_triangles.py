"""Symmetric matrices as triangles, in graphs and in NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.optim.shampoo.triangles import (
    multiplicities,
    pack,
    packed_size,
    unpack,
    unpack_arrays,
)


def matrices(size: int, count: int, seed: int) -> np.ndarray:
    found = np.random.default_rng(seed).normal(size=(count, size, size))
    return found + np.swapaxes(found, 1, 2)


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 33), count=st.integers(0, 3), seed=st.integers(0, 9))
def test_what_is_packed_comes_back(size, count, seed):
    whole = matrices(size, count, seed)
    packed = pack(tf.constant(whole)).numpy()
    assert packed.shape == (count, packed_size(size))
    np.testing.assert_array_equal(unpack_arrays(packed, size), whole)
    np.testing.assert_array_equal(unpack(tf.constant(packed), size).numpy(), whole)
    np.testing.assert_allclose(
        (packed**2) @ multiplicities(size), np.linalg.norm(whole, axis=(1, 2)) ** 2, rtol=1e-12
    )


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_the_lower_triangle_counts(size):
    whole = np.random.default_rng(1).normal(size=[2, size, size])
    lower = np.tril(whole)
    mirrored = lower + np.swapaxes(np.tril(whole, -1), 1, 2)
    packed = pack(tf.constant(whole))
    np.testing.assert_array_equal(unpack_arrays(packed.numpy(), size), mirrored)
    np.testing.assert_array_equal(unpack(packed, size).numpy(), mirrored)


def test_what_is_not_finite_stays_where_it_is():
    whole = matrices(5, 1, 0)
    whole[0, 3, 4] = whole[0, 4, 3] = np.nan
    whole[0, 1, 1] = np.inf
    packed = pack(tf.constant(whole))
    np.testing.assert_array_equal(unpack_arrays(packed.numpy(), 5), whole)
    np.testing.assert_array_equal(unpack(packed, 5).numpy(), whole)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_xla_packs_the_same(dtype):
    whole = tf.cast(matrices(7, 2, 3), dtype)
    compiled = tf.function(lambda x: unpack(pack(x), 7), jit_compile=True)
    np.testing.assert_array_equal(
        compiled(whole).numpy().astype(np.float32), whole.numpy().astype(np.float32)
    )
