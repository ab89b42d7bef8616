"""What Shampoo adds to a training step, what stacking of blocks saves, and what it keeps in memory.

1. The training step of a reference DCNv2 (26 features of 100,000 buckets and width 16, three crosses of rank 64,
   layers of 1024, 512 and 256, 1.2 million dense weights; Zipf ids) with AdaGrad and with Shampoo at its
   defaults, in turns of one root interval each; all roots are computed anew at each exchange, on the same
   processors.
2. The optimizer's step alone, on gradients of those shapes: all blocks of a shape in one product, against a
   product for each block of each variable, and against whole variables without blocks.
3. The step of the optimizer's relatives alone, statistics as often as by default, without roots; and the training
   step with each of them, with roots, bases and inverses, as in 1.
4. Bytes of statistics and roots beside PSO table 2.

    python benchmarks/bench_shampoo.py [--rounds 3] [--batches 4096,16384] [--json]
"""

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from convergence_settings import OPTIMIZERS
from own import make_model, median_ms
from reference import ADAGRAD, REFERENCE, Size

from ctr.optim.adafactor.core import AdafactorCore
from ctr.optim.adafactor.options import AdafactorOptions
from ctr.optim.contrib.presets import soap
from ctr.optim.shampoo import layout as optimizer_layout
from ctr.optim.shampoo.blocks import Stack, TensorLayout, lay_out_tensor
from ctr.optim.shampoo.methods import KL, EigenvalueCorrected
from ctr.optim.shampoo.optimizer import ShampooCore
from ctr.optim.shampoo.options import ShampooOptions, Statistics
from ctr.training.config import TrainConfig

SETTLED = 10_000
"""A step from which on exchanges are tau1 apart."""


def settle(core: ShampooCore) -> None:
    core.step.assign(SETTLED)
    core.exchanged.exchanged_at.assign(SETTLED)


