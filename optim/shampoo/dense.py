"""Shampoo for the dense weights of a model, as a ``ctr.optim.protocol.DenseOptimizer``.

At a warm start state of single elements goes wherever their elements go: a trained weight with a fresh accumulator
would take its first steps at the full rate. Statistics and roots belong to blocks, and go with whole weights.
"""

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from ctr.optim.protocol import Cost, DenseOptimizer, Move, Saved, Status, TakenOver
from ctr.optim.shampoo.blocks import stack_blocks, unstack_blocks
from ctr.optim.shampoo.division import divide
from ctr.optim.shampoo.eigenbasis import from_bases, to_bases
from ctr.optim.shampoo.exchange import between_steps, create_on_host
from ctr.optim.shampoo.optimizer import ShampooCore
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.state import AVERAGE, DIAGONAL, MOMENT, STATUS, ShampooLayout, lay_out
from ctr.workers.collectives import ALONE, Workers
from ctr.workers.parts import Part

_GRAFTING = {"sgd": 0, "adagrad": 4, "rmsprop": 6, "adam": 8, "sign": 1, "lars": 3, "lamb": 13}
"""Operations of the grafted optimizer for each weight."""
_ROOT = 14
"""Operations of a root of a [d, d] matrix over d^3: 9 for eigenvectors, 1 for the root, 4 for its certificate."""

# Options that decide the meaning of all state: under other values nothing is taken over.
_MEANING = ("grafting", "grafting_beta2", "beta1")
# And those that decide the meaning of statistics and roots.
_STATISTICS = (
    "block_size",
    "max_dimension",
    "merge_dimensions",
    "merge_order",
    "merge_until",
    "dimensions_of_one",
    "beta2",
    "epsilon",
    "exponent_override",
    "exponent_multiplier",
    "block_split",
    "large_dimensions",
    "precondition_vectors",
    "bias_correction",
    "initial_statistics",
    "factor_update",
    "eigenvalue_correction",
    "basis_change",
    "damping",
    "left_share",
)
_BlockKey = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class DenseShampoo:
    """Shampoo over dense weights, divided among workers; weight decay applies to matrices, not to biases."""

    name = "shampoo"
    core: ShampooCore

    def __init__(self, options: ShampooOptions, workers: Workers = ALONE) -> None:
        self.options = options
        self._workers = workers
        self._decayed: list[bool] = []

    def build(self, weights: Mapping[str, tf.Variable]) -> None:
        self.core = ShampooCore(
            self.options,
            list(weights.values()),
            create=create_on_host,
            divide=functools.partial(divide, self.options, self._workers),
        )
        self._decayed = [len(weight.shape) > 1 for weight in weights.values()]

    @property
    def variables(self) -> dict[str, tf.Variable]:
        return {f"shampoo/{name}": variable for name, variable in self.core.state.variables.items()}

    def parts(self) -> dict[str, Part]:
        return {f"shampoo/{name}": part for name, part in self.core.parts().items()}

    def update(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, compiled: bool) -> None:
        self.core.update(gradients, rate, self._decayed, "between_steps" if compiled else "host")

    def exchange(self) -> None:
        core = self.core
        if core.options.eigenvalue_correction or core.division.workers.size > 1:
            # Bases are no symmetric matrices, which have their second moments; workers exchange in graphs.
            core.exchange()
        else:
            between_steps(core.options, core.layout, core.state, core.host)

    def report(self) -> dict[str, float | int]:
        report = self.core.report()
        del report["nonfinite_steps"]
        return report

    def timing(self) -> dict[str, float]:
        return self.core.timing()

    def cost(self, shapes: Sequence[Sequence[float]]) -> Cost:
        """Counts exchanges as ``precondition_frequency`` apart, and no root as kept."""
        options = self.options
        whole = [tuple(int(size) for size in shape) for shape in shapes]
        layout = lay_out(options, whole)
        products = sum(
            stack.blocks * 2 * math.prod(stack.block) * stack.block[axis]
            for stack in layout.stacks
            for axis in stack.axes
        )
        roots = sum(factor.count * _ROOT * factor.size**3 for factor in layout.factors)
        # Into the bases and back; and KL-Shampoo multiplies gradients by roots before their products.
        collected = 2 if options.is_kl else 1
        return Cost(
            update=_elementwise_cost(options, whole, layout),
            statistics=collected * products / options.statistics_frequency,
            preconditioning=options.passes * products,
            roots=roots / options.precondition_frequency,
        )

    def take_over(
        self, new: Saved, before: DenseOptimizer, old: Saved, moves: Mapping[int, tuple[int, Move]]
    ) -> TakenOver:
        fresh: dict[int, Status] = dict.fromkeys(moves, "fresh")
        if not isinstance(before, DenseShampoo):
            return TakenOver(fresh, why=f"the optimizer was {before.name}, is {self.name}")
        differing = self._differing(before, _MEANING)
        # Corrected by the number of steps, which is one for all weights.
        options = self.options
        counted = options.beta1 > 0 or options.grafting in ("adam", "lamb")
        decays = options.beta2 < 1.0
        # Where roots keep their own norm, statistics of too large a correction would make steps too long.
        counted |= decays and (
            options.eigenvalue_correction or (options.bias_correction and not options.grafted_norm)
        )
        all_exact = len(moves) == len(new.shapes) and all(move.exact for _, move in moves.values())
        if differing or not moves:
            return TakenOver(fresh, differing)
        if counted and not all_exact:
            why = "averages are corrected by one number of steps, and some weights begin fresh"
            return TakenOver(fresh, why=why)
        averages = self._differing(before, ("momentum", "separate_momenta"))
        layouts = lay_out(self.options, new.shapes), lay_out(before.options, old.shapes)
        statistics = self._differing(before, _STATISTICS)
        if not statistics and bool(layouts[0].factors) != bool(layouts[1].factors):
            statistics = self._differing(before, ("start_preconditioning_step",))
        if statistics and counted and decays and options.eigenvalue_correction:
            # Second moments that begin at zero would be corrected as old ones are: by nothing.
            return TakenOver(fresh, statistics)
        preconditioned = set(layouts[0].owners.tolist())
        taken, known = (
            _averages(one.options, layout, saved.arrays)
            for one, layout, saved in zip((self, before), layouts, (new, old), strict=True)
        )
        statuses: dict[int, Status] = {}
        for index, (old_index, move) in moves.items():
            for kind in ("accumulator", *(() if averages else ("momentum", "graft_momentum"))):
                target = new.arrays.get(f"shampoo/tensor{index}/{kind}")
                name = f"shampoo/tensor{old_index}/{kind}"
                # Only what is preconditioned has a momentum of the grafted step, which other options may change.
                if target is not None and (kind != "graft_momentum" or name in old.arrays):
                    move.move(target, old.arrays[name])
            lost = index in preconditioned and (bool(statistics) or not move.exact)
            if index in preconditioned and not lost:
                _take_statistics(new.arrays, old.arrays, layouts, index, old_index)
            if index in taken:
                move.move(taken[index], known[old_index])
            statuses[index] = "partly" if lost or averages or not move.fills(new.shapes[index]) else "taken"
        _put_averages(options, layouts[0], new.arrays, taken)
        for name in ("step", *(() if statistics else ("exchanged_at", "collections", "window_collections"))):
            new.arrays[f"shampoo/{name}"][...] = old.arrays[f"shampoo/{name}"]
        return TakenOver(statuses, averages + statistics)

    def _differing(self, before: "DenseShampoo", names: Sequence[str]) -> tuple[str, ...]:
        pairs = {name: (getattr(before.options, name), getattr(self.options, name)) for name in names}
        return tuple(f"{name} was {old!r}, is {new!r}" for name, (old, new) in pairs.items() if old != new)


