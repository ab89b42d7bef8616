"""Settings that make no sense are refused with their name, their value and what is allowed."""

import dataclasses
import math

import numpy as np
import pytest

from ctr.optim.shampoo.options import ShampooOptions
from shampoo_options import options as flat_options

WHOLE = {
    "block_size": (1, 65536),
    "merge_until": (1, 100),
    "max_dimension": (1, 65536),
    "merge_dimensions": (1, 2**31),
    "exponent_override": (1, 64),
    "start_preconditioning_step": (0, 2**62),
    "blend_steps": (0, 2**62),
    "statistics_frequency": (1, 100_000),
    "precondition_frequency": (1, 100_000),
    "first_exchange": (0, 2**62),
    "exchange_phase": (0, 99_999),
}
OPTIONAL = (
    "merge_dimensions",
    "exponent_override",
    "start_preconditioning_step",
    "first_exchange",
    "exchange_phase",
)
# What another option must be for a value to be allowed.
WITH = {
    "first_exchange": {"start_preconditioning_step": None},
    "exchange_phase": {"early_growth": 0, "precondition_frequency": 100_000},
    "beta3": {"beta1": 0.5},
    "basis_change": {"eigenvalue_correction": True},
}
# Allowed, refused and the interval as it is reported.
REAL = {
    "beta1": ([0, 0.5, 0.999], [-0.1, 1, 1.5], "[0.0, 1.0)"),
    "beta2": ([1e-9, 1, 1.0], [0, 0.0, -1, 1.1], "(0.0, 1.0]"),
    "epsilon": ([1e-14, 1], [0.0, 9e-15, 1.1], "[1e-14, 1.0]"),
    "exponent_multiplier": ([1e-3, 1.82], [0, 4.1, -1.0], "(0.0, 4.0]"),
    "drift_bound": ([0, 1], [-1e-9, 1.1], "[0.0, 1.0]"),
    "early_growth": ([0, 1], [-1e-9, 1.1], "[0.0, 1.0]"),
    "grafting_beta2": ([0, 0.999], [-0.1, 1.0], "[0.0, 1.0)"),
    "grafting_epsilon": ([0, 3.0], [-1e-9, math.inf], "[0.0, inf)"),
    "initial_accumulator": ([0, 3.0], [-1e-9, math.inf], "[0.0, inf)"),
    "momentum": ([0, 0.9], [-0.1, 1.0], "[0.0, 1.0)"),
    "beta3": ([0, 1], [-0.1, 1.1], "[0.0, 1.0] or None"),
    "initial_statistics": ([0, 3.0], [-1e-9, math.inf], "[0.0, inf)"),
    "left_share": ([0, 1], [-1e-9, 1.1], "[0.0, 1.0]"),
    "adagrad_epsilon": ([0, 3.0], [-1e-9, math.inf], "[0.0, inf)"),
    "update_clipping": ([0, 3.0], [-1e-9, math.inf], "[0.0, inf)"),
    "weight_decay": ([0, 7.0], [-0.1, math.inf], "[0.0, inf)"),
    "update_limit_relative": ([0, 0.0], [-0.1, math.inf], "[0.0, inf)"),
    "update_limit_absolute": ([0, 1e-7, 3.0], [-1e-9, math.inf], "[0.0, inf)"),
}
CHOICES = {
    "solver": ("auto", "eigh", "coupled"),
    "grafting": ("adagrad", "sgd", "rmsprop", "adam", "lars", "lamb", "sign"),
    "block_split": ("balanced", "full"),
    "large_dimensions": ("none", "diagonal", "skip"),
    "merge_order": ("left", "right"),
    "dimensions_of_one": ("drop", "keep"),
    "factor_update": ("shampoo", "kl", "kl_undivided"),
    "basis_change": ("project", "keep"),
    "damping": ("relative", "absolute"),
    "grafting_scope": ("tensor", "block"),
    "weight_decay_kind": ("decoupled", "coupled"),
    "sparse": ("adagrad", "adagrad_row", "one_sided"),
}

SWITCHES = (
    "asynchronous",
    "nesterov",
    "precondition_vectors",
    "bias_correction",
    "eigenvalue_correction",
    "grafted_norm",
    "graft_rows",
    "separate_momenta",
)


def refusal(name, value):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        flat_options(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"{name} is {value!r}; allowed: "), message
    return message.partition("allowed: ")[2]


def test_every_setting_is_looked_at_here():
    assert set(WHOLE) | set(REAL) | set(CHOICES) | set(SWITCHES) == set(ShampooOptions.names())


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_in_their_range(name):
    low, high = WHOLE[name]
    for value in (low, high):
        assert getattr(flat_options(**{name: value} | WITH.get(name, {})), name) == value
    bad = [low - 1, high + 1, float(high), "7", True, math.nan]
    if name in OPTIONAL:
        assert getattr(flat_options(**{name: None}), name) is None
    else:
        bad.append(None)
    for value in bad:
        allowed = f"a whole number in {low}..{high}" + (" or None" if name in OPTIONAL else "")
        assert refusal(name, value) == allowed


