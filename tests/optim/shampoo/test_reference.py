"""The whole optimizer against a replay in NumPy float64, step by step, for every option.

Gradients do not depend on the weights, so that an error cannot correct itself, and turn slowly: yesterday's root
is visibly not today's. Each case but the base must move the replay itself, else it would prove nothing.
"""

import numpy as np
import pytest
import tensorflow as tf

import shampoo_reference as reference

STEPS = 50
RATE = 0.1
# Blocks of [4, 4] [3, 4]; a vector; two blocks of [2, 3, 3].
SHAPES = [(7, 4), (3,), (2, 6, 3)]
# Blocks of [4, 4] [4, 3] [3, 4] [3, 3]; a scalar; a vector with a dimension too many.
MORE_SHAPES = [(11, 7), (), (9, 1)]

CASES = {
    "base": {},
    "one block": {"block_size": 256},
    "one side": {"max_dimension": 4},
    "synchronous": {"asynchronous": False},
    "statistics every third step": {"statistics_frequency": 3},
    "decayed statistics": {"beta2": 0.9},
    "decayed statistics every second step, exchanged between": {"beta2": 0.8, "statistics_frequency": 2},
    "average of gradients": {"beta1": 0.8},
    "heavy ball": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "weight decay": {"weight_decay": 0.3},
    "weight decay goes through momentum": {"weight_decay": 0.3, "momentum": 0.8},
    "sgd": {"grafting": "sgd"},
    "rmsprop": {"grafting": "rmsprop", "grafting_beta2": 0.9, "grafting_epsilon": 1e-3},
    "adam": {"grafting": "adam", "grafting_beta2": 0.9, "grafting_epsilon": 1e-3, "beta1": 0.7},
    "initial accumulator": {"initial_accumulator": 0.1},
    "blend": {"blend_steps": 9},
    "exponent override": {"exponent_override": 2},
    "exponent multiplier": {"exponent_multiplier": 1.82},
    "both exponents": {"exponent_override": 3, "exponent_multiplier": 0.7},
    "merged dimensions": {"merge_dimensions": 12},
    "damping": {"epsilon": 1e-2},
    "late start": {"start_preconditioning_step": 17},
    "start at once": {"start_preconditioning_step": 1, "precondition_frequency": 1},
    "early exchanges": {"early_growth": 0.3, "precondition_frequency": 7},
    "early collections": {"early_growth": 0.3, "precondition_frequency": 7, "statistics_frequency": 4},
    "early collections, decayed": {"early_growth": 0.3, "beta2": 0.9, "statistics_frequency": 3},
    "rare exchanges": {"precondition_frequency": 20},
    "small drift keeps a root": {"drift_bound": 0.4},
    "coupled solver": {"solver": "coupled"},
    "everything": {
        "beta1": 0.6,
        "beta2": 0.95,
        "statistics_frequency": 2,
        "precondition_frequency": 4,
        "early_growth": 0.25,
        "start_preconditioning_step": 6,
        "momentum": 0.8,
        "nesterov": True,
        "weight_decay": 0.05,
        "grafting": "adam",
        "blend_steps": 6,
        "max_dimension": 6,
        "exponent_multiplier": 1.2,
        "drift_bound": 0.3,
    },
}
# Another way to the same numbers.
SAME_AS_BASE = ("base", "coupled solver")


@pytest.fixture(scope="module")
def history():
    return reference.drifting(SHAPES, STEPS)


@pytest.fixture(scope="module")
def base(history):
    return reference.replay(reference.options(), reference.initial(SHAPES), history, RATE)[0]


@pytest.mark.slow(first=12)
@pytest.mark.parametrize("case", CASES)
def test_every_step_is_that_of_the_formulas(case, history, base):
    options = reference.options(**CASES[case])
    start = reference.initial(SHAPES)
    expected, layers, skipped = reference.replay(options, start, history, RATE)
    moved = reference.gaps(expected, base, start).max()
    assert moved < 1e-12 if case in SAME_AS_BASE else moved > 1e-2
    core = reference.make_core(options, start)
    trajectory = reference.train(core, history, RATE)
    assert reference.gaps(trajectory, expected, start).max() < 1e-6
    assert [layer.ready for layer in layers] == [bool(t.axes) for t in core.layout.tensors]
    reported = core.report()
    assert reported["skipped"] == skipped and (skipped > 0) == (options.roots.drift_bound > 0)
    assert not reported["failed"] and not reported["lost"]


