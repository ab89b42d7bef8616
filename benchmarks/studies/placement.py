"""What a replica keeps and sends for Shampoo's blocks, counted, by the size of the groups that divide them (PT 4.1).

    python benchmarks/study.py placement [--devices 8]

Of the dense weights of the reference model: the bytes of a replica's state, those of the optimizer itself as built, and
what it sends at a step, as its group counts it; beside the paper's formulas, a state of 1/Q of the whole and a buffer
of Q times the most elements that its greedy algorithm 3 gives a member.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import tensorflow as tf
from reference import MODEL, REFERENCE
from runner import main

from ctr.optim.shampoo.assignment import balanced
from ctr.optim.shampoo.dense import DenseShampoo
from ctr.optim.shampoo.layout import lay_out
from ctr.optim.shampoo.options import ShampooOptions

FLOAT = 4
MEGA = 1e6
Shape = tuple[int, ...]


def reference_layers() -> list[list[Shape]]:
    """The shapes of the weights of each layer, in the order of the work."""
    width, rank = REFERENCE.features * REFERENCE.width, MODEL["crosses"]["rank"]
    crosses = [[(width, rank), (rank, width), (width,)]] * MODEL["crosses"]["layers"]
    sizes = [width, *MODEL["deep"]["units"], 1]
    return crosses + [[(inputs, units), (units,)] for inputs, units in pairwise(sizes)]


class Counting:
    """A member of a group that counts what it sends; the others seem to send the same."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.sent = rank, size, 0

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        self.sent += int(tf.size(tensor)) * tensor.dtype.size
        return tf.concat([tensor] * self.size, axis=0)


def of_member(shapes: Sequence[Shape], rank: int, size: int) -> tuple[int, int]:
    """Bytes of the state of a member of a group, and those that it sends at a step without an exchange of roots."""
    member = Counting(rank, size)
    optimizer = DenseShampoo(ShampooOptions(), member)  # type: ignore[arg-type]
    weights = {f"w{number}": tf.Variable(tf.zeros(shape)) for number, shape in enumerate(shapes)}
    optimizer.build(weights)
    state = sum(math.prod(variable.shape) * variable.dtype.size for variable in optimizer.variables.values())
    gradients = [tf.ones(shape) for shape in shapes]
    optimizer.update(gradients, tf.constant(0.01), preconditions=True)
    return state, member.sent


def of_groups(devices: int) -> dict[str, dict[str, float]]:
    """By the size of groups, which divides the number of devices."""
    shapes = [shape for layer in reference_layers() for shape in layer]
    layout = lay_out(ShampooOptions(), shapes)
    elements = [math.prod(stack.block) for stack in layout.stacks for _ in stack.members]
    found: dict[str, dict[str, float]] = {}
    whole, _ = of_member(shapes, 0, 1)
    for size in (size for size in range(1, devices + 1) if devices % size == 0):
        members = [of_member(shapes, rank, size) for rank in range(size)]
        greedy = balanced(elements, elements, size)
        most = max(
            sum(n for n, owner in zip(elements, greedy, strict=True) if owner == rank) for rank in range(size)
        )
        found[f"{devices // size} of {size}"] = {
            "state_mb": max(state for state, _ in members) / MEGA,
            "formula_state_mb": whole / size / MEGA,
            "buffer_mb": size * max(sent for _, sent in members) / MEGA,
            "formula_buffer_mb": size * most * FLOAT / MEGA if size > 1 else 0.0,
            "sent_mb": (size - 1) * max(sent for _, sent in members) / MEGA,
        }
    return found


def measure(devices: int = 8) -> dict[str, Any]:
    return {"groups of replicas": of_groups(devices)}


if __name__ == "__main__":
    main(measure, {"devices": 2})
