"""Shampoo on one worker or on several, on the same gradients, in float64."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import shampoo_reference as reference
from ctr.optim.shampoo.dense import DenseShampoo
from ctr.workers.collectives import ALONE, Workers
from ctr.workers.parts import Part, reshard, shard

RATE = tf.constant(0.125, tf.float64)
STEPS = 22
BREAK = 13  # Between two exchanges, with roots in flight.
EXCHANGE = {"precondition_frequency": 4, "block_size": 4}

CASE = "momentum, decay, nesterov"
# By name, the shapes of the weights and what differs from the small options of shampoo_reference.
CASES: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    CASE: (
        [(13, 10), (7,), (5, 9), ()],
        {"momentum": 0.75, "nesterov": True, "weight_decay": 0.01, "grafting": {"normalized": True}},
    ),
    "eigenbases": (
        [(9, 6), (4, 4), (3,)],
        {"method": "eigenvalue_corrected", "gradient": {"beta1": 0.5}, "beta2": 0.9}
        | {"grafting": {"kind": "adam", "norm": "none"}, "roots": {"asynchronous": False}},
    ),
    "more workers than blocks": (
        [(5, 4), (3,)],
        {"block_size": 8, "roots": {"asynchronous": False}, "grafting": "sgd"},
    ),
    "odd shapes of any order": (
        [(3, 5, 7), (1, 11), (2, 13), (17, 3), (40, 5)],
        {"block_size": 5, "blocking": {"max_dimension": 20}, "grafting": "rmsprop", "momentum": 0.5}
        | {"limits": {"absolute": 0.01, "relative": 0.1}, "statistics": {"frequency": 3}}
        | {"roots": {"early_growth": 0.2}},
    ),
    "relatives": (
        [(13, 10), (7,), (5, 9)],
        {"method": "diagonal", "blocking": {"max_dimension": 9, "vectors": True}, "limits": {"rms": 0.1}}
        | {"grafting": {"kind": "lamb", "momentum": "separate", "norm": "block", "normalized": True}}
        | {"momentum": 0.5, "gradient": {"l2": 0.01}},
    ),
}

Arrays = dict[str, np.ndarray]


def made(case: str, workers: Workers = ALONE) -> tuple[DenseShampoo, list[tf.Variable]]:
    """The optimizer and its weights."""
    shapes, changed = CASES[case]
    optimizer = DenseShampoo(reference.options(**EXCHANGE).changed(changed), workers)
    weights = [tf.Variable(weight) for weight in reference.initial(shapes)]
    optimizer.build({f"w{i}": weight for i, weight in enumerate(weights)})
    return optimizer, weights


def run(
    workers: Workers = ALONE,
    case: str = CASE,
    begin: int = 0,
    end: int = STEPS,
    state: Mapping[str, np.ndarray] | None = None,
    compiled: bool = False,
    between: bool = False,
) -> Arrays:
    """Trains, each worker with its parts of a ``state`` from which it goes on.

    Args:
        begin, end: the steps that are taken.
        between: roots are exchanged between the steps, as where XLA compiles them.

    Returns:
        ``weight|STEP|I``, ``report|NAME``, and ``state|NAME`` with the ``rows|``, ``total|`` and ``shape|`` of parts.
    """
    optimizer, weights = made(case, workers)
    for name, variable in optimizer.variables.items() if state else ():
        part = optimizer.parts().get(name)
        variable.assign(state[f"state|{name}"] if part is None else shard(state[f"state|{name}"], part))
    for i, weight in enumerate(weights if state else ()):
        weight.assign(state[f"weight|{begin - 1}|{i}"])

    def step(gradients: list[tf.Tensor]) -> None:
        optimizer.update(gradients, RATE, between)

    step = tf.function(step, autograph=False) if compiled else step
    found: Arrays = {}
    history = reference.drifting(CASES[case][0], end, condition=30)
    for number, gradients in enumerate(history[begin:], begin):
        step([tf.constant(gradient) for gradient in gradients])
        if between:
            optimizer.exchange()
        found |= {f"weight|{number}|{i}": weight.numpy() for i, weight in enumerate(weights)}
    found |= {f"report|{name}": np.array(value) for name, value in optimizer.report().items()}
    found |= {f"report|spectrum {name}": np.array(one) for name, one in optimizer.spectra().items()}
    found |= {f"state|{name}": variable.numpy() for name, variable in optimizer.variables.items()}
    for name, part in optimizer.parts().items():
        found |= {f"rows|{name}": part.rows, f"total|{name}": np.array(part.total)}
        found[f"shape|{name}"] = np.array(part.shape or (), np.int64)
    return found


def merged(found: Sequence[Mapping[str, np.ndarray]]) -> Arrays:
    """The state of one process, from what all workers hold, and the weights."""
    whole = {name: value for name, value in found[0].items() if name.startswith(("state|", "weight|"))}
    for name in [name.removeprefix("rows|") for name in found[0] if name.startswith("rows|")]:
        parts = []
        for own in found:
            shape = tuple(own[f"shape|{name}"].tolist()) or None
            part = Part(own[f"rows|{name}"], int(own[f"total|{name}"]), shape)
            parts.append((part, own[f"state|{name}"]))
        whole[f"state|{name}"] = reshard(parts)
    return whole


def run_and_resume(workers: Workers, path: str) -> Arrays:
    """``run`` in graphs; the same ``between|`` steps; and ``resumed|`` from what a file holds of one process."""
    found = run(workers, compiled=True)
    with np.load(path) as arrays:
        again = run(workers, begin=BREAK, state=dict(arrays), compiled=True)
    between = run(workers, end=9, compiled=True, between=True)
    return (
        found
        | {f"resumed|{name}": value for name, value in again.items()}
        | {f"between|{name}": value for name, value in between.items()}
    )
