"""Tensors into blocks and back: nothing lost, nothing twice; who owns them."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.optim.shampoo.division import Blocks
from ctr.optim.shampoo.layout import lay_out
from ctr.optim.shampoo.options import ShampooOptions

# Of up to 500 elements: the longer sides only where there are few.
shapes = st.lists(st.integers(1, 9), max_size=2) | st.lists(st.integers(1, 4), max_size=4)


def numbered(layouts):
    """Tensors whose elements are all different, also from each other's."""
    offsets = np.cumsum([0, *(math.prod(layout.shape) for layout in layouts)])
    return [
        tf.reshape(tf.range(begin, end), layout.shape)
        for layout, begin, end in zip(layouts, offsets[:-1], offsets[1:], strict=True)
    ]


def of(*tensors, **options):
    return lay_out(ShampooOptions(**options), tensors)


@settings(max_examples=40)
@given(
    st.lists(shapes, min_size=1, max_size=3),
    st.integers(1, 5),
    st.sampled_from([3, 6, 100]),
    st.none() | st.integers(1, 20),
)
def test_every_element_is_in_one_block_and_comes_back_to_its_place(tensors, block_size, longest, merge):
    layout = of(*tensors, block_size=block_size, blocking={"max_dimension": longest, "merge": merge})
    whole = numbered(layout.tensors)
    blocks = Blocks(layout).stack(dict(enumerate(whole)), tf.int32)
    for stack, stacked in zip(layout.stacks, blocks, strict=True):
        assert stacked.shape == (len(stack.members), *stack.block)
        for axis, size in enumerate(stack.block):
            assert size <= block_size if axis in stack.axes else size > longest
        # What it says of who owns a block is so.
        for index, block in zip(stack.tensors, stacked.numpy(), strict=True):
            assert np.isin(block, whole[index].numpy()).all()
    split = [index for index, tensor in enumerate(layout.tensors) if tensor.axes]
    inside = np.concatenate([np.zeros(0), *(np.ravel(b) for b in blocks)])
    expected = np.concatenate([np.zeros(0), *(np.ravel(whole[index]) for index in split)])
    np.testing.assert_array_equal(np.sort(inside), expected)
    back = Blocks(layout).unstack(blocks)
    assert sorted(back) == split
    for index in split:
        np.testing.assert_array_equal(back[index], whole[index])
        assert back[index].shape == layout.tensors[index].shape


@pytest.mark.parametrize(
    ("shape", "changed", "blocks"),
    [
        ((416, 1024), {}, [(8, (208, 256), (0, 1))]),
        ((7, 5), {"block_size": 4}, [(1, (4, 3), (0, 1)), (1, (4, 2), (0, 1)), (1, (3, 3), (0, 1))]),
        ((10000, 16), {}, [(1, (10000, 16), (1,))]),
        ((16, 300), {"blocking": {"max_dimension": 256}}, [(1, (16, 300), (0,))]),
        ((300, 300), {"blocking": {"max_dimension": 256}}, []),
        ((256, 1), {}, []),
        ((), {}, []),
        ((0, 4), {}, []),
        ((3, 3, 64, 32), {"blocking": {"merge": 9}}, [(1, (9, 64, 32), (0, 1, 2))]),
        ((3, 3, 64, 32), {"blocking": {"merge": 2**20}}, []),
        ((8, 8), {"start_preconditioning_step": None}, []),
    ],
)
def test_what_is_preconditioned_along_which_sides(shape, changed, blocks):
    stacks = of(shape, **changed).stacks
    assert [(stack.count, stack.block, stack.axes) for stack in stacks][:3] == blocks
