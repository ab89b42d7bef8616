"""Table of what becomes of each tensor, and what that costs (PSO table 2)."""

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ctr.optim.first_order.directions import has_accumulator
from ctr.optim.shampoo.layout import ShampooLayout
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.triangles import packed_size


def describe(options: ShampooOptions, layout: ShampooLayout, dtype: tf.DType, names: Sequence[str]) -> str:
    """Returns a table: the treatment of each tensor, and its cost in memory and multiplications (PSO table 2).

    Memory is that of the optimizer's variables. Multiplications are those of one step, statistics divided by their
    frequency, without some 10 d^3 for the root of every d x d matrix of an exchange.
    """
    rows: list[tuple[str, ...]] = [
        ("tensor", "shape", "treatment", "statistics", "roots", "first-order", "Mflop/step")
    ]
    item = dtype.size
    statistics, roots = np.zeros([2, len(layout.tensors)])
    flops = layout.products * (options.passes + 1 / options.statistics.frequency)
    for factor in layout.factors:
        for owner in factor.owners:
            statistics[owner] += packed_size(factor.size) * (item + 8)
            roots[owner] += factor.size**2 * item
    for stack in layout.stacks:
        for owner in stack.owners:
            statistics[owner] += item * sum(stack.block[axis] for axis in stack.diagonal)
    first = np.array([item * _elements(options, layout, index) for index in range(len(layout.tensors))])
    memory = np.stack([statistics, roots, first], axis=1)
    for index, (name, tensor) in enumerate(zip(names, layout.tensors, strict=True)):
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        cost = f"{flops[index] / 1e6:.1f}" if flops[index] else "-"
        rows.append((name, shape, _treatment(options, layout, index), *map(_bytes, memory[index]), cost))
    rows.append(("total", "", "", *map(_bytes, memory.sum(axis=0)), f"{flops.sum() / 1e6:.1f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 3 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _elements(options: ShampooOptions, layout: ShampooLayout, index: int) -> int:
    """Numbers of element-wise state of a tensor."""
    tensor = layout.tensors[index]
    size = math.prod(tensor.shape)
    if index in layout.tables:
        return tensor.shape[0] if options.rows == "adagrad_row" else size
    kept = [
        has_accumulator(options.grafting),
        options.beta1 > 0,
        options.momentum > 0,
        tensor.is_preconditioned and options.grafting.momentum == "before",
        tensor.is_preconditioned and options.corrects,
    ]
    return size * sum(kept)


def _treatment(options: ShampooOptions, layout: ShampooLayout, index: int) -> str:
    tensor = layout.tensors[index]
    if index in layout.tables:
        by = "per row" if options.rows == "adagrad_row" else "per element"
        if index in layout.table_factors:
            return f"rows: right side, exponent -{1 / options.root_order(1):g}; AdaGrad's step"
        return f"rows: AdaGrad, one sum {by}"
    if not tensor.is_preconditioned:
        return options.grafting.kind
    blocks = sum(region.blocks for region in tensor.regions)
    largest = max(tensor.regions, key=lambda region: region.block).block
    sides = f" along {','.join(map(str, tensor.axes))}" if 0 < len(tensor.axes) < len(tensor.merged) else ""
    if tensor.diagonal:
        sides += f" with diagonals along {','.join(map(str, tensor.diagonal))}"
    counted = f"{blocks} block{'s' * (blocks > 1)} of {'x'.join(map(str, largest))}"
    if options.corrects:
        return f"eigenbases{sides}, {counted}, exponent -{options.correction_exponent:g}"
    exponent = 1 / options.root_order(len(tensor.axes) + len(tensor.diagonal))
    return f"Shampoo{sides}, {counted}, exponent -{exponent:g}"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