def steps_in_turns(
    size: Size, arms: Mapping[str, Mapping[str, Any]], rounds: int, turn: int
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Seconds of a training step of each arm, by turns, and their optimizers.

    Args:
        arms: changes to the reference model's configuration, by name.
        turn: steps of one turn.
    """
    models = {name: make_model(size, changes) for name, changes in arms.items()}
    feeds, config = next(iter(models.values())).feeds, TrainConfig()
    numbers = config.ramps_at(10**9), config.rates_at(10**9)
    cores = {name: getattr(model.state.dense_optimizer, "core", None) for name, model in models.items()}
    for name, model in models.items():
        for feed in feeds[:3]:
            model.learn(feed, *numbers)
        core = cores[name]
        if isinstance(core, ShampooCore):
            settle(core)
        # A turn that is not timed: from it on, each takes in the roots of one exchange and sends another.
        for number in range(turn + 1):
            model.learn(feeds[number % len(feeds)], *numbers)
    for core in cores.values():
        if isinstance(core, ShampooCore):
            core.exchanged.host.seconds_waited = 0.0
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(rounds):
        for name, model in models.items():
            begun = time.perf_counter()
            for number in range(turn):
                model.learn(feeds[number % len(feeds)], *numbers).logit.numpy()
            seconds[name].append((time.perf_counter() - begun) / turn)
    return seconds, cores


def overhead(seconds: Mapping[str, Sequence[float]], name: str) -> float:
    """The median of what an arm adds to AdaGrad's step, round by round."""
    return float(np.median(np.array(seconds[name]) / np.array(seconds["adagrad"]))) - 1.0


def training_step(size: Size, rounds: int, turn: int | None = None) -> dict[str, float]:
    """Milliseconds of a step with AdaGrad and with Shampoo, roots included.

    Args:
        turn: steps of one; None: those from one exchange of roots to the next.
    """
    turn = turn or ShampooOptions().precondition_frequency
    seconds, cores = steps_in_turns(size, {"adagrad": ADAGRAD, "shampoo": {}}, rounds, turn)
    core = cores["shampoo"]
    timing, report = core.timing(), core.report()
    return {
        "batch": size.batch,
        "adagrad_ms": median_ms(seconds["adagrad"]),
        "shampoo_ms": median_ms(seconds["shampoo"]),
        "overhead": overhead(seconds, "shampoo"),
        "waited_ms_per_step": 1000 * timing["seconds_waited"] / (rounds * turn),
        "roots_refreshed": report["refreshed"],
        "root_ms_per_step": 1000
        * timing["seconds_computing"]
        / max(report["refreshed"], 1)
        * core.layout.matrices
        / turn,
    }


def family_training_step(size: Size, rounds: int) -> dict[str, Any]:
    """What each of the family adds to AdaGrad's step, with all that is computed every so many steps."""
    changes = {
        "adagrad": ADAGRAD,
        "shampoo": {},
        "eigenvalue_corrected": {"shampoo": {"method": "eigenvalue_corrected"}},
        "soap": {"shampoo": {"momentum": 0.0, "nesterov": False, **OPTIMIZERS["soap"].options}},
        "kl_shampoo": {"shampoo": {"method": "kl", "beta2": 0.95}},
        "kfac": {"rule": "kfac"},
        "adafactor": {"rule": "adafactor"},
    }
    arms = {
        name: change if change is ADAGRAD else {"optimizer": {"dense": change}}
        for name, change in changes.items()
    }
    seconds, _ = steps_in_turns(size, arms, rounds, ShampooOptions().precondition_frequency)
    added = {name: overhead(seconds, name) for name in seconds if name != "adagrad"}
    return {"batch": size.batch, "adagrad_ms": median_ms(seconds["adagrad"]), "overhead": added}


def lay_out_singly(shape: Sequence[int], options: ShampooOptions) -> TensorLayout:
    """The layout of a tensor with every block by itself."""
    layout = lay_out_tensor(shape, options)
    parts = tuple(
        tuple((begin + i * size, 1, size) for begin, count, size in runs for i in range(count))
        for runs in layout.parts
    )
    return replace(layout, parts=parts)


def stacks_of_one(layouts: Sequence[TensorLayout]) -> tuple[Stack, ...]:
    """A stack for every region."""
    return tuple(
        Stack(region.block, layout.axes, ((index, region),))
        for index, layout in enumerate(layouts)
        for region in layout.regions
    )


def reference_shapes() -> list[list[int]]:
    width = REFERENCE.features * REFERENCE.width
    crosses = [[width, 64], [64, width], [width]] * 3
    return [*crosses, [width, 1024], [1024], [1024, 512], [512], [512, 256], [256], [256, 1], [1]]


def optimizer_step(rounds: int, block_size: int) -> dict[str, float]:
    """Milliseconds of the optimizer's step alone, statistics at every step, without roots."""
    rng = np.random.default_rng(0)
    weights = [tf.Variable(rng.normal(size=shape).astype(np.float32)) for shape in reference_shapes()]
    gradients = [tf.constant(rng.normal(size=weight.shape).astype(np.float32)) for weight in weights]
    blocks = ShampooOptions(statistics=Statistics(frequency=1), block_size=block_size)
    whole = replace(blocks, block_size=8192)
    singly = {"lay_out_tensor": lay_out_singly, "make_stacks": stacks_of_one}
    kinds: dict[str, tuple[ShampooOptions, dict[str, Any]]] = {
        "stacked": (blocks, {}),
        "per_block": (blocks, singly),
        "per_variable": (whole, singly),
    }
    steps = {}
    for name, (options, changes) in kinds.items():
        with mock.patch.multiple(optimizer_layout, **changes) if changes else nullcontext():
            core = ShampooCore(options, weights)
        steps[name] = tf.function(
            lambda core=core: core.update(gradients, 0.0, roots="between_steps"), autograph=False
        )
        steps[name]()
        settle(core)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(20 * rounds):
        for name, step in steps.items():
            begun = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - begun)
    return {"block_size": block_size} | {f"{name}_ms": median_ms(times) for name, times in seconds.items()}


