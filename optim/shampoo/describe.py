"""Table of the treatment of each tensor and its cost (PSO table 2)."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from ctr.optim.shampoo.layout import ShampooLayout
from ctr.optim.shampoo.options import ShampooOptions

_STATISTICS, _ROOTS, _FIRST_ORDER = range(3)


def describe(
    options: ShampooOptions,
    layout: ShampooLayout,
    variables: Mapping[str, tf.Variable],
    names: Sequence[str],
) -> str:
    """Returns a table: the treatment of each tensor, and its cost in memory and multiplications (PSO table 2).

    Memory is counted over the optimizer's variables, which may have a part of the blocks. Multiplications are
    for one step on these, statistics divided by their frequency, without some 10 d^3 for the root of every d x d matrix
    of an exchange.
    """
    memory = np.zeros([len(names), 3])
    tensors = {factor.name: factor.tensors for factor in layout.factors}
    tensors |= {f"stack{number}": stack.tensors for number, stack in enumerate(layout.stacks)}
    tensors |= {f"tensor{index}": (index,) for index in range(len(names))}
    for path, variable in variables.items():
        group, _, kind = path.rpartition("/")
        column = {"window": _STATISTICS, "total": _STATISTICS, "root": _ROOTS}.get(kind, _FIRST_ORDER)
        for index in tensors.get(group, ()):
            memory[index, column] += math.prod(variable.shape) * variable.dtype.size / len(tensors[group])
    flops = layout.products * (options.passes + 1 / options.statistics.frequency)
    rows = [("tensor", "shape", "treatment", "statistics", "roots", "first-order", "Mflop/step")]
    for index, (name, tensor) in enumerate(zip(names, layout.tensors, strict=True)):
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        statistics, roots, first_order = map(_bytes, memory[index])
        cost = f"{flops[index] / 1e6:.1f}" if flops[index] else "-"
        rows.append((name, shape, _treatment(options, layout, index), statistics, roots, first_order, cost))
    statistics, roots, first_order = map(_bytes, memory.sum(axis=0))
    rows.append(("total", "", "", statistics, roots, first_order, f"{flops.sum() / 1e6:.1f}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 3 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _treatment(options: ShampooOptions, layout: ShampooLayout, index: int) -> str:
    tensor = layout.tensors[index]
    if index in layout.table_factors:
        return f"rows: right side, exponent -{1 / options.root_order(1):g}; AdaGrad's step"
    if index in layout.tables:
        return f"rows: AdaGrad, one sum per {'row' if options.rows == 'adagrad_row' else 'element'}"
    if not tensor.is_preconditioned:
        return options.grafting.kind
    sides = f" along {','.join(map(str, tensor.axes))}" if 0 < len(tensor.axes) < len(tensor.merged) else ""
    if tensor.diagonal:
        sides += f" with diagonals along {','.join(map(str, tensor.diagonal))}"
    blocks = tensor.blocks
    counted = f"{len(blocks)} block{'s' * (len(blocks) > 1)} of {'x'.join(map(str, max(blocks)))}"
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
