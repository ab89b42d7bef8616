"""Layout of blocks and of their statistics matrices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ctr.optim.shampoo.blocks import Stack, TensorLayout, lay_out_tensor, make_stacks
from ctr.optim.shampoo.options import ShampooOptions


@dataclass(frozen=True)
class Factor:
    """Statistics matrices [N, d, d] of an axis of a stack, or of the right sides of some tables, for A^(-1/order).

    ``tensors`` has the index of each matrix's tensor; ``numbers`` are the indices of its matrices in the whole factor;
    ``offset`` is the index of the first one among all factors' matrices. With ``basis`` the "roots" are eigenbases
    (eigenbasis.py). A copy (``is_copy``) of another member's factor has its roots computed, but not counted.
    """

    name: str
    size: int
    order: int
    tensors: tuple[int, ...]
    numbers: tuple[int, ...]
    offset: int
    basis: bool = False
    is_copy: bool = False

    @property
    def count(self) -> int:
        return len(self.tensors)

    @property
    def matrices(self) -> slice:
        """Returns the slice of this factor's matrices among all factors' matrices."""
        return slice(self.offset, self.offset + self.count)


@dataclass(frozen=True)
class ShampooLayout:
    """Preconditioning of tensors, determined by shapes and options alone; ``tables`` are trained by rows.

    ``stack_factors`` are for each stack the indices of its factors, one for each preconditioned axis;
    ``table_factors``, for tables with one-sided Shampoo, the index of the factor and the index in it.
    """

    tensors: tuple[TensorLayout, ...]
    tables: tuple[int, ...]
    stacks: tuple[Stack, ...]
    stack_factors: tuple[tuple[int, ...], ...]
    table_factors: dict[int, tuple[int, int]]
    factors: tuple[Factor, ...]

    @property
    def matrices(self) -> int:
        return sum(factor.count for factor in self.factors)

    @property
    def matrix_tensors(self) -> np.ndarray:
        """Returns the index of each matrix's tensor, int32 [M]."""
        return np.array([index for factor in self.factors for index in factor.tensors], np.int32)

    @property
    def products(self) -> np.ndarray:
        """Returns the operations of multiplying each tensor's blocks by one matrix per side, int64 [tensors]."""
        total = np.zeros(len(self.tensors), np.int64)
        for stack in self.stacks:
            for index in stack.tensors:
                total[index] += 2 * math.prod(stack.block) * sum(stack.block[axis] for axis in stack.axes)
        return total


def lay_out(
    options: ShampooOptions, shapes: Sequence[Sequence[int]], tables: Sequence[int] = ()
) -> ShampooLayout:
    """Returns the layout for tensors of these shapes, of which ``tables`` are trained by rows.

    Raises:
        ValueError: a table is not a matrix.
    """
    tensors = []
    for index, shape in enumerate(shapes):
        plain = tuple(int(size) for size in shape)
        if index in tables and len(plain) != 2:
            raise ValueError(
                f"tensor {index} of shape {list(plain)} cannot be a table of rows; allowed: matrices"
            )
        table = TensorLayout(plain, plain, axes=(), parts=())
        tensors.append(table if index in tables else lay_out_tensor(plain, options))
    stacks = make_stacks(tensors)
    factors: list[Factor] = []

    def add(name: str, size: int, order: int, indices: Sequence[int], basis: bool = False) -> int:
        offset = factors[-1].matrices.stop if factors else 0
        numbers = tuple(range(len(indices)))
        factors.append(Factor(name, size, order, tuple(indices), numbers, offset, basis))
        return len(factors) - 1

    stack_factors: list[tuple[int, ...]] = []
    for number, stack in enumerate(stacks):
        order = options.root_order(len(stack.axes) + len(stack.diagonal))
        indices = [
            add(f"stack{number}/axis{axis}", stack.block[axis], order, stack.tensors, options.corrects)
            for axis in stack.axes
        ]
        stack_factors.append(tuple(indices))
    table_factors: dict[int, tuple[int, int]] = {}
    if options.rows == "one_sided" and options.start_preconditioning_step is not None:
        widths: dict[int, list[int]] = {}
        for index in tables:
            width = tensors[index].shape[1]
            if 1 < width <= options.blocking.max_dimension:
                widths.setdefault(width, []).append(index)
        for width, indices in widths.items():
            factor = add(f"tables{width}", width, options.root_order(1), indices)
            table_factors |= {index: (factor, at) for at, index in enumerate(indices)}
    return ShampooLayout(
        tuple(tensors), tuple(tables), stacks, tuple(stack_factors), table_factors, tuple(factors)
    )
