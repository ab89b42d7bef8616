"""Division of Shampoo's state and work among workers, and how the parts make the whole again (PT 4.1, algorithm 2).

Every block has one owner, which alone keeps its statistics, roots and element-wise state, and computes its
direction. Each worker has the weights and the whole gradient. Workers exchange:

    at each step        the norms of directions      a few numbers for each tensor
                        directions                   one number for each element, padded to the largest part
    at an exchange      the status of the roots      a few numbers for each matrix

Tensors without a block, such as biases, belong to all, as do tables of rows with their factors.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import tensorflow as tf

from ctr.optim.shampoo.assignment import blocks_of, owners_of
from ctr.optim.shampoo.blocks import Region, Shape, stack_blocks, unstack_blocks
from ctr.optim.shampoo.layout import ShampooLayout
from ctr.optim.shampoo.options import ShampooOptions
from ctr.workers.collectives import ALONE
from ctr.workers.parts import Part


class Group(Protocol):
    """Members that divide blocks, such as ``Workers``, as one of them sees them."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Concatenates the tensors of all members, which have one shape [N, ...], in the order of ranks."""
        ...


@dataclass(frozen=True)
class _Piece:
    stack: int
    place: int
    tensor: int
    begin: Shape
    block: Shape

    @property
    def elements(self) -> int:
        return math.prod(self.block)

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(begin, begin + size) for begin, size in zip(self.begin, self.block, strict=True))


