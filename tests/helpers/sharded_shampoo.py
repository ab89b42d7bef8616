"""Shampoo on one worker or on several, on the same gradients, in float64."""

from typing import Any

import numpy as np
import tensorflow as tf

import shampoo_reference as reference
from ctr.optim.shampoo.dense import DenseShampoo
from ctr.workers.collectives import ALONE, Workers
from ctr.workers.parts import shard

RATE = 0.125
STEPS = 60
EXCHANGE = {"precondition_frequency": 4, "drift_bound": 0.0}

CASE = "momentum, decay, nesterov"
# By name, the shapes of the weights and what differs from the options of shampoo_reference.
CASES: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    "momentum, decay, nesterov": (
        [(13, 10), (7,), (5, 9), ()],
        {"momentum": 0.75, "nesterov": True, "weight_decay": 0.01} | {"block_size": 4, "normalized": True},
    ),
    "statistics that decay, averages, adam": (
        [(9, 6), (4, 4), (3,)],
        {
            "beta2": 0.9,
            "beta1": 0.5,
            "grafting": "adam",
            "grafting_beta2": 0.9,
            "blend_steps": 20,
            "block_size": 4,
        },
    ),
    "odd shapes of any order": (
        [(3, 5, 7), (1, 11), (2, 13), (17, 3), (40, 5)],
        {"block_size": 5, "max_dimension": 20, "grafting": "rmsprop", "update_limit_absolute": 0.01}
        | {"update_limit_relative": 0.1, "statistics_frequency": 3, "early_growth": 0.2, "momentum": 0.5},
    ),
    "more workers than blocks": ([(5, 4), (3,)], {"block_size": 8, "asynchronous": False, "grafting": "sgd"}),
    "eigenbases": (
        [(9, 6), (4, 4), (3,)],
        {"eigenvalue_correction": True, "beta1": 0.5, "beta2": 0.9, "block_size": 4, "grafting": "adam"}
        | {"grafted_norm": False, "asynchronous": False},
    ),
    "relatives": (
        [(13, 10), (7,), (5, 9)],
        {"large_dimensions": "diagonal", "max_dimension": 9, "grafting": "lamb", "update_clipping": 0.1}
        | {"block_size": 4, "precondition_vectors": True, "separate_momenta": True, "momentum": 0.5}
        | {"weight_decay": 0.01, "weight_decay_kind": "coupled", "grafting_scope": "block"}
        | {"normalized": True},
    ),
    "no preconditioner": ([(5, 4), (3,)], {"start_preconditioning_step": None, "momentum": 0.5}),
}


def run(
    workers: Workers = ALONE, cases: list[str] | None = None, steps: int = STEPS
) -> dict[str, np.ndarray]:
    """Trains in each case.

    Returns:
        by case: the weights after each step, the report, and all state, or this worker's parts with their places.
    """
    found: dict[str, np.ndarray] = {}
    for case in cases or CASES:
        optimizer, weights, step = make(case, workers)
        for number, gradients in enumerate(history(case, steps)):
            step(gradients)
            found |= {f"{case}|weight|{number}|{i}": weight.numpy() for i, weight in enumerate(weights)}
        found |= {f"{case}|report|{name}": np.array(value) for name, value in optimizer.report().items()}
        spectra = optimizer.spectra()
        found |= {f"{case}|report|spectrum {name}": np.array(spectrum) for name, spectrum in spectra.items()}
        found |= saved(case, optimizer)
    return found


def make(case: str, workers: Workers = ALONE) -> tuple[DenseShampoo, list[tf.Variable], Any]:
    """The optimizer, its weights, and a step as a function of gradients."""
    shapes, changed = CASES[case]
    optimizer = DenseShampoo(reference.options(**EXCHANGE | changed), workers)
    weights = [tf.Variable(weight) for weight in reference.initial(shapes)]
    optimizer.build({f"w{i}": weight for i, weight in enumerate(weights)})
    rate = tf.constant(RATE, tf.float64)
    step = tf.function(lambda gradients: optimizer.update(gradients, rate, False), autograph=False)
    return optimizer, weights, step


def saved(case: str, optimizer: DenseShampoo) -> dict[str, np.ndarray]:
    """The state by name, and for each part of an array where it belongs."""
    arrays = {f"{case}|state|{name}": variable.numpy() for name, variable in optimizer.variables.items()}
    for name, part in optimizer.parts().items():
        arrays[f"{case}|rows|{name}"] = part.rows
        arrays[f"{case}|total|{name}"] = np.array(part.total)
        arrays[f"{case}|shape|{name}"] = np.array(part.shape or (), np.int64)
    return arrays


def run_and_resume(workers: Workers, cases: list[str], path: str, begin: int) -> dict[str, np.ndarray]:
    """``run``; ``resumed`` from ``path``, its names after ``resumed|``; and whether state ``repeats``."""
    found = run(workers, cases)
    found |= {f"resumed|{name}": value for name, value in resumed(workers, CASE, path, begin).items()}
    found |= {f"between|{name}": value for name, value in between_steps(workers).items()}
    return found | {"repeated": np.array(repeats(workers, begin))}


def between_steps(workers: Workers = ALONE) -> dict[str, np.ndarray]:
    """The weights after some steps between which roots are exchanged, as where XLA compiles the steps."""
    optimizer, weights, _ = make(CASE, workers)
    rate = tf.constant(RATE, tf.float64)
    step = tf.function(lambda gradients: optimizer.update(gradients, rate, True), autograph=False)
    for gradients in history(CASE)[:14]:
        step(gradients)
        optimizer.exchange()
    assert optimizer.report()["refreshed"] > 0
    return {str(i): weight.numpy() for i, weight in enumerate(weights)}


def resumed(workers: Workers, case: str, path: str, begin: int) -> dict[str, np.ndarray]:
    """Goes on from what ``path`` holds of a whole run, each worker with its parts, from a step on.

    Returns:
        as ``run``.
    """
    optimizer, weights, step = make(case, workers)
    parts = optimizer.parts()
    with np.load(path) as arrays:
        for name, variable in optimizer.variables.items():
            whole = arrays[f"state|{name}"]
            variable.assign(shard(whole, parts[name]) if name in parts else whole)
        for i, weight in enumerate(weights):
            weight.assign(arrays[f"weight|{i}"])
    found: dict[str, np.ndarray] = {}
    for number, gradients in enumerate(history(case)[begin:], begin):
        step(gradients)
        found |= {f"{case}|weight|{number}|{i}": weight.numpy() for i, weight in enumerate(weights)}
    return found | saved(case, optimizer)


def repeats(workers: Workers, begin: int) -> bool:
    """Whether a new optimizer with the state of another takes the same steps, to the bit."""
    first, second = (make(CASE, workers) for _ in range(2))
    steps = history(CASE)[: begin + 9]
    for gradients in steps[:begin]:
        first[2](gradients)
    for name, variable in first[0].variables.items():
        second[0].variables[name].assign(variable)
    for weight, other in zip(first[1], second[1], strict=True):
        other.assign(weight)
    for gradients in steps[begin:]:
        first[2](gradients)
        second[2](gradients)
    pairs = [
        *zip(first[1], second[1], strict=True),
        *zip(first[0].variables.values(), second[0].variables.values(), strict=True),
    ]
    return all(one.numpy().tobytes() == other.numpy().tobytes() for one, other in pairs)


def history(case: str, steps: int = STEPS) -> list[list[tf.Tensor]]:
    """The gradients of a case, step by step."""
    found = reference.drifting(CASES[case][0], steps, condition=30)
    return [[tf.constant(gradient) for gradient in gradients] for gradients in found]
