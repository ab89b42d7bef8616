"""All of Shampoo's relatives, step by step beside a NumPy replay of the papers' formulas, in float64."""

import numpy as np
import pytest
import tensorflow as tf

import family_reference as family
import shampoo_reference as reference

RATE = 0.125
STEPS = 40
SHAPES = [(7, 5), (4,), (3, 2, 4), (1,), (10, 3)]
TOLERANCE = 1e-10

SOAP = {"eigenvalue_correction": True}
KL = {"factor_update": "kl", "beta2": 0.9, "exponent_override": 2}
CASES = {
    "eigenvalue correction": SOAP,
    "decayed moments": SOAP | {"beta2": 0.9},
    "moments that are kept": SOAP | {"beta2": 0.9, "basis_change": "keep"},
    "absolute damping of moments": SOAP | {"beta2": 0.9, "damping": "absolute", "epsilon": 1e-3},
    "another exponent of moments": SOAP | {"exponent_override": 3},
    "SOAP": SOAP
    | {"beta1": 0.8, "beta2": 0.9, "grafting": "adam", "grafting_beta2": 0.9, "grafted_norm": False},
    "one long side": SOAP | {"max_dimension": 6},
    "late bases": SOAP | {"start_preconditioning_step": 17, "beta2": 0.95},
    "KL-Shampoo": KL,
    "KL with other exponents": KL | {"exponent_override": 4},
    "KL without dividing": KL | {"factor_update": "kl_undivided"},
    "KL with averages": KL | {"beta1": 0.7, "momentum": 0.8},
    "diagonal": {"large_dimensions": "diagonal", "max_dimension": 6},
    "diagonals alone": {"large_dimensions": "diagonal", "max_dimension": 1},
    "decayed diagonals": {"large_dimensions": "diagonal", "max_dimension": 3, "beta2": 0.9},
    "unequal sides": {"left_share": 0.25},
    "unequal sides, one of them a diagonal": {
        "left_share": 0.25,
        "large_dimensions": "diagonal",
        "max_dimension": 6,
    },
    "left side alone": {"left_share": 1.0},
    "right side alone": {"left_share": 0.0, "exponent_override": 3},
    "coupled decay": {"weight_decay": 0.3, "weight_decay_kind": "coupled"},
    "coupled decay and momentum": {"weight_decay": 0.1, "weight_decay_kind": "coupled", "momentum": 0.9},
    "LARS": {"grafting": "lars"},
    "LAMB": {"grafting": "lamb", "grafting_beta2": 0.9, "grafting_epsilon": 1e-3, "beta1": 0.7},
    "sign": {"grafting": "sign"},
    "epsilon of AdaGrad": {"adagrad_epsilon": 0.3},
    "own norm": {"grafted_norm": False},
    "by block": {"grafting_scope": "block"},
    "absolute damping": {"damping": "absolute", "epsilon": 1e-2},
    "full blocks": {"block_split": "full"},
    "vectors": {"precondition_vectors": True},
    "corrected vectors": SOAP | {"precondition_vectors": True, "beta2": 0.9},
    "phase": {"exchange_phase": 1, "precondition_frequency": 4},
    "early roots": {"first_exchange": 3, "start_preconditioning_step": 11},
    "initial statistics": {"initial_statistics": 0.2},
    "initial statistics that decay": {"initial_statistics": 0.2, "beta2": 0.8, "bias_correction": False},
    "initial statistics of diagonals": {
        "initial_statistics": 0.2,
        "large_dimensions": "diagonal",
        "max_dimension": 6,
        "beta2": 0.9,
    },
    "two averages": {"beta1": 0.8, "beta3": 0.4},
    "two averages, as they are": {"beta1": 0.8, "beta3": 0.4, "bias_correction": False},
    "separate momenta": {"separate_momenta": True, "momentum": 0.9, "start_preconditioning_step": 11},
    "separate momenta, decay, nesterov": {
        "separate_momenta": True,
        "momentum": 0.8,
        "nesterov": True,
        "weight_decay": 0.1,
        "first_exchange": 4,
        "start_preconditioning_step": 11,
        "blend_steps": 5,
    },
    "clipped": {"update_clipping": 0.5},
    "clipped, with separate momenta": {
        "update_clipping": 0.1,
        "separate_momenta": True,
        "momentum": 0.9,
        "start_preconditioning_step": 11,
    },
    "clipped and averaged": {"update_clipping": 0.1, "momentum": 0.9, "weight_decay": 0.1},
}


def gap(found, expected, start):
    """How far off the way is, relative to its length or a thousandth."""
    return max(
        np.linalg.norm(weight - other) / max(np.linalg.norm(other - begin), 1e-3)
        for weights, others in zip(found, expected, strict=True)
        for weight, other, begin in zip(weights, others, start, strict=True)
    )


def settings(case):
    return reference.options(**{"asynchronous": False, "start_preconditioning_step": 5} | CASES[case])


