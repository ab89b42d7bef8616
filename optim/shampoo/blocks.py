"""Blocks of tensors: dimensions merged and split, blocks of one shape stacked.

A tensor is split along every preconditioned dimension into ceil(n / block_size) parts whose sizes differ by
at most one. So there is no padding to damp, and no thin slice at the end. Blocks of one shape, of
any tensors, form one stack [N, ...], and all work on them is one batched operation.

    shape          block_size   blocks                              stacks
    [416, 1024]    256          2 x 4 of [208, 256]                 one of N = 8
    [7, 5]         4            [4, 3] [4, 2] / [3, 3] [3, 2]       four of N = 1
    [10000, 16]    256          one, its right side only            (max_dimension 8192)
    [256, 1], [9]  256          none: a vector
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import tensorflow as tf

from ctr.optim.shampoo.options import ShampooOptions

Shape = tuple[int, ...]


Block: TypeAlias = tuple[int, int]
"""The index of a tensor, and the number of a block among its blocks, which are in row-major order."""


@dataclass(frozen=True)
class TensorLayout:
    """Preconditioning of a tensor; ``merged`` is its shape without dimensions of 1 and with small ones merged.

    ``axes`` and ``diagonal`` are the dimensions of ``merged`` that are preconditioned by matrices and diagonals;
    ``parts`` has the sizes of the parts along each dimension of ``merged``.
    """

    shape: Shape
    merged: Shape
    axes: tuple[int, ...]
    parts: tuple[Shape, ...]
    diagonal: tuple[int, ...] = ()

    @property
    def is_preconditioned(self) -> bool:
        return bool(self.axes or self.diagonal)

    @functools.cached_property
    def blocks(self) -> tuple[Shape, ...]:
        """Returns the shapes of the blocks."""
        return tuple(itertools.product(*self.parts)) if self.is_preconditioned else ()


@dataclass(frozen=True)
class Stack:
    """Blocks of one shape, preconditioned along the same axes; ``places`` are their indices in the whole stack."""

    block: Shape
    axes: tuple[int, ...]
    members: tuple[Block, ...]
    places: tuple[int, ...]
    diagonal: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        return len(self.members)

    @property
    def tensors(self) -> tuple[int, ...]:
        """Returns the index of each block's tensor."""
        return tuple(index for index, _ in self.members)


def merge_dimensions(shape: Sequence[int], limit: int | None) -> Shape:
    """Drops dimensions of 1; merges neighbors, from the left, up to a product of ``limit`` (None: merges none).

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


def split_evenly(size: int, block_size: int) -> Shape:
    """Returns the sizes of parts that are at most ``block_size`` and differ by at most one, the larger ones first.

    Example:
        >>> split_evenly(10, block_size=4)
        (4, 3, 3)
    """
    count = -(-size // block_size)
    small, longer = divmod(size, count)
    return (small + 1,) * longer + (small,) * (count - longer)


def split_fully(size: int, block_size: int) -> Shape:
    """Returns the sizes of parts of ``block_size``, and of one smaller part for the rest."""
    count, rest = divmod(size, block_size)
    return (block_size,) * count + ((rest,) if rest else ())


def lay_out_tensor(shape: Sequence[int], options: ShampooOptions) -> TensorLayout:
    """Returns the layout of a tensor; without ``blocking.vectors``, vectors and scalars are not preconditioned."""
    shape = tuple(int(size) for size in shape)
    how = options.blocking
    merged = merge_dimensions(shape, how.merge)
    # PyTorch's Distributed Shampoo turns a scalar into a vector when it merges.
    if how.vectors and not merged and (shape or how.merge is not None):
        merged = (1,)
    axes, diagonal = _preconditioned(merged, options)
    split = split_evenly if how.split == "balanced" else split_fully
    parts = tuple(
        split(size, options.block_size) if axis in axes else (size,) for axis, size in enumerate(merged)
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
    """Returns the stacks of all tensors, in the order of their first blocks."""
    members: dict[tuple[Shape, tuple[int, ...], tuple[int, ...]], list[Block]] = {}
    for index, layout in enumerate(layouts):
        for number, block in enumerate(layout.blocks):
            members.setdefault((block, layout.axes, layout.diagonal), []).append((index, number))
    return tuple(
        Stack(block, axes, tuple(blocks), tuple(range(len(blocks))), diagonal)
        for (block, axes, diagonal), blocks in members.items()
    )


def cut(tensor: tf.Tensor, layout: TensorLayout) -> list[tf.Tensor]:
    """Cuts a tensor into its blocks, in row-major order."""
    pieces = [tf.reshape(tensor, layout.merged)]
    for axis, sizes in enumerate(layout.parts):
        if len(sizes) > 1:
            pieces = [part for piece in pieces for part in tf.split(piece, sizes, axis)]
    return pieces


def paste(blocks: Sequence[tf.Tensor], layout: TensorLayout) -> tf.Tensor:
    """Joins blocks to their tensor; undoes ``cut``."""
    pieces = list(blocks)
    for axis in reversed(range(len(layout.parts))):
        count = len(layout.parts[axis])
        if count > 1:
            pieces = [tf.concat(pieces[i : i + count], axis) for i in range(0, len(pieces), count)]
    return tf.reshape(pieces[0], layout.shape)


def gram(blocks: tf.Tensor, axis: int) -> tf.Tensor:
    """Computes A A^T, [N, d_axis, d_axis], of the unfolding A of each block along ``axis``."""
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
    """Multiplies blocks [N, *block] by matrices [N, d, d] along ``axes``, as in A G B^T, or transposed, A^T G B."""
    for axis, matrix in zip(axes, matrices, strict=True):
        blocks = multiply(blocks, axis, matrix, transposed)
    return blocks


def precondition(blocks: tf.Tensor, axes: Sequence[int], roots: Sequence[tf.Tensor]) -> tf.Tensor:
    """Multiplies blocks [N, *block] by symmetric roots [N, d, d] along each of ``axes``, as in L^(-e) G R^(-e)."""
    for axis, root in zip(axes, roots, strict=True):
        # A root is symmetric, so that the form without a transposition can be used.
        blocks = multiply(blocks, axis, root, transposed=axis == len(blocks.shape) - 2)
    return blocks
