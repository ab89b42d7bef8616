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
from typing import NamedTuple, Protocol, cast

import numpy as np
import tensorflow as tf

from ctr.optim.shampoo.blocks import Region, Shape, stack_blocks, unstack_blocks
from ctr.optim.shampoo.layout import ShampooLayout
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.placement import owners_of
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


class _Piece(NamedTuple):
    """A block: its place in its stack, and where in which merged tensor it begins; the rank of its owner."""

    stack: int
    place: int
    tensor: int
    begin: Shape
    block: Shape
    owner: int


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
        self._pieces = _pieces(whole, owners)
        layouts = [_own_layout(whole, self._of(rank), rank) for rank in range(workers.size)]
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
        return (sum(map(_elements, self._of(self.workers.rank, tensor))),)

    def take(self, tensors: Mapping[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        """Returns own elements of tensors, by index, each in the shape of ``shape``."""
        return {
            index: self._take(index, tensor) if self._is_divided(index) else tensor
            for index, tensor in tensors.items()
        }

    def stack(self, own: Mapping[int, tf.Tensor], dtype: tf.DType) -> list[tf.Tensor]:
        """Stacks own blocks, [n, *block] each, from what ``take`` returned; tensors not in it are zero."""
        layouts, rank = self.whole.tensors, self.workers.rank
        filled = [own[i] if i in own else tf.zeros(self.shape(i), dtype) for i in range(len(layouts))]
        if self._is_alone:
            return [stack_blocks(stack, layouts, filled) for stack in self.whole.stacks]
        parts: dict[_Piece, tf.Tensor] = {}
        for index, elements in enumerate(filled):
            if pieces := self._of(rank, index):
                parts |= zip(pieces, tf.split(elements, list(map(_elements, pieces))), strict=True)
        return [
            _join(
                [parts[piece] for piece in self._in_stack(number, rank)], dtype, [stack.blocks, *stack.block]
            )
            for number, stack in enumerate(self.own.stacks)
        ]

    def unstack(self, blocks: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
        """Returns own elements of the tensors that have blocks, by index; the opposite of ``stack``."""
        if self._is_alone:
            return unstack_blocks(self.whole.stacks, self.whole.tensors, blocks)
        parts: dict[_Piece, tf.Tensor] = {}
        for number, stacked in enumerate(blocks):
            if pieces := self._in_stack(number, self.workers.rank):
                parts |= zip(pieces, tf.unstack(stacked), strict=True)
        dtype, divided = blocks[0].dtype, filter(self._is_divided, range(len(self.whole.tensors)))
        return {
            index: _join(
                [parts[piece] for piece in self._of(self.workers.rank, index)], dtype, self.shape(index)
            )
            for index in divided
        }

    def gather(self, own: Mapping[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        """Returns whole tensors of the own elements of all owners, by index."""
        divided = list(filter(self._is_divided, own))
        if not divided:
            return dict(own)
        dtype = own[divided[0]].dtype
        sent = [
            [piece for index in divided for piece in self._of(rank, index)]
            for rank in range(self.workers.size)
        ]
        largest = max(sum(map(_elements, pieces)) for pieces in sent)
        message = tf.concat([own[index] for index in divided], axis=0)
        message = tf.pad(message, [[0, largest - message.shape[0]]])
        received = tf.split(self.workers.all_gather(message), self.workers.size)
        parts: dict[_Piece, tf.Tensor] = {}
        for pieces, elements in zip(sent, received, strict=True):
            sizes = list(map(_elements, pieces))
            *blocks, _ = tf.split(elements, [*sizes, largest - sum(sizes)])
            parts |= zip(pieces, blocks, strict=True)
        # A tensor that was not given is not in the result either.
        stacked = [
            _join(
                [parts.get(piece, tf.zeros(stack.block, dtype)) for piece in self._in_stack(number)],
                dtype,
                [stack.blocks, *stack.block],
            )
            for number, stack in enumerate(self.whole.stacks)
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
        rows = [np.zeros(0, np.int64)]
        for piece in self._of(rank, number):
            ends = zip(piece.begin, piece.block, strict=True)
            rows.append(elements[tuple(slice(begin, begin + size) for begin, size in ends)].ravel())
        return Part(np.concatenate(rows), elements.size, tensor.shape)

    def _is_divided(self, tensor: int) -> bool:
        return not self._is_alone and self.whole.tensors[tensor].is_preconditioned

    def _of(self, rank: int, tensor: int | None = None) -> list[_Piece]:
        own = (piece for piece in self._pieces if piece.owner == rank)
        return [piece for piece in own if tensor in (None, piece.tensor)]

    def _in_stack(self, stack: int, rank: int | None = None) -> list[_Piece]:
        pieces = (piece for piece in self._pieces if piece.stack == stack)
        return [piece for piece in pieces if rank in (None, piece.owner)]

    def _take(self, index: int, tensor: tf.Tensor) -> tf.Tensor:
        merged = tf.reshape(tensor, self.whole.tensors[index].merged)
        pieces = self._of(self.workers.rank, index)
        parts = [tf.slice(merged, piece.begin, piece.block) for piece in pieces]
        return _join(parts, tensor.dtype, self.shape(index))


def _elements(piece: _Piece) -> int:
    return math.prod(piece.block)


def _pieces(layout: ShampooLayout, owners: Sequence[int]) -> list[_Piece]:
    """Lists the blocks of all stacks in order: by tensor, then in row-major order of each region."""
    pieces: list[_Piece] = []
    for number, stack in enumerate(layout.stacks):
        places = itertools.count()
        for tensor, region in stack.members:
            for index in itertools.product(*map(range, region.counts)):
                sides = zip(region.begin, index, region.block, strict=True)
                begin = tuple(start + i * size for start, i, size in sides)
                owner = owners[len(pieces)]
                pieces.append(_Piece(number, next(places), tensor, begin, region.block, owner))
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
    """Returns a worker's blocks of a layout, with balanced costs (``placement.owners_of``)."""
    owners = owners_of(layout, options, workers.size) if workers.size > 1 else ()
    return Blocks(layout, workers, owners)
