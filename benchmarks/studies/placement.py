"""Counts a device's state, work and communication for Shampoo's blocks, in groups of replicas and in meshes.

    python benchmarks/study.py placement [--devices 8] [--batch 4096]

All numbers are for the dense weights of the reference model. *Groups* (PT 4.1): the bytes of a replica's state, counted
in the built optimizer, and the bytes that it sends in a step, counted by its group; beside the paper's formulas, a
state of 1/Q of the whole and a buffer of Q times the most elements that its greedy algorithm 3 gives a member. *Meshes*
(THESIS 6, tables 6.2 and 6.3): the largest share of the work, the bytes of factors and roots, and of a step's messages.
"""

import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any

import tensorflow as tf
from reference import dense_shapes, reference_layers
from runner import main

from ctr.optim.shampoo.dense import DenseShampoo
from ctr.optim.shampoo.layout import lay_out
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.placement import Mesh, balanced, block_cost, ranks_of

FLOAT = 4
MEGA = 1e6
Shape = tuple[int, ...]


class Counting:
    """A group member that counts the bytes it sends, and receives its own tensors from all others."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.sent = rank, size, 0

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        self.sent += int(tf.size(tensor)) * tensor.dtype.size
        return tf.concat([tensor] * self.size, axis=0)


def of_member(shapes: Sequence[Shape], rank: int, size: int) -> tuple[int, int]:
    """Returns the bytes of a group member's state, and the bytes that it sends in a step without a root exchange."""
    member = Counting(rank, size)
    optimizer = DenseShampoo(ShampooOptions(), member)  # type: ignore[arg-type]
    weights = {f"w{number}": tf.Variable(tf.zeros(shape)) for number, shape in enumerate(shapes)}
    optimizer.build(weights)
    state = sum(math.prod(variable.shape) * variable.dtype.size for variable in optimizer.variables.values())
    gradients = [tf.ones(shape) for shape in shapes]
    optimizer.update(gradients, tf.constant(0.01), preconditions=True)
    return state, member.sent


def of_groups(devices: int) -> dict[str, dict[str, float]]:
    """Returns the numbers of a replica by the size of groups, over all divisors of ``devices``."""
    shapes = dense_shapes()
    layout = lay_out(ShampooOptions(), shapes)
    elements = [math.prod(stack.block) for stack in layout.stacks for _ in range(stack.count)]
    results: dict[str, dict[str, float]] = {}
    whole, _ = of_member(shapes, 0, 1)
    for size in (size for size in range(1, devices + 1) if devices % size == 0):
        members = [of_member(shapes, rank, size) for rank in range(size)]
        greedy = balanced(elements, elements, size)
        most = max(
            sum(n for n, owner in zip(elements, greedy, strict=True) if owner == rank) for rank in range(size)
        )
        results[f"{devices // size} of {size}"] = {
            "state_mb": max(state for state, _ in members) / MEGA,
            "formula_state_mb": whole / size / MEGA,
            "buffer_mb": size * max(sent for _, sent in members) / MEGA,
            "formula_buffer_mb": size * most * FLOAT / MEGA if size > 1 else 0.0,
            "sent_mb": (size - 1) * max(sent for _, sent in members) / MEGA,
        }
    return results


def stages_of(costs: Sequence[float], stages: int) -> list[int]:
    """Assigns layers to contiguous stages such that the largest cost of a stage is smallest."""
    cuts = min(
        combinations(range(1, len(costs)), stages - 1),
        key=lambda cuts: max(sum(costs[begin:end]) for begin, end in pairwise([0, *cuts, len(costs)])),
    )
    return [sum(layer >= cut for cut in cuts) for layer in range(len(costs))]


def of_mesh(mesh: Mesh, batch: int) -> dict[str, float]:
    """Returns the largest numbers of a device; weights are sharded by columns if divisible, else held by one shard."""
    options, layers = ShampooOptions(), reference_layers()
    rows: list[
        tuple[float, int, int, int, int]
    ] = []  # cost, elements, factor elements, layer and shard of each block
    for number, layer in enumerate(layers):
        for shard in range(mesh.shards):
            cut = [(*shape[:-1], shape[-1] // mesh.shards) for shape in layer if shape[-1] % mesh.shards == 0]
            cut += [shape for shape in layer if shape[-1] % mesh.shards] if shard == 0 else []
            for stack in lay_out(options, cut).stacks:
                factors = sum(stack.block[axis] ** 2 for axis in stack.axes)
                cost = block_cost(stack.block, stack.axes, options)
                rows += [(cost, math.prod(stack.block), factors, number, shard)] * stack.count
    costs, elements, factors, layer_of, shard_of = map(list, zip(*rows, strict=True))
    of_layers = [sum(cost for cost, *_, layer, _ in rows if layer == number) for number in range(len(layers))]
    stages = stages_of(of_layers, mesh.stages)
    cells = [(stages[layer], shard) for layer, shard in zip(layer_of, shard_of, strict=True)]
    owners = [rank for (rank,) in ranks_of(costs, elements, mesh, cells)]

    def largest(amounts: Sequence[float]) -> float:
        return max(
            sum(amount for amount, owner in zip(amounts, owners, strict=True) if owner == rank)
            for rank in range(mesh.size)
        )

    weights = max(sum(n for n, at in zip(elements, cells, strict=True) if at == cell) for cell in set(cells))
    # Table 6.3: an all-reduce of n bytes sends 2 (p - 1) / p n, an all-gather (p - 1) / p n; a point-to-point one n.
    along = [(size - 1) / size for size in (mesh.data, mesh.shards)]
    widths = [(layer[0][0], layer[-1][-1]) for layer in layers]
    here = [
        sum(inputs * 2 + units for (inputs, units), at in zip(widths, stages, strict=True) if at == stage)
        for stage in range(mesh.stages)
    ]
    activations = along[1] * batch / mesh.data * max(here)
    cuts = [widths[layer][1] for layer in range(len(layers) - 1) if stages[layer] != stages[layer + 1]]
    activations += 2 * batch / mesh.data * max(cuts, default=0)
    return {
        "work_over_mean": largest(costs) * mesh.size / sum(costs),
        "factors_mb": 2 * FLOAT * largest(factors) / MEGA,
        "gradients_mb": 2 * along[0] * weights * FLOAT / MEGA,
        "directions_mb": (mesh.data - 1) * largest(elements) * FLOAT / MEGA,
        "activations_mb": activations * FLOAT / MEGA,
    }


def measure(devices: int = 8, batch: int = 4096) -> dict[str, Any]:
    """Returns the numbers for groups, and for all meshes of ``devices`` devices with at most one stage per layer."""
    meshes: dict[str, dict[str, float]] = {}
    whole = of_mesh(Mesh(), batch)["factors_mb"]
    divisors = [size for size in range(1, devices + 1) if devices % size == 0]
    for stages in divisors:
        for shards in divisors:
            if devices % (stages * shards) == 0 and stages <= len(reference_layers()):
                data = devices // (stages * shards)
                numbers = of_mesh(Mesh(data, stages, shards), batch)
                # Table 6.2.
                numbers["formula_factors_mb"] = whole / (data * stages * shards**3)
                meshes[f"{data} x {stages} x {shards}"] = numbers
    return {"groups of replicas": of_groups(devices), "data x stages x shards": meshes}


if __name__ == "__main__":
    main(measure, {"devices": 2})