def family_step(rounds: int) -> dict[str, float]:
    """Milliseconds of a step of Shampoo's relatives alone, in turns of ten, in which statistics are collected once."""
    rng = np.random.default_rng(0)
    shapes = reference_shapes()
    gradients = [tf.constant(rng.normal(size=shape).astype(np.float32)) for shape in shapes]
    kinds = {
        "adagrad": ShampooOptions(start_preconditioning_step=None),
        "shampoo": ShampooOptions(),
        "eigenvalue_corrected": ShampooOptions(method=EigenvalueCorrected()),
        "soap": soap().options,
        "kl_shampoo": ShampooOptions(method=KL(), beta2=0.95),
    }
    steps: dict[str, Any] = {}
    for name, options in kinds.items():
        core = ShampooCore(options, [tf.Variable(tf.zeros(shape)) for shape in shapes])
        step = tf.function(
            lambda core=core: core.update(gradients, 0.0, roots="between_steps"), autograph=False
        )
        step()
        settle(core)
        core.exchanged.status[0].assign(tf.ones_like(core.exchanged.status[0]))
        steps[name] = step
    adafactor = AdafactorCore(AdafactorOptions(), [tf.Variable(tf.zeros(shape)) for shape in shapes])
    steps["adafactor"] = tf.function(lambda: adafactor.update(gradients, 0.0), autograph=False)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(2 * rounds + 1):
        for name, step in steps.items():
            begun = time.perf_counter()
            for _ in range(10):
                step()
            if number:
                seconds[name].append((time.perf_counter() - begun) / 10)
    return {f"{name}_ms": median_ms(times) for name, times in seconds.items()}


def memory() -> dict[str, float]:
    """Entries of the statistics, by PSO table 2 of order m n in blocks and m^2 + n^2 whole; bytes with roots."""
    shapes = [shape for shape in reference_shapes() if len(shape) == 2 and 1 not in shape]
    found: dict[str, float] = {"weights": float(sum(m * n for m, n in shapes))}
    for name, size in (("blocks", 256), ("whole", 8192)):
        weights = [tf.Variable(tf.zeros(shape)) for shape in shapes]
        core = ShampooCore(ShampooOptions(block_size=size), weights)
        found[f"{name}_entries"] = float(sum(f.count * f.size**2 for f in core.layout.factors))
        matrices = [*core.statistics.windows, *core.statistics.totals, *core.exchanged.roots]
        found[f"{name}_bytes"] = float(sum(v.dtype.size * np.prod(v.shape) for v in matrices))
    assert found["whole_entries"] == sum(m**2 + n**2 for m, n in shapes)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", default="4096,16384")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = {
        "memory": memory(),
        "optimizer_step": [optimizer_step(arguments.rounds, size) for size in (256, 128, 64)],
        "family_step": family_step(arguments.rounds),
        "family_training_step": family_training_step(REFERENCE, arguments.rounds),
        "training_step": [
            training_step(replace(REFERENCE, batch=int(batch)), arguments.rounds)
            for batch in arguments.batches.split(",")
        ],
    }
    if arguments.json:
        print(json.dumps(result, indent=1))
        return
    for row in result["training_step"]:
        print(
            "batch {batch}: AdaGrad {adagrad_ms:.1f} ms, Shampoo {shampoo_ms:.1f} ms a step, overhead {overhead:.1%}, "
            "of roots {root_ms_per_step:.1f} ms of one processor, waited for {waited_ms_per_step:.2f} ms".format(
                **row
            )
        )
    for row in result["optimizer_step"]:
        ratios = {name: row[f"{name}_ms"] / row["stacked_ms"] for name in ("per_block", "per_variable")}
        print(
            f"optimizer alone, statistics at every step, blocks of {row['block_size']}: stacked "
            f"{row['stacked_ms']:.1f} ms; a product per block {row['per_block_ms']:.1f} ms "
            f"({ratios['per_block']:.2f}x); per variable, no blocks {row['per_variable_ms']:.1f} ms "
            f"({ratios['per_variable']:.2f}x)"
        )
    print(
        "optimizers alone, without roots: "
        + ", ".join(f"{k} {v:.1f}" for k, v in result["family_step"].items())
    )
    family = result["family_training_step"]
    print(
        f"added to AdaGrad's step of {family['adagrad_ms']:.1f} ms at batch {family['batch']}: "
        + ", ".join(f"{name} {added:.1%}" for name, added in family["overhead"].items())
    )
    found = result["memory"]
    print(f"memory, {found['weights'] / 1e6:.2f}M weights in matrices:")
    for name, rule in (("blocks", "m n per side"), ("whole", "m^2 + n^2")):
        entries, size = found[f"{name}_entries"] / 1e6, found[f"{name}_bytes"] / 2**20
        print(f"  {name}: {entries:.2f}M entries of statistics ({rule}), {size:.1f} MiB with roots")


if __name__ == "__main__":
    main()