@pytest.fixture(scope="module")
def history():
    return reference.drifting(SHAPES, STEPS, condition=10.0)


@pytest.fixture(scope="module")
def base(history):
    plain = reference.options(asynchronous=False, start_preconditioning_step=5)
    return family.replay(plain, reference.initial(SHAPES), history, RATE)


@pytest.mark.slow(first=14)
@pytest.mark.parametrize("case", CASES)
def test_every_step_is_that_of_the_formulas(case, history, base):
    start = reference.initial(SHAPES)
    expected = family.replay(settings(case), start, history, RATE)
    assert gap(expected, base, start) > 1e-3
    core = reference.make_core(settings(case), start)
    found = reference.train(core, history, RATE)
    assert gap(found, expected, start) < TOLERANCE
    report = core.report()
    assert report["layers_ready"] == report["layers"] and not report["failed"]


GAPS = (
    "decayed moments",
    "SOAP",
    "KL-Shampoo",
    "decayed diagonals",
    "initial statistics that decay",
    "initial statistics of diagonals",
    "separate momenta, decay, nesterov",
    "coupled decay and momentum",
)


@pytest.mark.slow
@pytest.mark.parametrize("case", GAPS)
def test_what_has_no_gradient_in_a_step_stays_with_all_that_is_kept_of_it(case):
    start, history = reference.initial(SHAPES), reference.drifting(SHAPES, 20, condition=10.0)
    # Each has one at the first exchange; two miss later ones, and the last comes late.
    for t, gradients in enumerate(history, 1):
        for i in range(len(SHAPES)):
            if t != 5 and (t % 6 == i or t == 10 + i % 2 or (i == 4 and t < 5)):
                gradients[i] = None
    expected = family.replay(settings(case), start, history, RATE)
    assert gap(
        reference.train(reference.make_core(settings(case), start), history, RATE), expected, start
    ) < (TOLERANCE)


def test_both_replays_are_the_same_where_both_can(history, base):
    plain = reference.options(asynchronous=False, start_preconditioning_step=5)
    start = reference.initial(SHAPES)
    other = reference.replay(plain, start, history, RATE)[0]
    assert gap(base, other, start) < TOLERANCE


COMPILED = ["SOAP", "KL-Shampoo", "decayed diagonals", "vectors", "separate momenta, decay, nesterov", "LAMB"]


@pytest.mark.slow(first=4)
@pytest.mark.parametrize("case", COMPILED)
@pytest.mark.parametrize("xla", [False, True])
def test_in_a_graph_and_compiled_by_xla_they_take_the_same_steps(case, xla, history):
    start = reference.initial(SHAPES)
    # Between two steps roots come one step later: another trajectory, the same in either way of running.
    eager = reference.train(
        reference.make_core(settings(case), start), history, RATE, roots="between_steps" if xla else "host"
    )
    core = reference.make_core(settings(case), start)

    def step(gradients):
        core.update(gradients, tf.constant(RATE, tf.float64), roots="between_steps" if xla else "host")

    compiled = tf.function(step, jit_compile=xla or None)
    for gradients, weights in zip(history, eager, strict=True):
        compiled([tf.constant(gradient) for gradient in gradients])
        if xla:
            core.exchange()
        for weight, expected in zip(core.weights, weights, strict=True):
            np.testing.assert_allclose(weight.numpy(), expected, rtol=0, atol=1e-9)


@pytest.mark.slow(first=2)
@pytest.mark.parametrize("case", COMPILED)
def test_a_restart_in_between_changes_no_bit(case, history):
    # Without waiting, so that roots are in flight when the state is saved.
    changed = {"start_preconditioning_step": 5} | CASES[case]
    options = reference.options(**changed)
    start = reference.initial(SHAPES)
    whole = reference.make_core(options, start, tf.float32)
    reference.train(whole, history, RATE)
    for begin in (3, 6, 19):
        first = reference.make_core(options, start, tf.float32)
        reference.train(first, history[:begin], RATE)
        second = reference.make_core(options, start, tf.float32)
        reference.restore(second, reference.state_of(first))
        reference.train(second, history[begin:], RATE)
        reference.assert_same_bits(reference.state_of(second), reference.state_of(whole))


@pytest.mark.slow(first=2)
@pytest.mark.parametrize("case", COMPILED)
def test_weights_of_bfloat16_follow_those_of_float32(case, history):
    start = reference.initial(SHAPES)
    cores = [reference.make_core(settings(case), start, dtype) for dtype in (tf.bfloat16, tf.float32)]
    found = [reference.train(core, history[:10], RATE) for core in cores]
    assert {core.dtype for core in cores} == {tf.float32}
    for half, single in zip(found[0][-1], found[1][-1], strict=True):
        gap = np.abs(half.astype(np.float32) - single)
        assert gap.max() < 10 * 2**-8 * np.abs(single).max()