@pytest.mark.parametrize("name", REAL)
def test_real_numbers_in_their_interval(name):
    good, bad, interval = REAL[name]
    for value in good:
        assert getattr(flat_options(**{name: value} | WITH.get(name, {})), name) == value
    nothing = () if interval.endswith("None") else (None,)
    for value in [*bad, math.nan, -math.inf, True, *nothing, "0.5"]:
        assert refusal(name, value) == interval


@pytest.mark.parametrize("name", CHOICES)
def test_words_from_their_list(name):
    for value in CHOICES[name]:
        assert getattr(flat_options(**{name: value} | WITH.get(name, {})), name) == value
    for value in ("", "Adagrad", None, 1):
        assert refusal(name, value) == ", ".join(CHOICES[name])


@pytest.mark.parametrize("name", SWITCHES)
def test_switches_take_true_and_false_alone(name):
    for value in (0, 1, None, "yes", np.True_):
        assert refusal(name, value) == "True, False"
    assert getattr(flat_options(**{"momentum": 0.9, name: True}), name) is True


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"nesterov": True}, "nesterov requires a momentum above 0"),
        ({"separate_momenta": True}, "separate_momenta requires a momentum above 0"),
        ({"beta3": 0.5}, "beta3 requires a beta1 above 0"),
        ({"exchange_phase": 1}, "exchange_phase requires early_growth 0"),
        ({"exchange_phase": 50, "early_growth": 0}, "exchange_phase must be below precondition_frequency"),
        ({"first_exchange": 2}, "first_exchange must not be after start_preconditioning_step"),
        ({"solver": "coupled", "eigenvalue_correction": True}, "solver coupled computes roots"),
        ({"factor_update": "kl", "eigenvalue_correction": True}, "exclude each other"),
        (
            {"factor_update": "kl", "beta2": 0.9, "large_dimensions": "diagonal"},
            "kl requires that no dimension",
        ),
        (
            {"eigenvalue_correction": True, "large_dimensions": "diagonal"},
            "eigenvalue_correction and large_dimensions diagonal exclude each other",
        ),
        ({"eigenvalue_correction": True, "left_share": 0.25}, "allowed: left_share 0, 0.5 or 1"),
        ({"large_dimensions": "diagonal", "left_share": 1.0}, "diagonal requires a left_share above 0"),
        ({"basis_change": "keep"}, "basis_change keep requires eigenvalue_correction"),
        ({"grafting_scope": "block", "grafted_norm": False}, "grafting_scope block requires grafted_norm"),
        ({"left_share": 0.75, "exponent_override": 1}, "left_share is 0.75.*exponents of at most 1"),
    ],
)
def test_options_that_do_not_go_together_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        flat_options(**changed)


def test_two_sides_share_the_sum_of_their_exponents():
    options = flat_options(left_share=0.25)
    assert [options.side_exponent(axis, 2, 2) for axis in (0, 1)] == [1 / 8, 3 / 8]
    # A single side, and tensors of another order, have the exponents of all.
    assert options.side_exponent(0, 1, 2) == 1 / 2
    assert options.side_exponent(1, 3, 3) == 1 / 6
    assert not options.has_integer_root
    assert flat_options(left_share=1.0).has_integer_root


def test_the_coupled_solver_is_refused_for_roots_that_it_cannot_compute():
    with pytest.raises(ValueError, match=r"exponent_multiplier 1\.82.*allowed: solver auto or eigh"):
        flat_options(solver="coupled", exponent_multiplier=1.82)
    assert flat_options(solver="coupled", exponent_override=3).exponent(2) == 1 / 3


@pytest.mark.parametrize(
    ("changed", "exponents"),
    [
        ({}, [1 / 2, 1 / 4, 1 / 6, 1 / 8]),
        ({"exponent_override": 2}, [1 / 2, 1 / 2, 1 / 2, 1 / 2]),
        ({"exponent_multiplier": 1.5}, [3 / 4, 3 / 8, 1 / 4, 3 / 16]),
        ({"exponent_override": 3, "exponent_multiplier": 0.75}, [1 / 4] * 4),
    ],
)
def test_exponents_by_number_of_preconditioned_sides(changed, exponents):
    options = flat_options(**changed)
    assert [options.exponent(sides) for sides in (1, 2, 3, 4)] == pytest.approx(exponents, rel=1e-15)


def test_an_exponent_above_one_has_no_certified_root_and_is_refused():
    with pytest.raises(ValueError, match=r"exponent_multiplier.*3\.0.*exponent_override.*2.*at most 1"):
        flat_options(exponent_override=2, exponent_multiplier=3.0)
    options = flat_options(exponent_multiplier=3.0)
    assert options.exponent(2) == 0.75
    with pytest.raises(ValueError, match=r"exponent_multiplier.*3\.0.*at most 1"):
        options.exponent(1)


def test_settings_do_not_change_once_made():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ShampooOptions().epsilon = 0.0


def test_square_roots_are_the_default_of_kl_shampoo():
    assert flat_options(factor_update="kl").exponent(2) == flat_options(factor_update="kl").exponent(3) == 0.5
    assert flat_options(factor_update="kl", exponent_override=4).exponent(2) == 0.25
    assert flat_options(factor_update="kl_undivided").exponent(2) == 0.25
