"""Every preconditioned dimension multiplied by its own root."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from ctr.optim.shampoo.products import precondition

LETTERS = "abcde"


def symmetric(rng, count, size):
    matrices = rng.normal(size=(count, size, size))
    return matrices + np.swapaxes(matrices, 1, 2)


@pytest.mark.parametrize("shape", [(4, 3), (3, 5), (2, 3, 4), (3, 2, 5, 4), (2, 3, 2, 4, 3)])
def test_any_sides_of_any_order_as_an_einsum(shape):
    rng = np.random.default_rng(0)
    blocks = rng.normal(size=(3, *shape))
    every = [symmetric(rng, 3, size) for size in shape]
    axes_sets = [s for n in range(len(shape) + 1) for s in itertools.combinations(range(len(shape)), n)]
    for axes in axes_sets:
        indices = LETTERS[: len(shape)]
        expected = blocks
        for axis in axes:
            letter = indices[axis]
            expected = np.einsum(
                f"N{letter}z,N{indices.replace(letter, 'z')}->N{indices}", every[axis], expected
            )
        found = precondition(tf.constant(blocks), axes, [tf.constant(every[axis]) for axis in axes])
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_left_and_right_by_hand():
    block = tf.constant([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]])
    left = tf.constant([[[2.0, 1.0], [1.0, 0.0]]])
    right = tf.constant([[[1.0, 0.0, 1.0], [0.0, 2.0, 0.0], [1.0, 0.0, 0.0]]])
    assert precondition(block, [0], [left]).numpy().tolist() == [[[6, 9, 12], [1, 2, 3]]]
    assert precondition(block, [1], [right]).numpy().tolist() == [[[4, 4, 1], [10, 10, 4]]]
    assert precondition(block, [0, 1], [left, right]).numpy().tolist() == [[[18, 18, 6], [4, 4, 1]]]
