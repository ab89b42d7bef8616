"""Division of Shampoo's state and work among workers, and the exchange of the parts (PT 4.1, algorithm 2).

Every block has one owner, which alone keeps its statistics, roots and element-wise state, and computes its
direction. Each worker has the weights and the whole gradient. Workers exchange:

    at each step        the norms of directions      a few numbers for each tensor
                        directions                   one number for each element, padded to the largest part
    at an exchange      the status of the roots      a few numbers for each matrix

Tensors without a block, such as biases, are whole on all workers, as are tables of rows with their factors.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

import numpy as np
import tensorflow as tf

from ctr.optim.shampoo.blocks import Block, Shape, cut, paste
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
    """Blocks of a layout, and the communication between workers about them.

    ``whole`` is the layout of all blocks, ``local`` the layout of this worker's blocks alone.

    A single worker has all blocks, and their state has the shapes of tensors; otherwise the local state is flat.
    """

    def __init__(self, whole: ShampooLayout, workers: Group = ALONE, owners: Sequence[int] = ()) -> None:
        """Divides a layout by ``owners``, the ranks of the blocks' owners in the order of the stacks; by default 0."""
        self.whole, self.workers, self._is_alone = whole, workers, workers.size == 1
        owners = owners or [0] * sum(stack.count for stack in whole.stacks)
        self._layouts = [_local_layout(whole, owners, rank) for rank in range(workers.size)]
        self.local = self._layouts[workers.rank]
        self._most_matrices = max(layout.matrices for layout in self._layouts)
        # Index of each matrix in the gathered messages of all workers, which are padded to one length.
        self._sent_at = np.zeros(whole.matrices, np.int32)
        for rank, layout in enumerate(self._layouts):
            self._sent_at[_numbers(whole, layout)] = rank * self._most_matrices + np.arange(layout.matrices)

    # Elements of dense tensors.

    def shape(self, tensor: int) -> Shape:
        """Returns the shape of a tensor's state by element: its own shape, or [number of local elements] if divided."""
        if not self._is_divided(tensor):
            return self.whole.tensors[tensor].shape
        return (sum(map(self._elements, _members(self.local, tensor))),)

    def take(self, tensors: Mapping[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        """Returns the local elements of tensors, by index, each in the shape of ``shape``."""
        return {
            index: self._join(self.local, index, self._cut(index, tensor), tensor.dtype)
            if self._is_divided(index)
            else tensor
            for index, tensor in tensors.items()
        }

    def stack(self, local: Mapping[int, tf.Tensor], dtype: tf.DType) -> list[tf.Tensor]:
        """Stacks the local blocks, [n, *block] each, of tensors as ``take`` returns them; missing tensors are zero."""
        blocks: dict[Block, tf.Tensor] = {}
        for index, layout in enumerate(self.whole.tensors):
            if layout.is_preconditioned:
                elements = local[index] if index in local else tf.zeros(self.shape(index), dtype)
                members = _members(self.local, index)
                blocks |= self._cut(index, elements) if self._is_alone else self._split(members, elements)
        return [
            tf.stack([blocks[member] for member in stack.members])
            if stack.members
            else tf.zeros([0, *stack.block], dtype)
            for stack in self.local.stacks
        ]

    def unstack(self, stacked: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
        """Returns the local elements of the tensors that have blocks, by index; the inverse of ``stack``."""
        blocks: dict[Block, tf.Tensor] = {}
        for stack, together in zip(self.local.stacks, stacked, strict=True):
            if stack.members:
                blocks |= zip(stack.members, tf.unstack(together), strict=True)
        return {
            index: self._paste(index, blocks)
            if self._is_alone
            else self._join(self.local, index, blocks, stacked[0].dtype)
            for index, layout in enumerate(self.whole.tensors)
            if layout.is_preconditioned
        }

    def gather(self, local: Mapping[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        """Gathers the local elements of all owners; returns whole tensors, by index."""
        divided = list(filter(self._is_divided, local))
        if not divided:
            return dict(local)
        sent = [
            [member for index in divided for member in _members(layout, index)] for layout in self._layouts
        ]
        largest = max(sum(map(self._elements, members)) for members in sent)
        message = tf.concat([local[index] for index in divided], axis=0)
        message = tf.pad(message, [[0, largest - message.shape[0]]])
        received = tf.split(self.workers.all_gather(message), self.workers.size)
        blocks: dict[Block, tf.Tensor] = {}
        for members, elements in zip(sent, received, strict=True):
            blocks |= self._split(members, elements)
        return {**local, **{index: self._paste(index, blocks) for index in divided}}

    def _is_divided(self, tensor: int) -> bool:
        return not self._is_alone and self.whole.tensors[tensor].is_preconditioned

    def _elements(self, member: Block) -> int:
        index, number = member
        return math.prod(self.whole.tensors[index].blocks[number])

    def _split(self, members: Sequence[Block], elements: tf.Tensor) -> dict[Block, tf.Tensor]:
        """Splits the concatenated elements of blocks into the blocks, and drops padding behind them."""
        sizes = list(map(self._elements, members))
        *parts, _ = tf.split(elements, [*sizes, elements.shape[0] - sum(sizes)])
        shapes = [self.whole.tensors[index].blocks[number] for index, number in members]
        return dict(zip(members, map(tf.reshape, parts, shapes), strict=True))

    def _join(
        self, layout: ShampooLayout, index: int, blocks: Mapping[Block, tf.Tensor], dtype: tf.DType
    ) -> tf.Tensor:
        """Concatenates the elements of an owner's blocks of a tensor; the inverse of ``_split``."""
        parts = [tf.reshape(blocks[member], [-1]) for member in _members(layout, index)]
        return tf.concat(parts, axis=0) if parts else tf.zeros([0], dtype)

    def _cut(self, index: int, tensor: tf.Tensor) -> dict[Block, tf.Tensor]:
        return {(index, number): block for number, block in enumerate(cut(tensor, self.whole.tensors[index]))}

    def _paste(self, index: int, blocks: Mapping[Block, tf.Tensor]) -> tf.Tensor:
        layout = self.whole.tensors[index]
        return paste([blocks[index, number] for number in range(len(layout.blocks))], layout)

    # Numbers of all owners.

    def reduce(self, reduce: Callable[..., tf.Tensor], numbers: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Reduces tensors of one shape over all owners, by ``tf.reduce_sum`` or ``tf.reduce_max``."""
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

    def between_steps(self, action: Callable[[], None]) -> Callable[[], None]:
        """Wraps an exchange among members so that it can be called between two steps."""
        if self._is_alone:
            return action
        # Members exchange in graphs alone.
        return cast(Callable[[], None], tf.function(action, autograph=False))

    def part(self, name: str, rank: int | None = None) -> Part | None:
        """Returns an owner's part (default: this worker's) of a state variable; None if each worker has all of it."""
        match = re.match(r"(stack|tensor)(\d+)/", name)
        if self._is_alone or match is None:
            return None
        layout, number = self.local if rank is None else self._layouts[rank], int(match[2])
        if match[1] == "stack":
            return Part(np.array(layout.stacks[number].places, np.int64), self.whole.stacks[number].count)
        if not self._is_divided(number):
            return None
        shape = self.whole.tensors[number].shape
        with tf.init_scope():
            elements = self._cut(number, tf.range(math.prod(shape), dtype=tf.int64))
            rows = self._join(layout, number, elements, tf.int64).numpy()
        return Part(rows, math.prod(shape), shape)


def _members(layout: ShampooLayout, tensor: int) -> list[Block]:
    """Returns the blocks of a tensor, in the order of the stacks."""
    return [member for stack in layout.stacks for member in stack.members if member[0] == tensor]


def _local_layout(whole: ShampooLayout, owners: Sequence[int], rank: int) -> ShampooLayout:
    """Returns the layout of one owner's blocks; stacks and factors without any of them stay, but are empty."""
    # Factors of tables, whose rows all members have, are copies of the first member's.
    parts = [(factor.tensors, factor.numbers, rank > 0) for factor in whole.factors]
    stacks, owner = [], iter(owners)
    for stack, indices in zip(whole.stacks, whole.stack_factors, strict=True):
        places = tuple(at for at in stack.places if next(owner) == rank)
        members = tuple(stack.members[at] for at in places)
        stacks.append(dataclasses.replace(stack, members=members, places=places))
        for index in indices:
            parts[index] = (stacks[-1].tensors, places, False)
    factors, offset = [], 0
    for factor, (tensors, numbers, is_copy) in zip(whole.factors, parts, strict=True):
        factors.append(
            dataclasses.replace(factor, tensors=tensors, numbers=numbers, offset=offset, is_copy=is_copy)
        )
        offset += len(tensors)
    return dataclasses.replace(whole, stacks=tuple(stacks), factors=tuple(factors))


def _numbers(whole: ShampooLayout, local: ShampooLayout) -> np.ndarray:
    pairs = zip(whole.factors, local.factors, strict=True)
    return np.array([factor.offset + number for factor, part in pairs for number in part.numbers], np.int32)


def divide(options: ShampooOptions, layout: ShampooLayout, workers: Group) -> Blocks:
    """Returns a worker's blocks of a layout, with balanced costs (``placement.owners_of``)."""
    owners = owners_of(layout, options, workers.size) if workers.size > 1 else ()
    return Blocks(layout, workers, owners)