def _elementwise_cost(
    options: ShampooOptions, shapes: Sequence[tuple[int, ...]], layout: ShampooLayout
) -> int:
    each = 2 + _GRAFTING[options.grafting]
    each += 4 if options.beta1 else 0
    each += 3 if options.momentum else 0
    each += 3 if options.nesterov else 0
    each += 5 if options.update_limit_absolute else 0
    each += 3 if options.update_clipping else 0
    count = each * sum(math.prod(shape) for shape in shapes)
    if options.weight_decay:
        count += 2 * sum(math.prod(shape) for shape in shapes if len(shape) > 1)
    # The norms of both directions, and the scale between them; second moments in the bases, and their roots.
    scaled = 5 + (6 if options.eigenvalue_correction else 0)
    return count + scaled * sum(
        math.prod(tensor.shape) for tensor in layout.tensors if tensor.is_preconditioned
    )


def _averages(
    options: ShampooOptions, layout: ShampooLayout, arrays: Mapping[str, np.ndarray]
) -> dict[int, np.ndarray]:
    """The averages of gradients by tensor, in their own coordinates; empty without beta1."""
    if not options.beta1:
        return {}
    found: dict[int, np.ndarray] = {}
    if options.averages_in_bases:
        blocks = [
            from_bases(arrays[f"shampoo/stack{number}/{AVERAGE}"], stack.axes, _bases(layout, number, arrays))
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
        arrays[f"shampoo/stack{number}/{AVERAGE}"][...] = turned.numpy()


def _bases(layout: ShampooLayout, stack: int, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    certified = arrays["shampoo/status"][STATUS.index("certified")]
    found = []
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
    stacks, old_stacks = (
        _stacks_of(layout, n) for layout, n in zip(layouts, (index, old_index), strict=True)
    )
    for key, (number, members) in stacks.items():
        old_number, old_members = old_stacks[key]
        for kind in (MOMENT, *(f"{DIAGONAL}{axis}" for axis in layouts[0].stacks[number].diagonal)):
            target = arrays.get(f"shampoo/stack{number}/{kind}")
            if target is not None:
                target[members] = old_arrays[f"shampoo/stack{old_number}/{kind}"][old_members]
        for new, old in zip(
            layouts[0].stack_factors[number], layouts[1].stack_factors[old_number], strict=True
        ):
            factor, old_factor = layouts[0].factors[new], layouts[1].factors[old]
            for kind in ("window", "total", "root"):
                source = old_arrays[f"shampoo/{old_factor.name}/{kind}"]
                arrays[f"shampoo/{factor.name}/{kind}"][members] = source[old_members]
            status = old_arrays["shampoo/status"][:, old_factor.offset + old_members]
            arrays["shampoo/status"][:, factor.offset + members] = status


def _stacks_of(layout: ShampooLayout, index: int) -> dict[_BlockKey, tuple[int, np.ndarray]]:
    """By shape of block, axes and diagonals: the stacks with blocks of a tensor, and which blocks these are."""
    members = [np.flatnonzero(np.array(stack.owners) == index) for stack in layout.stacks]
    return {
        (stack.block, stack.axes, stack.diagonal): (number, members[number])
        for number, stack in enumerate(layout.stacks)
        if len(members[number])
    }
