"""Blocks of tensors: dimensions merged and split, blocks of one shape stacked.

A tensor is split along every preconditioned dimension into ceil(n / block_size) parts whose sizes differ by
at most one. So there is no padding, hence no damping in it, and no thin slice at the end. Blocks of one shape, of
whatever tensors, form one stack [N, ...], and all work on them is one batched operation.

    shape          block_size   blocks                              stacks
    [416, 1024]    256          2 x 4 of [208, 256]                 one of N = 8
    [7, 5]         4            [4, 3] [4, 2] / [3, 3] [3, 2]       four of N = 1
    [10000, 16]    256          one, its right side only            (max_dimension 8192)
    [256, 1], [9]  256          none: a vector
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import tensorflow as tf

from ctr.optim.shampoo.options import ShampooOptions

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Region:
    """Equal blocks that lie side by side in one tensor: ``counts`` along each dimension, the first one at ``begin``."""

    begin: Shape
    counts: Shape
    block: Shape

    @property
    def blocks(self) -> int:
        return math.prod(self.counts)


Member: TypeAlias = tuple[int, Region]
"""A region, behind the index of its tensor."""


@dataclass(frozen=True)
class TensorLayout:
    """Preconditioning of one tensor, whose shape without dimensions of 1 and with small ones merged is ``merged``.

    ``axes`` and ``diagonal`` are the dimensions of ``merged`` that are preconditioned by matrices and diagonals;
    ``parts`` has along each up to two runs (offset, count, size) of equal parts.
    """

    shape: Shape
    merged: Shape
    axes: tuple[int, ...]
    parts: tuple[tuple[tuple[int, int, int], ...], ...]
    diagonal: tuple[int, ...] = ()

    @property
    def is_preconditioned(self) -> bool:
        return bool(self.axes or self.diagonal)

    @property
    def regions(self) -> tuple[Region, ...]:
        if not self.is_preconditioned:
            return ()
        return tuple(
            Region(*(tuple(run[field] for run in runs) for field in range(3)))
            for runs in itertools.product(*self.parts)
        )


@dataclass(frozen=True)
class Stack:
    """Blocks of one shape, preconditioned along the same axes.

    If it has one owner's blocks only, ``places`` are their indices among all owners' blocks, else empty.
    """

    block: Shape
    axes: tuple[int, ...]
    members: tuple[Member, ...]
    diagonal: tuple[int, ...] = ()
    places: tuple[int, ...] = ()

    @property
    def blocks(self) -> int:
        return sum(region.blocks for _, region in self.members)

    @property
    def owners(self) -> tuple[int, ...]:
        """Index of each block's tensor."""
        return tuple(index for index, region in self.members for _ in range(region.blocks))

    @property
    def single_blocks(self) -> list[Member]:
        """Each block as a region, in row-major order of the regions that they are in."""
        blocks = []
        for tensor, region in self.members:
            for index in itertools.product(*map(range, region.counts)):
                sides = zip(region.begin, index, region.block, strict=True)
                begin = tuple(start + i * size for start, i, size in sides)
                blocks.append((tensor, Region(begin, (1,) * len(begin), region.block)))
        return blocks


def merge_dimensions(shape: Sequence[int], limit: int | None) -> Shape:
    """Drops dimensions of 1 and merges neighbors, from the left, while their product is at most ``limit``.

    Example:
        >>> merge_dimensions((1, 3, 4, 5), limit=12)
        (12, 5)
    """
    merged: list[int] = []
    for size in shape:
        if limit is not None and merged and merged[-1] * size <= limit:
            merged[-1] *= size
        elif size != 1:
            merged.append(size)
    return tuple(merged)


