"""Every method and option, step by step beside a replay of the papers' formulas in NumPy float64.

Gradients do not depend on the weights, so that an error cannot correct itself, and turn slowly: yesterday's root
is visibly not today's. In some steps a weight has none: it stays, with all that is kept of it. Each row but the first
must move the replay itself, else it would prove nothing.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

import shampoo_reference as reference
from shampoo_reference import gap

STEPS = 22
# Momentum is of directions: whatever the rate does, the average has nothing of it.
RATES = 0.125 * np.resize([1.0, 0.5, 2.0, 0.25], STEPS)
# Blocks of [4, 3] [4, 2] [3, 3] [3, 2]; a vector; any order; a single number; one side longer than others.
SHAPES = [(7, 5), (4,), (3, 2, 4), (1,), (10, 3)]
SYNCHRONOUS = {"asynchronous": False}

NO_NORM = {"norm": "none"}
SOAP = "eigenvalue_corrected"
DIAGONAL = "diagonal"
EVERYTHING = {
    "beta2": 0.95,
    **{"statistics": {"frequency": 2}, "precondition_frequency": 4, "start_preconditioning_step": 6},
    "roots": {"early_growth": 0.25, "drift_bound": 0.3},
    **{"beta1": 0.6, "momentum": 0.8, "nesterov": True, "weight_decay": 0.05},
    "grafting": {"kind": "adam", "beta2": 0.9, "epsilon": 1e-3},
    **{"blocking": {"max_dimension": 6}, "exponent_override": 3},
}

# One row finds a wrong formula of its method and of each option in it. A norm that is grafted hides the scale of a
# direction: where a row is about a divisor or an exponent, directions keep their own.
FAST = {
    "plain": {},
    "everything": EVERYTHING,
    "bias correction shows where neither norm nor damping hide the scale": {
        "beta2": 0.8,
        "statistics": {"frequency": 2, "initial": 0.05},
        "epsilon": 1e-2,
        "roots": {"damping": "absolute"} | SYNCHRONOUS,
        "grafting": NO_NORM,
    },
    "exponents of merged dimensions": {
        "exponent_override": 5,
        "blocking": {"merge": 12},
        "grafting": NO_NORM,
    },
    "exponents by order, in sums whose early collections weigh less": {
        **{"roots": {"early_growth": 0.3}, "precondition_frequency": 7},
        **{"statistics": {"frequency": 4}, "grafting": NO_NORM},
    },
    "SOAP": {
        **{"method": SOAP, "beta2": 0.9, "beta1": 0.8, "roots": SYNCHRONOUS},
        "grafting": {"kind": "adam", "beta2": 0.9, "norm": "none"},
    },
    "diagonals that decay, with initial statistics": {
        **{"method": DIAGONAL, "blocking": {"max_dimension": 6}},
        **{"beta2": 0.9, "statistics": {"initial": 0.2}, "roots": SYNCHRONOUS},
    },
    "norms of blocks": {
        "grafting": {"norm": "block", "initial_accumulator": 0.01, "epsilon": 1e-3},
        "roots": SYNCHRONOUS,
    },
    "momentum, decay, nesterov, SGD, full blocks, vectors, first roots before the first step": {
        **{"momentum": 0.8, "nesterov": True, "weight_decay": 0.1, "grafting": "sgd"},
        "blocking": {"split": "full", "vectors": True},
        **{"roots": {"first": 4} | SYNCHRONOUS, "start_preconditioning_step": 11},
    },
    "LAMB, decay": {
        "grafting": {"kind": "lamb", "beta2": 0.9, "epsilon": 1e-3},
        **{"beta1": 0.7, "weight_decay": 0.1, "momentum": 0.9},
    },
    "RMSprop, heavy ball": {"grafting": {"kind": "rmsprop", "beta2": 0.9, "epsilon": 1e-3}, "momentum": 0.9},
    "LARS, phase": {
        **{"grafting": {"kind": "lars"}, "precondition_frequency": 4},
        "roots": {"phase": 1, "identity": True} | SYNCHRONOUS,
    },
}
MORE = {
    "everything, of SOAP in sums": EVERYTHING | {"method": SOAP, "beta2": 1.0},
    "bases in flight, vectors": {
        **{"method": SOAP, "beta2": 0.9, "blocking": {"vectors": True}},
        **{"roots": {"damping": "absolute"}, "epsilon": 1e-3},
    },
    "diagonals alone, momenta before the norm": {
        **{"method": DIAGONAL, "blocking": {"max_dimension": 1}},
        **{"grafting": {"kind": "adam", "momentum": "before"}, "momentum": 0.8, "nesterov": True},
    },
}
CASES = FAST | MORE


def given(case):
    return reference.options(start_preconditioning_step=5).changed(CASES[case])


@functools.cache
def history(has_gaps=True):
    found = reference.drifting(SHAPES, STEPS, condition=10.0)
    # Each has one at the first exchange; two miss later ones, and the last comes late.
    for t, gradients in enumerate(found, 1):
        for i in range(len(SHAPES)) if has_gaps and t not in (3, 4, 5, 6, 11) else ():
            if t % 6 == i or t == 10 + i % 2 or (i == 4 and t < 3):
                gradients[i] = None
    return found


@functools.cache
def plain():
    return reference.replay(given("plain"), reference.initial(SHAPES), history(), RATES)[0]


@pytest.mark.parametrize("case", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_every_step_is_that_of_the_formulas(case):
    options, start = given(case), reference.initial(SHAPES)
    expected, layers, skipped = reference.replay(options, start, history(), RATES)
    moved = gap(expected, plain(), start)
    assert moved == 0 if case == "plain" else moved > 1e-3
    core = reference.make_core(options, start)
    assert gap(reference.train(core, history(), RATES), expected, start) < 1e-8
    report = core.report()
    assert report["layers_ready"] == report["layers"] == sum(bool(layer.sides) for layer in layers)
    assert report["skipped"] == skipped and (skipped > 0 or not options.roots.drift_bound)
    assert not report["failed"] and not report["lost"]


@pytest.mark.slow
def test_a_step_that_xla_compiles_has_its_roots_one_step_later():
    options, start = given("everything, of SOAP in sums"), reference.initial(SHAPES)
    expected = reference.replay(options, start, history(False), RATES, between_steps=True)[0]
    core = reference.make_core(options, start)
    assert gap(reference.replay(options, start, history(False), RATES)[0], expected, start) > 1e-3

    @tf.function(jit_compile=True)
    def step(gradients, rate):
        core.update(gradients, rate)

    found = []
    for gradients, rate in zip(history(False), RATES, strict=True):
        step([tf.constant(gradient) for gradient in gradients], tf.constant(rate))
        core.exchange()
        found.append([weight.numpy() for weight in core.weights])
    assert gap(found, expected, start) < 1e-8


@pytest.mark.slow
def test_a_compiled_step_of_any_order_with_uneven_blocks_and_long_dimensions():
    # Blocks of [4, 4] [4, 3] [3, 4] [3, 3]; a scalar; a vector with a dimension too many; orders of four.
    shapes = [(11, 7), (), (9, 1), (3, 4, 2, 5), (2, 3, 12, 2)]
    options = reference.options(block_size=4).changed(EVERYTHING | {"blocking": {"max_dimension": 11}})
    steps, start = reference.drifting(shapes, STEPS, condition=20), reference.initial(shapes)
    expected, layers, _ = reference.replay(options, start, steps, RATES)
    assert [len(layer.blocks) for layer in layers] == [6, 0, 0, 2, 1]
    found = reference.train(reference.make_core(options, start), steps, RATES, compiled=True)
    assert gap(found, expected, start) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_smaller_types_lose_no_more_than_their_rounding(dtype):
    # Sums of squares are right to 1e-7 of the largest eigenvalue; damping at 1e-4 of it leaves 1e-3 of error in
    # the smallest directions, which the root's exponent of 1/4 and their small share of the step make less.
    options, start = given("everything"), reference.initial(SHAPES)
    expected = reference.replay(options, start, history(False)[:10], RATES[:10])[0]
    core = reference.make_core(options, start, dtype)
    assert core.dtype == tf.float32
    found = reference.train(core, history(False)[:10], RATES[:10])
    if dtype == tf.float32:
        assert 1e-9 < gap(found, expected, start) < 1e-4
    for half, exact in zip(found[-1], expected[-1], strict=True):
        assert np.abs(half.astype(np.float64) - exact).max() < 10 * 2**-8 * np.abs(exact).max()
