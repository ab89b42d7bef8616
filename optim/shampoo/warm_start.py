"""State of Shampoo at a warm start: what weights that were taken from an earlier run bring with them.

State of single elements goes wherever their elements go: a trained weight with a fresh accumulator would take its
first steps at the full rate. Statistics and roots belong to blocks, and go with whole weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import tensorflow as tf

from ctr.optim.checked import Options
from ctr.optim.first_order.options import LAMB, Adam
from ctr.optim.protocol import Move, Saved, Status, TakenOver
from ctr.optim.shampoo.blocks import stack_blocks, unstack_blocks
from ctr.optim.shampoo.eigenbasis import from_bases, to_bases
from ctr.optim.shampoo.host import STATUS
from ctr.optim.shampoo.layout import ShampooLayout, lay_out
from ctr.optim.shampoo.options import ShampooOptions

# Options that decide the meaning of all state: under other values nothing is taken over.
_MEANING = ("grafting.kind", "gradient.beta1")
_GRAFT = ("grafting.beta2", "grafting.normalized")
# And those that decide the meaning of statistics and roots.
_STATISTICS = (
    "block_size",
    "blocking",
    "beta2",
    "epsilon",
    "exponent_override",
    "method",
    "statistics.bias_correction",
    "statistics.initial",
    "roots.damping",
)


def take_over(
    new: tuple[ShampooOptions, Saved],
    old: tuple[ShampooOptions, Saved],
    moves: Mapping[int, tuple[int, Move]],
) -> TakenOver:
    """Writes what is taken of old state into the arrays of the new; see ``DenseOptimizer.take_over``."""
    (options, saved), (old_options, old_saved) = new, old
    differing = _differing(options, old_options, _MEANING) or _differing(options, old_options, _GRAFT)
    # Corrected by the number of steps, which is one for all weights.
    counted = options.gradient.beta1 > 0 or isinstance(options.grafting, Adam | LAMB)
    decays = options.beta2 < 1.0
    # Where roots keep their own norm, statistics of too large a correction would make steps too long.
    own_norm = options.statistics.bias_correction and options.grafting.norm == "none"
    counted |= decays and (options.corrects or own_norm)
    all_exact = len(moves) == len(saved.shapes) and all(move.exact for _, move in moves.values())
    if differing or not moves:
        return TakenOver.nothing(moves, differing=differing)
    if counted and not all_exact:
        return TakenOver.nothing(
            moves, "averages are corrected by one number of steps, and some weights begin fresh"
        )
    averages = _differing(options, old_options, ("momentum", "grafting.momentum"))
    layouts = lay_out(options, saved.shapes), lay_out(old_options, old_saved.shapes)
    statistics = _differing(options, old_options, _STATISTICS)
    if not statistics and bool(layouts[0].factors) != bool(layouts[1].factors):
        statistics = _differing(options, old_options, ("start_preconditioning_step",))
    if statistics and counted and decays and options.corrects:
        # Second moments that begin at zero would be corrected as old ones are: by nothing.
        return TakenOver.nothing(moves, differing=statistics)
    preconditioned = set(layouts[0].owners.tolist())
    taken = _averages(options, layouts[0], saved.arrays)
    known = _averages(old_options, layouts[1], old_saved.arrays)
    statuses: dict[int, Status] = {}
    for index, (old_index, move) in moves.items():
        for kind in ("accumulator", *(() if averages else ("momentum", "graft_momentum"))):
            target = saved.arrays.get(f"shampoo/tensor{index}/{kind}")
            name = f"shampoo/tensor{old_index}/{kind}"
            # Only what is preconditioned has a momentum of the first-order step, which other options may change.
            if target is not None and (kind != "graft_momentum" or name in old_saved.arrays):
                move.move(target, old_saved.arrays[name])
        lost = index in preconditioned and (bool(statistics) or not move.exact)
        if index in preconditioned and not lost:
            _take_statistics(saved.arrays, old_saved.arrays, layouts, index, old_index)
        if index in taken:
            move.move(taken[index], known[old_index])
        statuses[index] = "partly" if lost or averages or not move.fills(saved.shapes[index]) else "taken"
    _put_averages(options, layouts[0], saved.arrays, taken)
    for name in ("step", *(() if statistics else ("exchanged_at", "collections", "window_collections"))):
        saved.arrays[f"shampoo/{name}"][...] = old_saved.arrays[f"shampoo/{name}"]
    return TakenOver(statuses, averages + statistics)


def _differing(options: ShampooOptions, before: ShampooOptions, names: Sequence[str]) -> tuple[str, ...]:
    new, old = (
        {path: value for name in names for path, value in _flat(one, name)} for one in (options, before)
    )
    return tuple(
        f"{path} was {old.get(path)!r}, is {new.get(path)!r}"
        for path in dict.fromkeys([*new, *old])
        if new.get(path) != old.get(path)
    )


def _flat(options: Options, name: str) -> list[tuple[str, Any]]:
    """The values below an option, by their paths."""
    value: Any = options
    for part in name.split("."):
        value = getattr(value, part, None)
    if not isinstance(value, Options):
        return [(name, value)]
    return [(f"{name}.{key}", one) for key, one in asdict(value).items()]


def _averages(
    options: ShampooOptions, layout: ShampooLayout, arrays: Mapping[str, np.ndarray]
) -> dict[int, np.ndarray]:
    """The averages of gradients by tensor, in their own coordinates; empty without beta1."""
    if not options.gradient.beta1:
        return {}
    found: dict[int, np.ndarray] = {}
    if options.averages_in_bases:
        blocks = [
            from_bases(arrays[f"shampoo/stack{number}/average"], stack.axes, _bases(layout, number, arrays))
            for number, stack in enumerate(layout.stacks)
        ]
        turned = unstack_blocks(layout.stacks, layout.tensors, blocks)
        found = {index: np.array(tensor) for index, tensor in turned.items()}
    others = (index for index in range(len(layout.tensors)) if index not in found)
    return found | {index: arrays[f"shampoo/tensor{index}/gradient_average"] for index in others}


def _put_averages(
    options: ShampooOptions,
    layout: ShampooLayout,
    arrays: Mapping[str, np.ndarray],
    found: Mapping[int, np.ndarray],
) -> None:
    """The opposite of ``_averages``, for roots that are there already; those by tensor are in place."""
    if not options.averages_in_bases:
        return
    whole = [tf.constant(found[index]) for index in range(len(layout.tensors))]
    for number, stack in enumerate(layout.stacks):
        blocks = stack_blocks(stack, layout.tensors, whole)
        turned = to_bases(blocks, stack.axes, _bases(layout, number, arrays))
        arrays[f"shampoo/stack{number}/average"][...] = turned.numpy()


def _bases(layout: ShampooLayout, stack: int, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    certified, found = arrays["shampoo/status"][STATUS.index("certified")], []
    for factor in (layout.factors[index] for index in layout.stack_factors[stack]):
        is_there = certified[factor.matrices, np.newaxis, np.newaxis] > 0
        root = arrays[f"shampoo/{factor.name}/root"]
        found.append(np.where(is_there, root, np.eye(factor.size, dtype=root.dtype)))
    return found


def _take_statistics(
    arrays: Mapping[str, np.ndarray],
    old_arrays: Mapping[str, np.ndarray],
    layouts: tuple[ShampooLayout, ShampooLayout],
    index: int,
    old_index: int,
) -> None:
    """State of a weight's blocks, which may lie elsewhere in the stacks, and of their matrices, with its status."""
    layout, old_layout = layouts
    old_stacks = _stacks_of(old_layout, old_index)
    for key, (number, members) in _stacks_of(layout, index).items():
        old_number, old_members = old_stacks[key]
        for kind in ("moment", *(f"diagonal{axis}" for axis in layout.stacks[number].diagonal)):
            target = arrays.get(f"shampoo/stack{number}/{kind}")
            if target is not None:
                target[members] = old_arrays[f"shampoo/stack{old_number}/{kind}"][old_members]
        pairs = zip(layout.stack_factors[number], old_layout.stack_factors[old_number], strict=True)
        for new, old in pairs:
            factor, old_factor = layout.factors[new], old_layout.factors[old]
            for kind in ("window", "total", "root"):
                source = old_arrays[f"shampoo/{old_factor.name}/{kind}"]
                arrays[f"shampoo/{factor.name}/{kind}"][members] = source[old_members]
            status = old_arrays["shampoo/status"][:, old_factor.offset + old_members]
            arrays["shampoo/status"][:, factor.offset + members] = status


def _stacks_of(layout: ShampooLayout, index: int) -> dict[Any, tuple[int, np.ndarray]]:
    """By shape of block, axes and diagonals: the stacks with blocks of a tensor, and which blocks these are."""
    found = {}
    for number, stack in enumerate(layout.stacks):
        members = np.flatnonzero(np.array(stack.owners) == index)
        if len(members):
            found[stack.block, stack.axes, stack.diagonal] = number, members
    return found