class Blocks:
    """The blocks of one worker: ``own`` is the layout with its own blocks only of the ``whole`` one.

    Alone a worker has all of them, whose state has the shapes of tensors; else the state of its elements is flat.
    """

    def __init__(self, whole: ShampooLayout, workers: Group = ALONE, owners: Sequence[int] = ()) -> None:
        """Divides a layout by the rank of the owner of each block, in the order of the stacks."""
        self.whole = self.own = whole
        self.workers, self._is_alone = workers, workers.size == 1
        if self._is_alone:
            return
        pieces = _pieces(whole)
        self._pieces = [
            [piece for piece, owner in zip(pieces, owners, strict=True) if owner == rank]
            for rank in range(workers.size)
        ]
        layouts = [_own_layout(whole, pieces, rank) for rank, pieces in enumerate(self._pieces)]
        self.own = layouts[workers.rank]
        self._most_matrices = max(layout.matrices for layout in layouts)
        # Where each matrix is in what all workers send, padded to the same number.
        self._sent_at = np.zeros(whole.matrices, np.int32)
        for rank, layout in enumerate(layouts):
            self._sent_at[_numbers(whole, layout)] = rank * self._most_matrices + np.arange(layout.matrices)
        self._numbers = _numbers(whole, self.own)

    # Elements of dense tensors.

    def shape(self, tensor: int) -> Shape:
        """Returns the shape of a tensor's element-wise state: its own, or, where it is divided, [its elements here]."""
        if not self._is_divided(tensor):
            return self.whole.tensors[tensor].shape
        return (sum(piece.elements for piece in self._of(self.workers.rank, tensor)),)

    def take(self, tensors: Mapping[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        """Returns own elements of tensors, by index, each in the shape of ``shape``."""
        return {
            index: self._take(index, tensor) if self._is_divided(index) else tensor
            for index, tensor in tensors.items()
        }

    def stack(self, own: Mapping[int, tf.Tensor], dtype: tf.DType) -> list[tf.Tensor]:
        """Stacks own blocks, [n, *block] each, from what ``take`` returned; tensors not in it are zero."""
        if self._is_alone:
            layouts = self.whole.tensors
            filled = [own[i] if i in own else tf.zeros(self.shape(i), dtype) for i in range(len(layouts))]
            return [stack_blocks(stack, layouts, filled) for stack in self.whole.stacks]
        blocks: list[list[tf.Tensor]] = [[] for _ in self.own.stacks]
        for index in self._divided():
            if pieces := self._of(self.workers.rank, index):
                elements = own[index] if index in own else tf.zeros(self.shape(index), dtype)
                parts = tf.split(elements, [piece.elements for piece in pieces])
                for piece, part in zip(pieces, parts, strict=True):
                    blocks[piece.stack].append(part)
        return [
            _join(parts, dtype, [len(parts), *stack.block])
            for stack, parts in zip(self.own.stacks, blocks, strict=True)
        ]

    def unstack(self, blocks: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
        """Returns own elements of the tensors that have blocks, by index; the opposite of ``stack``."""
        if self._is_alone:
            return unstack_blocks(self.whole.stacks, self.whole.tensors, blocks)
        parts: dict[int, list[tf.Tensor]] = {index: [] for index in self._divided()}
        # In each stack they are in the order of tensors, and in each tensor in the order of stacks.
        for stack, stacked in enumerate(blocks):
            pieces = self._in_stack(stack, self.workers.rank)
            for piece, block in zip(pieces, tf.unstack(stacked) if pieces else [], strict=True):
                parts[piece.tensor].append(block)
        dtype = blocks[0].dtype
        return {index: _join(found, dtype, self.shape(index)) for index, found in parts.items()}

    def gather(self, own: Mapping[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        """Returns whole tensors of the own elements of all owners, by index."""
        divided = [index for index in own if self._is_divided(index)]
        if not divided:
            return dict(own)
        dtype = own[divided[0]].dtype
        sizes = [
            [piece.elements for index in divided for piece in self._of(rank, index)]
            for rank in range(self.workers.size)
        ]
        largest = max(sum(elements) for elements in sizes)
        message = tf.concat([own[index] for index in divided], axis=0)
        message = tf.pad(message, [[0, largest - sum(sizes[self.workers.rank])]])
        padded = [size for elements in sizes for size in (*elements, largest - sum(elements))]
        received = iter(tf.split(self.workers.all_gather(message), padded))
        # A tensor that was not given is not in the result either.
        blocks = [[tf.zeros(stack.block, dtype)] * stack.blocks for stack in self.whole.stacks]
        for rank in range(self.workers.size):
            for index in divided:
                for piece in self._of(rank, index):
                    blocks[piece.stack][piece.place] = next(received)
            next(received)  # The padding.
        stacked = [
            _join(parts, dtype, [stack.blocks, *stack.block])
            for stack, parts in zip(self.whole.stacks, blocks, strict=True)
        ]
        whole = unstack_blocks(self.whole.stacks, self.whole.tensors, stacked)
        return {index: whole[index] if index in divided else tensor for index, tensor in own.items()}

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
        """Returns the columns of the own matrices among those of all, [S, M]."""
        return status if self._is_alone else tf.gather(status, self._numbers, axis=1)

    def gather_status(self, own: tf.Tensor) -> tf.Tensor:
        """Returns the columns of all matrices, of those of all owners."""
        if self._is_alone:
            return own
        message = tf.pad(tf.transpose(own), [[0, self._most_matrices - self.own.matrices], [0, 0]])
        return tf.transpose(tf.gather(self.workers.all_gather(message), self._sent_at))

    def add_counts(self, before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
        """Adds to counts from before what all owners have counted since."""
        if self._is_alone:
            return after
        return before + tf.reduce_sum(self.workers.all_gather((after - before)[tf.newaxis]), axis=0)

    def between_steps(self, action: Callable[[], None]) -> Callable[[], None]:
        """Returns an action that exchanges something in a form that can be called between two steps."""
        if self._is_alone:
            return action
        # What members exchange, they exchange in graphs.
        return cast(Callable[[], None], tf.function(action, autograph=False))

    def part(self, name: str, rank: int | None = None) -> Part | None:
        """Returns an owner's part of a variable of the state, this one's by default; None: each has all of it."""
        found = re.match(r"(stack|tensor)(\d+)/", name)
        if self._is_alone or found is None:
            return None
        rank, number = self.workers.rank if rank is None else rank, int(found[2])
        if found[1] == "stack":
            places = [piece.place for piece in self._in_stack(number, rank)]
            return Part(np.array(places, np.int64), self.whole.stacks[number].blocks)
        if not self._is_divided(number):
            return None
        tensor = self.whole.tensors[number]
        elements = np.arange(math.prod(tensor.shape)).reshape(tensor.merged)
        rows = [elements[piece.slices].ravel() for piece in self._of(rank, number)]
        return Part(np.concatenate([np.zeros(0, np.int64), *rows]), elements.size, tensor.shape)

    def _is_divided(self, tensor: int) -> bool:
        return not self._is_alone and self.whole.tensors[tensor].is_preconditioned

    def _divided(self) -> list[int]:
        return [index for index in range(len(self.whole.tensors)) if self._is_divided(index)]

    def _of(self, rank: int, tensor: int) -> list[_Piece]:
        return [piece for piece in self._pieces[rank] if piece.tensor == tensor]

    def _in_stack(self, stack: int, rank: int) -> list[_Piece]:
        return [piece for piece in self._pieces[rank] if piece.stack == stack]

    def _take(self, index: int, tensor: tf.Tensor) -> tf.Tensor:
        merged = tf.reshape(tensor, self.whole.tensors[index].merged)
        pieces = self._of(self.workers.rank, index)
        parts = [tf.slice(merged, piece.begin, piece.block) for piece in pieces]
        return _join(parts, tensor.dtype, self.shape(index))


def _pieces(layout: ShampooLayout) -> list[_Piece]:
    pieces = []
    for number, stack in enumerate(layout.stacks):
        places = itertools.count()
        for tensor, region in stack.members:
            for block in itertools.product(*map(range, region.counts)):
                begin = tuple(
                    start + i * size for start, i, size in zip(region.begin, block, region.block, strict=True)
                )
                pieces.append(_Piece(number, next(places), tensor, begin, region.block))
    return pieces


def _own_layout(whole: ShampooLayout, pieces: Sequence[_Piece], rank: int) -> ShampooLayout:
    """The layout with these blocks only; stacks and factors without any are still there, with no matrix."""
    stacks = []
    # Factors of tables, whose rows all members have, are copies of those of the first one.
    parts = [(factor.owners, tuple(range(factor.count)), rank > 0) for factor in whole.factors]
    for number, stack in enumerate(whole.stacks):
        members = [piece for piece in pieces if piece.stack == number]
        owners, places = tuple(piece.tensor for piece in members), tuple(piece.place for piece in members)
        single = (1,) * len(stack.block)
        regions = [(piece.tensor, Region(piece.begin, single, piece.block)) for piece in members]
        stacks.append(dataclasses.replace(stack, members=tuple(regions)))
        for index in whole.stack_factors[number]:
            parts[index] = (owners, places, False)
    factors, offset = [], 0
    for factor, (owners, numbers, is_copy) in zip(whole.factors, parts, strict=True):
        own = dataclasses.replace(
            factor, count=len(owners), owners=owners, offset=offset, numbers=numbers, is_copy=is_copy
        )
        factors.append(own)
        offset += own.count
    return dataclasses.replace(whole, stacks=tuple(stacks), factors=tuple(factors))


def _numbers(whole: ShampooLayout, own: ShampooLayout) -> np.ndarray:
    return np.array(
        [
            factor.offset + number
            for factor, part in zip(whole.factors, own.factors, strict=True)
            for number in part.numbers
        ],
        np.int32,
    )


def _join(parts: Sequence[tf.Tensor], dtype: tf.DType, shape: Sequence[int]) -> tf.Tensor:
    if not parts:
        return tf.zeros(list(shape), dtype)
    return tf.reshape(tf.concat([tf.reshape(part, [-1]) for part in parts], axis=0), list(shape))


def divide(options: ShampooOptions, layout: ShampooLayout, workers: Group) -> Blocks:
    """Returns a worker's blocks of a layout, with balanced costs (``assignment.owners_of``)."""
    if workers.size == 1:
        return Blocks(layout)
    blocks = blocks_of(layout)[: sum(stack.blocks for stack in layout.stacks)]
    return Blocks(layout, workers, owners_of(blocks, options, workers.size))
