"""Makes the same steps on one, two and four devices, and compares the logits: processors stand for chips.

    .venv-tpu/bin/python benchmarks/logical_devices.py [--kinds KIND ...] [--steps 10]

The program is the one that ``benchmarks/tpu.py`` compiles for the chips of a slice: each device has a part of the rows
of every batch and of every table, and all other state; sums over the batch, and its rows of tables, are all-reduces.
The exit status is 1 where a logit differs by more than 1e-5. Shampoo's roots are damped more than usually: with the
default damping its steps make differences of rounding a thousand times larger, and the logits of ten steps differ by up
to 0.02.
"""

import os
import sys
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import numpy as np
from accelerators.folder import portable, shampoo_facts
from accelerators.kinds import DAMPED, KINDS, SMALL, Built, build
from accelerators.lowering import CHIP, Lowered, argument_values
from accelerators.replicas import Replicas
from accelerators.run import Roots, function_of
from jax.sharding import Mesh, PartitionSpec
from reference import TINY
from runner import main

from ctr.experiments.config import merged
from ctr.workers.collectives import ALONE
from ctr.workers.row_lines import RowLines
from ctr.workers.row_variables import on_devices

COUNTS = (1, 2, 4)
TOLERANCE = 1e-5
COMPARED = ("AdaGrad", "Shampoo", "defaults")
"""Not ranking: each device has another number of pairs, and one program has one."""
_CHIPS = "chips"
_OF_ROWS = ("logit", "slices/")


def logits_on(count: int, kind: str, steps: int) -> np.ndarray:
    """The logits of some steps on so many devices, float32 [steps, B], in the order of the batch."""
    workers = ALONE if count == 1 else Replicas(count)
    built = build(KINDS[kind], TINY, merged(SMALL, DAMPED), workers, in_lines=True)
    lowered = built.lowered()
    state = {
        name: jax.numpy.asarray(array) for name, array in _first_state(built, lowered, kind, count).items()
    }
    step = _step(built, lowered, count)
    facts = shampoo_facts(built)
    roots = None if facts is None else Roots(facts)
    found = []
    for number in range(steps):
        results = step(*_arguments(built, number), *state.values())
        state |= zip(lowered.changed, results[len(lowered.results) :], strict=True)
        if roots is not None:
            roots.exchange(number + 1, state)
        feed = built.feeds[number % len(built.feeds)]
        found.append(feed.in_order(np.asarray(results[0])))
    return np.stack(found)


def _first_state(built: Built, lowered: Lowered, kind: str, count: int) -> dict[str, np.ndarray]:
    """The parameters that are state; of those that are divided the parts of all devices, behind each other."""
    variables, found = built.state.variables(), {}
    whole = {}
    if count > 1:
        # Of divided tables, ``built`` has the part of the first device only. Tables grow by the first batch.
        alone = build(KINDS[kind], TINY, merged(SMALL, DAMPED))
        alone.step.learning(alone.feeds[0], alone.ramps, alone.rates)
        whole = alone.state.variables()
    for name in lowered.state:
        if name == CHIP:
            found[name] = np.arange(count, dtype=np.int32)
        elif _is_divided(variables[name]):
            values = whole[name].numpy()
            found[name] = np.concatenate([variables[name].lines(values, chip) for chip in range(count)])
        else:
            found[name] = on_devices(variables[name])[0].numpy()
    return found


def _is_divided(variable: Any) -> bool:
    return isinstance(variable, RowLines) and variable.is_divided


def _step(built: Built, lowered: Lowered, count: int) -> jax.stages.Wrapped:
    """The step over a mesh: arguments, logits and large tables divided by rows, everything else on all devices."""
    artifact, results = portable(lowered)
    names = (*lowered.arguments, *lowered.state)
    function = function_of(artifact, [jax.ShapeDtypeStruct(*lowered.specs[name]) for name in names], results)
    divided, whole = PartitionSpec(_CHIPS), PartitionSpec()
    variables = built.state.variables()
    of_state = {
        name: divided if name == CHIP or _is_divided(variables[name]) else whole for name in lowered.state
    }
    given = [divided if lowered.specs[name][0] else whole for name in lowered.arguments]
    returned = [divided if name.startswith(_OF_ROWS) else whole for name in lowered.results]
    mapped = jax.shard_map(
        function,
        mesh=Mesh(np.array(jax.devices()[:count]), (_CHIPS,)),
        in_specs=(*given, *of_state.values()),
        out_specs=[*returned, *(of_state[name] for name in lowered.changed)],
        check_vma=False,
    )
    return jax.jit(mapped)


def _arguments(built: Built, number: int) -> list[np.ndarray]:
    """Returns what all devices are given at a step, behind each other."""
    of_all = [
        argument_values(built.step.learning(feeds[number % len(feeds)], built.ramps, built.rates)[1])
        for feeds in built.feeds_of
    ]
    return [
        np.concatenate([values[name] for values in of_all]) if first.ndim else first
        for name, first in of_all[0].items()
    ]


def measure(kinds: tuple[str, ...] = COMPARED, steps: int = 10) -> dict[str, Any]:
    """By how much logits of some steps on several devices differ at most from those on one."""
    jax.config.update("jax_enable_x64", True)
    found: dict[str, Any] = {}
    for kind in kinds:
        alone, *others = [logits_on(count, kind, steps) for count in COUNTS]
        apart = [float(np.abs(other - alone).max()) for other in others]
        found[kind] = {f"{count} devices": one for count, one in zip(COUNTS[1:], apart, strict=True)}
        found[kind]["state"] = "as expected" if max(apart) <= TOLERANCE else "TOO MUCH"
    return {"differences": found}


if __name__ == "__main__":
    rows = main(measure, {"kinds": ("AdaGrad",), "steps": 2})["differences"].values()
    sys.exit(any(row["state"] == "TOO MUCH" for row in rows))
