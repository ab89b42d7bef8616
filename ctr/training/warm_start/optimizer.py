"""What a run that begins from another one's weights takes over of the dense optimizer's state.

Sums and averages of single elements go wherever their elements go: a trained weight with a fresh accumulator would
take its first steps at the full rate. Statistics and roots belong to blocks, and go with weights that are taken whole.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from ctr.optim.options import ShampooOptions
from ctr.optim.state import ShampooLayout, lay_out
from ctr.training.warm_start.weights import Arrays, Moved, Side, Status

# What decides the meaning of all of it: under other values nothing is taken.
_COMMON = ("grafting", "grafting_beta2", "beta1")
_STATISTICS = (
    "block_size",
    "max_dimension",
    "merge_dimensions",
    "beta2",
    "epsilon",
    "exponent_override",
    "exponent_multiplier",
)


def take_optimizer(
    arrays: dict[str, np.ndarray],
    old_arrays: Arrays,
    new: Side,
    old: Side,
    moves: Mapping[int, tuple[int, Moved]],
) -> tuple[dict[int, Status], str]:
    """Puts in what the optimizer knew of the dense weights that were taken.

    Args:
        arrays, old_arrays: by the names of ``TrainState.variables``; the first is changed.
        moves: of ``take_weights``.

    Returns:
        By the number of each of these weights what became of its state, and why some of it was not taken.
    """
    options, before = new.config.optimizer.dense.shampoo, old.config.optimizer.dense.shampoo
    common = _differing(before, options, _COMMON)
    # Corrected by the number of steps, which is one for all weights.
    counted = options.beta1 > 0 or options.grafting == "adam"
    all_exact = len(moves) == len(new.shapes) and all(moved.exact for _, moved in moves.values())
    if not common and counted and not all_exact:
        common = "beta1 or adam correct all averages by one number of steps, and some weights begin fresh"
    if common or not moves:
        return dict.fromkeys(moves, "fresh"), common
    averages = _differing(before, options, ("momentum",))
    shapes = list(new.shapes.values())
    layouts = lay_out(options, shapes), lay_out(before, list(old.shapes.values()))
    statistics = _differing(before, options, _STATISTICS)
    if not statistics and bool(layouts[0].factors) != bool(layouts[1].factors):
        statistics = _differing(before, options, ("start_preconditioning_step",))
    has_factors = set(layouts[0].owners.tolist())
    kinds = ["accumulator", "gradient_average", *(() if averages else ("momentum",))]
    statuses: dict[int, Status] = {}
    for index, (old_index, moved) in moves.items():
        for kind in kinds:
            name = f"shampoo/tensor{index}/{kind}"
            if name in arrays:
                moved.move(arrays[name], old_arrays[f"shampoo/tensor{old_index}/{kind}"])
        lost = index in has_factors and (bool(statistics) or not moved.exact)
        if index in has_factors and not lost:
            _take_statistics(arrays, old_arrays, layouts, index, old_index)
        statuses[index] = "partly" if lost or averages or not moved.fills(shapes[index]) else "taken"
    globals_ = ["step"]
    if not statistics:
        globals_ += ["exchanged_at", "collections", "window_collections"]
    for name in globals_:
        arrays[f"shampoo/{name}"][...] = old_arrays[f"shampoo/{name}"]
    return statuses, "; ".join(part for part in (averages, statistics) if part)


def _differing(before: ShampooOptions, now: ShampooOptions, names: Sequence[str]) -> str:
    return "; ".join(
        f"optimizer.dense.shampoo.{name} was {getattr(before, name)!r}, is {getattr(now, name)!r}"
        for name in names
        if getattr(before, name) != getattr(now, name)
    )


def _take_statistics(
    arrays: dict[str, np.ndarray],
    old_arrays: Arrays,
    layouts: tuple[ShampooLayout, ShampooLayout],
    index: int,
    old_index: int,
) -> None:
    """Statistics, roots and their status of a weight's blocks, which may lie elsewhere in the stacks."""
    places, old_places = (
        _blocks(layout, number) for layout, number in zip(layouts, (index, old_index), strict=True)
    )
    for key, (factor, members) in places.items():
        old_factor, old_members = old_places[key]
        new_side, old_side = layouts[0].factors[factor], layouts[1].factors[old_factor]
        for kind in ("window", "total", "root"):
            target = arrays[f"shampoo/{new_side.name}/{kind}"]
            target[members] = old_arrays[f"shampoo/{old_side.name}/{kind}"][old_members]
        status = old_arrays["shampoo/status"][:, old_side.offset + old_members]
        arrays["shampoo/status"][:, new_side.offset + members] = status


def _blocks(
    layout: ShampooLayout, index: int
) -> dict[tuple[tuple[int, ...], tuple[int, ...], int], tuple[int, np.ndarray]]:
    """By shape of block, axes and axis: a factor, and which of its matrices are a tensor's, in their order."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...], int], tuple[int, np.ndarray]] = {}
    for stack, factors in zip(layout.stacks, layout.stack_factors, strict=True):
        members = np.flatnonzero(np.array(stack.owners) == index)
        if len(members):
            found |= {
                (stack.block, stack.axes, axis): (factor, members)
                for axis, factor in zip(stack.axes, factors, strict=True)
            }
    return found
