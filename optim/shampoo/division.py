"""Division of Shampoo's state and work among workers, and how the parts make the whole again (PT 4.1, algorithm 2).

Every block has one owner, which alone keeps its statistics, roots and element-wise state, and computes its
direction. Each worker has the weights and the whole gradient. Workers exchange:

    at each step        the norms of directions      a few numbers for each tensor
                        directions                   one number for each element, padded to the largest part
    at an exchange      the status of the roots      a few numbers for each matrix

Tensors without a block, such as biases, belong to all, as do tables of rows with their factors.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

import numpy as np
import tensorflow as tf

from ctr.optim.shampoo.blocks import Member, Shape, Stack, stack_blocks, unstack_blocks
from ctr.optim.shampoo.layout import ShampooLayout
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.placement import owners_of
from ctr.workers.collectives import ALONE
from ctr.workers.parts import Part


class Group(Protocol):
    """Group of members that divide blocks, such as ``Workers``, as seen by one of them."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Concatenates the tensors of all members, which have one shape [N, ...], in the order of ranks."""
        ...


class Blocks:
    """Blocks of one worker: ``whole`` is the layout of all blocks, ``local`` the layout of this worker's blocks alone.

    A worker alone has all blocks, and their state has the shapes of tensors; otherwise the local state is flat.
    """

    def __init__(self, whole: ShampooLayout, workers: Group = ALONE, owners: Sequence[int] = ()) -> None:
        """Divides a layout by the rank of the owner of each block, in the order of the stacks."""
        self.whole, self.workers, self._is_alone = whole, workers, workers.size == 1
        self._layouts = [whole]
        if not self._is_alone:
            self._layouts = [_local_layout(whole, owners, rank) for rank in range(workers.size)]
        self.local = self._layouts[workers.rank]
        self._most_matrices = max(layout.matrices for layout in self._layouts)
        # Index of each matrix in the gathered messages of all workers, which are padded to one length.
        self._sent_at = np.zeros(whole.matrices, np.int32)
        for rank, layout in enumerate(self._layouts):
            self._sent_at[_numbers(whole, layout)] = rank * self._most_matrices + np.arange(layout.matrices)

    # Elements of dense tensors.

    def shape(self, tensor: int) -> Shape:
        """Returns the shape of a tensor's element-wise state: the tensor's, or if divided [its local elements]."""
        if not self._is_divided(tensor):
            return self.whole.tensors[tensor].shape
        return (sum(map(_elements, _members(self.local, tensor))),)

    def take(self, tensors: Mapping[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        """Returns the local elements of tensors, by index, each in the shape of ``shape``."""
        return {
            index: self._take(index, tensor) if self._is_divided(index) else tensor
            for index, tensor in tensors.items()
        }

    def stack(self, local: Mapping[int, tf.Tensor], dtype: tf.DType) -> list[tf.Tensor]:
        """Stacks the local blocks, [n, *block] each, of tensors as ``take`` returns them; missing tensors are zero."""
        layouts = self.whole.tensors
        filled = [local[i] if i in local else tf.zeros(self.shape(i), dtype) for i in range(len(layouts))]
        if self._is_alone:
            return [stack_blocks(stack, layouts, filled) for stack in self.whole.stacks]
        parts: dict[Member, tf.Tensor] = {}
        for index, elements in enumerate(filled):
            if members := _members(self.local, index):
                parts |= zip(members, tf.split(elements, list(map(_elements, members))), strict=True)
        return [_join_stack(stack, stack.members, parts, dtype) for stack in self.local.stacks]

    def unstack(self, blocks: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
        """Returns the local elements of the tensors that have blocks, by index; the inverse of ``stack``."""
        if self._is_alone:
            return unstack_blocks(self.whole.stacks, self.whole.tensors, blocks)
        parts: dict[Member, tf.Tensor] = {}
        for stack, stacked in zip(self.local.stacks, blocks, strict=True):
            if stack.members:
                parts |= zip(stack.members, tf.unstack(stacked), strict=True)
        dtype, divided = blocks[0].dtype, filter(self._is_divided, range(len(self.whole.tensors)))
        return {
            index: _join([parts[member] for member in _members(self.local, index)], dtype, self.shape(index))
            for index in divided
        }

    def gather(self, local: Mapping[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        """Gathers the local elements of all owners; returns whole tensors, by index."""
        divided = list(filter(self._is_divided, local))
        if not divided:
            return dict(local)
        dtype = local[divided[0]].dtype
        sent = [
            [member for index in divided for member in _members(layout, index)] for layout in self._layouts
        ]
        largest = max(sum(map(_elements, members)) for members in sent)
        message = tf.concat([local[index] for index in divided], axis=0)
        message = tf.pad(message, [[0, largest - message.shape[0]]])
        received = tf.split(self.workers.all_gather(message), self.workers.size)
        parts: dict[Member, tf.Tensor] = {}
        for members, elements in zip(sent, received, strict=True):
            sizes = list(map(_elements, members))
            *blocks, _ = tf.split(elements, [*sizes, largest - sum(sizes)])
            parts |= zip(members, blocks, strict=True)
        stacked = [_join_stack(stack, stack.single_blocks, parts, dtype) for stack in self.whole.stacks]
        whole = unstack_blocks(self.whole.stacks, self.whole.tensors, stacked)
        return {index: whole[index] if index in divided else tensor for index, tensor in local.items()}

    def sum(self, numbers: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums scalars over all owners."""
        return self._reduced(tf.reduce_sum, numbers)

    def max(self, numbers: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Takes the largest of scalars over all owners."""
        return self._reduced(tf.reduce_max, numbers)

    def _reduced(self, reduce: Callable[..., tf.Tensor], numbers: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        if self._is_alone:
            return list(numbers)
        return tf.unstack(reduce(self.workers.all_gather(tf.stack(list(numbers))[tf.newaxis]), axis=0))

    # Matrices.

    def take_status(self, status: tf.Tensor) -> tf.Tensor:
        """Returns the columns of the local matrices from the status of all matrices, [S, M]."""
        return status if self._is_alone else tf.gather(status, _numbers(self.whole, self.local), axis=1)

    def gather_status(self, status: tf.Tensor) -> tf.Tensor:
        """Gathers the columns of all owners' matrices; returns the status of all matrices, [S, M]."""
        if self._is_alone:
            return status
        message = tf.pad(tf.transpose(status), [[0, self._most_matrices - self.local.matrices], [0, 0]])
        return tf.transpose(tf.gather(self.workers.all_gather(message), self._sent_at))

    def add_counts(self, before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
        """Adds the increments of all owners, ``after`` - ``before``, to ``before``."""
        if self._is_alone:
            return after
        return before + tf.reduce_sum(self.workers.all_gather((after - before)[tf.newaxis]), axis=0)

    def between_steps(self, action: Callable[[], None]) -> Callable[[], None]:
        """Wraps an exchange among members so that it can be called between two steps."""
        if self._is_alone:
            return action
        # Members exchange in graphs alone.
        return cast(Callable[[], None], tf.function(action, autograph=False))

    def part(self, name: str, rank: int | None = None) -> Part | None:
        """Returns an owner's part of a state variable, this worker's by default; None if each has all of it."""
        match = re.match(r"(stack|tensor)(\d+)/", name)
        if self._is_alone or match is None:
            return None
        layout, number = self.local if rank is None else self._layouts[rank], int(match[2])
        if match[1] == "stack":
            return Part(np.array(layout.stacks[number].places, np.int64), self.whole.stacks[number].blocks)
        if not self._is_divided(number):
            return None
        tensor = self.whole.tensors[number]
        elements = np.arange(math.prod(tensor.shape)).reshape(tensor.merged)
        rows = [np.zeros(0, np.int64)]
        for _, region in _members(layout, number):
            ends = zip(region.begin, region.block, strict=True)
            rows.append(elements[tuple(slice(begin, begin + size) for begin, size in ends)].ravel())
        return Part(np.concatenate(rows), elements.size, tensor.shape)

    def _is_divided(self, tensor: int) -> bool:
        return not self._is_alone and self.whole.tensors[tensor].is_preconditioned

    def _take(self, index: int, tensor: tf.Tensor) -> tf.Tensor:
        merged = tf.reshape(tensor, self.whole.tensors[index].merged)
        parts = [tf.slice(merged, region.begin, region.block) for _, region in _members(self.local, index)]
        return _join(parts, tensor.dtype, self.shape(index))


def _members(layout: ShampooLayout, tensor: int) -> list[Member]:
    """Returns the blocks of a tensor, in the order of the stacks."""
    return [member for stack in layout.stacks for member in stack.members if member[0] == tensor]


def _elements(member: Member) -> int:
    return math.prod(member[1].block)


def _local_layout(whole: ShampooLayout, owners: Sequence[int], rank: int) -> ShampooLayout:
    """Returns the layout of one owner's blocks; stacks and factors without any stay, with no matrix."""
    # Factors of tables, whose rows all members have, are copies of the first member's.
    parts = [(factor.owners, tuple(range(factor.count)), rank > 0) for factor in whole.factors]
    stacks, owner = [], iter(owners)
    for stack, indices in zip(whole.stacks, whole.stack_factors, strict=True):
        blocks = stack.single_blocks
        places = tuple(at for at, _ in enumerate(blocks) if next(owner) == rank)
        stacks.append(dataclasses.replace(stack, members=tuple(blocks[i] for i in places), places=places))
        for index in indices:
            parts[index] = (stacks[-1].owners, places, False)
    factors, offset = [], 0
    for factor, (tensors, numbers, is_copy) in zip(whole.factors, parts, strict=True):
        local = dataclasses.replace(
            factor, count=len(tensors), owners=tensors, offset=offset, numbers=numbers, is_copy=is_copy
        )
        factors.append(local)
        offset += local.count
    return dataclasses.replace(whole, stacks=tuple(stacks), factors=tuple(factors))


def _numbers(whole: ShampooLayout, local: ShampooLayout) -> np.ndarray:
    return np.array(
        [
            factor.offset + number
            for factor, part in zip(whole.factors, local.factors, strict=True)
            for number in part.numbers or range(part.count)
        ],
        np.int32,
    )


def _join_stack(
    stack: Stack, members: Sequence[Member], parts: Mapping[Member, tf.Tensor], dtype: tf.DType
) -> tf.Tensor:
    """Returns the blocks of these members, [N, *block]; zero for tensors without parts."""
    blocks = [parts[member] if member in parts else tf.zeros(stack.block, dtype) for member in members]
    return _join(blocks, dtype, [len(members), *stack.block])


def _join(parts: Sequence[tf.Tensor], dtype: tf.DType, shape: Sequence[int]) -> tf.Tensor:
    if not parts:
        return tf.zeros(list(shape), dtype)
    return tf.reshape(tf.concat([tf.reshape(part, [-1]) for part in parts], axis=0), list(shape))


def divide(options: ShampooOptions, layout: ShampooLayout, workers: Group) -> Blocks:
    """Returns a worker's blocks of a layout, with balanced costs (``placement.owners_of``)."""
    owners = owners_of(layout, options, workers.size) if workers.size > 1 else ()
    return Blocks(layout, workers, owners)
