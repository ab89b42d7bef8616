"""Shampoo on several workers: the trajectory of one process, the same bits everywhere, and state in parts."""

import math

import numpy as np
import pytest
import tensorflow as tf

import shampoo_reference as reference
from ctr.optim.shampoo.dense import DenseShampoo
from ctr.optim.shampoo.division import divide
from ctr.optim.shampoo.host import STATUS
from ctr.optim.shampoo.layout import lay_out
from ctr.workers.collectives import ALONE
from ctr.workers.parts import Part, reshard, shard
from thread_group import together


def test_element_state_and_matrices_of_a_wide_model_are_divided_evenly():
    shapes = [(416, 416), (416, 1024), (1024, 256), (256, 1), (256,)]
    options = reference.options(block_size=128, momentum=0.9)
    layout = lay_out(options, shapes)
    whole = 16 * sum(f.count * f.size**2 for f in layout.factors) + 8 * sum(map(math.prod, shapes))
    for size in (2, 4, 8):
        for division in together(size, lambda workers: divide(options, layout, workers)):
            matrices = sum(factor.count * factor.size**2 for factor in division.local.factors)
            elements = sum(math.prod(division.shape(index)) for index in range(len(shapes)))
            assert 16 * matrices + 8 * elements <= whole / size * 1.1


RATE = tf.constant(0.125, tf.float64)
STEPS = 14
BREAK = 9  # Between two exchanges, with roots in flight.
EXCHANGE = {"precondition_frequency": 4, "block_size": 4}

SYNCHRONOUS = {"roots": {"asynchronous": False}}
CASE = "momentum, decay, nesterov"
# By name, the shapes of the weights and what differs from the small options of shampoo_reference.
CASES = {
    CASE: (
        [(13, 10), (7,), (5, 9), ()],
        # Some roots are kept, each by its own drift.
        {"momentum": 0.75, "nesterov": True, "weight_decay": 0.01, "roots": {"drift_bound": 0.5}},
    ),
    "eigenbases": (
        [(9, 6), (4, 4), (3,)],
        {"method": "eigenvalue_corrected", "beta1": 0.5, "beta2": 0.9}
        | {"grafting": {"kind": "adam", "norm": "none"}}
        | SYNCHRONOUS,
    ),
    "more workers than blocks": ([(5, 4), (3,)], {"block_size": 8, "grafting": "sgd"} | SYNCHRONOUS),
    "odd shapes of any order": (
        [(3, 5, 7), (1, 11), (2, 13), (17, 3), (40, 5)],
        {"block_size": 5, "blocking": {"max_dimension": 20}, "momentum": 0.5}
        | {"grafting": {"kind": "rmsprop", "norm": "block"}}
        | {"limits": {"absolute": 0.01, "relative": 0.1}, "statistics": {"frequency": 3}}
        | {"roots": {"early_growth": 0.2}},
    ),
    "relatives": (
        [(13, 10), (7,), (5, 9)],
        {"method": "diagonal", "blocking": {"max_dimension": 9, "vectors": True}}
        | {"grafting": {"kind": "lamb", "momentum": "before"}}
        | {"momentum": 0.5, "weight_decay": 0.01},
    ),
}


def run(workers=ALONE, case=CASE, begin=0, end=STEPS, state=None):
    """Trains, each worker with its parts of a ``state`` from which it goes on.

    Returns ``weight|STEP|I``, ``report|NAME``, ``state|NAME``, and ``rows|``, ``total|`` and ``shape|`` of its parts.
    """
    shapes, changed = CASES[case]
    optimizer = DenseShampoo(reference.options(**EXCHANGE).changed(changed), workers)
    weights = [tf.Variable(weight) for weight in reference.initial(shapes)]
    optimizer.build({f"w{i}": weight for i, weight in enumerate(weights)})
    for name, variable in optimizer.variables.items() if state else ():
        part = optimizer.parts().get(name)
        variable.assign(state[f"state|{name}"] if part is None else shard(state[f"state|{name}"], part))
    for i, weight in enumerate(weights if state else ()):
        weight.assign(state[f"weight|{begin - 1}|{i}"])

    found = {}
    history = reference.drifting(shapes, end, condition=30)
    for number, gradients in enumerate(history[begin:], begin):
        optimizer.update([tf.constant(gradient) for gradient in gradients], RATE, True)
        found |= {f"weight|{number}|{i}": weight.numpy() for i, weight in enumerate(weights)}
    found |= {f"report|{name}": np.array(value) for name, value in optimizer.report().items()}
    found |= {f"report|spectrum {name}": np.array(one) for name, one in optimizer.spectra().items()}
    found |= {f"state|{name}": variable.numpy() for name, variable in optimizer.variables.items()}
    for name, part in optimizer.parts().items():
        found |= {f"rows|{name}": part.rows, f"total|{name}": np.array(part.total)}
        found[f"shape|{name}"] = np.array(part.shape or (), np.int64)
    return found


def merged(found):
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


def assert_same_run(found, expected):
    """Weights are those of one process, and to the bit those of all workers; so are reports and the whole state."""
    for name, value in expected.items():
        kind = name.partition("|")[0]
        if kind == "weight":
            np.testing.assert_allclose(found[0][name], value, rtol=1e-12, atol=1e-12)
            assert all(own[name].tobytes() == found[0][name].tobytes() for own in found), name
        elif kind == "report":
            for own in found:
                np.testing.assert_allclose(own[name], value, rtol=1e-6, atol=1e-9, err_msg=name)
        elif kind == "state":
            held = sum(own[name].size for own in found)
            is_divided = name.replace("state|", "rows|") in found[0]
            assert held == value.size * (1 if is_divided else len(found)), name
            whole = merged(found)[name]
            if name.endswith("status"):
                # Residuals are nothing but rounding.
                rows = [row for row, of_matrices in enumerate(STATUS) if of_matrices != "residual"]
                np.testing.assert_allclose(whole[rows], value[rows], rtol=1e-5, atol=1e-9)
            else:
                np.testing.assert_allclose(whole, value, rtol=1e-9, atol=1e-10, err_msg=name)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in list(CASES)[2:]]


@pytest.mark.parametrize("case", [*list(CASES)[:2], *SLOW])
def test_workers_take_the_steps_of_one_process(case):
    assert_same_run(together(3, lambda workers: run(workers, case)), run(case=case))


@pytest.mark.slow
def test_what_one_number_of_workers_saved_goes_on_with_another():
    one = run()
    resumed = run(begin=BREAK, state=merged(together(2, lambda workers: run(workers, end=BREAK))))
    assert_same_run([resumed], {name: one[name] for name in resumed if name.startswith("weight|")})
    broken = run(end=BREAK)
    found, again = (together(2, lambda workers: run(workers, begin=BREAK, state=broken)) for _ in range(2))
    assert_same_run(found, {name: one[name] for name in found[0] if name.startswith("weight|")})
    for own, other in zip(found, again, strict=True):
        assert all(own[name].tobytes() == value.tobytes() for name, value in other.items())
