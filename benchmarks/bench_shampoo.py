"""Measures what Shampoo adds to a training step, what stacking of blocks saves, and the memory of its state.

    python benchmarks/bench_shampoo.py [--rounds 3] [--batches 4096 16384]

training_step          the step of the reference model with AdaGrad and with Shampoo at its defaults, in turns of one
                       root interval each; all roots are recomputed at each exchange, on the same processors
optimizer_step         the optimizer alone, on gradients of the model's shapes: all blocks of a shape in one product,
                       against a product for each block of each variable, and against whole variables without blocks
memory                 entries of statistics, as in PSO table 2, and bytes with roots

The limit of all but the last is the FLOPs of the products.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from ctr_model import Model, make_model
from reference import REFERENCE, Size, dense_shapes
from runner import Numbers, compare, main, timed

from ctr.optim.shampoo import layout as optimizer_layout
from ctr.optim.shampoo.blocks import Stack, TensorLayout
from ctr.optim.shampoo.optimizer import ShampooCore
from ctr.optim.shampoo.options import ShampooOptions, Statistics

SETTLED = 10_000
"""A step after which exchanges are tau1 apart."""
FEEDS = 10


def settle(core: ShampooCore, last_exchange: int = SETTLED) -> None:
    core.step.assign(SETTLED)
    core.exchanged.exchanged_at.assign(last_exchange)


def training_step(size: Size, rounds: int, turn: int | None = None) -> dict[str, Any]:
    """Compares a training step with AdaGrad and with Shampoo, roots included.

    ``turn`` is the number of steps in a turn; None: as many as from one exchange of roots to the next.
    """
    turn = turn or ShampooOptions().precondition_frequency
    size = replace(size, feeds=min(FEEDS, turn))
    models = {"adagrad": make_model(size), "shampoo": make_model(size, {})}
    for model in models.values():
        model.turn()
    core = models["shampoo"].state.dense_optimizer.core
    settle(core)

    def steps(model: Model) -> Numbers:
        return {"ms": float(np.mean([model.turn()["ms"] for _ in range(max(1, turn // size.feeds))]))}

    # From this unmeasured turn on, each turn of Shampoo collects the roots of one exchange and sends the next.
    for model in models.values():
        steps(model)
    core.exchanged.host.seconds_waited = 0.0
    results = compare({name: partial(steps, model) for name, model in models.items()}, rounds, 0)
    timing, report = core.timing(), core.report()
    root_ms = 1000 * timing["seconds_computing"] / max(report["refreshed"], 1)
    return {
        "adagrad_ms": results["adagrad"]["ms"],
        "shampoo_ms": results["shampoo"]["ms"],
        "over_adagrad": results["shampoo"]["ms_ratio"],
        "waited_ms_per_step": 1000 * timing["seconds_waited"] / (rounds * turn),
        "roots_refreshed": report["refreshed"],
        "root_ms_per_step": root_ms * core.layout.matrices / turn,
    }


def stacks_of_one(layouts: Sequence[TensorLayout]) -> tuple[Stack, ...]:
    """Returns a separate stack for every block."""
    return tuple(
        Stack(block, layout.axes, ((index, number),), (0,))
        for index, layout in enumerate(layouts)
        for number, block in enumerate(layout.blocks)
    )


def optimizer_step(rounds: int, block_size: int) -> dict[str, dict[str, Any]]:
    """Compares the optimizer's step alone, with statistics at every step and without roots, by kind of stacking."""
    random = np.random.default_rng(0)
    gradients = [tf.constant(random.normal(size=shape).astype(np.float32)) for shape in dense_shapes()]
    blocks = ShampooOptions(statistics=Statistics(frequency=1), block_size=block_size)
    singly = {"make_stacks": stacks_of_one}
    kinds: dict[str, tuple[ShampooOptions, dict[str, Any]]] = {
        "stacked": (blocks, {}),
        "per_block": (blocks, singly),
        "per_variable": (replace(blocks, block_size=8192), singly),
    }
    arms = {}
    for name, (options, changes) in kinds.items():
        with mock.patch.multiple(optimizer_layout, **changes) if changes else nullcontext():
            core = ShampooCore(options, [tf.Variable(tf.zeros(shape)) for shape in dense_shapes()])
        step = tf.function(partial(core.update, gradients, 0.0), autograph=False)
        # As late in a run: no step exchanges roots.
        settle(core, 2 * SETTLED)
        step()
        arms[name] = timed(step)
    return compare(arms, rounds)


def memory() -> dict[str, dict[str, float]]:
    """Counts entries of statistics, in PSO table 2 about m n in blocks and m^2 + n^2 whole, and bytes with roots."""
    shapes = [shape for shape in dense_shapes() if len(shape) == 2 and 1 not in shape]
    results = {}
    for name, size in (("blocks", 256), ("whole", 8192)):
        core = ShampooCore(
            ShampooOptions(block_size=size), [tf.Variable(tf.zeros(shape)) for shape in shapes]
        )
        matrices = [*core.statistics.windows, *core.statistics.totals, *core.exchanged.roots]
        results[name] = {
            "weights": sum(m * n for m, n in shapes),
            "entries": sum(factor.count * factor.size**2 for factor in core.layout.factors),
            "bytes_with_roots": sum(v.dtype.size * int(np.prod(v.shape)) for v in matrices),
        }
    assert results["whole"]["entries"] == sum(m**2 + n**2 for m, n in shapes)
    return results


def measure(
    rounds: int = 3,
    batches: tuple[int, ...] = (4096, 16384),
    blocks: tuple[int, ...] = (256, 128, 64),
    turn: int = 0,
) -> dict[str, Any]:
    """Runs all three parts; ``turn`` is the number of steps in a turn, 0 for the interval between root exchanges."""
    turn = turn or ShampooOptions().precondition_frequency
    return {
        "memory": memory(),
        "optimizer_step": {f"blocks of {size}": optimizer_step(20 * rounds, size) for size in blocks},
        "training_step": {
            str(batch): training_step(replace(REFERENCE, batch=batch), rounds, turn) for batch in batches
        },
    }


if __name__ == "__main__":
    main(measure, {"rounds": 1, "batches": (32,), "blocks": (256,), "turn": 2})