@pytest.mark.slow
def test_order_four_with_uneven_blocks_and_one_long_dimension():
    shapes = [(3, 4, 2, 5), (2, 3, 9, 2)]
    options = reference.options(block_size=3, max_dimension=8, momentum=0.5)
    history, start = reference.drifting(shapes, STEPS, seed=1, condition=20), reference.initial(shapes)
    expected, layers, _ = reference.replay(options, start, history, RATE)
    assert [len(layer.blocks) for layer in layers] == [4, 1]
    assert [layer.exponent for layer in layers] == [1 / 8, 1 / 6]
    trajectory = reference.train(reference.make_core(options, start), history, RATE)
    assert reference.gaps(trajectory, expected, start).max() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("case", ["base", "blend", "everything"])
def test_roots_that_come_in_between_steps_serve_one_step_later(case, history):
    options = reference.options(**CASES[case])
    start = reference.initial(SHAPES)
    within = reference.replay(options, start, history, RATE)[0]
    expected = reference.replay(options, start, history, RATE, between_steps=True)[0]
    assert reference.gaps(within, expected, start).max() > 1e-2
    trajectory = reference.train(reference.make_core(options, start), history, RATE, roots="between_steps")
    assert reference.gaps(trajectory, expected, start).max() < 1e-6


@pytest.mark.slow
def test_a_compiled_step_follows_the_same_formulas_and_both_sides_may_be_uneven():
    options = reference.options(**CASES["everything"] | {"max_dimension": 11})
    history, start = reference.drifting(MORE_SHAPES, STEPS), reference.initial(MORE_SHAPES)
    expected, layers, _ = reference.replay(options, start, history, RATE)
    assert [len(layer.blocks) for layer in layers] == [6, 0, 0]
    trajectory = reference.train(reference.make_core(options, start), history, RATE, compiled=True)
    assert reference.gaps(trajectory, expected, start).max() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("case", ["base", "everything"])
def test_in_float32_a_ten_thousandth_is_lost(case, history):
    # Sums of squares are right to 1e-7 of the largest eigenvalue; damping at 1e-4 of it leaves 1e-3 of error in
    # the smallest directions, which the root's exponent of 1/4 and their small share of the step make less.
    options = reference.options(**CASES[case])
    start = reference.initial(SHAPES)
    expected = reference.replay(options, start, history, RATE)[0]
    core = reference.make_core(options, start, tf.float32)
    assert core.dtype == tf.float32
    gap = reference.gaps(reference.train(core, history, RATE), expected, start)
    assert 1e-9 < gap.max() < 1e-4


def test_a_weight_without_a_gradient_keeps_all_its_state_but_its_roots_age():
    shapes = [(5, 4), (4, 3), (3,)]
    history, start = reference.drifting(shapes, 20), reference.initial(shapes)
    for t in (0, 1, 2, 8, 9, 15):
        history[t][1] = None
        history[t][2] = None
    # A step without any.
    history[11] = [None] * 3
    options = reference.options(momentum=0.9, weight_decay=0.1, beta1=0.5)
    core = reference.make_core(options, start)
    expected = reference.replay(options, start, history, RATE)[0]
    before = reference.state_of(core)
    trajectory = reference.train(core, history[:3], RATE)
    after = reference.state_of(core)
    for name in after[0]:
        if name.startswith(("tensor1", "tensor2")):
            assert after[0][name].tobytes() == before[0][name].tobytes(), name
    trajectory += reference.train(core, history[3:], RATE)
    for weights in trajectory[:3]:
        np.testing.assert_array_equal(weights[1], start[1])
        np.testing.assert_array_equal(weights[2], start[2])
    for weights, others in zip(trajectory, expected, strict=True):
        for weight, other in zip(weights, others, strict=True):
            np.testing.assert_allclose(weight, other, rtol=1e-6, atol=1e-9)
