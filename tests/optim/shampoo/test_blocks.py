"""Tensors into blocks and back: nothing lost, nothing twice, parts balanced."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.optim.shampoo.blocks import (
    lay_out_tensor,
    make_stacks,
    merge_dimensions,
    split_evenly,
    stack_blocks,
    unstack_blocks,
)
from shampoo_options import options as flat_options

shapes = st.lists(st.integers(1, 9), max_size=4).filter(lambda shape: math.prod(shape) <= 500)


def numbered(layouts):
    """Tensors whose elements are all different, also from each other's."""
    offsets = np.cumsum([0, *(math.prod(layout.shape) for layout in layouts)])
    return [
        tf.reshape(tf.range(begin, end), layout.shape)
        for layout, begin, end in zip(layouts, offsets[:-1], offsets[1:], strict=True)
    ]


def of(*tensors, **changed):
    layouts = [lay_out_tensor(shape, flat_options(**changed)) for shape in tensors]
    return layouts, make_stacks(layouts)


@settings(max_examples=40)
@given(
    st.lists(shapes, min_size=1, max_size=3),
    st.integers(1, 5),
    st.sampled_from([3, 6, 100]),
    st.none() | st.integers(1, 20),
)
def test_every_element_is_in_one_block_and_comes_back_to_its_place(
    tensors, block_size, max_dimension, merge_to
):
    layouts, stacks = of(
        *tensors, block_size=block_size, max_dimension=max_dimension, merge_dimensions=merge_to
    )
    whole = numbered(layouts)
    blocks = [stack_blocks(stack, layouts, whole) for stack in stacks]
    for stack, stacked in zip(stacks, blocks, strict=True):
        assert stacked.shape == (stack.blocks, *stack.block) and len(stack.owners) == stack.blocks
        for axis, size in enumerate(stack.block):
            assert size <= block_size if axis in stack.axes else size > max_dimension
        # What it says of who owns a block is so.
        for owner, block in zip(stack.owners, stacked.numpy(), strict=True):
            assert np.isin(block, whole[owner].numpy()).all()
    split = [index for index, layout in enumerate(layouts) if layout.axes]
    inside = np.concatenate([np.ravel(b) for b in blocks]) if blocks else np.zeros(0)
    expected = np.concatenate([np.ravel(whole[index]) for index in split]) if split else np.zeros(0)
    np.testing.assert_array_equal(np.sort(inside), expected)
    back = unstack_blocks(stacks, layouts, blocks)
    assert sorted(back) == split
    for index in split:
        np.testing.assert_array_equal(back[index], whole[index])
        assert back[index].shape == layouts[index].shape


@given(st.integers(1, 10**9), st.integers(1, 10**5))
def test_parts_are_as_few_as_can_be_and_as_equal_as_can_be(size, block_size):
    runs = split_evenly(size, block_size)
    assert sum(count for _, count, _ in runs) == math.ceil(size / block_size)
    at = 0
    for offset, count, part in runs:
        assert offset == at and count > 0 and part <= block_size
        at += count * part
    assert at == size
    sizes = [part for _, _, part in runs]
    assert len(sizes) <= 2 and max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


def test_blocks_are_contiguous_rectangles_in_row_major_order():
    layouts, stacks = of((5, 7), block_size=3)
    whole = np.arange(35).reshape(5, 7)
    found = {stack.block: stack_blocks(stack, layouts, [tf.constant(whole)]).numpy() for stack in stacks}
    assert list(found) == [(3, 3), (3, 2), (2, 3), (2, 2)]
    np.testing.assert_array_equal(found[3, 3], [whole[:3, :3]])
    np.testing.assert_array_equal(found[3, 2], [whole[:3, 3:5], whole[:3, 5:]])
    np.testing.assert_array_equal(found[2, 3], [whole[3:, :3]])
    np.testing.assert_array_equal(found[2, 2], [whole[3:, 3:5], whole[3:, 5:]])


@pytest.mark.parametrize(
    ("shape", "changed", "blocks"),
    [
        ((416, 1024), {}, [(8, (208, 256), (0, 1))]),
        ((7, 5), {"block_size": 4}, [(1, (4, 3), (0, 1)), (1, (4, 2), (0, 1)), (1, (3, 3), (0, 1))]),
        ((10000, 16), {}, [(1, (10000, 16), (1,))]),
        ((16, 300), {"max_dimension": 256}, [(1, (16, 300), (0,))]),
        ((300, 300), {"max_dimension": 256}, []),
        ((256, 1), {}, []),
        ((9,), {}, []),
        ((), {}, []),
        ((0, 4), {}, []),
        ((3, 3, 64, 32), {"merge_dimensions": 9}, [(1, (9, 64, 32), (0, 1, 2))]),
        ((3, 3, 64, 32), {"merge_dimensions": 2**20}, []),
        ((8, 8), {"start_preconditioning_step": None}, []),
    ],
)
def test_what_is_preconditioned_along_which_sides(shape, changed, blocks):
    _, stacks = of(shape, **changed)
    assert [(stack.blocks, stack.block, stack.axes) for stack in stacks][:3] == blocks


def test_blocks_of_one_shape_but_other_sides_do_not_share_a_stack():
    # Ten rows are 4 + 3 + 3; a long side that stays whole makes another exponent of the same shape.
    _, stacks = of((10, 3), (4, 3), (2, 4, 3), (8, 3), block_size=4)
    assert [(stack.block, stack.owners) for stack in stacks] == [
        ((4, 3), (0, 1, 3, 3)),
        ((3, 3), (0, 0)),
        ((2, 4, 3), (2,)),
    ]
    _, stacks = of((9, 3), (3, 3), block_size=3, max_dimension=8)
    assert [(stack.block, stack.axes, stack.owners) for stack in stacks] == [
        ((9, 3), (1,), (0,)),
        ((3, 3), (0, 1), (1,)),
    ]


@pytest.mark.parametrize(
    ("shape", "limit", "merged"),
    [
        ((1, 5, 1, 3), None, (5, 3)),
        ((2, 3, 4, 5), None, (2, 3, 4, 5)),
        ((2, 3, 4, 5), 6, (6, 4, 5)),
        ((2, 3, 4, 5), 20, (6, 20)),
        ((2, 3, 4, 5), 24, (24, 5)),
        ((7, 3, 1, 2), 6, (7, 6)),
        ((1, 1), 4, ()),
        ((16, 64), 1024, (1024,)),
    ],
)
def test_neighbors_merge_from_the_left_while_the_product_fits(shape, limit, merged):
    assert merge_dimensions(shape, limit) == merged