def split_evenly(size: int, block_size: int) -> tuple[tuple[int, int, int], ...]:
    """Returns runs (offset, count, size) of equal parts, which are at most ``block_size`` and differ by at most one.

    Example:
        >>> split_evenly(10, block_size=4)
        ((0, 1, 4), (4, 2, 3))
    """
    count = -(-size // block_size)
    small, longer = divmod(size, count)
    runs = [(0, longer, small + 1), (longer * (small + 1), count - longer, small)]
    return tuple(run for run in runs if run[1])


def split_fully(size: int, block_size: int) -> tuple[tuple[int, int, int], ...]:
    """Returns runs (offset, count, size) of parts of ``block_size``, and of one smaller part for the rest."""
    count, rest = divmod(size, block_size)
    runs = [(0, count, block_size), (count * block_size, 1, rest)]
    return tuple(run for run in runs if run[1] and run[2])


def lay_out_tensor(shape: Sequence[int], options: ShampooOptions) -> TensorLayout:
    """Returns the layout of a tensor of a static shape; vectors and scalars have no preconditioned dimension."""
    shape = tuple(int(size) for size in shape)
    how = options.blocking
    merged = merge_dimensions(shape, how.merge)
    # Merging makes a vector of a scalar in PyTorch's version.
    if how.vectors and not merged and (shape or how.merge is not None):
        merged = (1,)
    axes, diagonal = _preconditioned(merged, options)
    split = split_evenly if how.split == "balanced" else split_fully
    parts = tuple(
        split(size, options.block_size) if axis in axes else ((0, 1, size),)
        for axis, size in enumerate(merged)
    )
    return TensorLayout(shape, merged, axes, parts, diagonal)


def _preconditioned(merged: Shape, options: ShampooOptions) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the dimensions that are preconditioned by matrices and by diagonals."""
    how = options.blocking
    least = 1 if how.vectors else 2
    if len(merged) < least or 0 in merged or options.start_preconditioning_step is None:
        return (), ()
    axes = tuple(axis for axis, size in enumerate(merged) if size <= how.max_dimension)
    if options.method != "diagonal":
        return axes, ()
    return axes, tuple(axis for axis in range(len(merged)) if axis not in axes)


def make_stacks(layouts: Sequence[TensorLayout]) -> tuple[Stack, ...]:
    """Returns the stacks of all tensors, in the order in which their first blocks come."""
    members: dict[tuple[Shape, tuple[int, ...], tuple[int, ...]], list[Member]] = {}
    for index, layout in enumerate(layouts):
        for region in layout.regions:
            members.setdefault((region.block, layout.axes, layout.diagonal), []).append((index, region))
    return tuple(
        Stack(block, axes, tuple(regions), diagonal) for (block, axes, diagonal), regions in members.items()
    )


def _cut(tensor: tf.Tensor, region: Region) -> tf.Tensor:
    """Returns the blocks of a region of a merged tensor, [blocks, ...], in row-major order."""
    extent = [count * size for count, size in zip(region.counts, region.block, strict=True)]
    if extent != list(tensor.shape):
        tensor = tf.slice(tensor, region.begin, extent)
    if math.prod(region.counts[1:]) > 1:
        interleaved = [n for pair in zip(region.counts, region.block, strict=True) for n in pair]
        order = [*range(0, len(interleaved), 2), *range(1, len(interleaved), 2)]
        tensor = tf.transpose(tf.reshape(tensor, interleaved), order)
    return tf.reshape(tensor, [region.blocks, *region.block])


def _paste(blocks: tf.Tensor, region: Region) -> tf.Tensor:
    extent = [count * size for count, size in zip(region.counts, region.block, strict=True)]
    if math.prod(region.counts[1:]) > 1:
        order = [dimension for axis in range(len(extent)) for dimension in (axis, len(extent) + axis)]
        blocks = tf.transpose(tf.reshape(blocks, [*region.counts, *region.block]), order)
    return tf.reshape(blocks, extent)


def stack_blocks(stack: Stack, layouts: Sequence[TensorLayout], tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Takes the blocks of a stack, [N, *block], out of the tensors."""
    cuts = [_cut(tf.reshape(tensors[i], layouts[i].merged), region) for i, region in stack.members]
    return cuts[0] if len(cuts) == 1 else tf.concat(cuts, axis=0)


def unstack_blocks(
    stacks: Sequence[Stack], layouts: Sequence[TensorLayout], blocks: Sequence[tf.Tensor]
) -> dict[int, tf.Tensor]:
    """Puts blocks [N, *block] back: returns the tensors that have blocks, in their own shapes, by index."""
    pieces: dict[int, dict[Shape, tf.Tensor]] = {}
    for stack, stacked in zip(stacks, blocks, strict=True):
        sizes = [region.blocks for _, region in stack.members]
        split = tf.split(stacked, sizes) if len(sizes) > 1 else [stacked]
        for (index, region), part in zip(stack.members, split, strict=True):
            pieces.setdefault(index, {})[region.begin] = _paste(part, region)
    tensors = {}
    for index, by_begin in pieces.items():
        layout = layouts[index]
        row = [by_begin[region.begin] for region in layout.regions]
        for axis in reversed(range(len(layout.merged))):
            runs = len(layout.parts[axis])
            if runs > 1:
                row = [tf.concat(row[i : i + runs], axis=axis) for i in range(0, len(row), runs)]
        tensors[index] = tf.reshape(row[0], layout.shape)
    return tensors


def gram(blocks: tf.Tensor, axis: int) -> tf.Tensor:
    """Sums products along one axis over all other dimensions: [N, d_axis, d_axis]."""
    if len(blocks.shape) == 3:
        return tf.matmul(blocks, blocks, transpose_a=axis == 1, transpose_b=axis == 0)
    dimensions = list(range(1, len(blocks.shape)))
    moved = dimensions.pop(axis)
    unfolded = tf.transpose(blocks, [0, moved, *dimensions])
    count, size = unfolded.shape[0], unfolded.shape[1]
    unfolded = tf.reshape(unfolded, [count, size, -1])
    return tf.matmul(unfolded, unfolded, transpose_b=True)


def multiply(blocks: tf.Tensor, axis: int, matrices: tf.Tensor, transposed: bool = False) -> tf.Tensor:
    """Multiplies one dimension of blocks [N, ..., d, ...] by M [N, d, d], sum_j M_ij G_j, or by its transpose."""
    order, count, size = len(blocks.shape) - 1, blocks.shape[0], blocks.shape[axis + 1]
    if axis == order - 1:
        flat = blocks if order == 2 else tf.reshape(blocks, [count, -1, size])
        return tf.reshape(tf.matmul(flat, matrices, transpose_b=not transposed), blocks.shape)
    if axis == 0:
        flat = blocks if order == 2 else tf.reshape(blocks, [count, size, -1])
        return tf.reshape(tf.matmul(matrices, flat, transpose_a=transposed), blocks.shape)
    swap = list(range(order + 1))
    swap[axis + 1], swap[1] = swap[1], swap[axis + 1]
    return tf.transpose(multiply(tf.transpose(blocks, swap), 0, matrices, transposed), swap)


def multiply_axes(
    blocks: tf.Tensor, axes: Sequence[int], matrices: Sequence[tf.Tensor], transposed: bool = False
) -> tf.Tensor:
    """Computes A G B^T, and its like, of blocks [N, *block] by matrices [N, d, d] of ``axes``, or A^T G B."""
    for axis, matrix in zip(axes, matrices, strict=True):
        blocks = multiply(blocks, axis, matrix, transposed)
    return blocks


def precondition(blocks: tf.Tensor, axes: Sequence[int], roots: Sequence[tf.Tensor]) -> tf.Tensor:
    """Computes L^(-e) G R^(-e), and its like, of blocks [N, *block] by symmetric roots [N, d, d] of ``axes``."""
    for axis, root in zip(axes, roots, strict=True):
        # Of a symmetric matrix the form that needs no transposition.
        blocks = multiply(blocks, axis, root, transposed=axis == len(blocks.shape) - 2)
    return blocks
